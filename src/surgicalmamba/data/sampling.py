"""Which frames of a recording become samples.

By index, the rule that agrees with per-frame label files: sample k is frame `k * step`, `step = round(source fps / wanted fps)`.
By time, for recordings with uneven frames: sample k is the frame on screen at `k / fps`, so a frozen picture is sampled again."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from surgicalmamba.errors import ConfigError, DataError

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
