"""The output stage: worked by hand, and against every path there is."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import surgicalmamba as sm
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.live.output import ForwardFilter, OutputStage, softmax

UNITS = st.floats(0.02, 1.0)


def distribution(k):
    return st.lists(UNITS, min_size=k, max_size=k).map(lambda values: tuple(v / sum(values) for v in values))


def test_a_temperature_of_two_halves_the_logits():
    """Logits ln 4 and 0: probabilities 4/5 and 1/5; halved, ln 2 and 0: 2/3 and 1/3."""
    probabilities, belief = OutputStage(temperature=2.0).apply(np.array([math.log(4), 0.0]), None)
    np.testing.assert_allclose(probabilities, [2 / 3, 1 / 3])
    assert belief is None and OutputStage().delay_frames == 0


def test_two_frames_of_the_filter_by_hand():
    """Evidence p / prior: (0.5/0.5, 0.5/0.5) = (1, 1), then (0.2/0.5, 0.8/0.5) = (0.4, 1.6).

    First belief = start = (0.9, 0.1). Expected: (0.9*0.7 + 0.1*0, 0.9*0.3 + 0.1*1) = (0.63, 0.37). Times
    evidence: (0.252, 0.592)."""
    phases = ForwardFilter(start=(0.9, 0.1), transitions=((0.7, 0.3), (0.0, 1.0)), prior=(0.5, 0.5))
    first = phases.step(np.array([0.5, 0.5]), None)
    np.testing.assert_allclose(first, [0.9, 0.1])
    np.testing.assert_allclose(phases.step(np.array([0.2, 0.8]), first), [0.252 / 0.844, 0.592 / 0.844])


@settings(max_examples=40, deadline=None)
@given(data=st.data(), k=st.integers(2, 3), n=st.integers(1, 5))
def test_the_filter_is_the_sum_over_all_paths(data, k, n):
    weight = data.draw(st.floats(0.05, 1.0))
    start, prior = data.draw(distribution(k)), data.draw(distribution(k))
    transitions = tuple(data.draw(distribution(k)) for _ in range(k))
    frames = np.array([data.draw(distribution(k)) for _ in range(n)])
    phases, belief = ForwardFilter(start=start, transitions=transitions, prior=prior, weight=weight), None
    for frame in frames:
        belief = phases.step(frame, belief)
    evidence = (frames / np.array(prior)) ** weight
    brute = np.zeros(k)
    for path in itertools.product(range(k), repeat=n):
        likelihood = start[path[0]] * evidence[0, path[0]]
        for t in range(1, n):
            likelihood *= transitions[path[t - 1]][path[t]] * evidence[t, path[t]]
        brute[path[-1]] += likelihood
    np.testing.assert_allclose(belief, brute / brute.sum(), rtol=1e-9)


def test_an_hour_of_certain_evidence_stay_finite():
    phases = ForwardFilter(start=(1.0, 0.0), transitions=((1.0, 0.0), (0.0, 1.0)), prior=(0.5, 0.5))
    belief = None
    for _ in range(3_600):
        belief = phases.step(softmax(np.array([-40.0, 40.0])), belief)
    assert np.isfinite(belief).all() and belief.tolist() == [1.0, 0.0]


def test_evidence_for_the_impossible_alone_is_believed():
    phases = ForwardFilter(start=(1.0, 0.0), transitions=((1.0, 0.0), (0.0, 1.0)), prior=(0.5, 0.5))
    np.testing.assert_allclose(phases.step(np.array([0.0, 1.0]), None), [0.0, 1.0])


def test_a_session_with_a_stage_says_what_the_stage_makes_of_the_models_answers(feature_model, vectors):
    phases = ForwardFilter(
        start=(0.8, 0.1, 0.1),
        transitions=((0.9, 0.1, 0.0), (0.0, 0.8, 0.2), (0.0, 0.0, 1.0)),
        prior=(0.3, 0.4, 0.3),
    )
    stage = OutputStage(temperature=1.5, filter=phases)
    plain, staged, belief = sm.Session(feature_model), sm.Session(feature_model, output_stage=stage), None
    for vector in vectors(15):
        logits = np.log(plain.push_features(vector).probabilities)
        expected, belief = stage.apply(logits, belief)
        estimate = staged.push_features(vector)
        np.testing.assert_allclose(estimate.probabilities, expected, rtol=1e-9)
        assert estimate.phase == expected.argmax()


def test_a_stage_is_saved_and_read_back_equal(tmp_path):
    identity = ForwardFilter(start=(1, 0), transitions=((1, 0), (0, 1)), prior=(0.5, 0.5))
    stage = OutputStage(temperature=1.25, phases=("a", "b"), filter=identity)
    stage.save(tmp_path / "deep" / "stage.json")
    assert OutputStage.load(tmp_path / "deep" / "stage.json") == stage


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "temperature": -1}', '{"format": 1, "heat": 2}']
)
def test_a_file_that_is_no_stage_is_refused_in_one_line(tmp_path, text):
    file = tmp_path / "stage.json"
    file.write_text(text)
    with pytest.raises(DataError, match=r"stage\.json"):
        OutputStage.load(file)


def test_a_stage_for_other_phases_or_another_rate_is_refused(feature_model):
    with pytest.raises(ConfigError, match="fitted for phases a, b, c"):
        sm.Session(feature_model, output_stage=OutputStage(phases=("a", "b", "c")))
    identity = ForwardFilter(start=(1, 0), transitions=((1, 0), (0, 1)), prior=(0.5, 0.5))
    with pytest.raises(ConfigError, match="is for 2 phases; the model has 3"):
        sm.Session(feature_model, output_stage=OutputStage(filter=identity))
    three = ForwardFilter(
        start=(1, 0, 0), transitions=((1, 0, 0), (0, 1, 0), (0, 0, 1)), prior=(0.4, 0.3, 0.3)
    )
    with pytest.raises(ConfigError, match="per frame at 1 fps; this session runs at 5 fps"):
        sm.Session(feature_model, fps=5, output_stage=OutputStage(filter=three))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"start": (0.5, 0.6)}, "start must be 2 probabilities"),
        ({"prior": (1.0, 0.0)}, "positive"),
        ({"transitions": ((1.0, 0.0),)}, "1 rows for 2"),
    ],
)
def test_a_filter_of_no_probabilities_is_refused(changes, reason):
    good = {"start": (0.5, 0.5), "transitions": ((1.0, 0.0), (0.0, 1.0)), "prior": (0.5, 0.5)}
    with pytest.raises(ConfigError, match=reason):
        ForwardFilter(**{**good, **changes})
