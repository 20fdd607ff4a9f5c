"""One stream without its model: clock, policy, picture preparation, output stage and counters.

A pushed frame becomes an Arrival (its tick, on which clock), an arrival a Plan (the frames to feed to the
model), each Step of a plan an estimate. Nothing of the track changes before a step is complete."""

import math
from collections import deque
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Literal, cast

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

Action = Literal["hold", "skip", "advance"]
"""hold      the model's time advances; it is fed the features of the last usable picture again
skip      the model's time does not advance; the tick yields no estimate
advance   the model's time advances; it is fed the picture as it is (black, frozen), or an empty one

Before the first usable picture there is nothing to hold: until then `hold` does as `skip` does."""

Kind = Literal["picture", "features"]
Fps = Fraction | str | float | int
Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class Clock:
    """The model's time: which frames of a source, at any rate, become samples at the model's rate.

    Tick k lies `k / fps` seconds after the first frame. It takes the first frame at or after it, where "at"
    allows for half the distance to the previous frame (and never more than half a tick). So a camera of 25
    frames per second is sampled exactly as `prepare` samples its recording, and a source that sends once a
    second with some jitter loses nothing. Ticks without a frame are missing; a source slower than the model
    misses some regularly."""

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
        """The clock after a frame, and the frame's tick; None if it lies between two ticks.

        `time_s` None means that the frame is the next sample. Raises InputError for a time before the last
        one."""
        if time_s is None:
            tick = self.last_tick + 1
            at = self.tick_s(tick)
            last = at if self.last_s is None else max(at, self.last_s)
            zero = at if self.zero_s is None else self.zero_s
            return replace(
                self, zero_s=zero, last_s=last, interval_s=float(1 / self.fps), last_tick=tick
            ), tick
        if not math.isfinite(time_s):
            raise InputError(f"time_s={time_s} is not a time; give seconds, or None for the next sample.")
        if self.zero_s is None or self.last_s is None:
            return replace(self, zero_s=time_s, last_s=time_s, last_tick=0), 0
        if time_s < self.last_s:
            raise InputError(
                f"time_s={time_s:.3f} lies before the last frame at {self.last_s:.3f} s; a session only "
                "moves forward. Send frames in order, or open a new session."
            )
        passed_s = time_s - self.last_s
        apart_s = min((s for s in (passed_s, self.interval_s) if s), default=0.0)
        early = min(Fraction(apart_s) * self.fps, Fraction(1)) / 2
        tick = math.floor((Fraction(time_s) - Fraction(self.zero_s)) * self.fps + early)
        clock = replace(self, last_s=time_s, interval_s=passed_s or self.interval_s)
        return (replace(clock, last_tick=tick), tick) if tick > self.last_tick else (clock, None)

    def tick_s(self, tick: int) -> float:
        """Source time of a tick."""
        return (self.zero_s or 0.0) + float(tick / self.fps)


class Policy(Section):
    """An action for each kind of tick without an ordinary picture. The defaults match the training videos:
    `prepare` keeps dark and still pictures, and replaces an unreadable picture by the previous one. A session
    that falls behind skips ticks."""

    missing: Action = Field("hold", description="The timestamps jumped over a tick.")
    black: Action = Field("advance", description="Almost nothing is brighter than the endoscope's margin.")
    frozen: Action = Field("advance", description="The same picture as at the previous tick.")
    unreadable: Action = Field(
        "hold",
        description="Not a picture of three bytes per pixel, or a vector with values that are not finite.",
    )
    late: Action = Field("skip", description="The picture was dropped because inference was behind.")
    longest_fill_s: Annotated[float, Field(ge=0)] = Field(
        60.0, description="Of a longer gap only the last seconds, this many, are filled; the rest is skipped."
    )

    @classmethod
    def everywhere(cls, action: Action) -> "Policy":
        """The same action for every kind."""
        return cls(missing=action, black=action, frozen=action, unreadable=action, late=action)

    def action(self, quality: Quality) -> Action:
        """The action for a kind; an ordinary picture is fed."""
        action: Action = "advance" if quality == "ok" else getattr(self, quality)
        return action


