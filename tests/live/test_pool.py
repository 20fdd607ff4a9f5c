"""Many streams on one model: each as if it were alone."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import surgicalmamba as sm
from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba.errors import InputError, SessionError
from surgicalmamba.live.estimate import Counts


def drain(pool, heard):
    while pool.has_work:
        for key, estimate in pool.tick().estimates.items():
            heard.setdefault(key, []).append(estimate)


def same(estimates, expected):
    assert [(e.frame_index, e.time_s, e.quality, e.fed, e.counts) for e in estimates] == [
        (e.frame_index, e.time_s, e.quality, e.fed, e.counts) for e in expected
    ]
    np.testing.assert_allclose(
        [e.probabilities for e in estimates], [e.probabilities for e in expected], atol=1e-5
    )
    np.testing.assert_allclose([e.intensity for e in estimates], [e.intensity for e in expected], atol=1e-5)


# A failure is not shrunk: a hundred model calls per example make that take minutes, and the example found is
# readable.
@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_streams_that_come_and_go_are_as_if_alone(feature_model, engine, data):
    """Random joins, leaves, snapshots and moves, gaps and bad frames; every stream against a session of its
    own."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    pool, alone, heard, expected, clock = sm.SessionPool(engine, capacity=4, queue_len=64), {}, {}, {}, {}
    for turn in range(data.draw(st.integers(5, 40))):
        move = data.draw(st.sampled_from(["open", "push", "push", "push", "push", "tick", "close", "move"]))
        keys = list(pool.keys)
        if move == "open" and len(keys) < 4:
            key = f"s{turn}"
            pool.open(key)
            alone[key], clock[key], heard[key], expected[key] = sm.Session(feature_model), 0.0, [], []
        elif move == "push" and keys:
            for key in data.draw(st.lists(st.sampled_from(keys), min_size=1, unique=True)):
                clock[key] += data.draw(st.sampled_from([1.0, 1.0, 0.3, 4.0]))
                vector = None if data.draw(st.integers(0, 9)) == 0 else rng.standard_normal(5)
                pool.push_features(key, vector, clock[key])
                expected[key] += alone[key].push_features_each(vector, clock[key])
        elif move == "tick":
            for key, estimate in pool.tick().estimates.items():
                heard[key].append(estimate)
        elif keys:
            drain(pool, heard)
            if move == "close":
                pool.close(keys[0])
            elif move == "move":
                blob = pool.snapshot(keys[-1])
                pool.close(keys[-1])
                pool.open(keys[-1], snapshot=blob)
    drain(pool, heard)
    for key, estimates in heard.items():
        same(estimates, expected[key]) if estimates else None
        assert len(estimates) == len(expected[key])


def test_pictures_of_several_streams_are_encoded_together_and_each_is_as_if_alone(picture_model, pictures):
    class Counting(EagerEngine):
        sizes: list = []  # noqa: RUF012

        def encode(self, frames):
            self.sizes.append(len(frames))
            return super().encode(frames)

    pool = sm.SessionPool(Counting(picture_model), capacity=3)
    heard, sources = {}, {key: pictures(6 + n, seed=n) for n, key in enumerate("abc")}
    for key, frames in sources.items():
        pool.open(key)
        for frame in frames:
            pool.push(key, frame)
    drain(pool, heard)
    assert Counting.sizes == [3, 3, 3, 3, 3, 3, 2, 1]
    for key, frames in sources.items():
        session = sm.Session(picture_model)
        same(heard[key], [session.push(frame) for frame in frames])


def test_a_tick_feeds_each_stream_one_frame_however_many_wait(engine, vectors):
    pool = sm.SessionPool(engine)
    pool.open("busy")
    pool.open("slow")
    for vector in vectors(5):
        pool.push_features("busy", vector)
    pool.push_features("slow", vectors(1)[0])
    estimates = pool.tick().estimates
    assert {key: e.frame_index for key, e in estimates.items()} == {"busy": 0, "slow": 0} and pool.n_waiting(
        "busy"
    ) == 4


def test_a_full_queue_drops_its_oldest_frame_and_the_ticks_lost_count_as_late(feature_model, engine, vectors):
    features = vectors(10)
    pool = sm.SessionPool(engine, queue_len=3)
    pool.open("a")
    for second, vector in enumerate(features):
        pool.push_features("a", vector, float(second))
    heard = {}
    drain(pool, heard)
    assert [e.time_s for e in heard["a"]] == [7.0, 8.0, 9.0]
    assert heard["a"][-1].counts == Counts(late=7, skipped=7)
    session = sm.Session(feature_model)
    np.testing.assert_allclose(
        heard["a"][-1].probabilities,
        [session.push_features(v) for v in features[7:]][-1].probabilities,
        atol=1e-5,
    )


