"""`bench evaluate`: made-up videos are realistic and the report is complete. Speed is not tested."""

import json

import numpy as np
import pytest

from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.evaluate import evaluate
from surgicalmamba_lab.bench.evaluate import VIDEO_ROWS, make_video, measure, write_videos


def test_a_made_up_video_has_all_phases_in_order_and_a_prediction_that_is_mostly_right():
    truth, predicted = make_video(np.random.default_rng(0), VIDEO_ROWS)
    assert truth[0] == 0 and truth[-1] == 6 and (np.diff(truth) >= 0).all()
    assert 0.9 < (truth == predicted).mean() < 1


def test_made_up_files_can_be_scored(tmp_path):
    assert write_videos(tmp_path, 2 * VIDEO_ROWS) == 2
    result = evaluate(tmp_path / "labels", [tmp_path / "predictions"], "cholec80", ["strict"])
    assert sum(len(video.truth) for video in result.runs[0]) == 2 * VIDEO_ROWS


def test_the_measurement_reports_times_ratios_and_the_machine():
    result = measure([VIDEO_ROWS, 4 * VIDEO_ROWS], runs=1)
    document = json.loads(result.text(as_json=True))
    assert document["command"]["videos"] == 39
    assert document["command"]["rows"] == 39 * VIDEO_ROWS
    assert document["command"]["ratio"] > 1
    assert [entry["rows"] for entry in document["growth"]] == [VIDEO_ROWS, 4 * VIDEO_ROWS]
    assert document["growth"][0]["read"]["per_row_ratio"] == 1
    assert document["machine"]["cores"] >= 1
    assert len(result.lines()) == 5


def test_a_size_below_one_video_is_refused():
    with pytest.raises(ConfigError, match="below one video"):
        measure([10], runs=1)
