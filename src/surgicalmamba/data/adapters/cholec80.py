"""Cholec80: `videos/videoNN.mp4`, `phase_annotations/videoNN-phase.txt` with a row per 25 fps frame, phases
by name."""

import re
from fractions import Fraction

from surgicalmamba.data.adapters.base import RowAdapter
from surgicalmamba.data.labels import RowFormat

PHASE_ROWS = RowFormat("\t", ("Frame", "Phase"), labels="names")


class Cholec80(RowAdapter):
    """80 cholecystectomies. Numbers as labels are refused: copies in circulation order the last phases
    differently."""

    name = "cholec80"
    video_pattern = r"video([0-9]{2})\.mp4"
    label_pattern = r"video([0-9]{2})-phase\.txt"
    expected_video = "videos/video01.mp4"
    expected_label = "phase_annotations/{id}-phase.txt"
    row_format = PHASE_ROWS
    counted_per_s = Fraction(25)

    @staticmethod
    def identify(match: re.Match[str]) -> str:
        return f"video{match[1]}"
