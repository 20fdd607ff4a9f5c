"""The server without its network: store, writer, worker and listeners, and the requests they answer."""

import logging
import secrets
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from surgicalmamba.data.records import parse_fps
from surgicalmamba.devices import resident
from surgicalmamba.engines.engine import Engine
from surgicalmamba.errors import DataError, SessionError, SurgicalMambaError
from surgicalmamba.files import make_folder, write_atomic
from surgicalmamba.live.estimate import ServedEstimate
from surgicalmamba.live.session import SessionPool
from surgicalmamba.server.config import ServeConfig
from surgicalmamba.server.metrics import Metrics
from surgicalmamba.server.record import Change, Ending, SessionInfo, Store, Stored, WhenBehind, Writer
from surgicalmamba.server.rooms import FixedLanes, Hub, Room
from surgicalmamba.server.sources import SourceReader, find_source
from surgicalmamba.server.wire import Estimated, FrameMessage, Message, Progress, pack, to_json
from surgicalmamba.server.worker import Worker

log = logging.getLogger("surgicalmamba.server")
_HOUSEKEEPING_S = 60.0


class Pusher(Protocol):
    """A connection that pushes the frames of a session."""

    def replace(self) -> None:
        """Close it: another connection pushes the session now."""


class Service:
    """Owns everything between start and stop."""

    def __init__(
        self, config: ServeConfig, engine: Engine, model_name: str, demo_model_is_trained: bool | None = None
    ) -> None:
        self.config, self.model_name, self.demo_model_is_trained = config, model_name, demo_model_is_trained
        self.engine = FixedLanes(engine, config.lanes) if config.lanes else engine
        model = engine.config
        self.phases = model.phases or tuple(str(phase) for phase in range(model.n_phases))
        self.metrics, self.hub, self.store = Metrics(), Hub(), Store(config.data)
        self.writer = Writer(self.store, config.commit_ms / 1e3, self._on_written)
        pool = SessionPool(self.engine, capacity=config.limits.sessions, queue_len=1)
        snapshot_rows = config.snapshot_frames or model.snapshot_frames
        self.worker = Worker(pool, snapshot_rows, self.writer.add, self._publish, self.metrics)
        self.pushers: dict[str, Pusher] = {}
        """The connection that pushes each session; used on the event loop only."""
        self._readers: dict[str, SourceReader] = {}
        self._create_lock = threading.Lock()
        self._end = threading.Event()
        self._housekeeper = threading.Thread(target=self._keep_house, name="housekeeper", daemon=True)
        self.is_ready = False

    @property
    def state(self) -> Literal["ok", "degraded"]:
        """Degraded while the database cannot be written."""
        return "ok" if self.writer.failure is None else "degraded"

    def start(self) -> None:
        """Resume the sessions that were open, then start the threads."""
        for past in self.store.unfinished():
            key = past.info.id
            try:
                if past.info.model != self.engine.fingerprint:
                    raise SessionError("the server runs another model now")
                room = self.worker.resume(past, self.config.limits.queue_frames)
            except SurgicalMambaError as error:
                log.warning("session cannot be resumed", extra={"session": key, "reason": str(error)})
                note = f"could not be resumed after a restart: {error}"
                ending = Ending(time.time(), note, past.n_rows, past.n_dropped, past.segments)
                self.writer.add(Change(key, ending=ending))
                continue
            log.info("session resumed", extra={"session": key, "next_frame": room.next_index})
            self._read_source(room)
        self.writer.start()
        self.worker.start()
        self._housekeeper.start()
        self.is_ready = True

    def stop(self) -> None:
        """Process the queues, save snapshots, write everything."""
        self.is_ready = False
        self._end.set()
        for reader in self._readers.values():
            reader.stop()
        self.worker.stop(timeout_s=30)
        if not self.writer.stop(timeout_s=10):
            reason = self.writer.failure or "timeout"
            log.error("the last estimates could not be written", extra={"reason": reason})
        self.store.close()

    def create(
        self,
        name: str,
        fps: float | None,
        when_behind: WhenBehind,
        metadata: Mapping[str, str],
        source: str | None = None,
    ) -> Room:
        """Start a session. It is in the database when this returns, unless the state is degraded. Raises
        SessionError when there are as many sessions as the limit allows."""
        rate = self.engine.config.preprocess.rate if fps is None else parse_fps(str(fps))
        key, model = secrets.token_hex(8), self.engine.fingerprint
        info = SessionInfo(
            key, name, time.time(), str(rate), self.phases, model, when_behind, source, dict(metadata)
        )
        with self._create_lock:
            room = self.worker.open(info, self.config.limits.queue_frames)
        self.writer.flush(1.0)
        log.info("session created", extra={"session": key, "source": source})
        self._read_source(room)
        self.announce(room)
        return room

    def _read_source(self, room: Room) -> None:
        """Start reading the source of a session that has one."""
        info = room.info
        if info.source is None:
            return
        try:
            found = find_source(info, self.config, self.engine.config.preprocess)
        except SurgicalMambaError as error:
            log.warning("source cannot be read", extra={"session": info.id, "reason": str(error)})
            self.worker.finish(room, "the source cannot be read; see the server's log")
            return
        self._readers[info.id] = SourceReader(self.worker, room, found)
        self._readers[info.id].start()

    def rows(self, session: str, after: int = -1, limit: int = -1) -> list[ServedEstimate]:
        """Estimates of a session after a row, in the database or about to be written."""
        pending = self.writer.pending()  # read first: what is written meanwhile is then in both
        changes = [change for change in pending if change.session == session]
        found = {row.row: row for change in changes for row in change.rows if row.row > after}
        found |= {row.row: row for row in self.store.rows(session, after, limit)}
        ordered = [found[key] for key in sorted(found)]
        return ordered if limit < 0 else ordered[:limit]

    def session(self, session: str) -> Stored | None:
        """A session without a room, in the database or about to be written."""
        pending = self.writer.pending()
        stored = self.store.session(session)
        for change in pending:
            if change.session == session:
                stored = change.on(stored)
        return stored

    def finished(self, limit: int, before_s: float | None) -> list[Stored]:
        """Finished sessions, in the database or about to be written, newest first, created before a time."""
        ending = {change.session for change in self.writer.pending() if change.ending is not None}
        late = [stored for stored in map(self.session, ending) if stored is not None]
        found = {stored.info.id: stored for stored in (*late, *self.store.finished(limit, before_s))}
        chosen = [one for one in found.values() if before_s is None or one.info.created_s < before_s]
        return sorted(chosen, key=lambda stored: stored.info.created_s, reverse=True)[:limit]

    def delete(self, session: str) -> None:
        """Remove a session, its record and its pictures."""
        room = self.worker.rooms.get(session)
        if room is not None:
            self.worker.close(room)
        if session in self._readers:
            self._readers.pop(session).stop()
        self.writer.add(Change(session, deleted=True))
        self.writer.flush(1.0)
        shutil.rmtree(self._pictures_of(session), ignore_errors=True)
        self.hub.send(session, pack(type="deleted", session=session), "viewers")

    def _pictures_of(self, session: str) -> Path:
        return self.config.data / "pictures" / session

    def keep_picture(self, session: str, frame: FrameMessage) -> None:
        """Store a picture (setting `keep_images`). A full disk loses the picture, not the estimate."""
        folder = self._pictures_of(session)
        try:
            make_folder(folder)
            suffix = "jpg" if frame.kind == "jpeg" else "png"
            write_atomic(folder / f"{frame.index:08d}.{suffix}", frame.data)
        except DataError as error:
            about = {"session": session, "frame": frame.index, "reason": str(error)}
            log.warning("picture not stored", extra=about)

    def announce(self, room: Room) -> None:
        """Notify viewers of a new room or a change of its life."""
        text = pack(type="room", session=room.info.id, life=room.life.value)
        self.hub.send(room.info.id, text, "viewers")

    def text_of(self, room: Room, message: Message) -> str:
        """A message of a room as it is sent."""
        return to_json(message, room.marks, self.state, room.n_dropped)

    def _publish(self, room: Room, message: Message) -> None:
        is_old = isinstance(message, Progress) or (isinstance(message, Estimated) and message.replayed)
        self.hub.send(room.info.id, self.text_of(room, message), "clients" if is_old else "all")

    def _on_written(self, group: Sequence[Change]) -> None:
        """A group is in the database; clients may delete frames before the snapshot."""
        for change in group:
            room = self.worker.rooms.get(change.session)
            if room is None:
                continue
            with room.lock:
                room.durable = max(room.durable, -1 if change.durable is None else change.durable)
                if change.snapshot is not None:
                    room.keep_from = change.snapshot.frame + 1
            self._publish(room, Progress(change.session))

    def _keep_house(self) -> None:
        while not self._end.wait(_HOUSEKEEPING_S if self.is_ready else 1.0):
            try:
                self.tidy(time.time())
            except Exception:  # it is retried in a minute and must not end the server
                log.exception("housekeeping failed")

    def tidy(self, now_s: float) -> None:
        """Delete what is older than the retention setting, finish what was abandoned."""
        if self.config.retention_days is not None:
            for session in self.store.expired(now_s - self.config.retention_days * 86400):
                log.info("session deleted by retention", extra={"session": session})
                self.delete(session)
        for room in list(self.worker.rooms.values()):
            if now_s - room.last_seen_s > self.config.abandon_h * 3600:
                self.worker.finish(room, "abandoned: no frames were received")

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Name -> help and present value, for /metrics."""
        rooms, memory, writer = list(self.worker.rooms.values()), resident(), self.writer
        return {
            "streams": ("Sessions that are not finished.", len(rooms)),
            "queue_frames": ("Frames that wait for the recognizer.", sum(len(room.queue) for room in rooms)),
            "viewers": ("Connections that listen.", len(self.hub)),
            "degraded": ("1 while the record cannot be written.", float(self.state != "ok")),
            "waiting_rows": ("Estimates not in the database yet.", writer.waiting_rows),
            "commits": ("Groups written to the database.", writer.commits),
            "commit_failures": ("Groups that could not be written at first.", writer.failures),
            "peak_memory_bytes": ("The most memory the process ever held.", memory.peak),
            "memory_bytes": ("Memory the process holds now.", memory.now),
        }
