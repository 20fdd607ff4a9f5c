"""`bench data`: its rows are what was timed, and a missing baseline is stated. Speeds are not tested."""

import shutil

import pytest

from surgicalmamba.data.clips import ClipLoader
from surgicalmamba_lab.bench.data import measure_decode, measure_loading, write_pattern


@pytest.fixture(scope="module")
def pattern(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "pattern.mp4"
    write_pattern(path, 3, 25, (96, 160))
    return path


def test_without_ffmpeg_the_missing_baseline_is_said_and_no_ratio_is_made_up(pattern, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    report = measure_decode(pattern, runs=1)
    assert report.baseline == "missing: ffmpeg is not installed" and [row.ratio for row in report.rows] == [
        None,
        None,
    ]
    assert report.frames_equal and report.frames == 75 and report.frames_decoded == 3
    assert report.jpeg_bytes_per_hour > 0 and report.duration_s == pytest.approx(3)
    for row in report.rows:
        assert row.source_s_per_s == pytest.approx(3 / (row.timing.median_ms / 1e3))


@pytest.mark.skipif(
    shutil.which("ffmpeg") is None, reason="the ffmpeg command line is not installed; it is the baseline"
)
def test_ratios_are_taken_against_ffmpeg_on_one_thread_in_the_same_run(pattern):
    report = measure_decode(pattern, runs=1)
    rows = {row.way: row for row in report.rows}
    base = rows["ffmpeg, one thread"].timing.median_ms
    assert rows["surgicalmamba"].ratio == pytest.approx(base / rows["surgicalmamba"].timing.median_ms)
    assert rows["ffmpeg, one thread"].ratio == 1 and report.frames_equal


def test_every_way_delivers_all_frames_and_ratios_refer_to_the_first_row(monkeypatch):
    delivered = []
    iterate = ClipLoader.__iter__

    def counting(self):
        n = 0
        for batch in iterate(self):
            n += int(batch.is_frame.sum())
            assert batch.is_frame.all()
            yield batch
        delivered.append(n)

    monkeypatch.setattr(ClipLoader, "__iter__", counting)
    report = measure_loading(runs=1, workers=2, clip_len=3, n_rendered=8)
    assert report.frames == 24 and set(delivered) == {24}
    assert len(delivered) == 5 * 2  # five ways through the loader, a warm-up and one run each
    for rows in (report.loading, report.rendering):
        for row in rows:
            assert row.ratio == pytest.approx(rows[0].timing.median_ms / row.timing.median_ms)
    assert report.loading[0].frames_per_s == pytest.approx(24 / report.loading[0].timing.median_ms * 1e3)
    assert report.rendering[0].frames_per_s == pytest.approx(8 / report.rendering[0].timing.median_ms * 1e3)
    assert report.stored_size == 250 and report.bytes_per_frame > 1000
    lines = report.lines()
    assert len(lines) == 2 + len(report.loading) + len(report.rendering)
    assert all(row.way in "\n".join(lines) for row in report.loading + report.rendering)
