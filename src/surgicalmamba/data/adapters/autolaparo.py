"""AutoLaparo task 1: `videos/NN.mp4`, `labels/label_NN.txt` with a row per second, rows and phases counted
from 1."""

import re
from fractions import Fraction

from surgicalmamba.data.adapters.base import RowAdapter
from surgicalmamba.data.labels import RowFormat


class AutoLaparo(RowAdapter):
    """21 hysterectomies. Row i belongs to frame 25 (i - 1); a file with a phase 0 has been shifted by
    somebody and is refused."""

    name = "autolaparo"
    video_pattern = r"([0-9]{2})\.mp4"
    label_pattern = r"label_([0-9]{2})\.txt"
    expected_video = "videos/01.mp4"
    expected_label = "labels/label_{id}.txt"
    row_format = RowFormat("\t", ("Frame", "Phase"), first_row=1, labels="ids", stride="second")
    counted_per_s = Fraction(1)

    @staticmethod
    def identify(match: re.Match[str]) -> str:
        return match[1]
