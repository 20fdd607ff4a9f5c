"""One stream without its model: clock, policy, output stage and counters. Session and SessionPool both run on it.

A push becomes an Arrival (which tick, on which clock), an arrival a Plan (which frames the model is fed), each Step of it an estimate.
Nothing of the track changes before a step is complete, so a failed or interrupted plan leaves the stream where it was."""

import math
from collections import deque
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Literal

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from surgicalmamba.config import Section
from surgicalmamba.data.pictures import THRESHOLD, Preprocess, decode_jpeg, encode_jpeg
from surgicalmamba.data.records import parse_fps
from surgicalmamba.data.transforms import NO_CHANGE, WholeFrame
from surgicalmamba.errors import InputError
from surgicalmamba.live.estimate import Counts, Fed, PhaseEstimate, Quality
from surgicalmamba.live.output import PLAIN, Floats, OutputStage
from surgicalmamba.model.recognizer import RecognizerConfig

# The model's time: which frames of a source, at whatever rate it comes, become samples at the model's rate.
#
# Tick k of a session lies `k / fps` seconds after its first frame. A tick is shown the first frame at or after it, where "at" allows for
# half the distance to the frame before (and never more than half a tick): a camera of 25 frames per second is sampled exactly as
# `prepare` samples its recording, and a source that sends once a second with some jitter loses nothing. Ticks that no frame fell on are
# missing; a source slower than the model misses some regularly.


@dataclass(frozen=True)
class Clock:
    """Where a stream stands. `read` returns the clock after a frame, so that a caller can keep the one before."""

    fps: Fraction
    zero_s: float | None = None
    """Source time of the first frame."""
    last_s: float | None = None
    """Source time of the last frame, sampled or not."""
    interval_s: float | None = None
    """Distance of the last two frames that were apart."""
    last_tick: int = -1
    """The last tick that a frame fell on."""

    def read(self, time_s: float | None) -> tuple["Clock", int | None]:
        """The clock after a frame, and the tick the frame falls on; None if it lies between two.

        `time_s` None says that the frame is the next sample. Raises InputError for a time before the last one."""
        if time_s is None:
            tick = self.last_tick + 1
            at = self.tick_s(tick)
            last = at if self.last_s is None else max(at, self.last_s)
            zero = at if self.zero_s is None else self.zero_s
            return replace(self, zero_s=zero, last_s=last, interval_s=float(1 / self.fps), last_tick=tick), tick
        if not math.isfinite(time_s):
            raise InputError(f"time_s={time_s} is no time; give seconds, or None for the next sample.")
        if self.zero_s is None or self.last_s is None:
            return replace(self, zero_s=time_s, last_s=time_s, last_tick=0), 0
        if time_s < self.last_s:
            raise InputError(
                f"time_s={time_s:.3f} lies before the last frame at {self.last_s:.3f} s; a session only moves forward. "
                "Send frames in order, or open a new session."
            )
        gone_s = time_s - self.last_s
        apart_s = min((s for s in (gone_s, self.interval_s) if s), default=0.0)
        early = min(Fraction(apart_s) * self.fps, Fraction(1)) / 2
        tick = math.floor((Fraction(time_s) - Fraction(self.zero_s)) * self.fps + early)
        clock = replace(self, last_s=time_s, interval_s=gone_s or self.interval_s)
        return (replace(clock, last_tick=tick), tick) if tick > self.last_tick else (clock, None)

    def tick_s(self, tick: int) -> float:
        """Source time of a tick."""
        return (self.zero_s or 0.0) + float(tick / self.fps)


# What to do about a tick for which no ordinary picture came, and how to tell that a picture is not ordinary.


Action = Literal["hold", "skip", "advance"]
"""hold      the model's time advances; it is fed the features of the last usable picture again
skip      the model's time does not advance; the tick yields no estimate
advance   the model's time advances; it is fed the picture as it is (black, frozen), or an empty one where there is none

Nothing can be held before the first usable picture: until then `hold` does as `skip` does."""

SIDE = 64
STILL_LEVEL = 0.05
BRIGHT_SHARE = 0.01
LEAST_SIDE = 16
LARGEST_ASPECT = 16  # scaling a sliver to the height of the margin search would take all memory


