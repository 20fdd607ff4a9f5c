"""What passes between decoding, labelling and storing: frames, what a recording is, and what reading it revealed."""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.errors import ConfigError, DataError


@dataclass(frozen=True)
class Frame:
    """One picture of a recording."""

    index: int
    """Position in the recording, from 0, in display order."""
    time_s: float
    """Seconds since the recording's first frame."""
    rgb: NDArray[np.uint8]
    """(height, width, 3), red first."""


@dataclass(frozen=True)
class Gap:
    """A stretch of a live source that nobody saw: the link was down or frames were unreadable."""

    start_s: float
    end_s: float
    reason: str
    attempts: int


@dataclass(frozen=True)
class VideoInfo:
    """A recording as its packets tell it, without decoding."""

    name: str
    codec: str
    size_hw: tuple[int, int]
    fps: Fraction
    n_frames: int
    duration_s: float
    """Time from the first frame to the end of the last one."""
    is_variable: bool
    """Frames are not evenly spaced in time, so sampling has to go by timestamp."""
    announced_s: float | None
    """Duration that the file's header promises, where it does."""

    @property
    def is_truncated(self) -> bool:
        """The header promises at least a second, and a fiftieth of the whole, that the file does not hold."""
        return self.announced_s is not None and self.announced_s - self.duration_s > max(1.0, self.announced_s / 50)


@dataclass
class ReadReport:
    """What reading a recording revealed so far; complete once its iterator ends."""

    n_frames: int = 0
    n_decoded: int = 0
    n_corrupt: int = 0
    """Packets or frames that were skipped because they could not be decoded, or are marked damaged."""
    held: list[int] = field(default_factory=list)
    """Wanted frames that were unreadable; the last readable picture stands in for each."""
    warnings: list[str] = field(default_factory=list)


# Which frames of a recording become samples.
#
# By index, the rule that agrees with per-frame label files: sample k is frame `k * step`, `step = round(source fps / wanted fps)`.
# By time, for recordings with uneven frames: sample k is the frame on screen at `k / fps`, so a frozen picture is sampled again.


By = Literal["index", "time"]


def parse_fps(text: str) -> Fraction:
    """A positive rational such as `1`, `0.5`, `30000/1001`."""
    try:
        fps = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"fps {text!r} is not a number; write 1, 0.5 or a fraction such as 30000/1001.") from None
    if fps <= 0:
        raise ConfigError(f"fps {text} must be positive.")
    return fps


@dataclass(frozen=True)
class IndexSampling:
    """Frames by position. `ratio` source frames lie between two samples; a whole number wherever the field's rule gives one."""

    ratio: Fraction

    @classmethod
    def between(cls, source_fps: Fraction, fps: Fraction) -> "IndexSampling":
        """One sample per second uses `round(source_fps)`, whatever the fraction, as the label files do. Other rates round
        a ratio within one percent of a whole number; else sample k is the first frame at or after `k / fps`."""
        ratio = source_fps / fps
        if ratio < 1:
            raise DataError(f"the recording has {float(source_fps):g} frames per second, fewer than {float(fps):g}; lower --fps.")
        step = math.floor(ratio + Fraction(1, 2))
        if fps == 1 or abs(ratio - step) * 100 <= ratio:
            return cls(Fraction(step))
        return cls(ratio)

    def frame_of(self, sample: int) -> int:
        """The frame that becomes sample k."""
        return math.ceil(sample * self.ratio)

    def sample_of(self, index: int) -> int | None:
        """The sample that frame `index` becomes, or None."""
        sample = math.floor(index / self.ratio)
        return sample if self.frame_of(sample) == index else None

    def n_samples(self, n_frames: int) -> int:
        """Samples in a recording of n frames: ceil(n / step) for a whole step."""
        return math.floor((n_frames - 1) / self.ratio) + 1 if n_frames > 0 else 0


@dataclass(frozen=True)
class TimeSampling:
    """Frames by time: the sample at `k / fps` is the last frame that began by then, give or take `tick`."""

    fps: Fraction
    tick: Fraction

    def samples_of(self, start: Fraction, following: Fraction | None) -> range:
        """The samples that show a frame which begins at `start` and is replaced at `following` (None for the last one)."""
        first = max(0, math.ceil((start - self.tick) * self.fps))
        if following is None:
            return range(first, math.floor((start + self.tick) * self.fps) + 1)
        return range(first, max(first, math.ceil((following - self.tick) * self.fps)))

