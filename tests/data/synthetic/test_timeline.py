"""The followers behind the tracks."""

import numpy as np
import pytest

from surgicalmamba.data.synthetic.procedure import Activity, Bout, Procedure, Timeline, generator

PROCEDURE = Procedure(
    2, (Bout(0, 4, 1, Activity.HOLD), Bout(4, 10, 1, Activity.DISSECT), Bout(10, 12, 2, Activity.CLIP))
)


@pytest.fixture
def line():
    return Timeline(PROCEDURE, generator(0))


def test_values_per_bout_are_asked_for_once_and_in_order(line):
    asked = []

    def value(activity):
        asked.append(activity)
        return float(len(asked))

    assert line.per_bout(value).tolist() == [1.0] * 4 + [2.0] * 6 + [3.0] * 2
    assert asked == [Activity.HOLD, Activity.DISSECT, Activity.CLIP]
    assert line.when(Activity.DISSECT, Activity.CLIP).tolist() == [0.0] * 4 + [1.0] * 8


def test_an_approach_keeps_its_speed_limit(line):
    """Two frames a second, two seconds to cross: a quarter per frame."""
    followed = line.approach(line.when(Activity.DISSECT), 2.0)
    assert followed.tolist() == [0.0, 0.0, 0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.75, 0.5]


def test_a_drift_closes_the_same_share_of_the_gap_each_frame(line):
    """A time constant of half a second is one frame: half of the gap each time."""
    followed = line.drift(line.when(Activity.DISSECT), 0.5)
    np.testing.assert_allclose(followed[3:7], [0.0, 0.5, 0.75, 0.875])


def test_wandering_stays_within_twice_its_amount(line):
    assert np.abs(line.wander(3.0, 8.0, 1.0)).max() <= 6.0
    assert np.ptp(line.wander(3.0, 8.0, 1.0)) > 0.5
