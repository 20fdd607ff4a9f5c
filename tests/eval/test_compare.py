"""Two systems on the same videos: an interval over seeds and videos together, the words it allows, Wilcoxon's
test against scipy."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from surgicalmamba.errors import InputError
from surgicalmamba.eval.compare import (
    Comparison,
    compare,
    compare_spread,
    resampled_levels,
    student_quantile,
    verdict,
    wilcoxon,
)


def test_wilcoxon_by_hand_for_three_wins():
    assert wilcoxon(np.array([1.0, 2.0, 3.0])) == pytest.approx(
        2 / 8
    )  # one of eight sign patterns on each side
    assert wilcoxon(np.array([0.0, 0.0])) == 1.0


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=50, unique=True), st.randoms(use_true_random=False)
)
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


def random_effects(rng, seeds, videos=40, seed_sd=(5.0, 5.0), video_sd=2.0, noise_sd=3.0):
    """Two systems of equal merit: offsets of each seed, of each video (part of them shared), and chance of a
    single run on a video."""
    shared, of_first = rng.normal(80, 4, videos), rng.normal(0, video_sd, videos)
    first, second = (
        rng.normal(0, sd, (n, 1)) + rng.normal(0, noise_sd, (n, videos))
        for n, sd in zip(seeds, seed_sd, strict=True)
    )
    return shared + of_first + first, shared + second


def share_that_covers_zero(trials, seeds, **effects):
    """How often the 95 % interval of two equal systems holds the true difference."""
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(trials):
        result = compare(*random_effects(rng, seeds, **effects), resamples=1_000, seed=trial)
        covered += result.low <= 0 <= result.high
    return covered / trials


def test_equal_systems_whose_seeds_differ_wildly_are_rarely_told_apart():
    """Five seeds with offsets of 5 points, 40 videos. With the seeds averaged first, the interval leaves zero
    out in most cases."""
    rng = np.random.default_rng(0)
    wrong_over_both = wrong_over_videos = 0
    for trial in range(200):
        first, second = random_effects(rng, (5, 5), video_sd=0.0)
        both = compare(first, second, resamples=1_000, seed=trial)
        videos = compare(first.mean(axis=0), second.mean(axis=0), resamples=1_000, seed=trial)
        wrong_over_both += not both.low <= 0 <= both.high
        wrong_over_videos += not videos.low <= 0 <= videos.high
    assert wrong_over_videos / 200 > 0.75
    assert wrong_over_both / 200 < 0.09  # 5 % within three standard errors of 200 trials


@pytest.mark.parametrize(
    ("seeds", "seed_sd", "lowest", "highest"),
    [
        ((3, 3), (5.0, 5.0), 0.93, 0.99),
        ((5, 5), (5.0, 5.0), 0.93, 0.98),
        ((8, 8), (5.0, 5.0), 0.93, 0.98),
        ((5, 5), (1.0, 1.0), 0.94, 0.99),  # seeds and videos matter alike
        ((5, 5), (3.0, 0.3), 0.92, 0.98),  # one system varies: as few degrees of freedom as its own seeds
        ((3, 3), (3.0, 0.3), 0.89, 0.97),  # the worst case, somewhat under 95 %
        ((5, 3), (5.0, 5.0), 0.93, 0.98),
        (
            (5, 5),
            (0.0, 0.0),
            0.97,
            1.00,
        ),  # wider than needed: chance of single runs is counted at both levels
    ],
)
def test_the_interval_covers_the_truth_about_as_often_as_it_claims(seeds, seed_sd, lowest, highest):
    assert lowest <= share_that_covers_zero(400, seeds, seed_sd=seed_sd) <= highest


@pytest.mark.parametrize("degrees", [1, 2, 2.5, 4, 8, 39, 400])
def test_quantiles_of_students_distribution_are_scipys(degrees):
    assert student_quantile(0.95, degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-5)


def test_one_run_of_many_videos_has_the_interval_of_the_paired_t_test():
    rng = np.random.default_rng(2)
    first, second = rng.normal(81, 2, 200), rng.normal(80, 2, 200)
    result = compare(first, second, resamples=20_000)
    peer = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (result.low, result.high) == (
        pytest.approx(peer.low, abs=0.03),
        pytest.approx(peer.high, abs=0.03),
    )


def test_seeds_alone_have_nearly_the_interval_of_welchs_test():
    rng = np.random.default_rng(4)
    first, second = rng.normal(81, 2, (40, 1)), rng.normal(80, 4, (30, 1))
    result = compare(first, second, resamples=20_000)
    peer = stats.ttest_ind(first[:, 0], second[:, 0], equal_var=False).confidence_interval(0.95)
    assert (result.low, result.high) == (
        pytest.approx(peer.low, abs=0.08),
        pytest.approx(peer.high, abs=0.08),
    )


def test_resampling_is_drawing_n_minus_1_seeds_of_each_system_and_n_minus_1_videos_of_both():
    """Against all draws there are: three seeds and three videos have 3^2 x 3^2 x 3^2 of them."""
    rng = np.random.default_rng(5)
    first, second = rng.normal(0, 1, (2, 3, 3))
    pairs = list(product(range(3), range(3)))
    every = [
        first[np.ix_(seeds, videos)].mean() - second[np.ix_(others, videos)].mean()
        for seeds, others, videos in product(pairs, pairs, pairs)
    ]
    result = compare(first, second, resamples=50_000)
    low, high = np.percentile(every, [2.5, 97.5])
    widening = (result.high - result.low) / (high - low)
    assert result.low == pytest.approx(result.difference + widening * (low - result.difference), abs=0.05)
    assert (
        stats.t.ppf(0.975, 6) / 1.96 < widening < stats.t.ppf(0.975, 2) / 1.96
    )  # all three levels together, or one alone


def test_the_same_seed_gives_the_same_interval_and_another_one_nearly_the_same():
    first, second = np.random.default_rng(3).normal(size=(2, 4, 30))
    assert compare(first, second, seed=4) == compare(first, second, seed=4)
    assert compare(first, second, seed=4).low != compare(first, second, seed=5).low
    assert compare(first, second, seed=4).low == pytest.approx(compare(first, second, seed=5).low, abs=0.02)


def test_thousands_of_videos_are_handled_in_parts():
    first, second = np.random.default_rng(3).normal(size=(2, 2, 3_000))
    result = compare(first, second, resamples=400)  # 400 x 3,000 values are more than one part
    assert result.low < result.difference < result.high


def test_a_comparison_counts_wins_ties_losses_and_leaves_undefined_videos_out():
    result = compare(np.array([90.0, 80.0, 70.0, np.nan]), np.array([88.0, 80.0, 73.0, 50.0]))
    assert (result.videos, result.wins, result.ties, result.losses) == (3, 1, 1, 1)
    assert result.seeds == (1, 1) and result.difference == pytest.approx(-1 / 3)
    assert result.low <= result.difference <= result.high


def test_a_video_without_a_value_in_one_run_counts_with_the_other_runs():
    first = np.array([[90.0, np.nan, 70.0], [92.0, 81.0, 74.0]])  # by video 91, 81, 72
    second = np.array([[90.0, 80.0, 70.0]])
    result = compare(first, second)
    assert (result.videos, result.seeds, result.difference) == (3, (2, 1), pytest.approx(4 / 3))
    assert np.isfinite([result.low, result.high]).all() and result.low < result.difference < result.high


def test_a_run_that_has_hardly_any_values_leaves_the_interval_defined():
    first = np.full((2, 3), np.nan)
    first[0] = [80.0, 82.0, 84.0]
    result = compare(first, np.array([[80.0, 81.0, 85.0], [79.0, 80.0, 82.0]]))
    assert np.isfinite([result.low, result.high]).all()


def test_swapping_the_systems_mirrors_the_comparison():
    generator = np.random.default_rng(8)
    first, second = generator.uniform(60, 95, size=(2, 3, 25))
    there, back = compare(first, second), compare(second, first).reversed()
    assert back.difference == pytest.approx(there.difference)
    assert (back.low, back.high) == (pytest.approx(there.low, abs=0.2), pytest.approx(there.high, abs=0.2))
    assert (back.wins, back.losses, back.wilcoxon_p) == (
        there.wins,
        there.losses,
        pytest.approx(there.wilcoxon_p),
    )


def test_equal_values_of_every_seed_and_video_have_an_interval_of_no_width():
    result = compare(np.full((3, 5), 81.0), np.full((3, 5), 80.0))
    assert (result.difference, result.low, result.high) == (1.0, 1.0, 1.0)
    single = compare(np.array([[80.3], [80.3]]), np.array([[80.0]]))
    assert single.low == single.difference == single.high


def test_nothing_in_common_is_undefined_and_other_videos_are_refused():
    assert compare(np.array([np.nan]), np.array([1.0])).videos == 0
    with pytest.raises(InputError, match="the same videos of both systems, not 3 and 4"):
        compare(np.zeros(3), np.zeros(4))
    with pytest.raises(InputError, match="values \\(seeds, videos\\), not the shape"):
        compare(np.zeros((2, 3, 4)), np.zeros((2, 3, 4)))


def result_of(low, high, seeds=(3, 3)):
    return Comparison(
        videos=9,
        seeds=seeds,
        difference=(low + high) / 2,
        low=low,
        high=high,
        wins=0,
        ties=9,
        losses=0,
        wilcoxon_p=1.0,
    )


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ({"accuracy": result_of(0.1, 2.0), "jaccard": result_of(0.2, 3.0)}, "ahead in accuracy and jaccard"),
        ({"accuracy": result_of(-2.0, -0.1), "jaccard": result_of(-1.0, 3.0)}, "behind in accuracy"),
        (
            {"accuracy": result_of(0.1, 2.0), "jaccard": result_of(-3.0, -1.0)},
            "ahead in accuracy, behind in jaccard",
        ),
        ({"accuracy": result_of(-1.0, 2.0)}, "no difference shown"),
        ({"accuracy": result_of(1.0, 2.0, (2, 5))}, "fewer than three seeds: no verdict"),
        ({"accuracy": result_of(1.0, 2.0, (5, 2))}, "fewer than three seeds: no verdict"),
        ({"accuracy": result_of(float("nan"), float("nan"))}, "no difference shown"),
    ],
)
def test_a_verdict_follows_from_the_interval_alone_and_needs_three_seeds_of_both_systems(results, words):
    assert verdict(results) == words


def test_an_interval_names_what_was_resampled():
    assert resampled_levels((5, 3), 40) == "seeds and videos"
    assert resampled_levels((1, 1), 40) == "videos alone"
    assert resampled_levels((1, 3), 40) == "the seeds of one system and videos"
    assert resampled_levels((3, 3), 1) == "seeds alone"


def test_spreads_by_hand_are_a_runs_deviation_over_videos_averaged_over_runs():
    first = np.array([[90.0, 92.0, 94.0], [90.0, 90.0, 90.0]])  # deviations 2 and 0
    second = np.array([[80.0, 90.0, 100.0]])  # deviation 10
    result = compare_spread(first, second)
    assert (result.first, result.second, result.difference) == pytest.approx((1.0, 10.0, 9.0))
    assert result.low <= result.difference <= result.high


def test_spreads_of_other_or_too_few_videos_are_refused():
    values = np.random.default_rng(0).normal(90, 3, (2, 12))
    for first, second in ((values, values[:, :5]), (values[:, :2], values[:, :2])):
        with pytest.raises(InputError, match="three or more videos"):
            compare_spread(first, second)


def test_a_clear_difference_in_spread_is_shown_and_noise_is_not():
    rng = np.random.default_rng(3)
    calm, wild = rng.normal(92, 2, (3, 40)), rng.normal(92, 6, (3, 40))
    assert compare_spread(calm, wild).low > 0
    other = rng.normal(92, 2, (3, 40))
    result = compare_spread(calm, other)
    assert result.low < 0 < result.high


def test_spreads_that_differ_from_seed_to_seed_are_no_difference_between_systems():
    """Every seed draws how uneven it is over videos. Resampling videos alone would call half of such pairs
    different."""
    rng = np.random.default_rng(6)
    wrong = 0
    for trial in range(200):
        first, second = (rng.normal(90, 1, (5, 40)) * rng.uniform(0.5, 1.5, (5, 1)) for _ in range(2))
        result = compare_spread(first, second, resamples=1_000, seed=trial)
        wrong += not result.low <= 0 <= result.high
    assert wrong / 200 < 0.09
