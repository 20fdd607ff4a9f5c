"""kill -9, a real process, a client that resends: the record is that of an uninterrupted run."""

from surgicalmamba.bench.kills import run_kills


def test_random_kills_under_load_lose_and_double_nothing(model, pictures, tmp_path):
    report = run_kills(model, tmp_path, pictures, kills=5, streams=3, fps=8, seed=4, life_s=(0.1, 1.2))
    assert report.frames > 100 and report.reconnects >= 5
    assert report.is_clean, "\n".join(report.lines())