_SIDE = 64
_STILL_LEVEL = 0.05
_BRIGHT_SHARE = 0.01
_LEAST_SIDE = 16
_LARGEST_ASPECT = 16  # scaling a sliver to the height of the margin search would take all memory


def thumbnail(rgb: Picture) -> Picture:
    """(64, 64) grey: enough to recognize a black or a frozen picture."""
    small = cv2.resize(rgb, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.uint8)


def look(small: Picture, before: Picture | None) -> Quality:
    """Whether a thumbnail is black, the same as the previous one, or neither.

    Black: no more than a hundredth of it is above the threshold of the margin cut. Frozen: it differs from
    the previous one by no more than 0.05 grey levels on average; the noise of a running camera is above
    that."""
    if np.count_nonzero(small > THRESHOLD) <= _BRIGHT_SHARE * small.size:
        return "black"
    if before is not None and np.abs(small.astype(np.int16) - before).mean() <= _STILL_LEVEL:
        return "frozen"
    return "ok"


def is_picture(frame: object) -> bool:
    """Whether a frame is (h, w, 3) bytes, both sides at least 16 pixels, neither 16 times the other."""
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        return False
    short, long = sorted(frame.shape[:2])
    return bool(short >= _LEAST_SIDE and long <= _LARGEST_ASPECT * short)


class PictureMaker:
    """A camera's picture as the model saw it in training, with the settings of the checkpoint: margin cut,
    stored size and the loss of the stored JPEG as in `prepare`, then the model's size as in `predict`."""

    def __init__(self, config: RecognizerConfig) -> None:
        assert config.backbone is not None
        self._quality = config.preprocess.jpeg_quality
        self._prepare = Preprocess(config.preprocess.box, config.preprocess.size)
        self._resize = WholeFrame(config.backbone.image_size)
        self._mean_rgb = config.backbone.mean_rgb

    def __call__(self, rgb: Picture) -> Picture:
        """(h, w, 3) of any size -> (image_size, image_size, 3)."""
        stored = self._prepare(rgb)
        if self._quality is not None:
            stored = decode_jpeg(encode_jpeg(stored, self._quality))
        out = np.empty((self._resize.image_size, self._resize.image_size, 3), np.uint8)
        self._resize.apply(stored, NO_CHANGE, out)
        return out

    def neutral(self) -> Picture:
        """A picture of the mean colour, close to zero once normalised."""
        side = self._resize.image_size
        return np.broadcast_to(
            np.round(np.array(self._mean_rgb) * 255).astype(np.uint8), (side, side, 3)
        ).copy()


@dataclass(frozen=True)
class Arrival:
    """Something that came for a tick. `clock` is the stream's clock after it."""

    clock: Clock
    tick: int
    time_s: float
    kind: Kind
    content: object


@dataclass(frozen=True)
class Step:
    """One frame for the model: a picture of its size, a feature vector, or None to hold the features."""

    tick: int
    time_s: float
    quality: Quality
    fed: Fed
    value: Picture | NDArray[np.float32] | None
    counts: Counts
    """What this step adds to the counters: itself, and ticks skipped before it."""


@dataclass
class Plan:
    """The steps for an arrival, in order; `skipped` counts the ticks after the last step."""

    arrival: Arrival
    steps: deque[Step]
    skipped: Counts
    small: Picture | None
    """Thumbnail of the picture."""


