"""M2CAI16-workflow: `train_dataset/workflow_video_NN.mp4` and `.txt`,
`test_dataset/test_workflow_video_NN.mp4` and `.txt`."""

import re
from fractions import Fraction

from surgicalmamba.data.adapters.base import RowAdapter
from surgicalmamba.data.adapters.cholec80 import PHASE_ROWS


class M2cai16(RowAdapter):
    """27 training and 14 test cholecystectomies. Both sets count from 01, so the id keeps the set's
    prefix."""

    name = "m2cai16"
    video_pattern = r"(test_)?workflow_video_([0-9]{2})\.mp4"
    label_pattern = r"(test_)?workflow_video_([0-9]{2})(?:-phase)?\.txt"
    expected_video = "train_dataset/workflow_video_01.mp4"
    expected_label = "{id}.txt beside the video"
    row_format = PHASE_ROWS
    counted_per_s = Fraction(25)

    @staticmethod
    def identify(match: re.Match[str]) -> str:
        return f"{(match[1] or '').lower()}workflow_video_{match[2]}"
