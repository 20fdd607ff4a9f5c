"""Is one system better than another on the same videos? Paired differences, a bootstrap interval and Wilcoxon's signed-rank test."""

from dataclasses import dataclass
from math import erfc, sqrt

import numpy as np

from surgicalmamba.errors import InputError
from surgicalmamba.eval.pairs import FloatArray

EXACT_UP_TO = 50


@dataclass(frozen=True)
class Comparison:
    """First system minus second, over the videos where both have a value."""

    videos: int
    difference: float
    low: float
    high: float
    wins: int
    ties: int
    losses: int
    wilcoxon_p: float

    def as_dict(self) -> dict[str, float]:
        return dict(vars(self))


def compare(first: FloatArray, second: FloatArray, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0) -> Comparison:
    """Compare per-video values of two systems, in the same order of videos; average several seeds of a system per video first."""
    if first.shape != second.shape or first.ndim != 1:
        raise InputError(f"paired values need two flat arrays of equal length, not shapes {first.shape} and {second.shape}.")
    differences = (first - second)[~np.isnan(first - second)]
    if len(differences) == 0:
        nan = float("nan")
        return Comparison(videos=0, difference=nan, low=nan, high=nan, wins=0, ties=0, losses=0, wilcoxon_p=nan)
    low, high = bootstrap_interval(differences, confidence, resamples, seed)
    return Comparison(
        videos=len(differences),
        difference=float(differences.mean()),
        low=low,
        high=high,
        wins=int((differences > 0).sum()),
        ties=int((differences == 0).sum()),
        losses=int((differences < 0).sum()),
        wilcoxon_p=wilcoxon(differences),
    )


def bootstrap_interval(values: FloatArray, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """Percentile interval of the mean when videos are drawn anew with replacement."""
    generator = np.random.default_rng(seed)
    block = max(1, 2_000_000 // len(values))  # resamples drawn at a time, so that memory stays small
    means = [
        values[generator.integers(0, len(values), size=(min(block, resamples - done), len(values)))].mean(axis=1)
        for done in range(0, resamples, block)
    ]
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(np.concatenate(means), [tail, 100.0 - tail])
    return float(low), float(high)


@dataclass(frozen=True)
class SpreadComparison:
    """Deviation over videos of two systems, and the second's minus the first's with its interval."""

    first: float
    second: float
    difference: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        return dict(vars(self))


def compare_spread(
    first: FloatArray, second: FloatArray, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> SpreadComparison:
    """Is one system less even over videos than the other? Values (runs, videos), the same videos in both. The spread is a run's sample
    deviation over videos, averaged over runs; for the interval, videos are drawn anew in pairs with replacement."""
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[1] or first.shape[1] < 2:
        raise InputError(f"spreads need runs x videos of the same two or more videos, not shapes {first.shape} and {second.shape}.")
    drawn = np.random.default_rng(seed).integers(0, first.shape[1], size=(resamples, first.shape[1]))
    differences = sum(run[drawn].std(axis=1, ddof=1) for run in second) / len(second)
    differences = differences - sum(run[drawn].std(axis=1, ddof=1) for run in first) / len(first)
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(differences, [tail, 100.0 - tail])
    one, other = (float(values.std(axis=1, ddof=1).mean()) for values in (first, second))
    return SpreadComparison(one, other, other - one, float(low), float(high))


def wilcoxon(differences: FloatArray) -> float:
    """Two-sided p-value of the signed-rank test. Zero differences are dropped. Exact up to 50 differences without ties; otherwise the
    normal approximation with the correction for ties and none for continuity. 1 when nothing differs."""
    kept = differences[differences != 0]
    n = len(kept)
    if n == 0:
        return 1.0
    sizes = np.abs(kept)
    _, group, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[group]
    positive = float(ranks[kept > 0].sum())
    total = n * (n + 1) / 2
    if n <= EXACT_UP_TO and (counts == 1).all():
        ways = _rank_sum_counts(n)
        at_most = float(ways[: int(min(positive, total - positive)) + 1].sum())
        return min(1.0, 2.0 * at_most / float(ways.sum()))
    variance = n * (n + 1) * (2 * n + 1) / 24 - float((counts**3 - counts).sum()) / 48
    return erfc(abs(positive - total / 2) / sqrt(2 * variance))


def _rank_sum_counts(n: int) -> FloatArray:
    """In how many of the 2^n sign patterns the positive ranks 1..n sum to 0, 1, 2, ...; exact in float64 up to n = 50."""
    ways = np.ones(1)
    for rank in range(1, n + 1):
        ways = np.concatenate((ways, np.zeros(rank))) + np.concatenate((np.zeros(rank), ways))
    return ways
