"""Live sessions: frames in, one estimate per tick of the model's clock out.

SessionPool runs many streams on one engine. The frames of a stream wait in its queue; a tick takes one frame
of every stream that has one and advances them in one batch. So no stream can starve another, and a stream's
numbers do not depend on the other streams. A full queue drops its oldest frame: the newest matters most, and
the lost tick counts as late.

Session is a pool of one stream with a queue of one frame. `push` queues a frame and ticks until done."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from surgicalmamba.core.state import LaneState
from surgicalmamba.engines.engine import Engine
from surgicalmamba.engines.select import open_engine
from surgicalmamba.errors import NonFiniteError, SessionError
from surgicalmamba.live.estimate import Counts, PhaseEstimate
from surgicalmamba.live.output import OutputStage
from surgicalmamba.live.track import Action, Arrival, Clock, Fps, Kind, Picture, Plan, Policy, Step, Track
from surgicalmamba.model.recognizer import AnyRecognizer, Output, Recognizer


@dataclass
class Stream:
    """One stream of a pool: track and model state as of the last tick, and the frames that wait."""

    track: Track
    state: LaneState
    clock: Clock
    """Ahead of the track's clock by the frames that wait."""
    waiting: deque[Arrival] = field(default_factory=deque)
    dropped: set[int] = field(default_factory=set)
    """Ticks of dropped frames that the track has not passed yet."""
    plan: Plan | None = None
    is_planning: bool = False
    """A frame has left the queue and its plan is not made yet."""

    @property
    def has_work(self) -> bool:
        return self.plan is not None or self.is_planning or bool(self.waiting)

    @property
    def next_step(self) -> Step:
        assert self.plan is not None
        return self.plan.steps[0]


@dataclass(frozen=True)
class Tick:
    """The result of one tick: an estimate per stream that advanced, an error per stream that failed."""

    estimates: dict[str, PhaseEstimate]
    errors: dict[str, Exception]


