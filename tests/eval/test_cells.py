"""Precision, recall, F1 and Jaccard per phase and video, against hand-worked values and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from eval.vectors import V1, V2, V5, V7, pairs, seq
from surgicalmamba.eval.frame import (
    accuracy,
    balanced_accuracy,
    cell_scores,
    confusion_matrices,
    confusion_matrix,
    inflated_f1,
    nan_mean,
    nan_std,
)
from surgicalmamba.eval.pairs import make_pair

NAN = np.nan


def cells(vector, rule="A", n_phases=7):
    return cell_scores(confusion_matrix(*vector, n_phases), rule)


def test_a_confusion_matrix_has_annotations_in_rows_and_predictions_in_columns():
    matrix = confusion_matrix(seq((0, 3), (1, 2)), seq((0, 2), (2, 3)), 3)
    assert matrix.tolist() == [[2, 0, 1], [0, 0, 2], [0, 0, 0]]


def test_rows_without_annotation_are_left_out_of_the_confusion_matrix():
    assert confusion_matrix(seq((-1, 5), (0, 3)), seq((1, 6), (0, 2)), 2).tolist() == [[2, 1], [0, 0]]


def test_a_change_four_rows_late():
    late = cells(V1)
    np.testing.assert_allclose(late.jaccard[:2], [100 * 30 / 34, 100 * 26 / 30])
    np.testing.assert_allclose(late.precision[:2], [100 * 30 / 34, 100])
    np.testing.assert_allclose(late.recall[:2], [100, 100 * 26 / 30])
    np.testing.assert_allclose(late.f1[:2], [93.75, 92.857142857])
    assert accuracy(confusion_matrix(*V1, 7)) == pytest.approx(93.33333333)


def test_a_change_four_rows_early():
    np.testing.assert_allclose(cells(V2).jaccard[:2], [86.6666667, 88.2352941])


@pytest.mark.parametrize(("rule", "macro"), [("A", 190 / 3), ("B", 95.0), ("C", 590 / 7), ("Z", 190 / 7)])
def test_a_false_alarm_on_a_missing_phase_costs_what_the_rule_says(rule, macro):
    assert nan_mean(cells(V5, rule).jaccard) == pytest.approx(macro)


# (present and silent, missing and predicted, missing and silent) per score and rule: the table in the
# module's docstring.
TABLE = {
    ("precision", "A"): (NAN, 0, NAN),
    ("precision", "B"): (NAN, NAN, NAN),
    ("precision", "C"): (NAN, 0, 100),
    ("precision", "Z"): (0, 0, 0),
    ("recall", "A"): (0, NAN, NAN),
    ("recall", "B"): (0, NAN, NAN),
    ("recall", "C"): (0, NAN, NAN),
    ("recall", "Z"): (0, 0, 0),
    ("f1", "A"): (0, 0, NAN),
    ("f1", "B"): (0, NAN, NAN),
    ("f1", "C"): (0, 0, 100),
    ("f1", "Z"): (0, 0, 0),
    ("jaccard", "A"): (0, 0, NAN),
    ("jaccard", "B"): (0, NAN, NAN),
    ("jaccard", "C"): (0, 0, 100),
    ("jaccard", "Z"): (0, 0, 0),
}


@pytest.mark.parametrize(("score", "rule"), TABLE)
def test_every_case_of_the_table_of_undefined_values(score, rule):
    truth, predicted = (
        seq((0, 4), (1, 4)),
        seq((0, 4), (2, 4)),
    )  # 1 is present and silent, 2 missing and predicted, 3 missing and silent
    values = getattr(cells((truth, predicted), rule, 4), score)
    np.testing.assert_array_equal(values, [100, *TABLE[score, rule]])


def test_a_phase_that_is_never_predicted_inflates_the_harmonic_mean_of_means():
    short = cells(V7)
    np.testing.assert_array_equal(short.precision[:3], [80, NAN, 100])
    precision, recall = nan_mean(short.precision), nan_mean(short.recall)
    assert (precision, recall) == (pytest.approx(90), pytest.approx(66.6666667))
    assert nan_mean(short.f1) == pytest.approx(62.962963)
    assert inflated_f1(precision, recall) == pytest.approx(76.595745)
    assert inflated_f1(np.array(0.0), np.array(0.0)) == 0.0


@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")
@given(pairs())
def test_scores_agree_with_scikit_learn_wherever_they_are_defined(pair):
    truth, predicted = pair
    mine = cells(pair)
    labels = list(range(7))
    with np.errstate(all="ignore"):
        precision, recall, f1, _ = sklearn_metrics.precision_recall_fscore_support(
            truth, predicted, labels=labels, average=None, zero_division=np.nan
        )
        jaccard = sklearn_metrics.jaccard_score(
            truth, predicted, labels=labels, average=None, zero_division=0
        )
    np.testing.assert_allclose(mine.precision, 100 * precision)
    np.testing.assert_allclose(mine.recall, 100 * recall)
    np.testing.assert_allclose(mine.f1, 100 * f1)
    np.testing.assert_allclose(np.nan_to_num(mine.jaccard), 100 * jaccard)
    matrix = confusion_matrix(truth, predicted, 7)
    assert accuracy(matrix) == pytest.approx(100 * sklearn_metrics.accuracy_score(truth, predicted))
    present = np.isin(
        predicted, truth
    )  # scikit-learn warns when a prediction is no annotated class, with the same result
    if present.all():
        assert balanced_accuracy(matrix) == pytest.approx(
            100 * sklearn_metrics.balanced_accuracy_score(truth, predicted)
        )


@given(pairs())
def test_scores_stay_between_0_and_100_and_jaccard_follows_from_f1(pair):
    for rule in "ABCZ":
        scores = cells(pair, rule)
        for values in vars(scores).values():
            defined = values[~np.isnan(values)]
            assert ((defined >= 0) & (defined <= 100)).all()
        f1 = scores.f1 / 100
        np.testing.assert_allclose(scores.jaccard / 100, f1 / (2 - f1))


@given(pairs())
def test_leaving_missing_phases_out_never_lowers_macro_jaccard(pair):
    assert nan_mean(cells(pair, "B").jaccard) >= nan_mean(cells(pair, "A").jaccard) - 1e-9
    assert nan_mean(cells(pair, "A").jaccard) >= nan_mean(cells(pair, "Z").jaccard) - 1e-9


@given(pairs())
def test_the_inflated_f1_is_never_below_macro_f1_where_all_cells_are_defined(pair):
    truth, predicted = pair
    every = np.arange(7)  # each phase annotated and predicted at least once
    truth, predicted = np.append(truth, every), np.append(predicted, every)
    scores = cells((truth, predicted))
    assert inflated_f1(nan_mean(scores.precision), nan_mean(scores.recall)) >= nan_mean(scores.f1) - 1e-9


@given(pairs(), st.permutations(range(7)))
def test_renaming_the_phases_permutes_the_scores_and_keeps_accuracy(pair, new_names):
    names = np.array(new_names)
    truth, predicted = pair
    before, after = cells(pair), cells((names[truth], names[predicted]))
    for score in ("precision", "recall", "f1", "jaccard"):
        np.testing.assert_allclose(getattr(after, score)[names], getattr(before, score))
    assert accuracy(confusion_matrix(names[truth], names[predicted], 7)) == accuracy(
        confusion_matrix(truth, predicted, 7)
    )


def test_one_confusion_matrix_per_video():
    videos = [make_pair(f"v{index}", *vector, n_phases=7) for index, vector in enumerate((V1, V5))]
    matrices = confusion_matrices(videos, 7)
    assert matrices.shape == (2, 7, 7)
    np.testing.assert_array_equal(matrices[1], confusion_matrix(*V5, 7))


def test_means_and_deviations_skip_undefined_values_without_warning():
    values = np.array([[1.0, NAN], [3.0, NAN], [8.0, 5.0]])
    np.testing.assert_array_equal(nan_mean(values, axis=0), [4, 5])
    np.testing.assert_allclose(nan_std(values, axis=0), [np.std([1, 3, 8], ddof=1), NAN])
    assert np.isnan(nan_mean(np.array([NAN])))
    assert nan_std(np.array([2.0, 4.0, NAN])) == pytest.approx(np.sqrt(2))
