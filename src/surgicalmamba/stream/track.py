"""One stream without its model: clock, policy, output stage and counters. Session and SessionPool both run on it.

A push becomes an Arrival (which tick, on which clock), an arrival a Plan (which frames the model is fed), each Step of it an estimate.
Nothing of the track changes before a step is complete, so a failed or interrupted plan leaves the stream where it was."""

from collections import deque
from dataclasses import astuple, dataclass, fields
from fractions import Fraction
from typing import Literal

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surgicalmamba.config import RecognizerConfig
from surgicalmamba.data.sampling import parse_fps
from surgicalmamba.errors import InputError
from surgicalmamba.stream.clock import Clock
from surgicalmamba.stream.estimate import Counts, PhaseEstimate, Quality
from surgicalmamba.stream.output import PLAIN, Floats, OutputStage
from surgicalmamba.stream.picture import PictureMaker
from surgicalmamba.stream.policy import Action, Policy, is_picture, look, thumbnail

Fps = Fraction | str | float | int


@dataclass(frozen=True)
class Arrival:
    """Something that came for a tick. `clock` is the stream's clock after it."""

    clock: Clock
    tick: int
    time_s: float
    kind: Literal["picture", "features"]
    content: object


@dataclass(frozen=True)
class Step:
    """One frame for the model. `value` is a picture of its size, a feature vector, or None to feed the last features again."""

    tick: int
    time_s: float
    quality: Quality
    fed: Literal["input", "held", "neutral"]
    value: NDArray[np.uint8] | NDArray[np.float32] | None
    counts: Counts
    """What this step adds to the counters: itself, and ticks skipped before it."""


@dataclass
class Plan:
    """What an arrival asks of the model, in order; `skipped` counts the ticks after the last step that pass without one."""

    arrival: Arrival
    steps: deque[Step]
    skipped: Counts
    small: NDArray[np.uint8] | None
    """Thumbnail of the picture that came."""