class SessionPool:
    """Up to `capacity` streams on one engine, with a queue of `queue_len` frames each.

    All methods may be called from other threads while a tick runs."""

    def __init__(self, engine: Engine, capacity: int = 16, queue_len: int = 8) -> None:
        if capacity < 1 or queue_len < 1:
            raise SessionError(f"capacity={capacity} and queue_len={queue_len} must both be at least 1.")
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
        """Start a stream, or resume one from its snapshot, which includes rate, policy and output stage."""
        if snapshot is None:
            track, state = Track(self.engine.config, fps, policy, output_stage), self.engine.initial_state(1)
        elif (fps, policy, output_stage) == (None, None, None):
            from surgicalmamba.live.snapshot import load_snapshot

            track, state = load_snapshot(self.engine, snapshot)
        else:
            raise SessionError("a snapshot includes fps, policy and output stage; open it without them.")
        with self._lock:
            if key in self._streams:
                raise SessionError(f"there is a stream {key!r} already; close it or choose another name.")
            if len(self._streams) >= self.capacity:
                taken = f"all {self.capacity} places of the pool are taken"
                raise SessionError(f"{taken}; close a stream or raise the capacity.")
            self._streams[key] = Stream(track, state, track.clock)

    def _stream(self, key: str) -> Stream:
        if key not in self._streams:
            raise SessionError(f"there is no stream {key!r}; open it first.")
        return self._streams[key]

    def close(self, key: str) -> None:
        """End a stream and discard its waiting frames."""
        with self._lock:
            self._stream(key)
            del self._streams[key]

    def push(self, key: str, frame_rgb: Picture | None, time_s: float | None = None) -> bool:
        """Queue a picture, which must not change afterwards; False where it falls on no tick.

        Raises InputError for a time before the last one, and leaves the stream as it was."""
        return self._queue(key, frame_rgb, time_s, "picture")

    def push_features(self, key: str, vector: ArrayLike | None, time_s: float | None = None) -> bool:
        """Queue a feature vector in place of a picture."""
        return self._queue(key, vector, time_s, "features")

    def _queue(self, key: str, content: object, time_s: float | None, kind: Kind) -> bool:
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
        """Report a picture that was dropped before it reached the pool; its tick counts as late."""
        with self._lock:
            stream = self._stream(key)
            stream.clock, arrival = stream.track.arrive(None, time_s, "picture", stream.clock)
            if arrival is not None:
                stream.dropped.add(arrival.tick)

    def tick(self) -> Tick:
        """Advance every stream that has a frame waiting by one frame of the model.

        A frame that fails is lost: its stream keeps the state from before it, and the other streams
        advance."""
        with self._one_tick:
            streams, errors = self._collect()
            results: dict[str, _Result] = {}
            try:
                results = dict(zip(streams, _advance(self.engine, list(streams.values())), strict=True))
            except Exception:  # engines are foreign code and raise anything; find the stream that fails
                for key, stream in streams.items():
                    try:
                        [results[key]] = _advance(self.engine, [stream])
                    except Exception as error:
                        errors[key] = error
            return Tick(self._settle(streams, results), errors)

    def _collect(self) -> tuple[dict[str, Stream], dict[str, Exception]]:
        """The streams that have a step to do; pictures are prepared outside the lock."""
        with self._lock:
            streams = dict(self._streams)
        ready: dict[str, Stream] = {}
        errors: dict[str, Exception] = {}
        for key, stream in streams.items():
            try:
                if self._has_plan(stream):
                    ready[key] = stream
            except Exception as error:  # a picture that cannot be prepared must not stop the other streams
                errors[key] = error
        return ready, errors

    def _has_plan(self, stream: Stream) -> bool:
        """Plan the next waiting frame that needs the model, unless there is a plan. False for no frame."""
        while stream.plan is None:
            with self._lock:
                if not stream.waiting:
                    return False
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
        return True

    def _settle(self, streams: dict[str, Stream], results: "dict[str, _Result]") -> dict[str, PhaseEstimate]:
        """Complete the steps, except those of streams that were closed during the tick."""
        estimates = {}
        with self._lock:
            for key, stream in streams.items():
                if self._streams.get(key) is not stream or stream.plan is None:
                    continue
                step = stream.plan.steps.popleft()
                if key in results:
                    features, output = results[key]
                    estimates[key] = stream.track.complete(
                        step, features, output.logits, output.intensity_logits
                    )
                    stream.state = output.state
                if not stream.plan.steps:
                    stream.track.finish(stream.plan)
                    stream.plan = None
        return estimates

    def snapshot(self, key: str) -> bytes:
        """A stream as of its last estimate, without waiting frames; send them again after a restore."""
        from surgicalmamba.live.snapshot import save_snapshot

        with self._lock:
            stream = self._stream(key)
            if not stream.has_work:
                stream.track.clock = stream.clock  # frames between two ticks moved it without waiting
            return save_snapshot(self.engine, stream.track, stream.state)

    def counts(self, key: str) -> Counts:
        """Ticks of a stream that were not ordinary so far."""
        with self._lock:
            return self._stream(key).track.counts

    def n_waiting(self, key: str) -> int:
        """Frames in the queue of a stream."""
        with self._lock:
            return len(self._stream(key).waiting)

    def is_busy(self, key: str) -> bool:
        """Whether a frame of this stream waits or is in work."""
        with self._lock:
            return self._stream(key).has_work

    @property
    def keys(self) -> tuple[str, ...]:
        """The open streams."""
        with self._lock:
            return tuple(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def has_work(self) -> bool:
        """Whether a tick would do anything."""
        with self._lock:
            return any(stream.has_work for stream in self._streams.values())


_Result = tuple[Tensor, Output[LaneState]]
"""Features (d,) and output of one lane."""


def _advance(engine: Engine, streams: Sequence[Stream]) -> list[_Result]:
    """The next step of every stream: pictures are encoded together, and all lanes advance together."""
    if not streams:
        return []
    features = _features(engine, streams)
    states = [stream.state for stream in streams]
    output = engine.advance(features, states[0] if len(states) == 1 else type(states[0]).stack(states))
    if not torch.isfinite(output.logits).all():
        raise NonFiniteError("the engine returned logits that are not finite; try another engine.")
    results = []
    for lane in range(len(streams)):
        intensity = None if output.intensity_logits is None else output.intensity_logits[lane]
        state = output.state if len(streams) == 1 else output.state.select([lane])
        results.append((features[lane], Output(output.logits[lane], intensity, state)))
    return results


def _features(engine: Engine, streams: Sequence[Stream]) -> Tensor:
    """(b, d_feature): encoded pictures, pushed vectors and held features, in the order of the streams."""
    like = next((t for t in streams[0].state.tensors() if t.is_floating_point()), torch.zeros(()))
    values = [stream.next_step.value for stream in streams]
    pictures = [value for value in values if value is not None and value.dtype == np.uint8]
    encoded = iter(engine.encode(torch.from_numpy(np.stack(pictures))) if pictures else ())
    rows = []
    for stream, value in zip(streams, values, strict=True):
        if value is None:
            assert stream.track.features is not None  # a plan holds only what there is
            rows.append(stream.track.features)
        else:
            rows.append(next(encoded) if value.dtype == np.uint8 else torch.from_numpy(value))
    return torch.stack([row.to(like) for row in rows])


_ONLY = "session"


class Session:
    """One operation on one model: a pool of one stream.

    Pictures are prepared as `prepare` prepared the training videos, so streaming a recording gives the same
    result as `predict` on the prepared dataset.

    Time follows the timestamps, resampled to the model's rate (see track.py); without timestamps every push
    is the next sample. `policy` decides about missing, black, frozen and unreadable frames: a Policy, or one
    action for all of them. `fps` replaces the rate of the checkpoint. `output_stage` calibrates and filters
    the probabilities."""

    def __init__(
        self,
        model: AnyRecognizer | Engine,
        engine: str = "auto",
        fps: Fps | None = None,
        policy: Policy | Action | None = None,
        output_stage: OutputStage | None = None,
    ) -> None:
        self.engine = open_engine(model, engine) if isinstance(model, Recognizer) else model
        self._pool = SessionPool(self.engine, capacity=1, queue_len=1)
        self._pool.open(_ONLY, fps, policy, output_stage)

    @property
    def counts(self) -> Counts:
        """Ticks that were not ordinary so far."""
        return self._pool.counts(_ONLY)

    @property
    def frames_seen(self) -> int:
        """Frames the model was fed."""
        return self._pool._stream(_ONLY).track.n_frames

    def push(self, frame_rgb: Picture | None, time_s: float | None = None) -> PhaseEstimate | None:
        """A picture (h, w, 3) uint8, red first, of any size, at a source time; None for an unreadable one.

        Returns the estimate of the newest tick, or None where the frame falls between two ticks or the policy
        skips it. Missed ticks are filled first; `push_each` returns their estimates too. Raises InputError,
        and changes nothing, for a time before the last one. A frame on which the engine raises is lost."""
        return _last(self.push_each(frame_rgb, time_s))

    def push_features(self, vector: ArrayLike | None, time_s: float | None = None) -> PhaseEstimate | None:
        """As `push`, with a feature vector (d_feature,) in place of a picture."""
        return _last(self.push_features_each(vector, time_s))

    def push_each(self, frame_rgb: Picture | None, time_s: float | None = None) -> list[PhaseEstimate]:
        """As `push`, with the estimates of all ticks since the last push."""
        self._pool.push(_ONLY, frame_rgb, time_s)
        return self._drain()

    def push_features_each(
        self, vector: ArrayLike | None, time_s: float | None = None
    ) -> list[PhaseEstimate]:
        """As `push_features`, with the estimates of all ticks since the last push."""
        self._pool.push_features(_ONLY, vector, time_s)
        return self._drain()

    def _drain(self) -> list[PhaseEstimate]:
        estimates: list[PhaseEstimate] = []
        errors: list[Exception] = []
        while self.has_work:
            tick = self._pool.tick()
            estimates += tick.estimates.values()
            errors += tick.errors.values()
        if errors:
            raise errors[0]
        return estimates

    def submit(self, frame_rgb: Picture | None, time_s: float | None = None) -> int | None:
        """Queue a picture without waiting for its estimate, from any thread. A picture that still waits is
        dropped and counts as late. Returns the tick it falls on, or None where it falls between two."""
        is_queued = self._pool.push(_ONLY, frame_rgb, time_s)
        return self._pool._stream(_ONLY).clock.last_tick if is_queued else None

    def step(self) -> PhaseEstimate | None:
        """Advance by one frame of the model; None where the policy skips it. Raises the engine's error."""
        tick = self._pool.tick()
        if tick.errors:
            raise tick.errors[_ONLY]
        return tick.estimates.get(_ONLY)

    @property
    def has_work(self) -> bool:
        """Whether a submitted picture waits or is in work."""
        return self._pool.has_work

    def snapshot(self) -> bytes:
        """The whole session in a few megabytes; `restore` resumes from it to the bit on the same engine."""
        return self._pool.snapshot(_ONLY)

    @classmethod
    def restore(cls, model: AnyRecognizer | Engine, blob: bytes, engine: str | None = None) -> "Session":
        """The session as it was at `snapshot`, on the engine it ran on or on another.

        Raises SnapshotError with the reason for a blob that is damaged or of another version or model."""
        from surgicalmamba.live.snapshot import engine_of

        session = cls(model, engine or engine_of(blob))
        session._pool.close(_ONLY)
        session._pool.open(_ONLY, snapshot=blob)
        return session


def _last(estimates: list[PhaseEstimate]) -> PhaseEstimate | None:
    return estimates[-1] if estimates else None
