"""Segments, edit score, overlap F1 and the latency of transitions."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.vectors import pairs, runs_of_phases, seq
from surgicalmamba.eval.segments import (
    edit_score,
    find_segments,
    find_transitions,
    near_transition,
    overlap_counts,
    overlap_f1,
    segment_pair,
)


def test_segments_are_maximal_runs():
    found = find_segments(seq((2, 3), (0, 1), (2, 2)))
    assert (found.phase.tolist(), found.start.tolist(), found.stop.tolist()) == (
        [2, 0, 2],
        [0, 3, 4],
        [3, 4, 6],
    )


def test_rows_without_annotation_cut_segments_of_truth_and_prediction_alike():
    truth, predicted = segment_pair(seq((0, 2), (-1, 2), (0, 2)), seq((0, 6)))
    assert truth.start.tolist() == predicted.start.tolist() == [0, 4]
    assert truth.stop.tolist() == predicted.stop.tolist() == [2, 6]


def test_the_edit_score_counts_wrong_segments_whatever_their_length():
    truth = seq((0, 50), (1, 50), (2, 50))
    assert edit_score(*segment_pair(truth, truth)) == 100
    # 0 1 0 1 2 against 0 1 2: two insertions, five segments in the longer order
    flicker = seq((0, 50), (1, 20), (0, 1), (1, 29), (2, 50))
    assert edit_score(*segment_pair(truth, flicker)) == pytest.approx(60)
    assert edit_score(*segment_pair(truth, seq((3, 150)))) == 0


def slow_levenshtein(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


@given(runs_of_phases, runs_of_phases)
def test_the_edit_score_is_one_minus_the_textbook_distance(first, second):
    a, b = find_segments(seq(*first)), find_segments(seq(*second))
    expected = 100 * (1 - slow_levenshtein(a.phase.tolist(), b.phase.tolist()) / max(len(a), len(b)))
    assert edit_score(a, b) == pytest.approx(expected)
    assert edit_score(b, a) == pytest.approx(expected)


def test_overlap_counts_by_hand():
    truth = seq((0, 10), (1, 10))
    # predicted: 0 for 4 rows (IoU 4/10), 2 for 2 rows (no partner), 0 for 2 (IoU 2/10), 1 for 12 (IoU 10/12)
    predicted = seq((0, 4), (2, 2), (0, 2), (1, 12))
    pair = segment_pair(truth, predicted)
    assert overlap_counts(*pair, 0.10) == (2, 2, 0)  # the second 0 finds its partner taken
    assert overlap_counts(*pair, 0.25) == (2, 2, 0)
    assert overlap_counts(*pair, 0.50) == (1, 3, 1)
    assert overlap_f1(2, 2, 0) == pytest.approx(200 / 3)


def test_of_two_equal_overlaps_the_earlier_segment_is_taken():
    # The long prediction overlaps both annotated segments of phase 0 by 3/11 and takes the first, which the
    # short one (2/6) already has.
    truth, predicted = seq((0, 6), (1, 2), (0, 6)), seq((0, 2), (2, 1), (0, 8), (2, 3))
    assert overlap_counts(*segment_pair(truth, predicted), 0.25) == (1, 3, 2)


def slow_overlap_counts(truth, predicted, threshold):
    def segments(labels):
        edges = [0, *[i for i in range(1, len(labels)) if labels[i] != labels[i - 1]], len(labels)]
        return [(labels[a], a, b) for a, b in pairwise(edges)]

    annotated, used, hits = segments(truth), set(), 0
    for phase, start, stop in segments(predicted):
        best, best_iou = None, 0.0
        for index, (other, a, b) in enumerate(annotated):
            overlap = max(0, min(stop, b) - max(start, a))
            iou = overlap / ((stop - start) + (b - a) - overlap)
            if other == phase and iou > best_iou:
                best, best_iou = index, iou
        if best is not None and best_iou >= threshold and best not in used:
            used.add(best)
            hits += 1
    return hits, len(segments(predicted)) - hits, len(annotated) - hits


@settings(max_examples=200)
@given(pairs(), st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9]))
def test_overlap_counts_agree_with_the_slow_matching(pair, threshold):
    assert overlap_counts(*segment_pair(*pair), threshold) == slow_overlap_counts(
        *[x.tolist() for x in pair], threshold
    )


def delays(truth, predicted):
    return find_transitions(*segment_pair(truth, predicted)).delay_rows.tolist()


def test_a_late_change_has_a_positive_and_an_early_one_a_negative_delay():
    truth = seq((0, 30), (1, 30), (2, 30))
    assert delays(truth, seq((0, 34), (1, 20), (2, 36))) == [4, -6]


def test_a_change_that_is_never_predicted_is_missed():
    found = find_transitions(*segment_pair(seq((0, 30), (1, 30), (2, 30)), seq((0, 60), (2, 30))))
    assert np.isnan(found.delay_rows[0]) and found.delay_rows[1] == 0
    assert found.missed == 1
    assert (found.before.tolist(), found.after.tolist(), found.row.tolist()) == ([0, 1], [1, 2], [30, 60])


def test_the_nearest_change_counts_when_the_prediction_flickers():
    truth = seq((0, 30), (1, 30))
    assert delays(truth, seq((0, 10), (1, 1), (0, 21), (1, 28))) == [2]
    assert delays(truth, seq((0, 28), (1, 1), (0, 3), (1, 28))) == [-2]  # at equal distance the earlier one
    assert delays(truth, seq((1, 60))) == [-30]  # in the new phase since the old one began


def test_a_change_outside_the_two_neighbouring_segments_does_not_count():
    # Phase 1 is predicted only after its annotated segment has ended.
    truth, predicted = seq((0, 10), (1, 5), (0, 20)), seq((0, 20), (1, 5), (0, 10))
    assert np.isnan(delays(truth, predicted)[0])
    assert delays(truth, predicted)[1] == 10
    assert np.isnan(
        delays(truth, seq((0, 15), (1, 5), (0, 15)))[0]
    )  # not even on the row where the segment has just ended


def test_no_change_is_counted_across_rows_without_annotation():
    assert delays(seq((0, 5), (-1, 3), (1, 5)), seq((0, 8), (1, 5))) == []


@given(pairs(), st.permutations(range(7)))
def test_renaming_phases_changes_no_segmental_number(pair, new_names):
    names = np.array(new_names)
    before, after = segment_pair(*pair), segment_pair(*(names[x] for x in pair))
    assert edit_score(*before) == edit_score(*after)
    assert overlap_counts(*before, 0.5) == overlap_counts(*after, 0.5)
    np.testing.assert_array_equal(find_transitions(*before).delay_rows, find_transitions(*after).delay_rows)


@given(pairs())
def test_a_perfect_prediction_is_perfect_in_every_segmental_number(pair):
    truth, _ = pair
    segments = segment_pair(truth, truth)
    assert edit_score(*segments) == 100
    assert overlap_f1(*overlap_counts(*segments, 0.5)) == 100
    assert (find_transitions(*segments).delay_rows == 0).all()


def test_rows_near_a_transition_are_those_within_the_window_on_either_side():
    truth = seq((0, 10), (1, 10), (-1, 5), (2, 5))
    near = near_transition(truth, 3)
    assert np.flatnonzero(near).tolist() == [
        7,
        8,
        9,
        10,
        11,
        12,
    ]  # the gap before phase 2 hides when it began
    assert not near_transition(seq((0, 10)), 3).any()
