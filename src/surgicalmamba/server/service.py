"""The server without its network: store, writer, recognizer, listeners, and what can be asked of them."""

import json
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Protocol

from surgicalmamba.data.records import parse_fps
from surgicalmamba.devices import resident
from surgicalmamba.engines.engine import Engine
from surgicalmamba.errors import SessionError, SurgicalMambaError
from surgicalmamba.live.session import SessionPool
from surgicalmamba.model.recognizer import RecognizerConfig
from surgicalmamba.model.surgical_mamba import ModelConfig
from surgicalmamba.server.config import ServeConfig
from surgicalmamba.server.metrics import Metrics
from surgicalmamba.server.record import Change, Ending, Row, SessionInfo, Store, Stored, WhenBehind, Writer
from surgicalmamba.server.rooms import FixedLanes, Hub, News, Room
from surgicalmamba.server.sources import SourceReader, open_source
from surgicalmamba.server.wire import VERSION, EstimateMessage, Message, Progress, to_json
from surgicalmamba.server.worker import Recognizer

log = logging.getLogger("surgicalmamba.server")
_HOUSEKEEPING_S = 60.0
_SNAPSHOT_FRAMES = 64


def _snapshot_frames(config: RecognizerConfig) -> int:
    """Frames between two snapshots: the slow path's chunk, or a minute or so for a network that has none."""
    return config.block.slow.chunk_len if isinstance(config, ModelConfig) else _SNAPSHOT_FRAMES


class Pusher(Protocol):
    """A connection that pushes a session."""

    def replace(self) -> None:
        """Another connection has the session now."""


