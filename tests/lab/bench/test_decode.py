"""What the decoding benchmark reports; its figures belong to the machine it runs on."""

import shutil

import pytest

from surgicalmamba_lab.bench.data import measure_decode, write_pattern


@pytest.fixture(scope="module")
def pattern(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "pattern.mp4"
    write_pattern(path, 3, 25, (96, 160))
    return path


def test_without_ffmpeg_the_missing_baseline_is_said_and_no_ratio_is_made_up(pattern, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    report = measure_decode(pattern, runs=1)
    assert report.baseline == "missing: ffmpeg is not installed" and [row.ratio for row in report.rows] == [None, None]
    assert report.frames_equal and report.frames == 75 and report.frames_decoded == 3
    assert report.jpeg_bytes_per_hour > 0 and report.duration_s == pytest.approx(3)
    for row in report.rows:
        assert row.source_s_per_s == pytest.approx(3 / (row.timing.median_ms / 1e3))


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="the ffmpeg command line is not installed; it is the baseline")
def test_ratios_are_taken_against_ffmpeg_on_one_thread_in_the_same_run(pattern):
    report = measure_decode(pattern, runs=1)
    rows = {row.way: row for row in report.rows}
    base = rows["ffmpeg, one thread"].timing.median_ms
    assert rows["surgicalmamba"].ratio == pytest.approx(base / rows["surgicalmamba"].timing.median_ms)
    assert rows["ffmpeg, one thread"].ratio == 1 and report.frames_equal