class Policy(Section):
    """An action for each kind. The defaults do what `prepare` did to the training videos: dark and still pictures are part of an
    operation and stay, a picture that cannot be read is replaced by the one before. A session that falls behind gives up ticks."""

    missing: Action = Field("hold", description="The timestamps jumped over a tick.")
    black: Action = Field("advance", description="Next to nothing is brighter than the endoscope's margin.")
    frozen: Action = Field("advance", description="The same picture as at the tick before.")
    unreadable: Action = Field("hold", description="No picture of three bytes per pixel, or a vector with values that are not finite.")
    late: Action = Field("skip", description="The picture was dropped because inference was behind.")
    longest_fill_s: Annotated[float, Field(ge=0)] = Field(
        60.0, description="Of a longer gap only so many seconds, the last ones, are held or advanced; the rest is skipped."
    )

    @classmethod
    def everywhere(cls, action: Action) -> "Policy":
        """The same action for every kind."""
        return cls(missing=action, black=action, frozen=action, unreadable=action, late=action)

    def action(self, quality: Quality) -> Action:
        """What to do about a kind; an ordinary picture is fed."""
        actions: dict[Quality, Action] = {
            "ok": "advance",
            "missing": self.missing,
            "black": self.black,
            "frozen": self.frozen,
            "unreadable": self.unreadable,
            "late": self.late,
        }
        return actions[quality]


def thumbnail(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(64, 64) grey: enough to tell a black or a frozen picture from another."""
    import cv2

    small = cv2.resize(rgb, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.uint8)


def look(small: NDArray[np.uint8], before: NDArray[np.uint8] | None) -> Quality:
    """Whether a thumbnail is black, the same as the one before, or neither.

    Black: no more than a hundredth of it is above the threshold of the margin cut. Frozen: it differs from the one before by no more
    than 0.05 grey levels on average; the noise of a camera that still runs is above that."""
    if np.count_nonzero(small > THRESHOLD) <= BRIGHT_SHARE * small.size:
        return "black"
    if before is not None and np.abs(small.astype(np.int16) - before).mean() <= STILL_LEVEL:
        return "frozen"
    return "ok"


def is_picture(frame: object) -> bool:
    """Whether a frame is (height, width, 3) of bytes, with sides of at least 16 pixels, neither 16 times as long as the other."""
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        return False
    short, long = sorted(frame.shape[:2])
    return bool(short >= LEAST_SIDE and long <= LARGEST_ASPECT * short)


# A camera's picture as the model saw it in training: what `prepare` does to a frame, then what `predict` does to a stored one.


class PictureMaker:
    """Margin cut, stored size, the loss of the stored JPEG, the model's size. The settings come from the checkpoint."""

    def __init__(self, config: RecognizerConfig) -> None:
        if config.backbone is None:
            raise InputError("this model has no backbone (config.backbone is null); push feature vectors, not pictures.")
        self._quality = config.preprocess.jpeg_quality
        self._prepare = Preprocess(config.preprocess.box, config.preprocess.size)
        self._resize = WholeFrame(config.backbone.image_size)
        self._mean_rgb = config.backbone.mean_rgb

    def __call__(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """(h, w, 3) of any size -> (image_size, image_size, 3)."""
        stored = self._prepare(rgb)
        if self._quality is not None:
            stored = decode_jpeg(encode_jpeg(stored, self._quality))
        out = np.empty((self._resize.image_size, self._resize.image_size, 3), np.uint8)
        self._resize.apply(stored, NO_CHANGE, out)
        return out

    def neutral(self) -> NDArray[np.uint8]:
        """A picture of the mean colour, next to zero once normalised: what is fed where there is nothing."""
        side = self._resize.image_size
        return np.broadcast_to(np.round(np.array(self._mean_rgb) * 255).astype(np.uint8), (side, side, 3)).copy()


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
    fed: Fed
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
            skipped += _count(kind, fed)
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

    def _feed(self, quality: Quality, is_usable: bool) -> Fed | None:
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
        self.counts += step.counts
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
        self.counts += plan.skipped
        self.next_tick = plan.arrival.tick + 1
        self.clock = plan.arrival.clock
        if plan.small is not None:
            self.small = plan.small


def _count(quality: Quality, fed: Fed | None) -> Counts:
    """One tick as counters."""
    by_kind = {} if quality == "ok" else {quality: 1}
    done = {"input": {}, "held": {"held": 1}, "neutral": {"neutral": 1}, None: {"skipped": 1}}[fed]
    return Counts(**by_kind, **done)
