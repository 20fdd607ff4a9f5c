"""The open sessions in memory (rooms), the connections that listen to them (the hub), and the batches in
which their frames are computed (fixed lanes)."""

import asyncio
import threading
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surgicalmamba.core.state import LaneState
from surgicalmamba.engines.engine import Engine
from surgicalmamba.live.estimate import ServedEstimate
from surgicalmamba.model.recognizer import Output, RecognizerConfig
from surgicalmamba.server.record import Segment, SessionInfo, Unfinished, extend_segments
from surgicalmamba.server.wire import FrameMessage, Marks, Reason, RefusalError

LARGEST_JUMP = 1_000_000
"""Frames a camera may skip at once; more is a wrong number, not a gap."""
_LISTENER_MESSAGES = 2048
Audience = Literal["all", "clients", "viewers"]


class Life(str, Enum):
    """The states of a session."""

    WAITING = "waiting"  # nobody sends frames
    LIVE = "live"  # a client is connected, or the server reads a source
    FINISHING = "finishing"  # no more frames are accepted; the queue is processed
    FINISHED = "finished"


@dataclass
class Entry:
    """A frame in the queue. `rgb` is None for a picture that could not be read. A dropped frame keeps its
    place, so that time stays in order."""

    index: int
    time_s: float | None
    rgb: NDArray[np.uint8] | None
    received_s: float
    is_dropped: bool = False


@dataclass
class Room:
    """A session that is not finished: the queue of its frames and its progress. The event loop puts frames
    in, the worker's thread takes them out; `lock` guards what both change."""

    info: SessionInfo
    queue_frames: int
    next_index: int = 0
    """The frame that is expected next."""
    acknowledged: int = -1
    durable: int = -1
    keep_from: int = 0
    record_until: int = -1
    """Frames up to here were processed before the server restarted: the record names the dropped ones."""
    recorded_drops: frozenset[int] = frozenset()
    recorded: dict[int, ServedEstimate] = field(default_factory=dict)
    """Estimates after the snapshot by row, to compare with those computed again."""
    n_rows: int = 0
    """Estimates so far, in the database or not."""
    snapshot_rows: int = 0
    row_offset: int = 0
    """Rows from frames that the model's state has not seen."""
    life: Life = Life.WAITING
    note: str = ""
    n_dropped: int = 0
    n_refused: int = 0
    queue: deque[Entry] = field(default_factory=deque)
    current: Entry | None = None
    """The frame that the worker is processing."""
    last_time_s: float | None = None
    last: ServedEstimate | None = None
    last_seen_s: float = 0.0
    latency_ms: deque[float] = field(default_factory=lambda: deque(maxlen=120))
    segments: list[Segment] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def resume(cls, past: Unfinished, queue_frames: int) -> "Room":
        """A session after a restart: the client sends again the frames after the snapshot."""
        frame, offset = (-1, 0) if past.snapshot is None else (past.snapshot.frame, past.snapshot.offset)
        return cls(
            past.info,
            queue_frames,
            next_index=frame + 1,
            acknowledged=frame,
            durable=past.durable,
            keep_from=frame + 1,
            record_until=max([past.durable, *(estimate.frame for estimate in past.later_rows)]),
            recorded_drops=past.drops,
            recorded={estimate.row: estimate for estimate in past.later_rows},
            n_rows=past.n_rows,
            snapshot_rows=past.n_rows - len(past.later_rows),
            row_offset=offset,
            n_dropped=past.n_dropped,
            last=past.later_rows[-1] if past.later_rows else None,
            segments=list(past.segments),
        )

    @property
    def fps(self) -> float:
        return float(Fraction(self.info.fps))

    @property
    def marks(self) -> Marks:
        return Marks(self.acknowledged, self.durable, self.keep_from)

    @property
    def is_open(self) -> bool:
        """Whether frames are accepted."""
        return self.life in (Life.WAITING, Life.LIVE)

    @property
    def is_idle(self) -> bool:
        with self.lock:
            return not self.queue and self.current is None

    def must_wait(self, index: int) -> bool:
        """Whether the queue is full for this frame, in a session that loses nothing or while frames on record
        are computed again."""
        with self.lock:
            if len(self.queue) < self.queue_frames:
                return False
            first = min([index, *(entry.index for entry in self.queue)])
            return first <= self.record_until or self.info.when_behind == "wait"

    def check(self, frame: FrameMessage) -> None:
        """Raise RefusalError for a frame that is not the next one."""
        index, expected = frame.index, self.next_index
        if not self.is_open:
            raise RefusalError(Reason.FINISHED, "the session is finished; create a new one.")
        if index < expected:
            raise RefusalError(Reason.DUPLICATE, f"frame {index} was received before; send {expected} next.")
        may_skip = self.info.when_behind == "drop" and expected > self.record_until
        if index > expected + (LARGEST_JUMP if may_skip else 0):
            raise RefusalError(Reason.GAP, f"frame {index} follows a gap; send {expected} next.")
        if frame.time_s is not None and self.last_time_s is not None and frame.time_s < self.last_time_s:
            times = f"time_s={frame.time_s:g} is before the last frame at {self.last_time_s:g}"
            raise RefusalError(Reason.TIME, f"{times}; send frames in order.")

    def take(self, frame: FrameMessage, rgb: NDArray[np.uint8] | None, now_s: float) -> None:
        """Queue a frame. In a session that drops, a full queue drops its oldest waiting frame."""
        with self.lock:
            self.check(frame)
            is_repeated = frame.index <= self.record_until
            is_dropped = is_repeated and frame.index in self.recorded_drops
            self.queue.append(Entry(frame.index, frame.time_s, rgb, now_s, is_dropped))
            waiting = [entry for entry in self.queue if not entry.is_dropped]
            if not is_repeated and len(waiting) > self.queue_frames:
                waiting[0].is_dropped, waiting[0].rgb = True, None
                self.n_dropped += 1
            self.next_index = frame.index + 1
            self.last_time_s = self.last_time_s if frame.time_s is None else frame.time_s
            self.last_seen_s = now_s

    def skip(self) -> None:
        """The client cannot send the frames after the snapshot: their record stays, and the model resumes
        without them."""
        with self.lock:
            assert self.is_idle
            self.row_offset += len(self.recorded)
            self.recorded.clear()
            self.next_index = max(self.next_index, self.record_until + 1)
            self.acknowledged = self.next_index - 1

    def start_next(self) -> Entry | None:
        """Make the next frame of the queue the current one."""
        with self.lock:
            if self.current is None and self.queue:
                self.current = self.queue.popleft()
                return self.current
            return None

    def complete(self) -> Entry:
        """Acknowledge the current frame."""
        with self.lock:
            assert self.current is not None
            entry, self.current = self.current, None
            self.acknowledged = entry.index
            return entry

    def add(self, estimate: ServedEstimate) -> Literal["new", "repeated", "differs"]:
        """Keep an estimate, or compare it with the one on record, which stays."""
        before = self.recorded.pop(estimate.row, None)
        if before is not None:
            return "repeated" if estimate.repeats(before) else "differs"
        self.n_rows, self.last = estimate.row + 1, estimate
        extend_segments(self.segments, estimate.phase, estimate.time_s)
        return "new"


