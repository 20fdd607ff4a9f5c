"""The one thread that runs the model: it takes a frame of every room that has one, advances all of them in
one tick, and passes the results on."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from surgicalmamba.errors import SurgicalMambaError
from surgicalmamba.live.estimate import PhaseEstimate, ServedEstimate
from surgicalmamba.live.session import SessionPool
from surgicalmamba.server.metrics import Metrics
from surgicalmamba.server.record import Change, Ending, SessionInfo, Snapshot, Unfinished
from surgicalmamba.server.rooms import Entry, Life, Room
from surgicalmamba.server.wire import Estimated, Finished, Message, Progress, Reason, Refused

log = logging.getLogger("surgicalmamba.server")
Publish = Callable[[Room, Message], None]


class Worker:
    """Owns the rooms, by session id, and the thread. `record` takes changes for the database, `publish`
    messages for the listeners; both are called from this thread and must return quickly."""

    def __init__(
        self,
        pool: SessionPool,
        snapshot_rows: int,
        record: Callable[[Change], None],
        publish: Publish,
        metrics: Metrics,
    ) -> None:
        self._pool, self._snapshot_rows, self._metrics = pool, snapshot_rows, metrics
        self._record, self._publish = record, publish
        self.rooms: dict[str, Room] = {}
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._messages: list[tuple[Room, Message]] = []

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Process the queues, save a snapshot of every room, end the thread."""
        self._is_stopping = True
        self.wake()
        self._thread.join(timeout_s)

    def wake(self) -> None:
        """A room has frames or is to be finished."""
        self._wake.set()

    def open(self, info: SessionInfo, queue_frames: int) -> Room:
        """Start a session."""
        with self._lock:
            self._pool.open(info.id, info.fps)
            room = self.rooms[info.id] = Room(info, queue_frames, last_seen_s=time.time())
        self._record(Change(info.id, created=info))
        return room

    def resume(self, past: Unfinished, queue_frames: int) -> Room:
        """Continue a session from its record."""
        with self._lock:
            if past.snapshot is None:
                self._pool.open(past.info.id, past.info.fps)
            else:
                self._pool.open(past.info.id, snapshot=past.snapshot.blob)
            room = self.rooms[past.info.id] = Room.resume(past, queue_frames)
            room.last_seen_s = time.time()
        return room

    def finish(self, room: Room, note: str = "") -> None:
        """Accept no more frames; end the session once its queue is empty."""
        with room.lock:
            if room.is_open:
                room.life, room.note = Life.FINISHING, note
        self.wake()

    def skip(self, room: Room) -> None:
        """See Room.skip. The snapshot is saved at once: later rows depend on it."""
        with room.lock:
            room.skip()
            self._record(Change(room.info.id, snapshot=self._snapshot(room)))

    def close(self, room: Room) -> None:
        """Remove a session at once, with its queue."""
        with self._lock:
            if self.rooms.pop(room.info.id, None) is not None:
                self._pool.close(room.info.id)
        room.life = Life.FINISHED

    def _run(self) -> None:
        while True:
            self._wake.wait(0.5)
            self._wake.clear()
            while self._turn():
                pass
            if self._is_stopping:
                self._save_snapshots()
                return

    def _turn(self) -> bool:
        """One frame of every room that has one. False when there was nothing to do."""
        with self._lock:
            rooms = list(self.rooms.values())
        busy = [room for room in rooms if self._load(room)]
        if busy:
            self._tick(busy)
        for room in rooms:
            if room.life is Life.FINISHING and room.is_idle:
                self._end(room)
                busy.append(room)
        messages, self._messages = self._messages, []
        for room, message in messages:
            self._publish(room, message)
        return bool(busy)

    def _load(self, room: Room) -> bool:
        """Pass the room's next frame to the pool. True when a tick has work for it."""
        if room.current is not None:
            return True
        while (entry := room.start_next()) is not None:
            try:
                if entry.is_dropped:
                    self._pool.push_late(room.info.id, entry.time_s)
                elif self._pool.push(room.info.id, entry.rgb, entry.time_s):
                    return True
            except SurgicalMambaError as error:
                self._fail(room, entry, error)
            self._complete(room, may_snapshot=False)
        return False

    def _tick(self, busy: Sequence[Room]) -> None:
        start = time.perf_counter()
        tick = self._pool.tick()
        self._metrics.tick_s.observe(time.perf_counter() - start)
        for room in busy:
            key, entry = room.info.id, room.current
            if entry is None or key not in self.rooms:
                continue
            if key in tick.errors:
                self._fail(room, entry, tick.errors[key])
            if key in tick.estimates:
                self._add(room, entry, tick.estimates[key])
            if not self._pool.is_busy(key):
                self._complete(room, may_snapshot=key not in tick.errors)

    def _add(self, room: Room, entry: Entry, made: PhaseEstimate) -> None:
        estimate = ServedEstimate.of(made, row=made.frame_index + room.row_offset, frame=entry.index)
        latency_s = time.time() - entry.received_s
        outcome = room.add(estimate)
        if outcome == "new":
            self._record(Change(room.info.id, rows=(estimate,)))
            room.latency_ms.append(1e3 * latency_s)
            self._metrics.latency_s.observe(latency_s)
        elif outcome == "differs":
            about = {"session": room.info.id, "row": estimate.row}
            log.warning("estimate differs from the record, which is kept", extra=about)
            self._metrics.differed.add()
        self._metrics.estimates.add()
        message = Estimated(room.info.id, estimate, round(1e3 * latency_s, 2), replayed=outcome != "new")
        self._messages.append((room, message))

    def _complete(self, room: Room, may_snapshot: bool) -> None:
        """The current frame is done: record it, with a snapshot of the model's state once per chunk."""
        entry, snapshot = room.complete(), None
        if may_snapshot and room.n_rows - room.snapshot_rows >= self._snapshot_rows and not room.recorded:
            snapshot = self._snapshot(room)
        drops = (entry.index,) if entry.is_dropped else ()
        self._metrics.dropped.add(len(drops))
        self._record(Change(room.info.id, drops=drops, durable=entry.index, snapshot=snapshot))
        if not any(other is room and isinstance(message, Estimated) for other, message in self._messages):
            self._messages.append((room, Progress(room.info.id)))  # an estimate would carry the same marks

    def _snapshot(self, room: Room) -> Snapshot:
        room.snapshot_rows = room.n_rows
        return Snapshot(room.acknowledged, room.n_rows, room.row_offset, self._pool.snapshot(room.info.id))

    def _save_snapshots(self) -> None:
        """Before the server ends: the next one resumes without frames being sent again."""
        with self._lock:
            for room in self.rooms.values():
                if room.acknowledged >= 0 and not room.recorded:
                    self._record(Change(room.info.id, snapshot=self._snapshot(room)))

    def _fail(self, room: Room, entry: Entry, error: Exception) -> None:
        key, reason = room.info.id, Reason.RECOGNIZER.value
        self._metrics.refused.add(reason=reason)
        about = {"session": key, "frame": entry.index, "reason": str(error)}
        log.error("recognizer failed on a frame", extra=about)
        text = f"the recognizer failed on this frame: {error}"
        self._messages.append((room, Refused(key, entry.index, reason, text)))

    def _end(self, room: Room) -> None:
        key, n_rows, dropped = room.info.id, room.n_rows, room.n_dropped
        ending = Ending(time.time(), room.note, n_rows, dropped, tuple(room.segments))
        self._record(Change(key, ending=ending))
        self.close(room)
        self._messages.append((room, Finished(key, n_rows, room.note)))
        log.info("session finished", extra={"session": key, "rows": n_rows, "dropped": dropped})
