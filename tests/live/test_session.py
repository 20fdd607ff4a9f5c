"""Live sessions: the model's numbers at the model's rate, and a stated answer to everything that is no
picture."""

import json

import numpy as np
import pytest
import torch

import surgicalmamba as sm
from surgicalmamba.data.transforms import normalise
from surgicalmamba.errors import ConfigError, InputError, SessionError
from surgicalmamba.live.estimate import Counts
from surgicalmamba.live.track import PictureMaker


def probabilities(model, features):
    """The model's output for a whole clip of vectors."""
    with torch.no_grad():
        return torch.softmax(
            model.forward_features(torch.from_numpy(features)[None]).logits[0].double(), -1
        ).numpy()


def test_vectors_one_at_a_time_give_what_the_model_gives_for_the_clip(feature_model, vectors):
    features = vectors(50)
    session = sm.Session(feature_model)
    estimates = [session.push_features(vector) for vector in features]
    with torch.no_grad():
        output = feature_model.forward_features(torch.from_numpy(features)[None])
    expected = torch.softmax(output.logits[0].double(), -1).numpy()
    np.testing.assert_allclose([e.probabilities for e in estimates], expected, atol=1e-5)
    np.testing.assert_allclose(
        [e.intensity for e in estimates], torch.sigmoid(output.intensity_logits[0]).mean(-1), atol=1e-5
    )
    assert [e.frame_index for e in estimates] == list(range(50)) and estimates[7].time_s == 7.0
    assert all(
        e.phase == np.argmax(p) and e.name == ("setup", "work", "close")[e.phase]
        for e, p in zip(estimates, expected, strict=True)
    )
    assert all(e.quality == "ok" and e.fed == "input" and e.counts == Counts() for e in estimates)


def test_the_rate_is_the_checkpoints_unless_another_is_asked_for(feature_model, vectors):
    config = feature_model.config.with_(preprocess={"fps": "2"})
    model = sm.SurgicalMamba(config).eval()
    session = sm.Session(model)
    assert [session.push_features(v).time_s for v in vectors(3)] == [0.0, 0.5, 1.0]
    session = sm.Session(model, fps=0.5)
    assert [session.push_features(v).time_s for v in vectors(3)] == [0.0, 2.0, 4.0]


def test_a_fast_source_is_sampled_at_the_models_rate(feature_model, vectors):
    features = vectors(101)
    session = sm.Session(feature_model)
    estimates = [session.push_features(v, i / 25) for i, v in enumerate(features)]
    shown = [e for e in estimates if e is not None]
    assert [e.time_s for e in shown] == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(
        [e.probabilities for e in shown], probabilities(feature_model, features[::25]), atol=1e-5
    )


def test_a_gap_is_held_and_counted(feature_model, vectors):
    a, b = vectors(2)
    session = sm.Session(feature_model)
    session.push_features(a, 10.0)
    estimate = session.push_features(b, 14.0)
    expected = probabilities(feature_model, np.stack([a, a, a, a, b]))
    np.testing.assert_allclose(estimate.probabilities, expected[-1], atol=1e-5)
    assert estimate.frame_index == 4 and estimate.time_s == 14.0 and estimate.quality == "ok"
    assert estimate.counts == Counts(missing=3, held=3)


def test_a_gap_is_skipped_where_the_policy_says_so(feature_model, vectors):
    a, b = vectors(2)
    session = sm.Session(feature_model, policy="skip")
    session.push_features(a, 0.0)
    estimate = session.push_features(b, 4.0)
    np.testing.assert_allclose(
        estimate.probabilities, probabilities(feature_model, np.stack([a, b]))[-1], atol=1e-5
    )
    assert (estimate.frame_index, estimate.time_s) == (1, 4.0) and estimate.counts == Counts(
        missing=3, skipped=3
    )


def test_a_gap_is_advanced_with_nothing_where_the_policy_says_so(feature_model, vectors):
    a, b = vectors(2)
    session = sm.Session(feature_model, policy="advance")
    session.push_features(a, 0.0)
    estimate = session.push_features(b, 3.0)
    nothing = np.zeros_like(a)
    np.testing.assert_allclose(
        estimate.probabilities,
        probabilities(feature_model, np.stack([a, nothing, nothing, b]))[-1],
        atol=1e-5,
    )
    assert estimate.counts == Counts(missing=2, neutral=2)


def test_of_a_long_gap_only_the_end_is_filled(feature_model, vectors):
    a, b = vectors(2)
    session = sm.Session(feature_model, policy=sm.Policy(longest_fill_s=5))
    session.push_features(a, 0.0)
    estimate = session.push_features(b, 1e9)
    assert estimate.frame_index == 6 and estimate.counts == Counts(
        missing=10**9 - 1, held=5, skipped=10**9 - 6
    )
    np.testing.assert_allclose(
        estimate.probabilities, probabilities(feature_model, np.stack([a] * 6 + [b]))[-1], atol=1e-5
    )


