"""Scores that count rows: confusion matrices, scores per phase with rules for undefined values, means, the
relaxed boundary, and the scores of probabilities.

Confusion matrices have annotations in rows and predictions in columns. Scores are percentages; nan means
undefined, and every later mean leaves it out. For a phase that is *missing* (not annotated in the video) or
*silent* (never predicted in it) the four rules are

| case               | score               | A   | B   | C   | Z |
|--------------------|---------------------|-----|-----|-----|---|
| present, silent    | precision           | nan | nan | nan | 0 |
| present, silent    | recall, f1, jaccard | 0   | 0   | 0   | 0 |
| missing, predicted | precision           | 0   | nan | 0   | 0 |
| missing, predicted | recall              | nan | nan | nan | 0 |
| missing, predicted | f1, jaccard         | 0   | nan | 0   | 0 |
| missing, silent    | precision           | nan | nan | 100 | 0 |
| missing, silent    | recall              | nan | nan | nan | 0 |
| missing, silent    | f1, jaccard         | nan | nan | 100 | 0 |

A leaves out only what is 0/0 and so punishes false alarms; B leaves out a missing phase whatever was
predicted; C rewards correct silence; Z counts every undefined value as zero, so that even a perfect system
stays below 100 where phases are missing."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.pairs import BoolArray, FloatArray, IntArray, VideoPair
from surgicalmamba.eval.segments import find_segments

UndefinedRule = Literal["A", "B", "C", "Z"]


def confusion_matrix(truth: IntArray, predicted: IntArray, n_phases: int) -> IntArray:
    """Row counts (k, k), annotation by prediction. Rows without annotation (negative) are left out."""
    flat = truth * n_phases + predicted
    counts = np.bincount(flat[truth >= 0] if (truth < 0).any() else flat, minlength=n_phases * n_phases)
    return counts.reshape(n_phases, n_phases).astype(np.int64, copy=False)


def confusion_matrices(videos: list[VideoPair], n_phases: int) -> IntArray:
    """One confusion matrix per video, (v, k, k)."""
    return np.stack([confusion_matrix(video.truth, video.predicted, n_phases) for video in videos])


@dataclass(frozen=True, eq=False)
class Cells:
    """The four scores per phase, in percent; leading axes are those of the confusion matrices they came
    from."""

    precision: FloatArray
    recall: FloatArray
    f1: FloatArray
    jaccard: FloatArray


def percent(part: IntArray | FloatArray, whole: IntArray | FloatArray) -> FloatArray:
    """100 part / whole, nan where both are zero and infinity where only the whole is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return 100.0 * np.asarray(part, dtype=np.float64) / np.asarray(whole, dtype=np.float64)


def cell_scores(confusion: IntArray, rule: UndefinedRule = "A") -> Cells:
    """Scores per phase from confusion matrices (..., k, k), undefined values by the named rule."""
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    annotated, predicted = confusion.sum(axis=-1), confusion.sum(axis=-2)
    precision, recall = percent(hits, predicted), percent(hits, annotated)
    f1, jaccard = percent(2 * hits, annotated + predicted), percent(hits, annotated + predicted - hits)
    scores = [precision, recall, f1, jaccard]
    if rule == "B":
        scores = [np.where(annotated == 0, np.nan, score) for score in scores]
    elif rule == "C":
        silence = (annotated == 0) & (predicted == 0)
        scores = [score if score is recall else np.where(silence, 100.0, score) for score in scores]
    elif rule == "Z":
        scores = [np.nan_to_num(score, nan=0.0) for score in scores]
    return Cells(*scores)


def accuracy(confusion: IntArray) -> FloatArray:
    """Share of labelled rows that are predicted right, from confusion matrices (..., k, k)."""
    return percent(np.trace(confusion, axis1=-2, axis2=-1), confusion.sum(axis=(-2, -1)))


def balanced_accuracy(confusion: IntArray) -> FloatArray:
    """Mean recall over the phases that are annotated; not adjusted for chance."""
    return np.asarray(nan_mean(cell_scores(confusion).recall, axis=-1))


