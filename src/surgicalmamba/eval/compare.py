"""Is one system better than another on the same videos? One interval over seeds and videos together, and the
words it allows.

A score of a system has two sources of chance: the videos it was measured on and the seeds it was trained
with. Averaging the seeds first and resampling only videos treats the seeds as if they were all seeds there
are, and then two equal systems with unlike seeds differ "significantly" most of the time. Here both are
resampled in every draw (nested bootstrap): videos jointly for both systems, because they are paired, and
seeds separately for each system, because they are not.

- At each level n - 1 of n are drawn with replacement. The mean of m draws has the variance s^2 (n - 1) / (n
  m), s the sample deviation; m = n - 1 makes that s^2 / n, the unbiased variance of a mean. With m = n it is
  too small by the factor (n - 1) / n, for three seeds by a third. A level with n = 1 is not resampled.
- The percentiles are widened about the estimate from the normal to Student's t (factor t / z) with the
  degrees of freedom of Welch and Satterthwaite, because few seeds show their own variance poorly. Without it,
  95 % intervals cover 84 to 88 % with three seeds and 90 to 92 % with five where seeds differ most.

Measured coverage of the 95 % interval of two equal systems on 40 videos (docs/metrics.md): 93 to 96 % with 3
seeds, 94 to 97 % with 5, 95 to 97 % with 8. The lowest values are those of one system that varies much more
than the other. Where seeds do not differ at all it is 99 %: chance of a single run on a single video is
counted at both levels, so the interval is then wider than needed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import erfc, sqrt
from typing import Literal, Protocol

import numpy as np

from surgicalmamba.errors import InputError
from surgicalmamba.eval.frame import nan_mean, nan_std
from surgicalmamba.eval.pairs import FloatArray

EXACT_UP_TO = 50
SEEDS_FOR_A_VERDICT = 3
VIDEOS_FOR_A_SPREAD = 3
"""Two of three drawn videos still have a deviation."""
_BLOCK_VALUES = 500_000
"""Values (resamples x videos) handled at a time, so that memory stays small."""
_NEARLY_NORMAL = 10_000.0
"""Degrees of freedom at which Student's t is as good as normal."""

Standing = Literal["ahead", "behind", "no difference shown", "no verdict"]


@dataclass(frozen=True)
class Comparison:
    """First system minus second, over the videos where both have a value. `low` and `high` bound the 95 %
    interval over seeds and videos; wins, ties, losses and Wilcoxon's p are of videos with the seeds averaged,
    so they ignore how seeds differ."""

    videos: int
    seeds: tuple[int, int]
    difference: float
    low: float
    high: float
    wins: int
    ties: int
    losses: int
    wilcoxon_p: float

    @property
    def standing(self) -> Standing:
        """Where the first system stands against the second."""
        return standing(self.low, self.high, self.seeds)

    def reversed(self) -> "Comparison":
        """Second minus first."""
        return replace(
            self,
            seeds=(self.seeds[1], self.seeds[0]),
            difference=-self.difference,
            low=-self.high,
            high=-self.low,
            wins=self.losses,
            losses=self.wins,
        )

    def as_dict(self) -> dict[str, object]:
        return dict(vars(self))


def standing(low: float, high: float, seeds: tuple[int, int]) -> Standing:
    """What an interval of first minus second allows to say. Fewer than three seeds of either system:
    nothing."""
    if min(seeds) < SEEDS_FOR_A_VERDICT:
        return "no verdict"
    return "ahead" if low > 0 else "behind" if high < 0 else "no difference shown"


def verdict(results: Mapping[str, Comparison]) -> str:
    """The comparisons of two systems, metric by metric, in words: `ahead in accuracy, behind in jaccard`."""
    standings = {metric: result.standing for metric, result in results.items()}
    if "no verdict" in standings.values():
        return "fewer than three seeds: no verdict"
    words = []
    for word in ("ahead", "behind"):
        metrics = [metric for metric, found in standings.items() if found == word]
        words += [f"{word} in {' and '.join(metrics)}"] if metrics else []
    return ", ".join(words) or "no difference shown"


def resampled_levels(seeds: tuple[int, int], videos: int) -> str:
    """What an interval is over: `seeds and videos`, or less where a level has one member only."""
    over_seeds = "seeds" if min(seeds) > 1 else "the seeds of one system" if max(seeds) > 1 else ""
    if videos > 1:
        return f"{over_seeds} and videos" if over_seeds else "videos alone"
    return f"{over_seeds} alone" if over_seeds else "nothing: one run and one video"


