"""Which frames become samples."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgicalmamba.data.records import IndexSampling, TimeSampling, parse_fps
from surgicalmamba.errors import ConfigError, DataError

rates = st.fractions(min_value=1, max_value=120, max_denominator=1001)


@pytest.mark.parametrize(
    ("source_fps", "fps", "frames"),
    [
        ("25", "1", [0, 25, 50, 75]),
        ("50", "1", [0, 50, 100, 150]),
        ("30000/1001", "1", [0, 30, 60, 90]),
        ("24.6", "1", [0, 25, 50, 75]),
        ("25", "5", [0, 5, 10, 15]),
        ("25", "2", [0, 13, 25, 38]),  # 12.5 apart: the first frame at or after each half second
        ("25", "25", [0, 1, 2, 3]),
        ("25", "1/2", [0, 50, 100, 150]),
    ],
)
def test_sample_k_is_frame_k_times_round_fps(source_fps, fps, frames):
    rule = IndexSampling.between(Fraction(source_fps), Fraction(fps))
    assert [rule.frame_of(k) for k in range(4)] == frames


@pytest.mark.parametrize(
    ("n_frames", "n_samples"), [(250, 10), (251, 11), (226, 10), (1, 1), (25, 1), (26, 2)]
)
def test_a_recording_of_n_frames_has_ceil_n_over_25_samples(n_frames, n_samples):
    assert IndexSampling.between(Fraction(25), Fraction(1)).n_samples(n_frames) == n_samples


@given(
    source_fps=rates,
    divisor=st.fractions(min_value=1, max_value=60, max_denominator=50),
    n_frames=st.integers(1, 500),
)
def test_counting_frames_one_by_one_agrees_with_the_formulas(source_fps, divisor, n_frames):
    rule = IndexSampling.between(source_fps, source_fps / divisor)
    picked = [i for i in range(n_frames) if rule.sample_of(i) is not None]
    assert len(picked) == rule.n_samples(n_frames)
    assert picked == [rule.frame_of(k) for k in range(len(picked))]


@given(
    gaps=st.lists(st.integers(1, 400), min_size=1, max_size=40),
    fps=st.sampled_from([Fraction(1), Fraction(5), Fraction(1, 2)]),
)
def test_by_time_sample_k_is_the_last_frame_that_began_by_then(gaps, fps):
    tick = Fraction(1, 1000)
    times = [Fraction(sum(gaps[:i]), 1000) for i in range(len(gaps) + 1)]
    rule = TimeSampling(fps, tick)
    got = {}
    for i, start in enumerate(times):
        for k in rule.samples_of(start, times[i + 1] if i + 1 < len(times) else None):
            assert k not in got
            got[k] = i
    n = int((times[-1] + tick) * fps) + 1
    assert sorted(got) == list(range(n))
    for k, frame in got.items():
        assert frame == max(i for i, start in enumerate(times) if start <= k / fps + tick)


def test_a_frozen_picture_is_sampled_again():
    rule = TimeSampling(Fraction(1), Fraction(1, 1000))
    assert list(rule.samples_of(Fraction(2), Fraction(5))) == [2, 3, 4]


def test_more_samples_than_frames_is_refused():
    with pytest.raises(DataError, match="25 frames per second, fewer than 30"):
        IndexSampling.between(Fraction(25), Fraction(30))


@pytest.mark.parametrize("text", ["fast", "0", "-1", "1/0", ""])
def test_a_rate_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="fps"):
        parse_fps(text)
