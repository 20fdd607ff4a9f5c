"""One video as the metrics see it: the annotated and the predicted phase of every row."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surgicalmamba.errors import InputError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class VideoPair:
    """Truth and prediction on the same rows: truth (t,), negative where nothing is annotated; predicted (t,);
    probabilities (t, k)."""

    name: str
    truth: IntArray
    predicted: IntArray
    probabilities: FloatArray | None = None

    @property
    def labelled(self) -> BoolArray:
        """Rows that carry an annotation; all others stay out of every score."""
        return self.truth >= 0


def make_pair(
    name: str, truth: ArrayLike, predicted: ArrayLike, n_phases: int, probabilities: ArrayLike | None = None
) -> VideoPair:
    """Check one video's arrays and convert them to integers (and floats)."""
    truth_ids, predicted_ids = _ids(truth, f"labels of {name}"), _ids(predicted, f"predictions of {name}")
    if len(truth_ids) != len(predicted_ids):
        raise InputError(f"{name}: {len(truth_ids)} labels but {len(predicted_ids)} predictions; give one "
                         "prediction for every label.")
    if not (truth_ids >= 0).any():
        raise InputError(f"{name} has no labelled row, so nothing can be scored; leave it out.")
    for what, ids, too_low in (("label", truth_ids, False), ("prediction", predicted_ids, predicted_ids < 0)):
        wrong = (ids >= n_phases) | too_low
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(f"{name}: {what} {int(ids[row])} at row {row} is outside 0 to {n_phases - 1}; "
                             f"is n_phases={n_phases} right?")
    scores = None if probabilities is None else _probabilities(probabilities, name, len(truth_ids), n_phases)
    return VideoPair(name, truth_ids, predicted_ids, scores)


def _ids(values: ArrayLike, what: str) -> IntArray:
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"{what} have shape {array.shape}; a flat, non-empty sequence of phase ids is "
                         "needed.")
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"{what} are of type {array.dtype}; integer phase ids are needed.")
    return array.astype(np.int64, copy=False)


def _probabilities(values: ArrayLike, name: str, n_rows: int, n_phases: int) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (n_rows, n_phases):
        raise InputError(f"probabilities of {name} have shape {array.shape}; ({n_rows}, {n_phases}) is "
                         "needed.")
    wrong = no_distribution(array)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"probabilities of {name} at row {row} are not numbers from 0 to 1 that sum to 1; "
                         "give softmax outputs.")
    return array


def no_distribution(probabilities: FloatArray) -> BoolArray:
    """Rows (t,) whose values (t, k) are not between 0 and 1, or do not sum to 1 within what rounding in a
    text file explains."""
    inside = ((probabilities >= 0) & (probabilities <= 1 + 1e-6)).all(axis=1)
    return np.asarray(~inside | (np.abs(probabilities.sum(axis=1) - 1) > 1e-2))
