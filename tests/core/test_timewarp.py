"""Intensity-modulated stepping: the identities of appendix "What intensity modulation buys"."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surgicalmamba.core.ssd import ssd_scan, warp_step
from surgicalmamba.insight import regime as closed

intensities = st.lists(st.floats(0, 1), min_size=1, max_size=40)


def survival(a, lambdas):
    """What the recurrence leaves of a unit write after frames that write nothing: step 1, A = -a."""
    frames = len(lambdas)
    zero = torch.zeros(1, frames, 1, 1, dtype=torch.float64)
    dt = warp_step(
        torch.ones(1, frames, 1, dtype=torch.float64), torch.tensor([lambdas], dtype=torch.float64)
    )
    _, state = ssd_scan(
        zero,
        dt,
        torch.tensor([-a], dtype=torch.float64),
        zero,
        zero,
        torch.ones(1, 1, 1, 1, dtype=torch.float64),
    )
    return float(state)


def test_full_intensity_everywhere_is_exactly_twice_the_step(ssd_inputs):
    x, dt, A, B, C, state = (t.detach() for t in ssd_inputs(30))
    ones = torch.ones(dt.shape[:2], dtype=dt.dtype)
    assert torch.equal(warp_step(dt, ones), 2 * dt)
    warped, doubled = (ssd_scan(x, step, A, B, C, state) for step in (warp_step(dt, ones), 2 * dt))
    assert torch.equal(warped[0], doubled[0]) and torch.equal(warped[1], doubled[1])


def test_warped_steps_follow_dynamics_that_are_stationary_in_event_time():
    # eqs. (eventtime), (warpdisc): dh/dtau = A h + B x with tau(t) = t + integral of lambda; a constant
    # intensity per frame of one second makes tau grow by 1 + lambda per frame, so integrating over tau in
    # equal steps must give the same state
    lambdas, A, fine = [0.0, 1.0, 0.5, 0.25, 0.0, 0.75], -0.3, 2000
    h = 0.0
    for value in lambdas:
        step = (1 + value) / fine
        for _ in range(fine):  # midpoint rule in event time, with B x = 1
            middle = h + step / 2 * (A * h + 1)
            h += step * (A * middle + 1)
    per_frame = 400  # frames cut finely, each piece warped by its frame's intensity
    many = torch.ones(1, per_frame * len(lambdas), 1, 1, dtype=torch.float64)
    dt = torch.full((1, many.shape[1], 1), 1 / per_frame, dtype=torch.float64)
    warped = warp_step(dt, torch.tensor([lambdas], dtype=torch.float64).repeat_interleave(per_frame, dim=1))
    _, state = ssd_scan(
        many,
        warped,
        torch.tensor([A], dtype=torch.float64),
        many,
        many,
        torch.zeros(1, 1, 1, 1, dtype=torch.float64),
    )
    assert float(warped.sum()) == pytest.approx(len(lambdas) + sum(lambdas))
    assert float(state) == pytest.approx(h, rel=2e-3)


def test_no_intensity_is_the_unmodulated_step(ssd_inputs):
    dt = ssd_inputs(30)[1].detach()
    assert torch.equal(warp_step(dt, torch.zeros(dt.shape[:2], dtype=dt.dtype)), dt)


@given(a=st.floats(0.001, 1.0), lambdas=intensities)
def test_retention_is_decay_by_age_times_decay_by_intensity(a, lambdas):
    assert survival(a, lambdas) == pytest.approx(closed.retention(a, lambdas), rel=1e-9)


@given(a=st.floats(0.001, 0.5), lambdas=intensities)
def test_only_the_sum_of_intensity_matters_never_its_height_at_one_frame(a, lambdas):
    spread = [sum(lambdas) / len(lambdas)] * len(lambdas)
    assert survival(a, lambdas) == pytest.approx(survival(a, spread), rel=1e-9)


def test_each_boundary_leaves_the_same_fraction_whatever_the_phases_lengths():
    a, burst = 0.05, [0.25, 1.0, 0.5]
    gamma = closed.boundary_survival(a, sum(burst))
    for first, second in ((10, 40), (40, 10), (25, 25)):
        lambdas = [0.0] * first + burst + [0.0] * second + burst
        assert survival(a, lambdas) == pytest.approx(math.exp(-a * len(lambdas)) * gamma**2, rel=1e-12)


def test_a_constant_floor_is_only_a_faster_clock():
    a, floor = 0.05, 0.3
    assert survival(a, [floor] * 20) == pytest.approx(survival(a * (1 + floor), [0.0] * 20), rel=1e-12)


def test_a_fixed_step_cannot_tell_old_from_new_while_a_burst_can():
    a, burst = 0.08, [1.0] * 8
    age = 20
    within, across = survival(a, [0.0] * age), survival(a, [0.0] * (age - 8) + burst)
    assert within / across == pytest.approx(closed.selectivity(a, sum(burst)), rel=1e-12)
    assert closed.selectivity(a, 0.0) == 1.0


def test_the_intensity_also_strengthens_what_is_written():
    x = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    dt, A = torch.full((1, 1, 1), 0.1, dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)
    empty = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    _, plain = ssd_scan(x, dt, A, x, x, empty)
    _, warped = ssd_scan(x, warp_step(dt, torch.ones(1, 1, dtype=torch.float64)), A, x, x, empty)
    torch.testing.assert_close(warped, 2 * plain)


def test_the_state_splits_into_what_was_carried_over_and_what_was_written_since(ssd_inputs):
    # eq. (lam_split)
    x, dt, A, B, C, state = (t.detach() for t in ssd_inputs(20))
    _, whole = ssd_scan(x, dt, A, B, C, state)
    _, carried = ssd_scan(0 * x, dt, A, B, C, state)
    _, written = ssd_scan(x, dt, A, B, C, 0 * state)
    torch.testing.assert_close(whole, carried + written)
