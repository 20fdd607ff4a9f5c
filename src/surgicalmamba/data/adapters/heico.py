"""HeiCo: `<operation>/<n>/<Stem>_<n>.avi` and `<Stem>_<n>_Phase.csv`, a headerless row per frame; or the 2017
challenge's names."""

import re
from fractions import Fraction

from surgicalmamba.data.adapters.base import RowAdapter
from surgicalmamba.data.adapters.heichole import FRAME_ROWS

_STEMS = {
    "proctocolectomy": "Proctocolectomy",
    "prokto": "Proctocolectomy",
    "rectalresection": "RectalResection",
    "rektum": "RectalResection",
    "sigmoidresection": "SigmoidResection",
    "sigma": "SigmoidResection",
}
_STEM = rf"({'|'.join(_STEMS)})_?([0-9]+)"


class HeiCo(RowAdapter):
    """30 colorectal operations of three types, found by the stem of the file name. Blue censored frames carry
    labels and stay."""

    name = "heico"
    video_pattern = rf"{_STEM}\.(?:avi|mp4)"
    label_pattern = rf"{_STEM}(?:_phase)?\.csv"
    expected_video = "Proctocolectomy/1/Proctocolectomy_1.avi"
    expected_label = "{id}_Phase.csv"
    row_format = FRAME_ROWS
    counted_per_s = Fraction(25)

    @staticmethod
    def identify(match: re.Match[str]) -> str:
        return f"{_STEMS[match[1].lower()]}_{int(match[2])}"