def test_frames_between_two_ticks_never_wait(engine, vectors):
    pool = sm.SessionPool(engine, queue_len=2)
    pool.open("a")
    queued = [pool.push_features("a", v, i / 25) for i, v in enumerate(vectors(26))]
    assert sum(queued) == 2 and queued[0] and queued[25]


def test_an_engine_that_fails_for_one_stream_fails_for_it_alone(feature_model, vectors):
    class Picky(EagerEngine):
        def advance(self, features, state):
            if (features > 100).any():
                raise RuntimeError("out of range")
            return super().advance(features, state)

    pool = sm.SessionPool(Picky(feature_model))
    session = sm.Session(feature_model)
    for key in ("good", "bad"):
        pool.open(key)
    a, b = vectors(2)
    for good, bad in ((a, a), (b, np.full(5, 1000.0)), (a, b)):
        pool.push_features("good", good)
        pool.push_features("bad", bad)
    ticks = [pool.tick() for _ in range(3)]
    assert [set(t.errors) for t in ticks] == [set(), {"bad"}, set()] and "out of range" in str(
        ticks[1].errors["bad"]
    )
    same([t.estimates["good"] for t in ticks], [session.push_features(v) for v in (a, b, a)])
    after = sm.Session(feature_model)
    after.push_features(a)
    np.testing.assert_allclose(
        ticks[2].estimates["bad"].probabilities, after.push_features(b).probabilities, atol=1e-5
    )


def test_a_bad_frame_of_one_stream_does_not_touch_another(picture_model, pictures):
    pool, session = sm.SessionPool(EagerEngine(picture_model)), sm.Session(picture_model)
    frames = pictures(4)
    for key in ("good", "bad"):
        pool.open(key)
    heard = {}
    for good, bad in zip(frames, (frames[0], None, np.zeros((3, 3)), frames[1]), strict=True):
        pool.push("good", good)
        pool.push("bad", bad)
    drain(pool, heard)
    same(heard["good"], [session.push(frame) for frame in frames])
    assert heard["bad"][-1].counts == Counts(unreadable=2, held=2)


def test_a_snapshot_in_the_middle_of_a_gap_goes_on_where_it_stood(feature_model, engine, vectors):
    a, b = vectors(2)
    pool = sm.SessionPool(engine)
    pool.open("a")
    pool.push_features("a", a, 0.0)
    pool.push_features("a", b, 6.0)
    for _ in range(3):
        last = pool.tick().estimates["a"]
    assert (last.time_s, last.fed) == (2.0, "held")
    blob = pool.snapshot("a")
    other, heard = sm.SessionPool(engine), {}
    other.open("a", snapshot=blob)
    other.push_features("a", b, 6.0)  # what waited is sent again
    drain(other, heard)
    session = sm.Session(feature_model)
    session.push_features(a, 0.0)
    same(heard["a"], session.push_features_each(b, 6.0)[2:])


def test_mistakes_are_answered_in_one_line(engine, vectors):
    pool = sm.SessionPool(engine, capacity=1)
    pool.open("a")
    with pytest.raises(SessionError, match="already"):
        pool.open("a")
    with pytest.raises(SessionError, match="all 1 places"):
        pool.open("b")
    with pytest.raises(SessionError, match="no stream 'b'"):
        pool.push_features("b", vectors(1)[0])
    pool.push_features("a", vectors(1)[0], 5.0)
    with pytest.raises(InputError, match="before the last frame"):
        pool.push_features("a", vectors(1)[0], 4.0)
    with pytest.raises(SessionError, match="at least 1"):
        sm.SessionPool(engine, capacity=0)
    pool.close("a")
    assert pool.keys == () and len(pool) == 0


def test_streams_may_be_fed_opened_and_closed_from_other_threads(feature_model, engine, vectors):
    """Four feeders against a ticking thread: every stream gets all of its frames, in order, with its own
    numbers."""
    pool, features, heard = sm.SessionPool(engine, capacity=4, queue_len=100), vectors(30), {}
    torch.set_num_threads(1)

    def feed(key):
        pool.open(key)
        for vector in features:
            pool.push_features(key, vector)
            pool.snapshot(key)

    threads = [threading.Thread(target=feed, args=(f"s{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or pool.has_work:
        for key, estimate in pool.tick().estimates.items():
            heard.setdefault(key, []).append(estimate)
    session = sm.Session(feature_model)
    expected = [session.push_features(v) for v in features]
    for estimates in heard.values():
        same(estimates, expected)
    assert len(heard) == 4
