"""Snapshots: exact, whole, and for one model only."""

import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import surgicalmamba as sm
from surgicalmamba.errors import SnapshotError
from surgicalmamba.live.output import ForwardFilter, OutputStage

STAGE = OutputStage(
    temperature=1.7,
    filter=ForwardFilter(
        start=(0.8, 0.1, 0.1),
        transitions=((0.9, 0.1, 0), (0, 0.8, 0.2), (0, 0, 1)),
        prior=(0.3, 0.4, 0.3),
        weight=0.5,
    ),
)


def play(session, vectors, times):
    return [session.push_features(v, t) for v, t in zip(vectors, times, strict=True)]


@pytest.mark.parametrize("cut", [1, 7, 20, 33])
def test_a_restored_session_goes_on_to_the_bit(feature_model, vectors, cut):
    features = vectors(45)
    times = [0.7 * i + (5 if i > 30 else 0) for i in range(45)]
    session = sm.Session(feature_model, fps="1", policy=sm.Policy(missing="hold"), output_stage=STAGE)
    play(session, features[:cut], times[:cut])
    blob = session.snapshot()
    restored = sm.Session.restore(feature_model, blob)
    assert restored.snapshot() == blob
    assert play(restored, features[cut:], times[cut:]) == play(session, features[cut:], times[cut:])


def test_a_restored_session_remembers_the_picture_before(picture_model, pictures):
    a, b = pictures(2)
    session = sm.Session(picture_model, policy="hold")
    session.push(a)
    session.push(b)
    restored = sm.Session.restore(picture_model, session.snapshot())
    for frame in (b, None, a):
        assert restored.push(frame) == session.push(frame)
    assert restored.counts.frozen == 1 and restored.counts.unreadable == 1


def test_a_snapshot_of_a_session_before_its_first_frame_is_a_new_session(feature_model, vectors):
    restored = sm.Session.restore(feature_model, sm.Session(feature_model).snapshot())
    assert restored.push_features(vectors(1)[0]) == sm.Session(feature_model).push_features(vectors(1)[0])


def test_a_snapshot_of_the_papers_model_is_a_few_megabytes():
    """Sizes do not depend on weights: 4 blocks with a slow and a fast path and a head, 24 heads of 64 x 64
    floats each."""
    paths = 4 * 2 + 1
    expected = paths * (24 * 64 * 64 + 3 * 1536 + 24 * 64) * 4
    with torch.device("meta"):
        state = sm.SurgicalMamba(sm.ModelConfig()).initial_state(1)
    assert state.nbytes == expected and expected < 4e6


@pytest.fixture(scope="module")
def blob(feature_model):
    session = sm.Session(feature_model, output_stage=STAGE)
    session.push_features([1, 2, 3, 4, 5])
    return session.snapshot()


def test_another_models_snapshot_is_refused(other_model, blob):
    with pytest.raises(SnapshotError, match="belongs to another model"):
        sm.Session.restore(other_model, blob)


def test_the_same_weights_under_another_config_are_another_model(feature_model, blob):
    renamed = sm.SurgicalMamba(feature_model.config.with_(phases=("a", "b", "c"))).eval()
    renamed.load_state_dict(feature_model.state_dict())
    with pytest.raises(SnapshotError, match="belongs to another model"):
        sm.Session.restore(renamed, blob)


def test_another_version_is_refused_by_its_number(feature_model, blob):
    newer = blob[:8] + struct.pack("<I", 2) + blob[12:]
    with pytest.raises(SnapshotError, match="format version 2, this package reads 1"):
        sm.Session.restore(feature_model, newer)


def test_what_is_cut_off_longer_or_nothing_at_all_is_refused_for_that(feature_model, blob):
    for broken, reason in [
        (blob[:-1], "cut off"),
        (blob[:60], "cut off"),
        (blob[:5], "cut off"),
        (b"", "empty"),
        (blob + b"x", "followed by other bytes"),
        (b"PK\x03\x04" + bytes(100), "no snapshot"),
    ]:
        with pytest.raises(SnapshotError, match=reason):
            sm.Session.restore(feature_model, broken)


def test_a_flipped_bit_in_the_content_is_found_by_the_checksum(feature_model, blob):
    for place in (20, 60, len(blob) // 2, len(blob) - 1):
        broken = bytearray(blob)
        broken[place] ^= 1
        with pytest.raises(SnapshotError, match="checksum"):
            sm.Session.restore(feature_model, bytes(broken))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_whatever_is_taken_for_a_session(feature_model, blob, data):
    broken = bytearray(blob)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(broken)))
        kind = data.draw(st.sampled_from(["overwrite", "delete", "insert"]))
        some = data.draw(st.binary(min_size=1, max_size=40))
        if kind == "overwrite":
            broken[start : start + len(some)] = some
        elif kind == "delete":
            del broken[start : start + len(some)]
        else:
            broken[start:start] = some
    if bytes(broken) == blob:
        return
    with pytest.raises(SnapshotError):
        sm.Session.restore(feature_model, bytes(broken))
