"""Precision, recall, F1 and Jaccard of one phase in one video, and what they are when they are undefined.

Confusion matrices have annotations in rows and predictions in columns. Scores are percentages; nan means undefined, and every later mean
leaves it out. For a phase that is *missing* (not annotated in the video) or *silent* (never predicted in it) the four rules are

| case               | score              | A   | B   | C   | Z |
|--------------------|--------------------|-----|-----|-----|---|
| present, silent    | precision          | nan | nan | nan | 0 |
| present, silent    | recall, f1, jaccard| 0   | 0   | 0   | 0 |
| missing, predicted | precision          | 0   | nan | 0   | 0 |
| missing, predicted | recall             | nan | nan | nan | 0 |
| missing, predicted | f1, jaccard        | 0   | nan | 0   | 0 |
| missing, silent    | precision          | nan | nan | 100 | 0 |
| missing, silent    | recall             | nan | nan | nan | 0 |
| missing, silent    | f1, jaccard        | nan | nan | 100 | 0 |

A leaves out only what is 0/0 and so punishes false alarms; B leaves out a missing phase whatever was predicted; C rewards correct silence;
Z counts every undefined value as zero, so that even a perfect system stays below 100 where phases are missing."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from surgicalmamba.eval.pairs import FloatArray, IntArray, VideoPair

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
    """The four scores per phase, in percent; leading axes are those of the confusion matrices they came from."""

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
    annotated = confusion.sum(axis=-1)
    predicted = confusion.sum(axis=-2)
    scores = [
        percent(hits, predicted),
        percent(hits, annotated),
        percent(2 * hits, annotated + predicted),
        percent(hits, annotated + predicted - hits),
    ]
    if rule == "B":
        scores = [np.where(annotated == 0, np.nan, score) for score in scores]
    elif rule == "C":
        silence = (annotated == 0) & (predicted == 0)
        scores = [score if index == 1 else np.where(silence, 100.0, score) for index, score in enumerate(scores)]
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
    """Harmonic mean of an averaged precision and an averaged recall. Some papers print it as F1; it is never less than the averaged F1
    where all cells are defined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(precision + recall == 0, 0.0, 2 * precision * recall / (precision + recall))


def nan_mean(values: FloatArray, axis: int | tuple[int, ...] | None = None) -> FloatArray:
    """Mean of the defined values along an axis; nan, without a warning, where none is defined."""
    defined = ~np.isnan(values)
    total = np.where(defined, values, 0.0).sum(axis=axis)
    with np.errstate(invalid="ignore"):
        return np.asarray(total / defined.sum(axis=axis))


def nan_std(values: FloatArray, axis: int | None = None) -> FloatArray:
    """Sample standard deviation (N - 1) of the defined values along an axis; nan where fewer than two are defined."""
    defined = ~np.isnan(values)
    count = defined.sum(axis=axis)
    centre = nan_mean(values, axis) if axis is None else np.expand_dims(nan_mean(values, axis), axis)
    squares = np.where(defined, (values - centre) ** 2, 0.0).sum(axis=axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(np.where(count > 1, squares / (count - 1.0), np.nan)))
