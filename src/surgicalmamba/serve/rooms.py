"""One session in memory: what waits for the recognizer, how far it has come, and what is shown of it.

The event loop puts frames in, the recognizer's thread takes them out; a lock guards what both touch."""

import threading
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.serve.messages import FrameMessage, Marks, Reason, RefusalError
from surgicalmamba.serve.records import Row, Segment, SessionInfo, Unfinished

LARGEST_JUMP = 1_000_000
"""Frames a camera may skip at once; more is a wrong number, not a gap."""


class Life(str, Enum):
    """What a session is doing."""

    WAITING = "waiting"  # nobody sends frames
    LIVE = "live"  # a client is connected, or the server reads a source
    FINISHING = "finishing"  # no more frames; the last ones are worked off
    FINISHED = "finished"


@dataclass
class Entry:
    """A frame that waits. `rgb` None is a picture that could not be read; a dropped one keeps its place, so that time stays in order."""

    index: int
    time_s: float | None
    rgb: NDArray[np.uint8] | None
    received_s: float
    is_dropped: bool = False


@dataclass
class Counters:
    """Of a session since the server started."""

    frames: int = 0
    dropped: int = 0
    refused: int = 0
    failed: int = 0
    """Frames on which the recognizer failed."""
    differed: int = 0
    """Estimates computed anew that did not equal the record; the record was kept."""


@dataclass
class Room:
    """A session that is not finished. Built from its record after a restart."""

    info: SessionInfo
    queue_frames: int
    next_index: int = 0
    """The frame that is expected next."""
    acknowledged: int = -1
    durable: int = -1
    keep_from: int = 0
    record_until: int = -1
    """Frames up to here were worked off before the server started anew: the record says which of them were dropped."""
    drops_on_record: frozenset[int] = frozenset()
    rows_on_record: dict[int, Row] = field(default_factory=dict)
    """Estimates beyond the snapshot, to compare with those computed anew."""
    n_rows: int = 0
    """Estimates so far, on record or not."""
    snapshot_rows: int = 0
    row_offset: int = 0
    """Rows made of frames that the recognizer's memory does not know."""
    life: Life = Life.WAITING
    note: str = ""
    counters: Counters = field(default_factory=Counters)
    queue: deque[Entry] = field(default_factory=deque)
    in_hand: Entry | None = None
    last_time_s: float | None = None
    last: Row | None = None
    last_seen_s: float = 0.0
    latency_ms: deque[float] = field(default_factory=lambda: deque(maxlen=120))
    runs: list[Segment] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def resume(cls, past: Unfinished, queue_frames: int) -> "Room":
        """Where a session stands after a restart: the client sends again what followed the snapshot."""
        frame, n_rows = (-1, 0) if past.snapshot is None else (past.snapshot.frame, past.snapshot.rows)
        until = max([past.durable, *(row.frame for row in past.later_rows)])
        room = cls(past.info, queue_frames, frame + 1, frame, past.durable, frame + 1, until, past.drops)
        room.rows_on_record = {row.row: row for row in past.later_rows}
        room.n_rows = n_rows + len(past.later_rows)
        room.snapshot_rows = n_rows
        room.row_offset = 0 if past.snapshot is None else past.snapshot.offset
        room.last = past.later_rows[-1] if past.later_rows else None
        room.runs = list(past.segments)
        room.counters.dropped = past.n_dropped
        return room

    @property
    def marks(self) -> Marks:
        return Marks(self.acknowledged, self.durable, self.keep_from)

    @property
    def is_idle(self) -> bool:
        with self.lock:
            return not self.queue and self.in_hand is None

    @property
    def is_full(self) -> bool:
        with self.lock:
            return len(self.queue) >= self.queue_frames

    def must_wait(self, index: int) -> bool:
        """Whether a frame has to wait for room in the queue: always in a session that loses nothing, and while a record is redone."""
        with self.lock:
            redoes = index <= self.record_until or any(entry.index <= self.record_until for entry in self.queue)
            return self.is_full and (redoes or self.info.when_behind == "wait")

    def check(self, frame: FrameMessage) -> None:
        """Raise RefusalError for a frame that is not the next one."""
        with self.lock:
            if self.life not in (Life.WAITING, Life.LIVE):
                raise RefusalError(Reason.FINISHED, "the session is finished; create a new one.")
            if frame.index < self.next_index:
                raise RefusalError(Reason.DUPLICATE, f"frame {frame.index} came before; {self.next_index} is next.")
            may_skip = self.info.when_behind == "drop" and self.next_index > self.record_until
            if frame.index > self.next_index + (LARGEST_JUMP if may_skip else 0):
                raise RefusalError(Reason.GAP, f"frame {frame.index} came, {self.next_index} is next; send the frames between.")
            if frame.time_s is not None and self.last_time_s is not None and frame.time_s < self.last_time_s:
                raise RefusalError(Reason.TIME, f"time_s={frame.time_s:g} lies before the last frame at {self.last_time_s:g}.")

    def take(self, frame: FrameMessage, rgb: NDArray[np.uint8] | None, now_s: float) -> None:
        """Queue a frame. In a session that drops, a full queue drops its oldest waiting frame."""
        with self.lock:
            self.check(frame)
            again = frame.index <= self.record_until
            entry = Entry(frame.index, frame.time_s, rgb, now_s, is_dropped=again and frame.index in self.drops_on_record)
            self.queue.append(entry)
            if not again and sum(not e.is_dropped for e in self.queue) > self.queue_frames:
                oldest = next(e for e in self.queue if not e.is_dropped)
                oldest.is_dropped, oldest.rgb = True, None
                self.counters.dropped += 1
            self.next_index = frame.index + 1
            self.last_time_s = frame.time_s if frame.time_s is not None else self.last_time_s
            self.counters.frames += 1
            self.last_seen_s = now_s

    def skip(self) -> None:
        """The client cannot send again what followed the snapshot: the record stands, and the recognizer goes on without having seen it."""
        with self.lock:
            assert self.is_idle
            self.row_offset += len(self.rows_on_record)
            self.rows_on_record.clear()
            self.next_index = max(self.next_index, self.record_until + 1)
            self.acknowledged = self.next_index - 1

    def next_entry(self) -> Entry | None:
        """The frame that is next for the recognizer."""
        with self.lock:
            if self.in_hand is not None or not self.queue:
                return None
            self.in_hand = self.queue.popleft()
            return self.in_hand

    def done(self) -> Entry:
        """The frame in hand is worked off."""
        with self.lock:
            assert self.in_hand is not None
            entry, self.in_hand = self.in_hand, None
            self.acknowledged = entry.index
            return entry

    def note_row(self, row: Row) -> bool:
        """Keep an estimate. True if it is new, False if it was on record already."""
        before = self.rows_on_record.pop(row.row, None)
        if before is not None:
            if before != row:
                self.counters.differed += 1
            return False
        self.n_rows = row.row + 1
        self.last = row
        if self.runs:
            phase, start, _ = self.runs[-1]
            self.runs[-1] = (phase, start, row.time_s)
        if not self.runs or self.runs[-1][0] != row.phase:
            self.runs.append((row.phase, row.time_s, row.time_s))
        return True
