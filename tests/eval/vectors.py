"""Sequences worked by hand, written as (phase, rows) pairs with 0-based phases."""

import numpy as np
from hypothesis import strategies as st


def seq(*runs):
    """seq((0, 3), (1, 2)) is 0 0 0 1 1."""
    return np.concatenate([np.full(count, phase, dtype=np.int64) for phase, count in runs])


V1 = (seq((0, 30), (1, 30)), seq((0, 34), (1, 26)))  # four rows late
V2 = (seq((0, 30), (1, 30)), seq((0, 26), (1, 34)))  # four rows early
V4 = (seq((1, 30), (2, 6), (3, 30)), seq((1, 36), (3, 30)))  # a short phase is never predicted
V5 = (seq((0, 20), (1, 20)), seq((0, 20), (5, 2), (1, 18)))  # a false alarm on a missing phase
V7 = (seq((0, 20), (1, 5), (2, 20)), seq((0, 25), (2, 20)))

runs_of_phases = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 30)), min_size=1, max_size=10)


@st.composite
def pairs(draw):
    """Truth in runs, and a prediction in runs of its own cut or stretched to the same length."""
    truth = seq(*draw(runs_of_phases))
    predicted = seq(*draw(runs_of_phases))
    return truth, np.resize(predicted, len(truth))
