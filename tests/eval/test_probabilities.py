"""Average precision, log loss and calibration, by hand and against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from surgicalmamba.eval.frame import average_precision, average_precisions, log_losses, reliability


def test_average_precision_by_hand():
    # Ranked: hit, miss, hit: precision 1 at recall 1/2, precision 2/3 at recall 1.
    assert average_precision(np.array([0.9, 0.6, 0.4]), np.array([True, False, True])) == pytest.approx(
        100 * (0.5 + 0.5 * 2 / 3)
    )
    assert np.isnan(average_precision(np.array([0.9, 0.1]), np.array([False, False])))


def test_rows_with_the_same_score_enter_together():
    assert average_precision(np.full(4, 0.5), np.array([True, False, False, False])) == pytest.approx(25)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=60).filter(
        lambda rows: any(hit for _, hit in rows)
    )
)
def test_average_precision_agrees_with_scikit_learn_ties_included(rows):
    scores, positive = np.array([score / 5 for score, _ in rows]), np.array([hit for _, hit in rows])
    assert average_precision(scores, positive) == pytest.approx(
        100 * sklearn_metrics.average_precision_score(positive, scores)
    )


def test_a_phase_without_rows_has_no_average_precision_and_unlabelled_rows_do_not_count():
    probabilities = np.array([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1], [0.1, 0.1, 0.8]])
    np.testing.assert_array_equal(average_precisions(probabilities, np.array([0, 1, -1])), [100, 100, np.nan])


@pytest.fixture
def sample():
    generator = np.random.default_rng(7)
    probabilities = generator.dirichlet(np.ones(4), size=500)
    truth = np.array([generator.choice(4, p=row) for row in probabilities])
    return probabilities, truth


def test_log_loss_agrees_with_scikit_learn(sample):
    probabilities, truth = sample
    assert log_losses(probabilities, truth).mean() == pytest.approx(
        sklearn_metrics.log_loss(truth, probabilities, labels=range(4))
    )


def test_a_certain_mistake_costs_36_nats_and_not_infinity():
    assert log_losses(np.array([[1.0, 0.0]]), np.array([1])) == pytest.approx(36.04, abs=0.01)
    assert log_losses(np.array([[1.0, 0.0]]), np.array([0])) == 0


def test_calibration_error_by_hand():
    # Confidence 0.6 twice with one hit, 0.9 twice with two hits: gaps 0.1 and 0.1.
    probabilities = np.array([[0.6, 0.4], [0.6, 0.4], [0.9, 0.1], [0.1, 0.9]])
    curve = reliability(probabilities, np.array([0, 1, 0, 1]), n_bins=10)
    assert curve.expected_calibration_error == pytest.approx(10)
    assert curve.count.tolist() == [0, 0, 0, 0, 0, 2, 0, 0, 2, 0]
    np.testing.assert_allclose(curve.accuracy[[5, 8]], [0.5, 1.0])


def test_calibration_agrees_with_scikit_learns_curve(sample):
    from sklearn.calibration import calibration_curve

    probabilities, truth = sample
    curve = reliability(probabilities, truth, n_bins=10)
    right = probabilities.argmax(axis=1) == truth
    accuracy, confidence = calibration_curve(right, probabilities.max(axis=1), n_bins=10)
    filled = curve.count > 0
    np.testing.assert_allclose(curve.accuracy[filled], accuracy)
    np.testing.assert_allclose(curve.confidence[filled], confidence)


def test_no_rows_give_no_calibration_error():
    assert np.isnan(reliability(np.array([[0.5, 0.5]]), np.array([-1])).expected_calibration_error)


def test_a_calibrated_forecaster_has_a_small_error_and_an_overconfident_one_a_large_one(sample):
    probabilities, truth = sample
    calibrated = reliability(probabilities, truth, 5).expected_calibration_error
    sharpened = probabilities**8 / (probabilities**8).sum(axis=1, keepdims=True)
    assert calibrated < 6 < 25 < reliability(sharpened, truth, 5).expected_calibration_error