class Track:
    """Owned by one stream for as long as it lives. The model's memory is kept beside it by whoever runs the model."""

    def __init__(
        self, config: RecognizerConfig, fps: Fps | None = None, policy: Policy | Action | None = None, stage: OutputStage | None = None
    ) -> None:
        self.config = config
        self.policy = Policy.everywhere(policy) if isinstance(policy, str) else policy or Policy()
        self.stage = stage or PLAIN
        self.clock = Clock(config.preprocess.rate if fps is None else parse_fps(str(fps)))
        self.stage.check_fits(config.n_phases, config.phases, str(self.clock.fps))
        self.next_tick = 0
        self.n_frames = 0
        self.counts = Counts()
        self.features: Tensor | None = None
        self.small: NDArray[np.uint8] | None = None
        self.belief: Floats | None = None
        self._make = None if config.backbone is None else PictureMaker(config)

    def arrive(
        self, content: object, time_s: float | None, kind: Literal["picture", "features"], clock: Clock | None = None
    ) -> tuple[Clock, Arrival | None]:
        """Place a frame in time, on the track's clock or on one that is ahead of it. None where it falls on no tick."""
        if kind == "picture" and self._make is None:
            raise InputError("this model has no backbone (config.backbone is null); push feature vectors, not pictures.")
        if kind == "features" and content is not None:
            content = self._vector(content)
        clock, tick = (clock or self.clock).read(time_s)
        if tick is None:
            return clock, None
        return clock, Arrival(clock, tick, clock.tick_s(tick) if time_s is None else time_s, kind, content)

    def _vector(self, content: object) -> NDArray[np.float32]:
        """A feature vector as a float32 copy; another width is a mistake of the caller's, not a bad frame."""
        if isinstance(content, Tensor):
            content = content.detach().cpu().numpy()
        try:
            vector = np.array(content, np.float32)
        except (TypeError, ValueError):
            raise InputError(f"features are {type(content).__name__}; give {self.config.feature_width} numbers.") from None
        if vector.shape != (self.config.feature_width,):
            raise InputError(f"features have shape {vector.shape}; this model takes ({self.config.feature_width},).")
        return vector

    def plan(self, arrival: Arrival, late: frozenset[int] = frozenset()) -> Plan:
        """Steps for the ticks since the last one and for the arrival; ticks in `late` had a picture that was dropped."""
        value, quality, small = self._inspect(arrival)
        limit = int(self.policy.longest_fill_s * self.clock.fps)
        first_filled = max(self.next_tick, arrival.tick - limit)
        cut = first_filled - self.next_tick
        n_late = sum(self.next_tick <= tick < first_filled for tick in late)
        skipped = Counts(missing=cut - n_late, late=n_late, skipped=cut)
        steps: deque[Step] = deque()
        for tick in range(first_filled, arrival.tick + 1):
            is_last = tick == arrival.tick
            kind: Quality = quality if is_last else "late" if tick in late else "missing"
            fed = self._feed(kind, is_usable=value is not None and is_last)
            skipped = _plus(skipped, _count(kind, fed))
            if fed is None:
                continue
            time_s = arrival.time_s if is_last else self.clock.tick_s(tick)
            given = value if fed == "input" else self._neutral(arrival.kind) if fed == "neutral" else None
            steps.append(Step(tick, time_s, kind, fed, given, skipped))
            skipped = Counts()
        return Plan(arrival, steps, skipped, small)

    def _inspect(self, arrival: Arrival) -> tuple[NDArray[np.uint8] | NDArray[np.float32] | None, Quality, NDArray[np.uint8] | None]:
        """What came, ready for the model or None; what it is; and a thumbnail of a picture."""
        content = arrival.content
        if arrival.kind == "features":
            is_finite = isinstance(content, np.ndarray) and bool(np.isfinite(content).all())
            return (content, "ok", None) if is_finite else (None, "unreadable", None)  # type: ignore[return-value]
        if not is_picture(content) or self._make is None:
            return None, "unreadable", None
        assert isinstance(content, np.ndarray)
        small = thumbnail(content)
        quality = look(small, self.small)
        if self.policy.action(quality) != "advance":
            return None, quality, small
        try:
            return self._make(content), quality, small
        except cv2.error:
            return None, "unreadable", None

    def _feed(self, quality: Quality, is_usable: bool) -> Literal["input", "held", "neutral"] | None:
        """What the model is given for a tick; None to skip it."""
        action = self.policy.action(quality)
        if action == "advance":
            return "input" if is_usable else "neutral"
        return "held" if action == "hold" and self.features is not None else None

    def _neutral(self, kind: Literal["picture", "features"]) -> NDArray[np.uint8] | NDArray[np.float32]:
        if kind == "picture" and self._make is not None:
            return self._make.neutral()
        return np.zeros(self.config.feature_width, np.float32)

    def complete(self, step: Step, features: Tensor, logits: Tensor, intensity_logits: Tensor | None) -> PhaseEstimate:
        """The model has advanced by this step: features (d,), logits (k,), intensity logits (n_blocks,)."""
        values = logits.double().cpu().numpy()
        probabilities, self.belief = self.stage.apply(values, self.belief)
        intensity = None if intensity_logits is None else float(torch.sigmoid(intensity_logits.double()).mean())
        self.counts = _plus(self.counts, step.counts)
        self.next_tick = step.tick + 1
        if step.fed == "input":
            self.features = features.clone()  # not a view of a whole batch
        phase = int(probabilities.argmax())
        names = self.config.phases
        estimate = PhaseEstimate(
            frame_index=self.n_frames,
            tick=step.tick,
            time_s=step.time_s,
            phase=phase,
            name=names[phase] if names is not None else str(phase),
            probabilities=tuple(probabilities.tolist()),
            intensity=intensity,
            quality=step.quality,
            fed=step.fed,
            counts=self.counts,
        )
        self.n_frames += 1
        return estimate

    def finish(self, plan: Plan) -> None:
        """Every step of the plan is done."""
        self.counts = _plus(self.counts, plan.skipped)
        self.next_tick = plan.arrival.tick + 1
        self.clock = plan.arrival.clock
        if plan.small is not None:
            self.small = plan.small


def _count(quality: Quality, fed: Literal["input", "held", "neutral"] | None) -> Counts:
    """One tick as counters."""
    by_kind = {} if quality == "ok" else {quality: 1}
    done = {"input": {}, "held": {"held": 1}, "neutral": {"neutral": 1}, None: {"skipped": 1}}[fed]
    return Counts(**by_kind, **done)


def _plus(a: Counts, b: Counts) -> Counts:
    return Counts(**{f.name: x + y for f, x, y in zip(fields(Counts), astuple(a), astuple(b), strict=True)})
