"""What arrays a video may bring, and how wrong ones are answered."""

import numpy as np
import pytest

from surgicalmamba.errors import InputError
from surgicalmamba.eval.pairs import make_pair


def test_plain_lists_become_integer_arrays():
    pair = make_pair("v", [0, -1, 1], [0, 0, 1], n_phases=2, probabilities=[[1, 0], [0.5, 0.5], [0, 1]])
    assert pair.truth.dtype == np.int64
    assert pair.labelled.tolist() == [True, False, True]
    assert pair.probabilities is not None and pair.probabilities.shape == (3, 2)


@pytest.mark.parametrize(
    ("truth", "predicted", "message"),
    [
        ([0, 1], [0], "2 labels but 1 predictions"),
        ([], [], "shape"),
        ([[0, 1]], [[0, 1]], "flat"),
        ([0.0, 1.0], [0, 1], "of type float64"),
        ([0, 7], [0, 1], "label 7 at row 1 is outside 0 to 6"),
        ([0, 1], [0, 9], "prediction 9 at row 1"),
        ([0, 1], [-1, 1], "prediction -1 at row 0"),
        ([-1, -1], [0, 0], "no labelled row"),
    ],
)
def test_wrong_arrays_are_named_with_the_row(truth, predicted, message):
    with pytest.raises(InputError, match=message):
        make_pair("v", truth, predicted, n_phases=7)


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [
        ([[1.0]], "shape"),
        ([[0.5, 0.5], [0.9, 0.9]], "row 1"),
        ([[0.5, 0.5], [float("nan"), 1]], "row 1"),
        ([[1.2, -0.2], [1, 0]], "row 0"),
    ],
)
def test_probabilities_must_be_distributions(probabilities, message):
    with pytest.raises(InputError, match=message):
        make_pair("v", [0, 1], [0, 1], 2, probabilities)
