"""HeiChole: `Videos/Full/Hei-Chole<N>.mp4`, `Annotations/Phase/Hei-Chole<N>_Annotation_Phase.csv`, a
headerless row per native frame."""

import re

from surgicalmamba.data.adapters.base import RowAdapter
from surgicalmamba.data.labels import RowFormat

FRAME_ROWS = RowFormat(",", None, labels="ids")


class HeiChole(RowAdapter):
    """24 public cholecystectomies at 25 or 50 fps. White out-of-body frames carry labels and stay; the HD
    copies are second choice."""

    name = "heichole"
    video_pattern = r"hei-chole([0-9]+)\.mp4"
    label_pattern = r"hei-chole([0-9]+)_annotation_phase\.csv"
    expected_video = "Videos/Full/Hei-Chole1.mp4"
    expected_label = "Annotations/Phase/{id}_Annotation_Phase.csv"
    row_format = FRAME_ROWS
    second_choice = r"(^|/)(hd|skill)/"

    @staticmethod
    def identify(match: re.Match[str]) -> str:
        return f"Hei-Chole{int(match[1])}"
