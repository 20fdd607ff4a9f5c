"""Closed forms of appendix "What intensity modulation buys", against numbers of the paper and numerical integrals."""

import math

import numpy as np
import pytest

from surgicalmamba.insight import regime as closed


def integral(function, low, high, steps=400_001):
    """The trapezoidal rule."""
    x = np.linspace(low, high, steps)
    y = function(x)
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum())


def test_burst_mass_is_the_integral_of_the_target():
    left = integral(lambda u: np.exp(-(u**2) / (2 * 2.0**2)), -60, 0)
    right = integral(lambda u: np.exp(-(u**2) / (2 * 12.0**2)), 0, 200)
    assert closed.burst_mass(2, 12) == pytest.approx(left + right, rel=1e-6)
    assert closed.burst_mass(1, 9) == pytest.approx(closed.burst_mass(5, 5))


def test_halving_what_survives_takes_about_eight_frames_of_full_intensity():
    a = 0.083  # the paper's plateau of 0.92 per frame
    assert math.exp(-2 * a) == pytest.approx(0.846, abs=2e-3)
    assert math.log(2) / a == pytest.approx(8.3, abs=0.1)
    assert closed.selectivity(a, math.log(2) / a) == pytest.approx(2)


def test_a_burst_of_width_w_gives_a_selectivity_of_at_most_exp_a_w():
    a, width = 0.1, 10
    intensities = np.linspace(0, 1, width)
    assert closed.selectivity(a, intensities.sum()) <= math.exp(a * width)


def test_the_rate_that_replaces_a_burst_suppresses_equally_at_that_age():
    a, mass, age = 0.05, 9.0, 30.0
    faster = closed.rate_without_bursts(a, mass, age)
    assert math.exp(-2 * faster * age) == pytest.approx(closed.boundary_survival(a, mass) ** 2 * math.exp(-2 * a * age))
    assert closed.capacity_kept(mass, age) == pytest.approx(a / faster)


def test_contrast_after_a_boundary_is_clearing_times_gain():
    assert closed.contrast_after_boundary(0.1, 10.0, mean_squared_gain=4.0) == pytest.approx(math.exp(2.0) * 4.0)


def test_capacity_ratio_grows_with_the_spread_of_lengths_and_is_the_threshold_alone_without_spread():
    theta = 0.1
    assert closed.capacity_ratio(theta, 600, 60) == pytest.approx(math.log(10) * 10)
    assert closed.capacity_ratio(theta, 60, 60) == pytest.approx(math.log(10))
    assert math.exp(-closed.smallest_fixed_rate(theta, 60) * 60) == pytest.approx(theta)
    assert closed.boundary_survival(0.02, closed.smallest_burst(theta, 0.02)) == pytest.approx(theta)


def test_burst_cost_matches_the_integrals_of_energy_lost_on_each_side():
    a, rise, fall = 0.05, 2.0, 6.0
    before = integral(lambda u: np.exp(-(u**2) / (2 * rise**2)), -80, 0)
    after = integral(lambda u: 2 * a * u * np.exp(-(u**2) / (2 * fall**2)), 0, 200)
    assert closed.burst_cost(a, rise, fall) == pytest.approx((before, after), rel=1e-6)


def test_widest_falls_are_the_papers_bounds():
    assert closed.widest_fall(1.0) == pytest.approx(0.55, abs=5e-3)
    assert closed.widest_cheap_fall(1.0) == pytest.approx(0.31, abs=5e-3)
    a = 0.05
    fall = closed.widest_fall(a)
    assert 2 * math.exp(-a * closed.burst_mass(0, fall)) == pytest.approx(1)  # gain and decay cancel exactly there
    # marginal cost after the boundary, 4 a sigma, equals the one before it, sqrt(pi / 2), at the cheaper bound
    assert 4 * a * closed.widest_cheap_fall(a) == pytest.approx(math.sqrt(math.pi / 2))