class Service:
    """Owns everything between start and stop."""

    def __init__(self, config: ServeConfig, engine: Engine, model_name: str, demo_model_is_trained: bool | None = None) -> None:
        self.config, self.model_name, self.demo_model_is_trained = config, model_name, demo_model_is_trained
        self.engine = FixedLanes(engine, config.lanes) if config.lanes else engine
        self.metrics, self.hub, self.store = Metrics(), Hub(), Store(config.data)
        self.writer = Writer(self.store, config.commit_ms / 1e3, self._on_written)
        pool = SessionPool(self.engine, capacity=config.limits.sessions, queue_len=2)
        every = config.snapshot_frames or _snapshot_frames(engine.config)
        self.recognizer = Recognizer(pool, every, self.writer.add, self._tell, self.metrics)
        self.pushers: dict[str, Pusher] = {}
        """The connection that has each session; touched on the event loop only."""
        self._readers: dict[str, SourceReader] = {}
        self._create_lock = threading.Lock()
        self._end = threading.Event()
        self._housekeeper = threading.Thread(target=self._keep_house, name="housekeeper", daemon=True)
        self.is_ready = False

    @property
    def phases(self) -> tuple[str, ...]:
        names = self.engine.config.phases
        return names if names is not None else tuple(str(i) for i in range(self.engine.config.n_phases))

    @property
    def state(self) -> str:
        return "ok" if self.writer.failure is None else "degraded"

    def start(self) -> None:
        """Pick up the sessions that were going on, then begin to work."""
        for past in self.store.unfinished():
            try:
                if past.info.model != self.engine.fingerprint:
                    raise SessionError("the server runs another model now")
                room = self.recognizer.resume(past, self.config.limits.queue_frames)
            except SurgicalMambaError as error:
                log.warning("session cannot go on", extra={"session": past.info.id, "reason": str(error)})
                n_rows = (past.snapshot.rows if past.snapshot else 0) + len(past.later_rows)
                ending = Ending(time.time(), f"could not go on after a restart: {error}", n_rows, past.n_dropped, past.segments)
                self.writer.add(Change(past.info.id, ending=ending))
                continue
            log.info("session goes on", extra={"session": past.info.id, "next_frame": room.next_index})
            if past.info.source is not None:
                self._read_source(room)
        self.writer.start()
        self.recognizer.start()
        self._housekeeper.start()
        self.is_ready = True

    def stop(self) -> None:
        """Drain, freeze, write."""
        self.is_ready = False
        self._end.set()
        for reader in self._readers.values():
            reader.stop()
        self.recognizer.stop(timeout_s=30)
        if not self.writer.stop(timeout_s=10):
            log.error("the last estimates could not be written", extra={"reason": self.writer.failure or "timeout"})
        self.store.close()

    def create(self, name: str, fps: float | None, when_behind: WhenBehind, metadata: Mapping[str, str], source: str | None = None) -> Room:
        """Begin a session; it is on record when this returns, unless the state is degraded. Raises SessionError when all places are
        taken."""
        rate: Fraction = self.engine.config.preprocess.rate if fps is None else parse_fps(str(fps))
        info = SessionInfo(
            secrets.token_hex(8), name, time.time(), str(rate), self.phases, self.engine.fingerprint, when_behind, source, dict(metadata)
        )
        with self._create_lock:
            room = self.recognizer.open(info, self.config.limits.queue_frames)
        self.writer.flush(1.0)
        log.info("session created", extra={"session": info.id, "source": source})
        if source is not None:
            self._read_source(room)
        self.announce(room)
        return room

    def _read_source(self, room: Room) -> None:
        assert room.info.source is not None
        try:
            preprocess = self.engine.config.preprocess
            pictures = open_source(room.info.source, self.config, preprocess, Fraction(room.info.fps), room.info.created_s)
        except SurgicalMambaError as error:
            log.warning("source cannot be read", extra={"session": room.info.id, "reason": str(error)})
            self.recognizer.finish(room, "the source cannot be read; the server's log says why")
            return
        reader = SourceReader(self.recognizer, room, pictures)
        self._readers[room.info.id] = reader
        reader.start()

    def rows(self, session: str, after: int, limit: int) -> list[Row]:
        """Estimates of a session beyond a row, on record or about to be."""
        pending = self.writer.pending()  # before the database: what is written in between is then in both
        found = {row.row: row for change in pending if change.session == session for row in change.rows if row.row > after}
        found |= {row.row: row for row in self.store.rows(session, after, limit)}
        ordered = [found[key] for key in sorted(found)]
        return ordered if limit < 0 else ordered[:limit]

    def session(self, session: str) -> Stored | None:
        """A session that has no room, on record or about to be: its end is known here as soon as the room is gone."""
        pending = self.writer.pending()
        stored = self.store.session(session)
        for change in pending:
            if change.session == session:
                stored = change.on(stored)
        return stored

    def finished(self, limit: int, before_s: float | None) -> list[Stored]:
        """Finished sessions, on record or about to be, newest first, created before a moment."""
        ending = {change.session for change in self.writer.pending() if change.ending is not None}
        late = [stored for key in ending if (stored := self.session(key)) and (before_s is None or stored.info.created_s < before_s)]
        found = {stored.info.id: stored for stored in (*late, *self.store.finished(limit, before_s))}
        return sorted(found.values(), key=lambda stored: stored.info.created_s, reverse=True)[:limit]

    def delete(self, session: str) -> None:
        """Forget a session, its record and its pictures."""
        room = self.recognizer.rooms.get(session)
        if room is not None:
            self.recognizer.drop(room)
        if session in self._readers:
            self._readers.pop(session).stop()
        self.writer.add(Change(session, deleted=True))
        self.writer.flush(1.0)
        shutil.rmtree(self._pictures_of(session), ignore_errors=True)
        self.hub.send([News(session, json.dumps({"v": VERSION, "type": "deleted", "session": session}), "viewers")])

    def _pictures_of(self, session: str) -> Path:
        return self.config.data / "pictures" / session

    def keep_picture(self, session: str, index: int, kind: str, data: bytes) -> None:
        """Store a picture, where the settings ask for it. A full disk costs the picture, not the estimate."""
        folder = self._pictures_of(session)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f".{index:08d}.partial"
            draft.write_bytes(data)
            draft.replace(folder / f"{index:08d}.{'jpg' if kind == 'jpeg' else 'png'}")
        except OSError as error:
            log.warning("picture not stored", extra={"session": session, "frame": index, "reason": str(error)})

    def announce(self, room: Room) -> None:
        """Tell viewers that a room is new or changed its life."""
        text = json.dumps({"v": VERSION, "type": "room", "session": room.info.id, "life": room.life.value})
        self.hub.send([News(room.info.id, text, "viewers")])

    def _tell(self, messages: list[tuple[Room, Message]]) -> None:
        news = []
        for room, message in messages:
            is_old = isinstance(message, Progress) or (isinstance(message, EstimateMessage) and message.replayed)
            text = to_json(message, room.marks, self.state, room.counters.dropped)
            news.append(News(room.info.id, text, "clients" if is_old else "all"))
        self.hub.send(news)

    def _on_written(self, group: Sequence[Change]) -> None:
        """What is in the database now; clients may forget frames before the snapshot."""
        told: list[tuple[Room, Message]] = []
        for change in group:
            room = self.recognizer.rooms.get(change.session)
            if room is None:
                continue
            with room.lock:
                room.durable = max(room.durable, -1 if change.durable is None else change.durable)
                if change.snapshot is not None:
                    room.keep_from = change.snapshot.frame + 1
            told.append((room, Progress(change.session)))
        self._tell(told)

    def _keep_house(self) -> None:
        """Retention, and sessions that nobody feeds any more."""
        while not self._end.wait(_HOUSEKEEPING_S if self.is_ready else 1.0):
            try:
                self.tidy(time.time())
            except Exception:  # housekeeping comes again in a minute; it must not end the server
                log.exception("housekeeping failed")

    def tidy(self, now_s: float) -> None:
        """Delete what is older than the retention setting, finish what was abandoned."""
        if self.config.retention_days is not None:
            for session in self.store.expired(now_s - self.config.retention_days * 86400):
                log.info("session deleted by retention", extra={"session": session})
                self.delete(session)
        for room in list(self.recognizer.rooms.values()):
            if now_s - room.last_seen_s > self.config.abandon_h * 3600:
                self.recognizer.finish(room, "abandoned: no frames came")

    def gauges(self) -> dict[str, tuple[str, float]]:
        rooms, held = list(self.recognizer.rooms.values()), resident()
        return {
            "streams": ("Sessions that are not finished.", len(rooms)),
            "queue_frames": ("Frames that wait for the recognizer.", sum(len(room.queue) for room in rooms)),
            "viewers": ("Connections that listen.", len(self.hub)),
            "degraded": ("1 while the record cannot be written.", float(self.state != "ok")),
            "waiting_rows": ("Estimates not in the database yet.", self.writer.waiting_rows),
            "commits": ("Groups written to the database.", self.writer.commits),
            "commit_failures": ("Groups that could not be written at first.", self.writer.failures),
            "peak_memory_bytes": ("The most memory the process ever held.", held.peak),
            "memory_bytes": ("Memory the process holds now.", held.now),
        }
