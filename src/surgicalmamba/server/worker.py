"""The one thread that owns the pool: takes a frame of every room that has one, advances all in one tick, and tells what came of it."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from surgicalmamba.errors import SurgicalMambaError
from surgicalmamba.live.estimate import PhaseEstimate
from surgicalmamba.live.session import SessionPool
from surgicalmamba.server.metrics import Metrics
from surgicalmamba.server.record import Change, Ending, Row, SessionInfo, Snapshot, Unfinished
from surgicalmamba.server.rooms import Entry, Life, Room
from surgicalmamba.server.wire import EstimateMessage, Finished, Message, Progress, Reason, Refused

log = logging.getLogger("surgicalmamba.server")
Tell = Callable[[list[tuple[Room, Message]]], None]


class Recognizer:
    """Rooms by session id, and the thread. `record` takes changes for the database, `tell` messages for whoever listens; both must be
    quick and safe to call from this thread."""

    def __init__(self, pool: SessionPool, snapshot_rows: int, record: Callable[[Change], None], tell: Tell, metrics: Metrics) -> None:
        self._pool, self._snapshot_rows, self._record, self._tell, self._metrics = pool, snapshot_rows, record, tell, metrics
        self.rooms: dict[str, Room] = {}
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="recognizer", daemon=True)
        self._messages: list[tuple[Room, Message]] = []

    def start(self) -> None:
        self._thread.start()

    def open(self, info: SessionInfo, queue_frames: int) -> Room:
        """Begin a session."""
        room = Room(info, queue_frames, last_seen_s=time.time())
        with self._lock:
            self._pool.open(info.id, info.fps)
            self.rooms[info.id] = room
        self._record(Change(info.id, created=info))
        return room

    def resume(self, past: Unfinished, queue_frames: int) -> Room:
        """Go on with a session from its record."""
        room = Room.resume(past, queue_frames)
        room.last_seen_s = time.time()
        with self._lock:
            if past.snapshot is None:
                self._pool.open(past.info.id, past.info.fps)
            else:
                self._pool.open(past.info.id, snapshot=past.snapshot.blob)
            self.rooms[past.info.id] = room
        return room

    def wake(self) -> None:
        """Frames wait, or a room wants to end."""
        self._wake.set()

    def finish(self, room: Room, note: str = "") -> None:
        """Take no more frames; end the session once the last is worked off."""
        with room.lock:
            if room.life in (Life.WAITING, Life.LIVE):
                room.life, room.note = Life.FINISHING, note
        self.wake()

    def skip(self, room: Room) -> None:
        """See Room.skip; frozen at once, because what follows counts on it."""
        with room.lock:
            room.skip()
            self._record(Change(room.info.id, snapshot=self._freeze(room)))

    def drop(self, room: Room) -> None:
        """Forget a session at once, whatever waits."""
        with self._lock:
            if self.rooms.pop(room.info.id, None) is not None:
                self._pool.close(room.info.id)
        room.life = Life.FINISHED

    def stop(self, timeout_s: float) -> None:
        """Work off what waits, freeze every room, end."""
        self._is_stopping = True
        self.wake()
        self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._wake.wait(0.5)
            self._wake.clear()
            while self._turn():
                pass
            if self._is_stopping:
                self._freeze_all()
                return

    def _turn(self) -> bool:
        """One frame of every room that has one. False when nothing waited."""
        with self._lock:
            rooms = list(self.rooms.values())
        busy = [room for room in rooms if self._hand_over(room)]
        if busy:
            self._tick(busy)
        for room in rooms:
            if room.life is Life.FINISHING and room.is_idle:
                self._end(room)
                busy.append(room)
        if self._messages:
            messages, self._messages = self._messages, []
            self._tell(messages)
        return bool(busy)

    def _hand_over(self, room: Room) -> bool:
        """Give the pool a room's next frame. True when a tick has something to do for it."""
        if room.in_hand is not None:
            return True
        while (entry := room.next_entry()) is not None:
            try:
                if entry.is_dropped:
                    self._pool.push_late(room.info.id, entry.time_s)
                elif self._pool.push(room.info.id, entry.rgb, entry.time_s):
                    return True
            except SurgicalMambaError as error:
                self._fail(room, entry, error)
            self._settle(room, worked=False)
        return False

    def _tick(self, busy: Sequence[Room]) -> None:
        start = time.perf_counter()
        tick = self._pool.tick()
        self._metrics.tick_s.observe(time.perf_counter() - start)
        for room in busy:
            key, entry = room.info.id, room.in_hand
            if entry is None or key not in self.rooms:
                continue
            if key in tick.errors:
                self._fail(room, entry, tick.errors[key])
            if key in tick.estimates:
                self._note(room, entry, tick.estimates[key])
            if not self._pool.is_busy(key):
                self._settle(room, worked=key not in tick.errors)

    def _note(self, room: Room, entry: Entry, estimate: PhaseEstimate) -> None:
        row = Row.of(estimate, entry.index, room.row_offset)
        latency_ms = (time.time() - entry.received_s) * 1e3
        differed = room.counters.differed
        is_new = room.note_row(row)
        if room.counters.differed > differed:
            log.warning("estimate differs from the record, which is kept", extra={"session": room.info.id, "row": row.row})
            self._metrics.differed.add()
        if is_new:
            self._record(Change(room.info.id, rows=(row,)))
            room.latency_ms.append(latency_ms)
            self._metrics.latency_s.observe(latency_ms / 1e3)
        self._metrics.estimates.add()
        self._say(room, message_of(room, row, estimate.name, latency_ms, replayed=not is_new))

    def _settle(self, room: Room, worked: bool) -> None:
        """The frame in hand is done: say how far the record goes once this is written, and freeze the memory once per chunk."""
        entry = room.done()
        snapshot = None
        if worked and room.n_rows - room.snapshot_rows >= self._snapshot_rows and not room.rows_on_record:
            snapshot = self._freeze(room)
        drops = (entry.index,) if entry.is_dropped else ()
        self._metrics.dropped.add(len(drops))
        self._record(Change(room.info.id, drops=drops, durable=entry.index, snapshot=snapshot))
        if not any(told is room and isinstance(message, EstimateMessage) for told, message in self._messages):
            self._say(room, Progress(room.info.id))  # an estimate would have said it

    def _freeze(self, room: Room) -> Snapshot:
        room.snapshot_rows = room.n_rows
        return Snapshot(room.acknowledged, room.n_rows, room.row_offset, self._pool.snapshot(room.info.id))

    def _freeze_all(self) -> None:
        """Before the server ends: the next one goes on from here without resending."""
        with self._lock:
            for room in self.rooms.values():
                if room.acknowledged >= 0 and not room.rows_on_record:
                    self._record(Change(room.info.id, snapshot=self._freeze(room)))

    def _fail(self, room: Room, entry: Entry, error: Exception) -> None:
        room.counters.failed += 1
        self._metrics.refused.add(reason=Reason.RECOGNIZER.value)
        log.error("recognizer failed on a frame", extra={"session": room.info.id, "frame": entry.index, "reason": str(error)})
        self._say(room, Refused(room.info.id, entry.index, Reason.RECOGNIZER.value, f"the recognizer failed on this frame: {error}"))

    def _end(self, room: Room) -> None:
        ending = Ending(time.time(), room.note, room.n_rows, room.counters.dropped, tuple(room.runs))
        self._record(Change(room.info.id, ending=ending))
        self.drop(room)
        self._say(room, Finished(room.info.id, room.n_rows, room.note))
        log.info("session finished", extra={"session": room.info.id, "rows": room.n_rows, "dropped": room.counters.dropped})

    def _say(self, room: Room, message: Message) -> None:
        self._messages.append((room, message))


def message_of(room: Room, row: Row, name: str, latency_ms: float, replayed: bool) -> EstimateMessage:
    """A row as it is sent."""
    return EstimateMessage(
        session=room.info.id,
        row=row.row,
        frame=row.frame,
        time_s=row.time_s,
        phase=row.phase,
        name=name,
        probabilities=row.unpacked(),
        intensity=row.intensity,
        quality=row.quality,
        fed=row.fed,
        latency_ms=round(latency_ms, 2),
        replayed=replayed,
    )
