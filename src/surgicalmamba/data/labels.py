"""The phases of a recording, whatever file they came from, and the phase of any sample of it."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.sampling import IndexSampling
from surgicalmamba.data.vocabulary import UNLABELLED

PAST_THE_END = -2
"""Returned for samples after the last label row; such samples are not kept."""


@dataclass(frozen=True)
class RowLabels:
    """One phase per row. Row r holds for frames `r * stride` to `(r + 1) * stride - 1`; stride "second" means round(fps) frames."""

    phases: NDArray[np.int64]
    stride: int | Literal["second"] = 1

    def frames_per_row(self, source_fps: Fraction) -> int:
        return IndexSampling.between(max(source_fps, Fraction(1)), Fraction(1)).frame_of(1) if self.stride == "second" else self.stride

    def n_frames(self, source_fps: Fraction) -> int:
        """Frames that the rows speak of: up to the last one that has a row of its own."""
        return (len(self.phases) - 1) * self.frames_per_row(source_fps) + 1

    def phase_of(self, frame: NDArray[np.int64], time_s: NDArray[np.float64], source_fps: Fraction) -> NDArray[np.int64]:
        """Phase ids of samples by frame index; PAST_THE_END after the last row."""
        row = frame // self.frames_per_row(source_fps)
        return np.where(row < len(self.phases), self.phases[np.minimum(row, len(self.phases) - 1)], PAST_THE_END)


@dataclass(frozen=True)
class SegmentLabels:
    """Phases by stretches of time, `start_s <= t < end_s`; what lies in no stretch is unlabelled, and nothing is past the end."""

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    phases: NDArray[np.int64]

    def phase_of(self, frame: NDArray[np.int64], time_s: NDArray[np.float64], source_fps: Fraction) -> NDArray[np.int64]:
        """Phase ids of samples by time. A microsecond of rounding never moves a sample across a boundary."""
        time_s = time_s + 1e-6
        place = np.searchsorted(self.start_s, time_s, side="right") - 1
        inside = (place >= 0) & (time_s < self.end_s[np.maximum(place, 0)])
        return np.where(inside, self.phases[np.maximum(place, 0)], UNLABELLED)


@dataclass(frozen=True)
class StartLabels:
    """Phases by the frame at which each begins, in order; the last one holds to the end, whatever the recording's length."""

    frames: NDArray[np.int64]
    phases: NDArray[np.int64]

    def phase_of(self, frame: NDArray[np.int64], time_s: NDArray[np.float64], source_fps: Fraction) -> NDArray[np.int64]:
        """Phase ids of samples by frame index; unlabelled before the first start."""
        place = np.searchsorted(self.frames, frame, side="right") - 1
        return np.where(place >= 0, self.phases[np.maximum(place, 0)], UNLABELLED)

    def rows(self, n_frames: int) -> RowLabels:
        """One row per frame, for a recording whose length is known."""
        frame = np.arange(n_frames)
        return RowLabels(self.phase_of(frame, frame.astype(np.float64), Fraction(1)))


Labels = RowLabels | SegmentLabels | StartLabels
