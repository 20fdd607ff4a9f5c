"""The relaxed boundary in its three modes: hand-worked vectors, a literal slow transcription of the script's
steps, and properties."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.vectors import V1, V2, V4, pairs, seq
from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.frame import (
    RULES,
    RelaxedRules,
    accuracy,
    confusion_matrix,
    forgiven_rows,
    rules_for,
    score_relaxed,
)

CHOLEC80 = RULES["cholec80"]


def relaxed(vector, mode, rules=CHOLEC80, window=10, n_phases=7):
    return score_relaxed(*vector, mode, window, n_phases, rules)


@pytest.mark.parametrize("mode", ["published", "repaired"])
def test_a_late_change_is_forgiven_in_both_modes(mode):
    late = relaxed(V1, mode)
    assert late.accuracy == 100
    np.testing.assert_allclose(late.jaccard[:2], 100)
    np.testing.assert_allclose(late.raw_precision[:2], [100, 115.3846154])
    np.testing.assert_allclose(late.raw_recall[:2], [113.3333333, 100])
    np.testing.assert_array_equal(late.precision[:2], [100, 100])


def test_an_early_change_is_an_error_for_the_published_script_and_forgiven_once_it_is_repaired():
    published, repaired = relaxed(V2, "published"), relaxed(V2, "repaired")
    assert published.accuracy == pytest.approx(93.3333333)
    np.testing.assert_allclose(published.jaccard[:2], [86.6666667, 88.2352941])
    assert repaired.accuracy == 100
    np.testing.assert_allclose(repaired.jaccard[:2], 100)
    np.testing.assert_allclose(repaired.raw_precision[:2], [115.3846154, 100])
    np.testing.assert_allclose(repaired.raw_recall[:2], [100, 113.3333333])


@pytest.mark.parametrize("mode", ["published", "repaired"])
def test_a_phase_that_is_never_predicted_but_wholly_forgiven_has_infinite_precision_cut_to_100(mode):
    short = relaxed(V4, mode)
    assert short.accuracy == 100
    np.testing.assert_allclose(short.jaccard[1:4], 100)
    assert np.isinf(short.raw_precision[2]) and short.precision[2] == 100
    assert short.raw_recall[1] == pytest.approx(120)


def test_a_phase_that_is_not_annotated_is_undefined():
    assert np.isnan(relaxed(V1, "published").jaccard[2:]).all()
    assert np.isnan(relaxed(V1, "published").precision[2:]).all()


# Truth, prediction, then accuracy and Jaccard of phases 0 and 1: strict, by the published script, and with
# the script repaired.
VECTORS = [
    (seq((0, 20), (1, 20)), seq((0, 15), (1, 25)), (87.5, 75, 80), (87.5, 75, 80), (100, 100, 100)),
    (seq((0, 20), (1, 20)), seq((0, 25), (1, 15)), (87.5, 80, 75), (100, 100, 100), (100, 100, 100)),
    (seq((0, 8), (1, 20)), seq((0, 5), (1, 23)), (89.2857, 62.5, 86.9565), (100, 100, 100), (100, 100, 100)),
    (
        seq((0, 20), (1, 20)),
        seq((0, 5), (3, 5), (0, 5), (1, 25)),
        (75, 50, 80),
        (87.5, 75, 80),
        (87.5, 75, 100),
    ),
]


@pytest.mark.parametrize(("truth", "predicted", "strict", "published", "repaired"), VECTORS)
def test_the_hand_checkable_vectors(truth, predicted, strict, published, repaired):
    assert accuracy(confusion_matrix(truth, predicted, 7)) == pytest.approx(strict[0], abs=1e-4)
    for mode, expected in (("published", published), ("repaired", repaired)):
        found = relaxed((truth, predicted), mode)
        np.testing.assert_allclose([found.accuracy, *found.jaccard[:2]], expected, atol=1e-4)


def test_m2cai16_rules_are_those_of_cholec80_one_phase_later():
    for side in ("late", "early"):
        shifted = RULES["m2cai16"].table(side, 8)
        np.testing.assert_array_equal(shifted[1:, 1:-1], CHOLEC80.table(side, 7))
        assert np.flatnonzero(shifted[0]).tolist() == (
            [6] if side == "late" else [8]
        )  # -1 and +1, as everywhere else
    truth, predicted = (
        seq((4, 20), (6, 20)),
        seq((4, 12), (6, 28)),
    )  # eight rows early, a jump of two that phases 4 and 5 of Cholec80 allow
    assert relaxed((truth - 1, predicted - 1), "repaired").accuracy == 100
    assert relaxed((truth, predicted), "repaired", RULES["m2cai16"], n_phases=8).accuracy == 100
    assert relaxed((truth, predicted), "repaired", RULES["neighbours"], n_phases=8).accuracy == pytest.approx(
        80
    )


def slow_script(truth, predicted, rules, window, n_phases, repaired):
    """The script's steps, one row at a time, as the facts describe them: difference, runs, late rule, early
    rule, union counts."""
    difference = [int(p) - int(t) for p, t in zip(predicted, truth, strict=True)]
    edited = [0] * len(truth)
    start = 0
    while start < len(truth):
        stop = start
        while stop < len(truth) and truth[stop] == truth[start]:
            stop += 1
        phase = int(truth[start])
        if phase >= 0:
            current = difference[start:stop]
            size = len(current)
            t = min(window, size)
            late, early = rules.late.get(phase, (-1,)), rules.early.get(phase, (1,))
            for i in range(t):
                if current[i] in late:
                    current[i] = 0
            matches = [current[size - t + i] in early for i in range(t)]
            for i, match in enumerate(matches):
                if match:
                    current[size - t + i if repaired else i] = 0
            edited[start:stop] = current
        start = stop
    jaccard, precision, recall = [], [], []
    for phase in range(n_phases):
        n_truth, n_predicted = int((truth == phase).sum()), int((predicted == phase).sum())
        union = [i for i in range(len(truth)) if truth[i] == phase or predicted[i] == phase]
        hits = sum(edited[i] == 0 for i in union)
        if n_truth == 0:
            values = [np.nan] * 3
        else:
            over = np.inf if hits else np.nan
            values = [
                100 * hits / len(union),
                100 * hits / n_predicted if n_predicted else over,
                100 * hits / n_truth,
            ]
        for target, value in zip((jaccard, precision, recall), values, strict=True):
            target.append(value)
    return 100 * sum(x == 0 for x in edited) / len(truth), jaccard, precision, recall


@settings(max_examples=150)
@given(
    pairs(), st.sampled_from(["cholec80", "neighbours"]), st.sampled_from([0, 1, 5, 10, 250]), st.booleans()
)
def test_both_modes_agree_with_a_slow_transcription_of_the_script(pair, rules, window, repaired):
    found = relaxed(pair, "repaired" if repaired else "published", RULES[rules], window)
    expected = slow_script(*pair, RULES[rules], window, 7, repaired)
    assert found.accuracy == pytest.approx(expected[0])
    for mine, slow in zip((found.jaccard, found.raw_precision, found.raw_recall), expected[1:], strict=True):
        np.testing.assert_allclose(mine, slow)


def test_unlabelled_rows_count_as_right_for_the_script_and_are_left_out_otherwise():
    truth, predicted = seq((-1, 10), (0, 30)), seq((3, 25), (0, 15))  # 15 of 30 labelled rows are wrong
    assert relaxed((truth, predicted), "published").accuracy == pytest.approx(100 * 25 / 40)
    assert relaxed((truth, predicted), "repaired").accuracy == pytest.approx(50)
    assert not forgiven_rows(truth, predicted, "symmetric", 10, 7, None)[:10].any()


@given(pairs(), st.sampled_from([0, 1, 5, 10]))
def test_relaxed_accuracy_is_never_below_strict_in_any_mode(pair, window):
    strict = pair[0] == pair[1]
    for mode in ("published", "repaired", "symmetric"):
        right = forgiven_rows(*pair, mode, window, 7, CHOLEC80)
        assert (right | ~strict).all()


@given(pairs())
def test_without_a_window_every_mode_is_strict(pair):
    for mode in ("published", "repaired", "symmetric"):
        np.testing.assert_array_equal(forgiven_rows(*pair, mode, 0, 7, CHOLEC80), pair[0] == pair[1])


@given(pairs())
def test_a_wider_window_never_forgives_less_when_repaired_or_symmetric(pair):
    for mode in ("repaired", "symmetric"):
        narrow, wide = (forgiven_rows(*pair, mode, window, 7, CHOLEC80) for window in (4, 12))
        assert (wide | ~narrow).all()


def mirror(rules, n_phases):
    """The rules of the procedure played backwards with the phases numbered from the end."""
    phases = range(n_phases)
    late = {n_phases - 1 - p: tuple(-d for d in rules.early.get(p, (1,))) for p in phases}
    early = {n_phases - 1 - p: tuple(-d for d in rules.late.get(p, (-1,))) for p in phases}
    return RelaxedRules("mirrored", n_phases, late, early)


@given(pairs(), st.sampled_from(["cholec80", "neighbours"]))
def test_the_repaired_mode_is_symmetric_in_time_reversal(pair, name):
    backwards = tuple(6 - x[::-1] for x in pair)
    there = forgiven_rows(*pair, "repaired", 10, 7, RULES[name])
    back = forgiven_rows(*backwards, "repaired", 10, 7, mirror(RULES[name], 7))
    np.testing.assert_array_equal(back[::-1], there)
    if name == "neighbours":
        np.testing.assert_array_equal(forgiven_rows(*backwards, "repaired", 10, 7, RULES[name])[::-1], there)


def test_the_published_mode_is_not_symmetric_in_time_reversal():
    backwards = tuple(6 - x[::-1] for x in V1)
    neighbours = RULES["neighbours"]
    assert forgiven_rows(*V1, "published", 10, 7, neighbours).all()
    assert not forgiven_rows(*backwards, "published", 10, 7, neighbours).all()


@given(pairs(), st.permutations(range(7)))
def test_the_symmetric_mode_needs_no_order_of_phases_and_no_direction_of_time(pair, new_names):
    names = np.array(new_names)
    right = forgiven_rows(*pair, "symmetric", 10, 7, None)
    np.testing.assert_array_equal(forgiven_rows(*(names[x] for x in pair), "symmetric", 10, 7, None), right)
    np.testing.assert_array_equal(
        forgiven_rows(*(x[::-1] for x in pair), "symmetric", 10, 7, None)[::-1], right
    )


def test_the_symmetric_mode_forgives_only_the_two_neighbours_of_the_change():
    truth = seq((4, 30), (0, 30))
    assert forgiven_rows(truth, seq((4, 25), (0, 35)), "symmetric", 10, 7, None).all()
    assert forgiven_rows(truth, seq((4, 35), (0, 25)), "symmetric", 10, 7, None).all()
    assert (
        forgiven_rows(truth, seq((4, 45), (0, 15)), "symmetric", 10, 7, None).sum() == 55
    )  # ten of fifteen late rows
    assert (
        forgiven_rows(truth, seq((4, 30), (1, 5), (0, 25)), "symmetric", 10, 7, None).sum() == 55
    )  # a third phase is an error


def test_rules_that_do_not_fit_the_number_of_phases_are_refused():
    with pytest.raises(ConfigError, match="written for 7 phases, not 8"):
        rules_for("cholec80", 8)
    with pytest.raises(ConfigError, match="unknown relaxed rules 'cholec'"):
        rules_for("cholec", 7)
    assert rules_for("neighbours", 11) == replace(RULES["neighbours"])
    with pytest.raises(ConfigError, match="published relaxed mode needs rules"):
        forgiven_rows(*V1, "published", 10, 7, None)
