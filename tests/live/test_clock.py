"""The model's time: which frames of any source fall on which tick."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgicalmamba.errors import InputError
from surgicalmamba.live.track import Clock


def ticks(fps, times):
    """The tick of every frame; None between two."""
    clock, found = Clock(Fraction(fps)), []
    for time_s in times:
        clock, tick = clock.read(time_s)
        found.append(tick)
    return found


def test_twentyfive_frames_a_second_give_every_twentyfifth():
    found = ticks(1, [i / 25 for i in range(76)])
    assert {i: tick for i, tick in enumerate(found) if tick is not None} == {0: 0, 25: 1, 50: 2, 75: 3}


def test_ntsc_gives_the_frame_nearest_to_each_second_even_after_minutes():
    rate = 30000 / 1001
    found = ticks(1, [i / rate for i in range(int(905 * rate))])
    shown = [i / rate for i, tick in enumerate(found) if tick is not None]
    assert len(shown) == 905
    assert max(abs(time_s - k) for k, time_s in enumerate(shown)) <= 0.5 / rate + 1e-9


def test_a_source_slower_than_the_model_misses_every_other_tick():
    assert ticks(1, [0, 2, 4, 6]) == [0, 2, 4, 6]


def test_a_source_at_the_models_rate_loses_nothing_to_jitter():
    assert ticks(1, [0, 0.9, 2.2, 2.95, 4.05, 5.0, 5.7]) == [0, 1, 2, 3, 4, 5, 6]


def test_a_gap_jumps_to_the_tick_it_ends_on():
    assert ticks(1, [0.0, 0.5, 1.0, 1.5, 9.0, 9.5, 10.0]) == [0, None, 1, None, 9, None, 10]


def test_the_first_frame_is_tick_0_whatever_its_time():
    assert ticks(2, [1000.25, 1000.5, 1000.75, 1001.25]) == [0, None, 1, 2]


def test_without_times_every_frame_is_the_next_sample():
    clock, found = Clock(Fraction(1, 2)), []
    for _ in range(3):
        clock, tick = clock.read(None)
        found.append((tick, clock.last_s))
    assert found == [(0, 0.0), (1, 2.0), (2, 4.0)]


def test_a_frame_twice_at_the_same_time_counts_once():
    assert ticks(1, [0, 1, 1, 2]) == [0, 1, None, 2]


@pytest.mark.parametrize(
    ("time_s", "reason"), [(0.5, "lies before the last frame at 1.000 s"), (float("nan"), "is not a time")]
)
def test_time_that_goes_backwards_or_is_none_is_refused(time_s, reason):
    clock, _ = Clock(Fraction(1)).read(1.0)
    with pytest.raises(InputError, match=reason):
        clock.read(time_s)


@given(
    fps=st.fractions(Fraction(1, 4), 5, max_denominator=8),
    gaps=st.lists(st.floats(0, 20, allow_subnormal=False), max_size=60),
    zero=st.floats(-1e6, 1e6),
)
def test_ticks_grow_and_no_frame_is_shown_more_than_half_a_tick_early(fps, gaps, zero):
    clock, last, now = Clock(fps), -1, zero
    for gap in [0.0, *gaps]:
        now += gap
        clock, tick = clock.read(now)
        if tick is not None:
            assert tick > last
            last = tick
            assert (Fraction(now) - Fraction(zero)) * fps >= tick - Fraction(1, 2)
        assert (Fraction(now) - Fraction(zero)) * fps < clock.last_tick + 1  # no tick is left behind
