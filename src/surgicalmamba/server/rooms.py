"""Batches of one size, so that what a stream gets does not depend on who its neighbours are, to the last bit.

Matrix libraries pick their kernels by shape: the same row gives slightly other digits in a batch of 3 and in one of 5. Within a fixed
shape a row's digits do not depend on its place or on the other rows. A record that is computed anew after a crash must equal the first
one, so the server runs every frame in a shape that depends on this stream alone."""

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surgicalmamba.core.chunks import closes_after
from surgicalmamba.core.state import LaneState
from surgicalmamba.engines.engine import Engine
from surgicalmamba.model.recognizer import Output, RecognizerConfig
from surgicalmamba.model.surgical_mamba import ModelConfig
from surgicalmamba.server.record import Row, Segment, SessionInfo, Unfinished
from surgicalmamba.server.wire import FrameMessage, Marks, Reason, RefusalError

# One session in memory: what waits for the recognizer, how far it has come, and what is shown of it.
#
# The event loop puts frames in, the recognizer's thread takes them out; a lock guards what both touch.


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


# Who listens to what. Lives on the event loop; other threads hand messages over with `send`.


QUEUE = 2048


@dataclass(eq=False)
class Listener:
    """One connection that wants to hear. A listener that reads too slowly loses the connection, never the server its memory."""

    session: str | None
    """None hears every session."""
    is_client: bool
    """Clients push frames and hear every step; viewers hear what is new."""
    queue: asyncio.Queue[str | None] = field(default_factory=lambda: asyncio.Queue(QUEUE))
    is_lost: bool = False

    def put(self, text: str | None) -> None:
        """None ends the connection."""
        try:
            self.queue.put_nowait(text)
        except asyncio.QueueFull:
            self.is_lost = True


@dataclass(frozen=True)
class News:
    """A message as text, and who may hear it."""

    session: str
    text: str
    audience: Literal["all", "clients", "viewers"] = "all"


class Hub:
    """Owns the listeners for as long as the server runs."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_closed = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __len__(self) -> int:
        return len(self._listeners)

    def add(self, session: str | None, is_client: bool = False) -> Listener:
        listener = Listener(session, is_client)
        self._listeners.add(listener)
        return listener

    def remove(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def send(self, news: Iterable[News]) -> None:
        """From any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._publish, list(news))

    def _publish(self, news: list[News]) -> None:
        for item in news:
            for listener in self._listeners:
                own = "clients" if listener.is_client else "viewers"
                if listener.session in (None, item.session) and item.audience in ("all", own):
                    listener.put(item.text)

    def close(self) -> None:
        """End every connection that listens."""
        self.is_closed = True
        for listener in self._listeners:
            listener.put(None)


class FixedLanes:
    """An engine around an engine: pictures are encoded one by one; streams advance in batches of `n_lanes`, filled up with blanks.

    A frame that closes a chunk of a stream rotates its state, which concerns some lanes of a batch only; it runs alone. So does every
    frame of a network whose memory grows: in a batch it would be as long as the longest neighbour's."""

    def __init__(self, inner: Engine, n_lanes: int) -> None:
        self._inner, self._n_lanes = inner, n_lanes

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def config(self) -> RecognizerConfig:
        return self._inner.config

    @property
    def fingerprint(self) -> str:
        return self._inner.fingerprint

    def initial_state(self, n_lanes: int) -> LaneState:
        return self._inner.initial_state(n_lanes)

    def encode(self, frames: Tensor) -> Tensor:
        return torch.cat([self._inner.encode(frames[i : i + 1]) for i in range(len(frames))])

    def advance(self, features: Tensor, state: LaneState) -> Output[LaneState]:
        parts: dict[int, Output[LaneState]] = {}
        closing = [lane for lane, seen in enumerate(state.frame_index) if state.GROWING or self._closes(seen + 1)]
        for lane in closing:
            parts[lane] = self._inner.advance(features[lane : lane + 1], state.select([lane]))
        ordinary = [lane for lane in range(state.n_lanes) if lane not in parts]
        for start in range(0, len(ordinary), self._n_lanes):
            parts |= self._block(features, state, ordinary[start : start + self._n_lanes])
        outputs = [parts[lane] for lane in range(state.n_lanes)]
        intensities = [output.intensity_logits for output in outputs if output.intensity_logits is not None]
        return Output(
            torch.cat([output.logits for output in outputs]),
            torch.cat(intensities) if intensities else None,
            type(state).stack([output.state for output in outputs]),
        )

    def _block(self, features: Tensor, state: LaneState, lanes: list[int]) -> dict[int, Output[LaneState]]:
        """These lanes in one batch of the fixed size, each with its own output."""
        n_blank = self._n_lanes - len(lanes)
        part, given = state.select(lanes), features[lanes]
        if n_blank:
            part = type(part).stack([part, self._inner.initial_state(n_blank)])
            given = torch.cat([given, given.new_zeros(n_blank, given.shape[1])])
        output = self._inner.advance(given, part)
        intensity = output.intensity_logits
        return {
            lane: Output(output.logits[i : i + 1], None if intensity is None else intensity[i : i + 1], output.state.select([i]))
            for i, lane in enumerate(lanes)
        }

    def _closes(self, frames_seen: int) -> bool:
        """Whether any path of the model ends a chunk here."""
        config = self.config
        if not isinstance(config, ModelConfig):
            return False
        return any(
            path.rotation is not None and closes_after(frames_seen, path.chunk_len, None if name == "block.slow" else config.clip_len)
            for name, path in config.paths().items()
        )