class Track:
    """Owned by one stream for as long as it lives; the model's state is kept beside it."""

    def __init__(
        self,
        config: RecognizerConfig,
        fps: Fps | None = None,
        policy: Policy | Action | None = None,
        stage: OutputStage | None = None,
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
        self.small: Picture | None = None
        self.belief: Floats | None = None
        self._make = None if config.backbone is None else PictureMaker(config)

    def arrive(
        self, content: object, time_s: float | None, kind: Kind, clock: Clock
    ) -> tuple[Clock, Arrival | None]:
        """Place a frame on a clock, which may be ahead of the track's. None where it falls on no tick."""
        if kind == "picture" and self._make is None:
            raise InputError(
                "this model has no backbone (config.backbone is null); push feature vectors, not pictures."
            )
        if kind == "features" and content is not None:
            content = self._vector(content)
        clock, tick = clock.read(time_s)
        if tick is None:
            return clock, None
        return clock, Arrival(clock, tick, clock.tick_s(tick) if time_s is None else time_s, kind, content)

    def _vector(self, content: object) -> NDArray[np.float32]:
        """A feature vector as a float32 copy; another width is an error of the caller, not a bad frame."""
        if isinstance(content, Tensor):
            content = content.detach().cpu().numpy()
        width = self.config.feature_width
        try:
            vector = np.array(content, np.float32)
        except (TypeError, ValueError):
            raise InputError(f"features are {type(content).__name__}; give {width} numbers.") from None
        if vector.shape != (width,):
            raise InputError(f"features have shape {vector.shape}; this model takes ({width},).")
        return vector

    def plan(self, arrival: Arrival, late: frozenset[int] = frozenset()) -> Plan:
        """Steps from the last tick to the arrival's; the pictures of ticks in `late` were dropped."""
        value, quality, small = self._inspect(arrival)
        limit = int(self.policy.longest_fill_s * self.clock.fps)
        first_filled = max(self.next_tick, arrival.tick - limit)
        n_cut = first_filled - self.next_tick
        n_late = sum(self.next_tick <= tick < first_filled for tick in late)
        skipped = Counts(missing=n_cut - n_late, late=n_late, skipped=n_cut)
        steps: deque[Step] = deque()
        for tick in range(first_filled, arrival.tick + 1):
            is_last = tick == arrival.tick
            kind: Quality = quality if is_last else "late" if tick in late else "missing"
            fed = self._feed(kind, is_usable=value is not None and is_last)
            skipped += _count(kind, fed)
            if fed is not None:
                time_s = arrival.time_s if is_last else self.clock.tick_s(tick)
                fed_value = (
                    value if fed == "input" else self._neutral(arrival.kind) if fed == "neutral" else None
                )
                steps.append(Step(tick, time_s, kind, fed, fed_value, skipped))
                skipped = Counts()
        return Plan(arrival, steps, skipped, small)

    def _inspect(
        self, arrival: Arrival
    ) -> tuple[Picture | NDArray[np.float32] | None, Quality, Picture | None]:
        """The content ready for the model or None, its quality, and the thumbnail of a picture."""
        content = arrival.content
        if arrival.kind == "features":
            is_finite = isinstance(content, np.ndarray) and bool(np.isfinite(content).all())
            vector = cast(NDArray[np.float32], content)
            return (vector, "ok", None) if is_finite else (None, "unreadable", None)
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
        """What the model is fed at a tick; None to skip it."""
        action = self.policy.action(quality)
        if action == "advance":
            return "input" if is_usable else "neutral"
        return "held" if action == "hold" and self.features is not None else None

    def _neutral(self, kind: Kind) -> Picture | NDArray[np.float32]:
        if kind == "picture" and self._make is not None:
            return self._make.neutral()
        return np.zeros(self.config.feature_width, np.float32)

    def complete(
        self, step: Step, features: Tensor, logits: Tensor, intensity_logits: Tensor | None
    ) -> PhaseEstimate:
        """The estimate of a step: features (d,), logits (k,), intensity logits (n_blocks,)."""
        probabilities, self.belief = self.stage.apply(logits.double().cpu().numpy(), self.belief)
        self.counts += step.counts
        self.next_tick = step.tick + 1
        if step.fed == "input":
            self.features = features.clone()  # not a view of a whole batch
        phase = int(probabilities.argmax())
        estimate = PhaseEstimate(
            frame_index=self.n_frames,
            tick=step.tick,
            time_s=step.time_s,
            phase=phase,
            name=str(phase) if self.config.phases is None else self.config.phases[phase],
            probabilities=tuple(probabilities.tolist()),
            intensity=None
            if intensity_logits is None
            else float(torch.sigmoid(intensity_logits.double()).mean()),
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
    names = (
        quality if quality != "ok" else None,
        "skipped" if fed is None else fed if fed != "input" else None,
    )
    return Counts(**{name: 1 for name in names if name is not None})
