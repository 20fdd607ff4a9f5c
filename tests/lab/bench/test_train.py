"""The training bench: shares and frames are what was timed. Speeds themselves are no test's business."""

import pytest
from typer.testing import CliRunner

from surgicalmamba.cli.main import app
from surgicalmamba_lab.bench.train import PARTS, bench_train


def test_shares_sum_to_one_and_speed_is_frames_over_the_median_step():
    result = bench_train("tiny", features_only=False, runs=2, threads=1, quick=True)
    pixels, features = result.steps
    assert (pixels.inputs, features.inputs) == ("pixels", "features")
    for step in result.steps:
        assert tuple(step.shares) == PARTS and sum(step.shares.values()) == pytest.approx(1.0)
        assert all(share >= 0 for share in step.shares.values())
        assert (step.lanes, step.clip_len, step.threads, step.step.runs, step.loader_alone.runs) == (
            4,
            32,
            1,
            2,
            2,
        )
        assert step.frames_per_s == pytest.approx(4 * 32 / step.step.median_ms * 1e3)
        assert 100e6 < step.peak_memory_bytes < 16 * 2**30
    assert pixels.shares["backbone"] > 0.3 and features.shares["backbone"] == 0.0
    assert pixels.peak_memory_bytes > features.peak_memory_bytes
    text = "\n".join(result.lines())
    assert "one update from pixels, 4 lane(s) x 32 frames, 1 thread(s)" in text and "quick" in text


def test_an_unknown_preset_is_refused():
    result = CliRunner().invoke(app, ["bench", "train", "--preset", "huge"])
    assert "unknown preset 'huge'" in str(result.exception)
