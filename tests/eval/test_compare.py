"""Two systems on the same videos: paired differences, bootstrap interval, Wilcoxon's test against scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from surgicalmamba.errors import InputError
from surgicalmamba.eval.compare import bootstrap_interval, compare, compare_spread, wilcoxon


def test_wilcoxon_by_hand_for_three_wins():
    assert wilcoxon(np.array([1.0, 2.0, 3.0])) == pytest.approx(2 / 8)  # one of eight sign patterns on each side
    assert wilcoxon(np.array([0.0, 0.0])) == 1.0


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=50, unique=True), st.randoms(use_true_random=False))
def test_without_ties_the_test_is_exact_up_to_fifty_videos(sizes, random):
    differences = np.array([size * random.choice([-1, 1]) for size in sizes], dtype=float)
    assert wilcoxon(differences) == pytest.approx(stats.wilcoxon(differences, method="exact").pvalue)


def has_ties(values):
    sizes = [abs(value) for value in values if value != 0]
    return len(set(sizes)) < len(sizes)


@given(st.lists(st.integers(-6, 6), min_size=8, max_size=90).filter(has_ties))
def test_with_ties_it_is_the_normal_approximation_with_zeros_dropped(values):
    differences = np.array(values, dtype=float)
    expected = stats.wilcoxon(differences, zero_method="wilcox", correction=False, method="asymptotic").pvalue
    assert wilcoxon(differences) == pytest.approx(expected)


def test_more_than_fifty_videos_use_the_normal_approximation():
    differences = np.random.default_rng(1).normal(0.3, 1, size=80)
    assert wilcoxon(differences) == pytest.approx(stats.wilcoxon(differences, method="asymptotic").pvalue)


def test_the_bootstrap_interval_agrees_with_scipys_percentile_interval():
    values = np.random.default_rng(2).normal(1.0, 2.0, size=40)
    low, high = bootstrap_interval(values, resamples=20_000)
    peer = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(5)).confidence_interval
    assert (low, high) == (pytest.approx(peer.low, abs=0.03), pytest.approx(peer.high, abs=0.03))


def test_the_same_seed_gives_the_same_interval_whatever_the_block_size():
    values = np.random.default_rng(3).normal(size=30)
    assert bootstrap_interval(values, seed=4) == bootstrap_interval(values, seed=4)
    assert bootstrap_interval(values, seed=4) != bootstrap_interval(values, seed=5)


def test_a_comparison_counts_wins_ties_losses_and_leaves_undefined_videos_out():
    result = compare(np.array([90.0, 80.0, 70.0, np.nan]), np.array([88.0, 80.0, 73.0, 50.0]))
    assert (result.videos, result.wins, result.ties, result.losses) == (3, 1, 1, 1)
    assert result.difference == pytest.approx(-1 / 3)
    assert result.low <= result.difference <= result.high


def test_swapping_the_systems_mirrors_the_comparison():
    generator = np.random.default_rng(8)
    first, second = generator.uniform(60, 95, size=(2, 25))
    there, back = compare(first, second), compare(second, first)
    assert back.difference == pytest.approx(-there.difference)
    assert back.wilcoxon_p == pytest.approx(there.wilcoxon_p)
    assert (back.wins, back.losses) == (there.losses, there.wins)


def test_nothing_in_common_is_undefined_and_unequal_lengths_are_refused():
    assert compare(np.array([np.nan]), np.array([1.0])).videos == 0
    with pytest.raises(InputError, match="equal length"):
        compare(np.zeros(3), np.zeros(4))


def test_spreads_by_hand_are_a_runs_deviation_over_videos_averaged_over_runs():
    first = np.array([[90.0, 92.0, 94.0], [90.0, 90.0, 90.0]])  # deviations 2 and 0
    second = np.array([[80.0, 90.0, 100.0]])  # deviation 10
    result = compare_spread(first, second)
    assert (result.first, result.second, result.difference) == pytest.approx((1.0, 10.0, 9.0))
    assert result.low <= result.difference <= result.high


def test_equal_systems_have_no_difference_in_spread_and_unequal_videos_are_refused():
    values = np.random.default_rng(0).normal(90, 3, (2, 12))
    result = compare_spread(values, values)
    assert (result.difference, result.low, result.high) == (0.0, 0.0, 0.0)
    with pytest.raises(InputError, match="runs x videos"):
        compare_spread(values, values[:, :5])


def test_a_clear_difference_in_spread_is_shown_and_noise_is_not():
    rng = np.random.default_rng(3)
    calm, wild = rng.normal(92, 2, (3, 40)), rng.normal(92, 6, (3, 40))
    assert compare_spread(calm, wild).low > 0
    other = rng.normal(92, 2, (3, 40))
    result = compare_spread(calm, other)
    assert result.low < 0 < result.high
