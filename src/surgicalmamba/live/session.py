"""Many streams on one model. Frames wait in a queue per stream; a tick advances every stream that has one waiting, in one batch.

Each tick feeds the model at most one frame of each stream, so no stream can starve another, and a stream's numbers do not depend on
its neighbours. A full queue drops its oldest frame: what is shown is the newest, and the tick lost counts as late. `push`, `open`,
`close` and `snapshot` may be called from other threads while a tick runs."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from surgicalmamba.core.state import LaneState
from surgicalmamba.engines.engine import Engine
from surgicalmamba.engines.select import open_engine
from surgicalmamba.errors import NonFiniteError, SessionError
from surgicalmamba.live.estimate import Counts, PhaseEstimate
from surgicalmamba.live.output import OutputStage
from surgicalmamba.live.snapshot import engine_of, freeze, thaw
from surgicalmamba.live.track import Action, Arrival, Clock, Fps, Plan, Policy, Step, Track
from surgicalmamba.model.recognizer import AnyRecognizer, Recognizer

# One frame of several streams through an engine. A session is a batch of one.


@dataclass(frozen=True)
class Work:
    """A stream's next step and the model's memory of it (one lane)."""

    track: Track
    step: Step
    state: LaneState


@dataclass(frozen=True)
class Result:
    """What the model made of a step. Nothing has happened to the stream yet: `complete` turns it into an estimate."""

    features: Tensor
    logits: Tensor
    intensity_logits: Tensor | None
    state: LaneState

    def complete(self, work: Work) -> PhaseEstimate:
        """Tell the stream."""
        return work.track.complete(work.step, self.features, self.logits, self.intensity_logits)


def advance(engine: Engine, batch: Sequence[Work]) -> list[Result]:
    """Every stream by its step: pictures are encoded together, and all lanes move together."""
    features = _features(engine, batch)
    states = [work.state for work in batch]
    output = engine.advance(features, states[0] if len(states) == 1 else type(states[0]).stack(states))
    if not torch.isfinite(output.logits).all():
        raise NonFiniteError("the engine gave logits that are not finite; try another engine.")
    results = []
    for lane in range(len(batch)):
        intensity = None if output.intensity_logits is None else output.intensity_logits[lane]
        state = output.state if len(batch) == 1 else output.state.select([lane])
        results.append(Result(features[lane], output.logits[lane], intensity, state))
    return results


def _features(engine: Engine, batch: Sequence[Work]) -> Tensor:
    """(b, d_feature): encoded pictures, given vectors, and held features, in the order of the batch."""
    like = next((tensor for tensor in batch[0].state.tensors() if tensor.is_floating_point()), torch.zeros(()))
    values = [work.step.value for work in batch]
    pictures = [value for value in values if value is not None and value.dtype == np.uint8]
    encoded = iter(engine.encode(torch.from_numpy(np.stack(pictures))) if pictures else ())
    rows = []
    for work, value in zip(batch, values, strict=True):
        if value is None:
            assert work.track.features is not None  # nothing is held before there is something to hold
            rows.append(work.track.features)
        else:
            rows.append(next(encoded) if value.dtype == np.uint8 else torch.from_numpy(value))
    return torch.stack([row.to(like) for row in rows])


# A live session: one stream, one model, one estimate per tick of the model's clock.


class Session:
    """Owns the memory of one operation. Pictures are made ready as `prepare` made the training videos, so streaming a recording gives
    what `predict` gives on the prepared dataset.

    Time runs by the timestamps given, resampled to the model's rate (see clock.py); without timestamps every push is the next sample.
    `policy` says what happens to missing, black, frozen and unreadable frames: a Policy, or one action for all of them. `fps` replaces
    the rate the checkpoint was trained at. `output_stage` calibrates and filters the probabilities."""

    def __init__(
        self,
        model: AnyRecognizer | Engine,
        engine: str = "auto",
        fps: Fps | None = None,
        policy: Policy | Action | None = None,
        output_stage: OutputStage | None = None,
    ) -> None:
        self.engine = open_engine(model, engine) if isinstance(model, Recognizer) else model
        self._track = Track(self.engine.config, fps, policy, output_stage)
        self._state = self.engine.initial_state(1)

    @property
    def counts(self) -> Counts:
        """Ticks that were not ordinary so far."""
        return self._track.counts

    @property
    def frames_seen(self) -> int:
        """Frames the model was fed."""
        return self._track.n_frames

    def push(self, frame_rgb: NDArray[np.uint8] | None, time_s: float | None = None) -> PhaseEstimate | None:
        """A picture (h, w, 3) uint8, red first, of any size, at a source time in seconds; None for a picture that could not be read.

        Returns the estimate of the newest tick. Returns None where the frame falls between two ticks or is skipped by the policy. Ticks
        that were missed before it are made up for first; `push_each` gives their estimates too. Raises InputError, and changes nothing,
        for a time before the last one."""
        return _last(self.push_each(frame_rgb, time_s))

    def push_features(self, vector: ArrayLike | None, time_s: float | None = None) -> PhaseEstimate | None:
        """As `push`, with a feature vector (d_feature,) in place of a picture."""
        return _last(self._take(vector, time_s, "features"))

    def push_each(self, frame_rgb: NDArray[np.uint8] | None, time_s: float | None = None) -> list[PhaseEstimate]:
        """As `push`, with the estimates of all ticks since the last push."""
        return self._take(frame_rgb, time_s, "picture")

    def _take(self, content: object, time_s: float | None, kind: Literal["picture", "features"]) -> list[PhaseEstimate]:
        clock, arrival = self._track.arrive(content, time_s, kind)
        if arrival is None:
            self._track.clock = clock
            return []
        plan = self._track.plan(arrival)
        estimates = []
        for step in plan.steps:
            work = Work(self._track, step, self._state)
            [result] = advance(self.engine, [work])
            estimates.append(result.complete(work))
            self._state = result.state
        self._track.finish(plan)
        return estimates

    def snapshot(self) -> bytes:
        """Everything the session knows, in a few megabytes: `restore` continues from here to the bit on the same engine."""
        return freeze(self.engine, self._track, self._state)

    @classmethod
    def restore(cls, model: AnyRecognizer | Engine, blob: bytes, engine: str | None = None) -> "Session":
        """A session as it was when `snapshot` was called, on the engine it ran on or on another.

        Raises SnapshotError with the reason for a blob that is damaged, of another version or of another model."""
        chosen = open_engine(model, engine or engine_of(blob)) if isinstance(model, Recognizer) else model
        session = cls(chosen)
        session._track, session._state = thaw(chosen, blob)
        return session


def _last(estimates: list[PhaseEstimate]) -> PhaseEstimate | None:
    return estimates[-1] if estimates else None


@dataclass
class Stream:
    """One stream of a pool: its track and memory as of the last tick, and what waits for the next."""

    track: Track
    state: LaneState
    clock: Clock
    """Ahead of the track's clock by the frames that wait."""
    waiting: deque[Arrival] = field(default_factory=deque)
    dropped: set[int] = field(default_factory=set)
    """Ticks of frames that were dropped and that the track has not passed yet."""
    plan: Plan | None = None
    is_planning: bool = False
    """A frame has left the queue and its plan is not made yet."""

    @property
    def has_work(self) -> bool:
        return self.plan is not None or self.is_planning or bool(self.waiting)