@dataclass(eq=False)
class Listener:
    """One connection that receives messages: those of one session, or of all. One that reads too slowly is
    disconnected, so that its queue stays bounded."""

    session: str | None
    is_client: bool
    """Clients push frames and receive every step; viewers receive what is new."""
    queue: asyncio.Queue[str | None] = field(default_factory=lambda: asyncio.Queue(_LISTENER_MESSAGES))
    is_lost: bool = False

    def put(self, text: str | None) -> None:
        """None closes the connection."""
        try:
            self.queue.put_nowait(text)
        except asyncio.QueueFull:
            self.is_lost = True


class Hub:
    """Owns the listeners while the server runs. It lives on the event loop; any thread may call `send`."""

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

    def send(self, session: str, text: str, audience: Audience) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, session, text, audience)

    def _deliver(self, session: str, text: str, audience: Audience) -> None:
        for listener in self._listeners:
            group = "clients" if listener.is_client else "viewers"
            if listener.session in (None, session) and audience in ("all", group):
                listener.put(text)

    def close(self) -> None:
        """Close every connection that listens."""
        self.is_closed = True
        for listener in self._listeners:
            listener.put(None)


class FixedLanes:
    """An engine around an engine: pictures are encoded one by one, and streams advance in batches of
    `n_lanes`, padded with empty lanes. No bit of a stream's results then depends on its neighbours.

    Matrix libraries choose kernels by shape: the same row has slightly different digits in a batch of 3 and
    in one of 5. Within a fixed shape the digits depend neither on the lane nor on the other rows. A record
    computed again after a crash must equal the first one, so every frame runs in a shape that depends on its
    own stream alone. A frame that closes a chunk rotates the state of its lane only; it runs alone. So does
    every frame of a network whose state grows: in a batch the state would be as long as the longest one."""

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
        seen = state.frame_index
        alone = {lane for lane, n in enumerate(seen) if state.GROWING or self.config.closes_after(n + 1)}
        batched = [lane for lane in range(state.n_lanes) if lane not in alone]
        parts = {lane: self._inner.advance(features[lane : lane + 1], state.select([lane])) for lane in alone}
        for start in range(0, len(batched), self._n_lanes):
            parts |= self._batch(features, state, batched[start : start + self._n_lanes])
        outputs = [parts[lane] for lane in range(state.n_lanes)]
        intensities = [output.intensity_logits for output in outputs if output.intensity_logits is not None]
        return Output(
            torch.cat([output.logits for output in outputs]),
            torch.cat(intensities) if intensities else None,
            type(state).stack([output.state for output in outputs]),
        )

    def _batch(self, features: Tensor, state: LaneState, lanes: list[int]) -> dict[int, Output[LaneState]]:
        """The output of each of these lanes, from one batch of the fixed size."""
        part, rows, n_empty = state.select(lanes), features[lanes], self._n_lanes - len(lanes)
        if n_empty:
            part = type(part).stack([part, self._inner.initial_state(n_empty)])
            rows = torch.cat([rows, rows.new_zeros(n_empty, rows.shape[1])])
        output = self._inner.advance(rows, part)
        logits, intensity = output.logits.split(1), output.intensity_logits
        intensities = [None] * self._n_lanes if intensity is None else intensity.split(1)
        return {
            lane: Output(logits[i], intensities[i], output.state.select([i])) for i, lane in enumerate(lanes)
        }