@pytest.mark.parametrize("bad", [None, "nan", "inf"])
def test_a_vector_that_cannot_be_read_is_held_and_visible(feature_model, vectors, bad):
    a, b = vectors(2)
    broken = None if bad is None else np.full(5, np.float32(bad))
    session = sm.Session(feature_model)
    first = session.push_features(broken)
    assert first is None and session.counts == Counts(unreadable=1, skipped=1)  # nothing to hold yet
    session.push_features(a)
    held = session.push_features(broken)
    np.testing.assert_allclose(
        held.probabilities, probabilities(feature_model, np.stack([a, a]))[-1], atol=1e-5
    )
    assert (held.quality, held.fed) == ("unreadable", "held") and held.counts == Counts(
        unreadable=2, held=1, skipped=1
    )
    assert session.push_features(b).frame_index == 2


def test_a_black_and_a_frozen_picture_are_fed_as_they_are_unless_told_otherwise(picture_model, pictures):
    a, b = pictures(2)
    dark = np.full_like(a, 6)
    plain, holding = sm.Session(picture_model), sm.Session(picture_model, policy="hold")
    kinds = [plain.push(frame) for frame in (a, dark, dark, b, b)]
    assert [e.quality for e in kinds] == ["ok", "black", "black", "ok", "frozen"] and {
        e.fed for e in kinds
    } == {"input"}
    assert kinds[-1].counts == Counts(black=2, frozen=1)
    held = [holding.push(frame) for frame in (a, dark, dark, b, b)]
    assert [e.fed for e in held] == ["input", "held", "held", "input", "held"]
    assert held[-1].counts == Counts(black=2, frozen=1, held=3)
    thrice = sm.Session(picture_model)
    expected = [thrice.push(frame).probabilities for frame in (a, a, a, b, b)]
    assert [e.probabilities for e in held] == expected
    assert expected[2] != kinds[2].probabilities


@pytest.mark.parametrize(
    "bad",
    [
        None,
        *(np.zeros(hw, np.uint8) for hw in ((72, 96), (72, 96, 4), (0, 0, 3), (1, 5000, 3))),
        np.zeros((72, 96, 3)),
        "text",
        [1, 2],
    ],
    ids=["none", "grey", "rgba", "empty", "sliver", "float", "text", "list"],
)
def test_what_is_no_picture_is_unreadable_and_never_ends_a_session(picture_model, pictures, bad):
    a, b = pictures(2)
    session = sm.Session(picture_model)
    session.push(a)
    estimate = session.push(bad)
    assert (estimate.quality, estimate.fed, estimate.frame_index) == ("unreadable", "held", 1)
    advancing = sm.Session(picture_model, policy="advance")
    advancing.push(a)
    assert advancing.push(bad).fed == "neutral"
    assert session.push(b).counts == Counts(unreadable=1, held=1)


def test_the_neutral_picture_is_next_to_zero_for_the_network(picture_model):
    backbone = picture_model.config.backbone
    neutral = torch.from_numpy(PictureMaker(picture_model.config).neutral())
    assert normalise(neutral, backbone.mean_rgb, backbone.std_rgb).abs().max() < 0.01


def test_time_that_goes_backwards_is_refused_and_changes_nothing(feature_model, vectors):
    a, b, c = vectors(3)
    session, twin = sm.Session(feature_model), sm.Session(feature_model)
    for one in (session, twin):
        one.push_features(a, 5.0)
    with pytest.raises(InputError, match=r"time_s=4.000 lies before the last frame at 5.000 s"):
        session.push_features(b, 4.0)
    assert session.push_features(c, 6.0) == twin.push_features(c, 6.0)


def test_mistakes_are_answered_in_one_line(feature_model, picture_model, vectors):
    with pytest.raises(InputError, match=r"features have shape \(4,\); this model takes \(5,\)"):
        sm.Session(feature_model).push_features(np.zeros(4))
    with pytest.raises(InputError, match="no backbone"):
        sm.Session(feature_model).push(np.zeros((64, 64, 3), np.uint8))
    with pytest.raises(SessionError, match="unknown engine 'warp'"):
        sm.Session(feature_model, engine="warp")
    with pytest.raises(ConfigError, match="missing='wait'"):
        sm.Session(feature_model, policy="wait")
    with pytest.raises(ConfigError, match="fps"):
        sm.Session(feature_model, fps=0)


def test_every_estimate_of_a_push_can_be_had(picture_model, pictures):
    a, b = pictures(2)
    session = sm.Session(picture_model)
    session.push_each(a, 0.0)
    estimates = session.push_each(b, 3.1)
    assert [(e.time_s, e.quality, e.fed) for e in estimates] == [
        (1.0, "missing", "held"),
        (2.0, "missing", "held"),
        (3.1, "ok", "input"),
    ]


def test_an_estimate_is_json_as_it_is(feature_model, vectors):
    estimate = sm.Session(feature_model).push_features(vectors(1)[0])
    document = json.loads(json.dumps(estimate.as_dict()))
    assert document["probabilities"] == list(estimate.probabilities) and document["counts"]["missing"] == 0
