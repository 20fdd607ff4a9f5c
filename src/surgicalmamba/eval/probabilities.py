"""Scores that need probabilities: average precision, log loss and calibration."""

from dataclasses import dataclass

import numpy as np

from surgicalmamba.eval.pairs import BoolArray, FloatArray, IntArray


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
