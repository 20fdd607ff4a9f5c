"""What passes between decoding, labelling and storing: frames, what a recording is, and what reading it revealed."""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray


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
