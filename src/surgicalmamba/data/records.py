"""What reading a recording yields: frames, facts about the recording, and the rule that picks frames as
samples.

By index, the rule that agrees with per-frame label files: sample k is frame `k * step`, where `step =
round(source fps / sampling fps)`. By time, for recordings with uneven frames: sample k is the frame on screen
at `k / fps`, so a frozen picture is sampled again."""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.errors import ConfigError, DataError

By = Literal["index", "time", "auto"]
"""How samples are picked; `auto` is by time where frames are unevenly spaced, and by index elsewhere."""


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
    """A missing part of a live source: the link was down or frames were unreadable."""

    start_s: float
    end_s: float
    reason: str
    attempts: int


@dataclass(frozen=True)
class VideoInfo:
    """A recording as described by its packets, without decoding."""

    name: str
    codec: str
    size_hw: tuple[int, int]
    fps: Fraction
    n_frames: int
    duration_s: float
    """Time from the first frame to the end of the last one."""
    is_variable: bool
    """Frames are not evenly spaced in time, so they must be sampled by time."""
    announced_s: float | None
    """Duration according to the file's header, if it has one."""

    @property
    def is_truncated(self) -> bool:
        """The file is shorter than its header announces, by more than a second and more than two percent."""
        announced_s = self.announced_s or 0.0
        return announced_s - self.duration_s > max(1.0, announced_s / 50)


@dataclass
class ReadReport:
    """What was found while reading a recording; complete when its iterator ends."""

    n_frames: int = 0
    n_decoded: int = 0
    n_corrupt: int = 0
    """Packets or frames that were skipped because they could not be decoded, or are marked damaged."""
    held: list[int] = field(default_factory=list)
    """Sampled frames that were unreadable; each is replaced by the last readable picture."""
    warnings: list[str] = field(default_factory=list)


def parse_fps(text: str) -> Fraction:
    """A positive rational such as `1`, `0.5`, `30000/1001`."""
    try:
        fps = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        examples = "write 1, 0.5 or a fraction such as 30000/1001"
        raise ConfigError(f"fps {text!r} is not a number; {examples}.") from None
    if fps <= 0:
        raise ConfigError(f"fps {text} must be positive.")
    return fps


@dataclass(frozen=True)
class IndexSampling:
    """Frames by position: `ratio` source frames lie between two samples."""

    ratio: Fraction

    @classmethod
    def between(cls, source_fps: Fraction, fps: Fraction) -> "IndexSampling":
        """One sample per second uses `round(source_fps)`, as the label files do. Other rates round a ratio
        within one percent of a whole number; else sample k is the first frame at or after `k / fps`."""
        ratio = source_fps / fps
        if ratio < 1:
            rate = f"{float(source_fps):g} frames per second, fewer than {float(fps):g}"
            raise DataError(f"the recording has {rate}; lower --fps.")
        step = math.floor(ratio + Fraction(1, 2))
        return cls(Fraction(step) if fps == 1 or abs(ratio - step) * 100 <= ratio else ratio)

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
    """Frames by time: the sample at `k / fps` is the last frame that began by then, within one `tick`."""

    fps: Fraction
    tick: Fraction

    def samples_of(self, start: Fraction, following: Fraction | None) -> range:
        """The samples that show a frame which begins at `start` and is replaced at `following` (None: the
        last)."""
        first = max(0, math.ceil((start - self.tick) * self.fps))
        if following is None:
            return range(first, math.floor((start + self.tick) * self.fps) + 1)
        return range(first, max(first, math.ceil((following - self.tick) * self.fps)))