@dataclass(frozen=True)
class Tick:
    """What one tick of the pool gave: an estimate per stream that advanced, an error per stream that could not."""

    estimates: dict[str, PhaseEstimate]
    errors: dict[str, Exception]


class SessionPool:
    """Up to `capacity` streams on one engine, with room for `queue_len` waiting frames each."""

    def __init__(self, engine: Engine, capacity: int = 16, queue_len: int = 8) -> None:
        if capacity < 1 or queue_len < 1:
            raise SessionError(f"a pool of {capacity} streams with {queue_len} waiting frames does nothing; both must be at least 1.")
        self.engine, self.capacity, self.queue_len = engine, capacity, queue_len
        self._streams: dict[str, Stream] = {}
        self._lock = threading.RLock()
        self._one_tick = threading.Lock()

    def open(
        self,
        key: str,
        fps: Fps | None = None,
        policy: Policy | Action | None = None,
        output_stage: OutputStage | None = None,
        snapshot: bytes | None = None,
    ) -> None:
        """Begin a stream, or go on with one from its snapshot (which brings its own rate, policy and output stage)."""
        if snapshot is not None and (fps, policy, output_stage) != (None, None, None):
            raise SessionError("a snapshot brings its own fps, policy and output stage; open the stream with the snapshot alone.")
        with self._lock:
            self._check_room(key)
        if snapshot is None:
            track, state = Track(self.engine.config, fps, policy, output_stage), self.engine.initial_state(1)
        else:
            track, state = thaw(self.engine, snapshot)
        with self._lock:
            self._check_room(key)
            self._streams[key] = Stream(track, state, track.clock)

    def _check_room(self, key: str) -> None:
        if key in self._streams:
            raise SessionError(f"there is a stream {key!r} already; close it or choose another name.")
        if len(self._streams) >= self.capacity:
            raise SessionError(f"all {self.capacity} places of the pool are taken; close a stream or raise the capacity.")

    def _stream(self, key: str) -> Stream:
        if key not in self._streams:
            raise SessionError(f"there is no stream {key!r}; open it first.")
        return self._streams[key]

    def close(self, key: str) -> None:
        """End a stream; frames that wait are forgotten."""
        with self._lock:
            self._stream(key)
            del self._streams[key]

    def push(self, key: str, frame_rgb: NDArray[np.uint8] | None, time_s: float | None = None) -> bool:
        """Queue a picture; False where it falls on no tick of the model's clock. The array must not be changed afterwards.

        Raises InputError for a time before the last one, and leaves the stream as it was."""
        return self._queue(key, frame_rgb, time_s, "picture")

    def push_features(self, key: str, vector: ArrayLike | None, time_s: float | None = None) -> bool:
        """Queue a feature vector in place of a picture."""
        return self._queue(key, vector, time_s, "features")

    def _queue(self, key: str, content: object, time_s: float | None, kind: Literal["picture", "features"]) -> bool:
        with self._lock:
            stream = self._stream(key)
            stream.clock, arrival = stream.track.arrive(content, time_s, kind, stream.clock)
            if arrival is None:
                return False
            stream.waiting.append(arrival)
            if len(stream.waiting) > self.queue_len:
                stream.dropped.add(stream.waiting.popleft().tick)
            return True

    def push_late(self, key: str, time_s: float | None = None) -> None:
        """Say that a picture of this time was dropped before it got here; its tick counts as late."""
        with self._lock:
            stream = self._stream(key)
            stream.clock, arrival = stream.track.arrive(None, time_s, "picture", stream.clock)
            if arrival is not None:
                stream.dropped.add(arrival.tick)

    def tick(self) -> Tick:
        """Advance every stream that has a frame waiting by one frame of the model.

        A stream that fails is reported and keeps its memory from before the frame; the others go on."""
        with self._one_tick:
            batch, errors = self._collect()
            results: dict[str, Result] = {}
            try:
                results = dict(zip(batch, advance(self.engine, list(batch.values())), strict=True)) if batch else {}
            except Exception:  # engines are foreign code and fail in their own ways; one stream must not end the others
                for key, work in batch.items():
                    try:
                        [results[key]] = advance(self.engine, [work])
                    except Exception as error:
                        errors[key] = error
            return Tick(self._settle(batch, results), errors)

    def _collect(self) -> tuple[dict[str, Work], dict[str, Exception]]:
        """The next step of every stream that has one; pictures are made ready outside the lock."""
        with self._lock:
            streams = dict(self._streams)
        batch: dict[str, Work] = {}
        errors: dict[str, Exception] = {}
        for key, stream in streams.items():
            try:
                plan = self._next_plan(stream)
            except Exception as error:  # whatever a picture did to its decoder, it is this stream's alone
                errors[key] = error
                continue
            if plan is not None:
                batch[key] = Work(stream.track, plan.steps[0], stream.state)
        return batch, errors

    def _next_plan(self, stream: Stream) -> Plan | None:
        """The plan at hand, or one for the next waiting frame that asks anything of the model."""
        while stream.plan is None:
            with self._lock:
                if not stream.waiting:
                    return None
                arrival = stream.waiting.popleft()
                late = frozenset(tick for tick in stream.dropped if tick < arrival.tick)
                stream.dropped -= late
                stream.is_planning = True
            plan = None
            try:
                plan = stream.track.plan(arrival, late)
            finally:
                with self._lock:
                    stream.is_planning = False
                    if plan is not None and plan.steps:
                        stream.plan = plan
                    elif plan is not None:
                        stream.track.finish(plan)
        return stream.plan

    def _settle(self, batch: dict[str, Work], results: dict[str, Result]) -> dict[str, PhaseEstimate]:
        """Move the streams on, those that were closed meanwhile excepted."""
        estimates = {}
        with self._lock:
            for key, work in batch.items():
                stream = self._streams.get(key)
                if stream is None or stream.track is not work.track or stream.plan is None:
                    continue
                if key in results:
                    estimates[key] = results[key].complete(work)
                    stream.state = results[key].state
                stream.plan.steps.popleft()
                if not stream.plan.steps:
                    stream.track.finish(stream.plan)
                    stream.plan = None
        return estimates

    def snapshot(self, key: str) -> bytes:
        """A stream as of its last estimate; frames that wait are not part of it and may be sent again after a restore."""
        with self._lock:
            stream = self._stream(key)
            if not stream.has_work:
                stream.track.clock = stream.clock  # frames between two ticks moved it without waiting
            return freeze(self.engine, stream.track, stream.state)

    def counts(self, key: str) -> Counts:
        """Ticks of a stream that were not ordinary so far."""
        with self._lock:
            return self._stream(key).track.counts

    def last_tick(self, key: str) -> int:
        """The tick of the model's clock on which the last queued frame of a stream falls."""
        with self._lock:
            return self._stream(key).clock.last_tick

    def n_waiting(self, key: str) -> int:
        """Frames of a stream that wait for a tick."""
        with self._lock:
            return len(self._stream(key).waiting)

    def is_busy(self, key: str) -> bool:
        """Whether a frame of this stream waits or is not fully worked off."""
        with self._lock:
            return self._stream(key).has_work

    @property
    def keys(self) -> tuple[str, ...]:
        """The streams that are open."""
        with self._lock:
            return tuple(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def has_work(self) -> bool:
        """Whether a tick would do anything."""
        with self._lock:
            return any(stream.has_work for stream in self._streams.values())

