"""kill -9, a real process, a client that resends: the record is that of an uninterrupted run."""

import torch

from surgicalmamba_lab.bench.kills import run_kills


def test_random_kills_under_load_lose_and_double_nothing(model, pictures, tmp_path):
    report = run_kills(model, tmp_path, pictures, kills=5, streams=3, fps=8, seed=4, life_s=(0.1, 1.2))
    assert report.frames > 100 and report.reconnects >= 5
    assert report.is_clean, "\n".join(report.lines())


def test_the_record_is_that_of_this_process_when_it_has_more_threads_than_tests_have(model, pictures, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        report = run_kills(model, tmp_path, pictures, kills=1, streams=1, fps=8, seed=1, life_s=(0.1, 0.2))
    finally:
        torch.set_num_threads(before)
    assert report.is_clean and report.frames > 0