def inflated_f1(precision: FloatArray, recall: FloatArray) -> FloatArray:
    """Harmonic mean of an averaged precision and an averaged recall. Some papers print it as F1; it is never
    less than the averaged F1 where all cells are defined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(precision + recall == 0, 0.0, 2 * precision * recall / (precision + recall))


# Means and spreads. A score lives in an array runs x videos x phases with undefined cells. There are three
# ways to average it, and they differ as soon as one cell is undefined: `mean_phases`, over runs and videos
# within each phase, then over phases (the order of the field's MATLAB script); `mean_videos`, over phases
# within each run and video, then over videos and runs (macro scores per video); `mean_cells`, over all
# defined cells at once. Spreads are sample deviations (N - 1): `std_phases` over the phase means,
# `std_videos` over the video means (runs and phases averaged first), `std_runs` over the run means, undefined
# for a single run.

Summary = dict[str, float]


def nan_mean(values: FloatArray, axis: int | tuple[int, ...] | None = None) -> FloatArray:
    """Mean of the defined values along an axis; nan, without a warning, where none is defined."""
    defined = ~np.isnan(values)
    total = np.where(defined, values, 0.0).sum(axis=axis)
    with np.errstate(invalid="ignore"):
        return np.asarray(total / defined.sum(axis=axis))


def nan_std(values: FloatArray, axis: int | None = None) -> FloatArray:
    """Sample standard deviation (N - 1) of the defined values along an axis; nan where fewer than two are
    defined."""
    defined = ~np.isnan(values)
    count = defined.sum(axis=axis)
    centre = nan_mean(values, axis) if axis is None else np.expand_dims(nan_mean(values, axis), axis)
    squares = np.where(defined, (values - centre) ** 2, 0.0).sum(axis=axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(np.where(count > 1, squares / (count - 1.0), np.nan)))


def summarise_phases(values: FloatArray) -> Summary:
    """Summary of a phase score (r, v, k). `mean` is `mean_phases`; phases that are never defined are left out
    of it."""
    by_phase = nan_mean(values, axis=(0, 1))
    return {
        "mean": float(nan_mean(by_phase)),
        "std_phases": float(nan_std(by_phase)),
        "mean_videos": float(nan_mean(nan_mean(values, axis=2))),
        "std_videos": float(nan_std(nan_mean(values, axis=(0, 2)))),
        "mean_cells": float(nan_mean(values)),
        "std_runs": float(nan_std(nan_mean(nan_mean(values, axis=1), axis=1))),
    }


def summarise_videos(values: FloatArray) -> Summary:
    """Summary of a score with one value per run and video (r, v)."""
    by_video, by_run = nan_mean(values, axis=0), nan_mean(values, axis=1)
    mean = float(nan_mean(values))
    return {"mean": mean, "std_videos": float(nan_std(by_video)), "std_runs": float(nan_std(by_run))}


def summarise_runs(values: FloatArray) -> Summary:
    """Summary of a score with one value per run (r,)."""
    return {"mean": float(nan_mean(values)), "std_runs": float(nan_std(values))}


def summarise_each_phase(values: FloatArray) -> list[Summary]:
    """Per phase of (r, v, k): mean over its defined cells, deviation over videos (0 if one video has it),
    over runs, and the number of videos."""
    summaries = []
    for phase in range(values.shape[2]):
        column = values[:, :, phase]
        summary = summarise_videos(column)
        videos = int(np.count_nonzero(~np.isnan(nan_mean(column, axis=0))))
        summaries.append(summary | {"videos": videos} | ({"std_videos": 0.0} if videos == 1 else {}))
    return summaries


# The relaxed boundary: close to an annotated change of phase, predicting the neighbouring phase is forgiven.
# There are three modes, because the field's script does not do what it says:
#
# - `published`: identical to the MATLAB script behind most relaxed numbers in print, with its defect. In each
#   annotated segment the first W rows forgive the previous phase. For the last W rows the script finds the
#   rows that predict the next phase, but then clears the rows at the same offsets from the *start* of the
#   segment. So early changes stay errors unless the segment is no longer than W, and unrelated errors near
#   the start of a segment are erased.
# - `repaired`: the same rules with the last W rows cleared at their own place.
# - `symmetric`: no rules. The first W rows of a segment forgive the phase of the segment before it, the last
#   W rows that of the segment after it, whatever their numbers.
#
# The first two define "previous" and "next" by differences of phase numbers, so they only make sense where
# the numbers follow the order of the procedure. `RULES` holds the differences in use; SV-RCNet's copy of the
# script lists fewer early ones for the last two phases of Cholec80, which changes nothing, because no phase
# has such a number.

RelaxedMode = Literal["published", "repaired", "symmetric"]


@dataclass(frozen=True)
class RelaxedRules:
    """Forgiven differences predicted - annotated, by annotated phase (0-based); phases that are not listed
    use -1 late and +1 early."""

    name: str
    n_phases: int | None
    late: dict[int, tuple[int, ...]]
    early: dict[int, tuple[int, ...]]

    def table(self, side: Literal["late", "early"], n_phases: int) -> BoolArray:
        """(k, 2k - 1) lookup: row = annotated phase, column = difference + k - 1."""
        listed, default = (self.late, (-1,)) if side == "late" else (self.early, (1,))
        table = np.zeros((n_phases, 2 * n_phases - 1), dtype=bool)
        for phase in range(n_phases):
            for difference in listed.get(phase, default):
                if abs(difference) < n_phases:
                    table[phase, difference + n_phases - 1] = True
        return table


RULES = {
    rules.name: rules
    for rules in (
        RelaxedRules("cholec80", 7, dict.fromkeys((5, 6), (-1, -2)), dict.fromkeys((3, 4, 5, 6), (1, 2))),
        RelaxedRules("m2cai16", 8, dict.fromkeys((6, 7), (-1, -2)), dict.fromkeys((4, 5, 6, 7), (1, 2))),
        RelaxedRules("neighbours", None, {}, {}),
    )
}


def rules_for(name: str, n_phases: int) -> RelaxedRules:
    """Rules by name, if they fit the number of phases."""
    if name not in RULES:
        raise ConfigError(f"unknown relaxed rules {name!r}; known are {', '.join(sorted(RULES))}.")
    rules = RULES[name]
    if rules.n_phases not in (None, n_phases):
        raise ConfigError(f"relaxed rules {name!r} are written for {rules.n_phases} phases, not {n_phases}; "
                          "use 'neighbours' or the symmetric mode.")
    return rules


def forgiven_rows(
    truth: IntArray,
    predicted: IntArray,
    mode: RelaxedMode,
    window_rows: int,
    n_phases: int,
    rules: RelaxedRules | None,
) -> BoolArray:
    """Rows that count as right: predicted right, or forgiven. Rows without annotation are right in mode
    `published`, as in the script, and False in the other modes, which leave them out."""
    segments = find_segments(truth, keep_gaps=True)
    of_row = np.repeat(np.arange(len(segments)), segments.length)
    window = np.minimum(window_rows, segments.length)
    rows = np.arange(len(truth))
    head = rows - segments.start[of_row] < window[of_row]
    tail = segments.stop[of_row] - rows <= window[of_row]
    labelled = truth >= 0
    if mode == "symmetric":
        before, after = np.append(-1, segments.phase[:-1])[of_row], np.append(segments.phase[1:], -1)[of_row]
        right = (predicted == truth) | (head & (predicted == before)) | (tail & (predicted == after))
        return np.asarray(right & labelled)
    if rules is None:
        raise ConfigError(f"the {mode} relaxed mode needs rules; known are {', '.join(sorted(RULES))}.")
    column = np.where(labelled, predicted - truth, 0) + n_phases - 1
    line = np.maximum(truth, 0)
    right = (predicted == truth) | (head & labelled & rules.table("late", n_phases)[line, column])
    early = tail & labelled & rules.table("early", n_phases)[line, column]
    if mode == "repaired":
        return np.asarray((right | early) & labelled)
    found = np.flatnonzero(early)
    right[found - (segments.length - window)[of_row[found]]] = True
    return np.asarray(right | ~labelled)


@dataclass(frozen=True, eq=False)
class RelaxedVideo:
    """Relaxed scores of one video in percent; per phase nan where it is not annotated. `raw_*` are as
    computed, and may exceed 100."""

    accuracy: float
    jaccard: FloatArray
    raw_precision: FloatArray
    raw_recall: FloatArray

    @property
    def precision(self) -> FloatArray:
        """Clipped at 100, infinity included, as the script does before it averages."""
        return np.minimum(self.raw_precision, 100.0)

    @property
    def recall(self) -> FloatArray:
        return np.minimum(self.raw_recall, 100.0)


def score_relaxed(
    truth: IntArray,
    predicted: IntArray,
    mode: RelaxedMode,
    window_rows: int,
    n_phases: int,
    rules: RelaxedRules,
) -> RelaxedVideo:
    """The script's scores in mode `published` or `repaired`. A forgiven row is a hit of both phases
    concerned, while the denominators stay strict: precision and recall can pass 100 and are no
    proportions."""
    right = forgiven_rows(truth, predicted, mode, window_rows, n_phases, rules)
    if mode == "repaired":
        labelled = truth >= 0
        truth, predicted, right = truth[labelled], predicted[labelled], right[labelled]

    def count(ids: IntArray) -> IntArray:
        return np.bincount(ids[ids >= 0], minlength=n_phases).astype(np.int64, copy=False)

    annotated, claimed, both = count(truth), count(predicted), count(truth[truth == predicted])
    hits = count(truth[right]) + count(predicted[right]) - both

    def score(denominator: IntArray) -> FloatArray:
        return np.where(annotated == 0, np.nan, percent(hits, denominator))

    share_right = 100.0 * np.count_nonzero(right) / len(truth)
    return RelaxedVideo(share_right, score(annotated + claimed - both), score(claimed), score(annotated))


def average_precision(scores: FloatArray, positive: BoolArray) -> float:
    """Area under the precision-recall steps, in percent: sum of precision x gain in recall over the distinct
    scores, highest first. Rows with the same score enter together. nan without a positive row. This is the
    definition of scikit-learn and of GraSP's official code."""
    total = int(np.count_nonzero(positive))
    if total == 0:
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    last_of_tie = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    hits = np.cumsum(positive[order])[last_of_tie]
    gains = np.diff(hits, prepend=0) / total
    return float(100.0 * np.sum(gains * hits / (last_of_tie + 1)))