def compare(
    first: FloatArray, second: FloatArray, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Comparison:
    """Compare two systems by their values (seeds, videos): the same videos in the same order, any number of
    seeds each; (videos,) is one run. nan marks a run without a value for a video; videos that one system
    never has a value for are left out."""
    first, second = _runs(first), _runs(second)
    if first.shape[1] != second.shape[1]:
        raise InputError(f"a comparison needs the same videos of both systems, not {first.shape[1]} and "
                         f"{second.shape[1]}.")
    seeds = (len(first), len(second))
    shared = ~np.isnan(nan_mean(first, axis=0) - nan_mean(second, axis=0))
    first, second = first[:, shared], second[:, shared]
    if not shared.any():
        nan = float("nan")
        return Comparison(0, seeds, nan, nan, nan, wins=0, ties=0, losses=0, wilcoxon_p=nan)
    differences = nan_mean(first, axis=0) - nan_mean(second, axis=0)

    def difference(seeds_of_first: FloatArray, seeds_of_second: FloatArray, videos: FloatArray) -> FloatArray:
        by_video = _weighted_mean(first, seeds_of_first) - _weighted_mean(second, seeds_of_second)
        defined = ~np.isnan(by_video)
        total = np.where(defined, by_video * videos, 0.0).sum(axis=1)
        with np.errstate(invalid="ignore"):
            return np.asarray(total / (defined * videos).sum(axis=1))

    estimate = float(differences.mean())
    drawn = _resample(difference, seeds, len(differences), resamples, seed)
    scores = (nan_mean(first, axis=1), nan_mean(second, axis=1))
    low, high = _interval(estimate, drawn, scores, len(differences), confidence)
    return Comparison(
        videos=len(differences),
        seeds=seeds,
        difference=estimate,
        low=low,
        high=high,
        wins=int((differences > 0).sum()),
        ties=int((differences == 0).sum()),
        losses=int((differences < 0).sum()),
        wilcoxon_p=wilcoxon(differences),
    )


@dataclass(frozen=True)
class SpreadComparison:
    """Deviation over videos of two systems, and the second's minus the first's with its 95 % interval over
    seeds and videos."""

    seeds: tuple[int, int]
    first: float
    second: float
    difference: float
    low: float
    high: float

    def as_dict(self) -> dict[str, object]:
        return dict(vars(self))


def compare_spread(
    first: FloatArray, second: FloatArray, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> SpreadComparison:
    """Is one system less even over videos than the other? Values (seeds, videos), the same videos in both,
    none undefined. The spread is a run's sample deviation over videos, averaged over seeds; seeds and videos
    are resampled as in `compare`."""
    first, second = _runs(first), _runs(second)
    if first.shape[1] != second.shape[1] or first.shape[1] < VIDEOS_FOR_A_SPREAD:
        raise InputError("spreads need seeds x videos of the same three or more videos, not shapes "
                         f"{first.shape} and {second.shape}.")

    def difference(seeds_of_first: FloatArray, seeds_of_second: FloatArray, videos: FloatArray) -> FloatArray:
        spreads = (_weighted_deviation(second, videos) * seeds_of_second).sum(axis=1)
        return np.asarray(spreads - (_weighted_deviation(first, videos) * seeds_of_first).sum(axis=1))

    seeds = (len(first), len(second))
    scores = (first.std(axis=1, ddof=1), second.std(axis=1, ddof=1))
    one, other = float(scores[0].mean()), float(scores[1].mean())
    drawn = _resample(difference, seeds, first.shape[1], resamples, seed)
    low, high = _interval(other - one, drawn, scores, first.shape[1], confidence)
    return SpreadComparison(seeds, one, other, other - one, low, high)


def _runs(values: FloatArray) -> FloatArray:
    runs = np.atleast_2d(values)
    if runs.ndim != 2 or 0 in runs.shape:
        raise InputError(f"a comparison needs values (seeds, videos), not the shape {values.shape}.")
    return runs


class _Statistic(Protocol):
    """A difference of two systems for each resample, from the shares of seeds and videos drawn: (r, seeds),
    (r, seeds), (r, videos)."""

    def __call__(self, of_first: FloatArray, of_second: FloatArray, videos: FloatArray, /) -> FloatArray: ...


def _resample(
    statistic: _Statistic, seeds: tuple[int, int], videos: int, resamples: int, seed: int
) -> FloatArray:
    """The statistic (resamples,) for seeds and videos drawn together."""
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK_VALUES // videos)
    parts = []
    for done in range(0, resamples, block):
        count = min(block, resamples - done)
        parts.append(statistic(*(_shares(n, count, generator) for n in (*seeds, videos))))
    return np.concatenate(parts)


def _shares(n: int, resamples: int, generator: np.random.Generator) -> FloatArray:
    """How large a part of n - 1 draws with replacement each of n got, (resamples, n); every row sums to 1."""
    if n == 1:
        return np.ones((resamples, 1))
    return np.asarray(generator.multinomial(n - 1, np.full(n, 1 / n), size=resamples) / (n - 1))


def _weighted_mean(values: FloatArray, shares: FloatArray) -> FloatArray:
    """Mean over seeds of (seeds, videos) for shares (r, seeds): (r, videos), nan where no seed drawn has a
    value."""
    defined = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(shares @ np.where(defined, values, 0.0) / (shares @ defined))


def _weighted_deviation(values: FloatArray, shares: FloatArray) -> FloatArray:
    """Deviation over videos of (seeds, videos) for shares (r, videos): (r, seeds). It is scaled so that the
    mean of its square over all draws is the sample variance: (n - 1) / (n - 2) for the draws and n / (n - 1)
    for the videos that they are drawn from."""
    n = values.shape[1]
    centred = (values - values.mean(axis=1, keepdims=True)).T
    variance = shares @ centred**2 - (shares @ centred) ** 2
    return np.asarray(np.sqrt(np.maximum(variance, 0.0) * n / (n - 2)))


def _interval(
    estimate: float, drawn: FloatArray, scores: tuple[FloatArray, FloatArray], videos: int, confidence: float
) -> tuple[float, float]:
    """Percentiles of the resampled statistic, widened about the estimate from normal to Student's t. `scores`
    are the statistic of every seed of both systems: they tell how much of the variance comes from how many
    seeds; the rest is put down to videos."""
    drawn = drawn[~np.isnan(drawn)]  # undefined where nothing drawn has a value
    parts = []
    for by_seed in scores:
        n = int((~np.isnan(by_seed)).sum())
        if n > 1:
            parts.append((float(nan_std(by_seed)) ** 2 / n, n - 1))
    if videos > 1:
        parts.append((max(0.0, float(drawn.var()) - sum(variance for variance, _ in parts)), videos - 1))
    total = sum(variance for variance, _ in parts)
    if total == 0:
        return estimate, estimate
    freedom = total**2 / sum(variance**2 / degrees for variance, degrees in parts)
    widening = student_quantile(confidence, freedom) / student_quantile(confidence, _NEARLY_NORMAL)
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(drawn, [tail, 100.0 - tail])
    return estimate + widening * (float(low) - estimate), estimate + widening * (float(high) - estimate)


def student_quantile(confidence: float, degrees: float) -> float:
    """t such that Student's distribution has the share `confidence` between -t and t; degrees of freedom 1 or
    more, whole or not. With t = sqrt(degrees) tan(angle) the density is cos(angle)^(degrees - 1), which is
    summed here."""
    degrees = min(degrees, _NEARLY_NORMAL)
    angles = np.linspace(0.0, np.pi / 2, 20_001)
    density = np.cos(angles) ** (degrees - 1)
    share = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    return float(sqrt(degrees) * np.tan(np.interp(confidence, share / share[-1], angles)))


def wilcoxon(differences: FloatArray) -> float:
    """Two-sided p-value of the signed-rank test. Zero differences are dropped. Exact up to 50 differences
    without ties; otherwise the normal approximation with the correction for ties and none for continuity. 1
    when nothing differs."""
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
    """In how many of the 2^n sign patterns the positive ranks 1..n sum to 0, 1, 2, ...; exact in float64 up
    to n = 50."""
    ways = np.ones(1)
    for rank in range(1, n + 1):
        ways = np.concatenate((ways, np.zeros(rank))) + np.concatenate((np.zeros(rank), ways))
    return ways
