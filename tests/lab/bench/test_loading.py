"""The loading bench: its rows are what was timed, not more. Speeds themselves are no test's business."""

import pytest

from surgicalmamba.data.clips import ClipLoader
from surgicalmamba_lab.bench.data import measure_loading


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
