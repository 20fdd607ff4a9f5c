"""Three orders of averaging and three spreads, each under its own name."""

import numpy as np
import pytest

from surgicalmamba.eval.frame import summarise_each_phase, summarise_phases, summarise_videos

NAN = np.nan
ONE_RUN = np.array(
    [[[100.0, 50.0], [80.0, NAN], [60.0, 20.0]]]
)  # one run, three videos, two phases; one cell undefined


def test_the_three_orders_part_as_soon_as_one_cell_is_undefined():
    summary = summarise_phases(ONE_RUN)
    assert summary["mean"] == pytest.approx((80 + 35) / 2)  # phase means 80 and 35
    assert summary["mean_videos"] == pytest.approx((75 + 80 + 40) / 3)  # video means 75, 80, 40
    assert summary["mean_cells"] == pytest.approx((100 + 50 + 80 + 60 + 20) / 5)


def test_spreads_are_sample_deviations_over_what_their_name_says():
    summary = summarise_phases(ONE_RUN)
    assert summary["std_phases"] == pytest.approx(np.std([80, 35], ddof=1))
    assert summary["std_videos"] == pytest.approx(np.std([75, 80, 40], ddof=1))
    assert np.isnan(summary["std_runs"])


def test_the_orders_agree_when_every_cell_is_defined():
    summary = summarise_phases(np.random.default_rng(0).uniform(0, 100, size=(3, 5, 7)))
    assert summary["mean"] == pytest.approx(summary["mean_videos"]) == pytest.approx(summary["mean_cells"])


def test_several_runs_have_a_spread_of_their_own():
    second = np.array([[100.0, 90.0], [80.0, NAN], [60.0, 60.0]])  # phase means 80 and 75
    summary = summarise_phases(np.stack([ONE_RUN[0], second]))
    assert summary["mean"] == pytest.approx((80 + 55) / 2)
    assert summary["std_runs"] == pytest.approx(
        np.std([57.5, 77.5], ddof=1)
    )  # each run averaged in the order of `mean`
    assert summary["std_phases"] == pytest.approx(
        np.std([80, 55], ddof=1)
    )  # runs are averaged within each phase first


def test_a_score_per_video_has_mean_spread_over_videos_and_over_runs():
    summary = summarise_videos(np.array([[90.0, 80.0], [94.0, 82.0]]))
    assert summary["mean"] == pytest.approx(86.5)
    assert summary["std_videos"] == pytest.approx(np.std([92, 81], ddof=1))
    assert summary["std_runs"] == pytest.approx(np.std([85, 88], ddof=1))


def test_each_phase_counts_the_videos_that_have_it():
    values = np.array([[[100.0, 50.0, NAN], [80.0, NAN, NAN]]])
    first, second, third = summarise_each_phase(values)
    assert (first["mean"], first["videos"]) == (90, 2)
    assert first["std_videos"] == pytest.approx(np.std([100, 80], ddof=1))
    assert (second["mean"], second["std_videos"], second["videos"]) == (50, 0, 1)
    assert np.isnan(third["mean"]) and np.isnan(third["std_videos"]) and third["videos"] == 0