def average_precisions(probabilities: FloatArray, truth: IntArray) -> FloatArray:
    """Average precision of each phase against all others (k,), over the labelled rows."""
    labelled = truth >= 0
    kept, ids = probabilities[labelled], truth[labelled]
    return np.array([average_precision(column, ids == phase) for phase, column in enumerate(kept.T)])


def log_losses(probabilities: FloatArray, truth: IntArray) -> FloatArray:
    """Minus the natural logarithm of the truth's probability, one value per labelled row; a zero counts as
    the smallest step of float64 from 1, so that one certain mistake costs 36 nats and not infinity."""
    rows = np.flatnonzero(truth >= 0)
    return -np.log(np.clip(probabilities[rows, truth[rows]], np.finfo(np.float64).eps, 1.0))


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence (highest probability of a row) against accuracy in equally wide bins. Fractions; nan in
    empty bins."""

    edges: FloatArray
    count: IntArray
    confidence: FloatArray
    accuracy: FloatArray

    @property
    def expected_calibration_error(self) -> float:
        """Mean of |accuracy - confidence| over rows, in percentage points; nan without rows."""
        if not self.count.any():
            return float("nan")
        filled = self.count > 0
        gaps = np.abs(self.accuracy[filled] - self.confidence[filled])
        return float(100.0 * np.sum(self.count[filled] * gaps) / self.count.sum())


def reliability(probabilities: FloatArray, truth: IntArray, n_bins: int = 15) -> Reliability:
    """Bins (edge, edge]; the row's guess is its most probable phase, and rows without annotation are left
    out."""
    labelled = truth >= 0
    kept = probabilities[labelled]
    confidence = kept.max(axis=1, initial=0.0)
    right = (kept.argmax(axis=1) == truth[labelled]).astype(np.float64) if len(kept) else np.zeros(0)
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    bins = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, n_bins - 1)
    count = np.bincount(bins, minlength=n_bins)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(bins, weights=confidence, minlength=n_bins) / count
        mean_accuracy = np.bincount(bins, weights=right, minlength=n_bins) / count
    return Reliability(edges, count, mean_confidence, mean_accuracy)
