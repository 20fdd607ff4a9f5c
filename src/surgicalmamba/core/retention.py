"""What intensity modulation buys, in closed form: appendix of the same name, for a constant step and a = |A| dt.

Symbols: a decay per frame; lambda the intensity of a frame; M the amount of intensity in one burst; W its width; theta the
fraction of old content that may survive a phase. Times are in frames."""

import math
from collections.abc import Sequence

BURST_MASS_PER_WIDTH = math.sqrt(math.pi / 2)
"""Integral of one half of a Gaussian of unit height and unit width."""


def retention(a: float, intensities: Sequence[float]) -> float:
    """R(s, n), eq. (lam_kernel): what survives of a write after frames with these intensities; age and bursts multiply."""
    return math.exp(-a * len(intensities)) * math.exp(-a * sum(intensities))


def burst_mass(rise: float, fall: float) -> float:
    """M of one asymmetric Gaussian burst, eq. (lam_target)."""
    return BURST_MASS_PER_WIDTH * (rise + fall)


BURST_REACH = 3.0
"""Deviations from its peak at which a burst counts as over: 0.011 of its height is left."""


def burst_width(rise: float, fall: float) -> float:
    """W: how long a burst lasts, from its beginning to its end. The mass is 0.42 of it, within the bound M <= W of eq. (lam_bound)."""
    return BURST_REACH * (rise + fall)


def burst_floor(length: float, rise: float, fall: float) -> float:
    """The lowest intensity between two boundaries this far apart, where the fall of one burst meets the rise of the next.

    Near 0 the bursts are separate; near 1 they are one, and the intensity is a constant that only rescales the step (eq. lam_geo)."""
    return math.exp(-((length / (rise + fall)) ** 2) / 2)


def boundary_survival(a: float, mass: float) -> float:
    """gamma, eq. (lam_geo): the fraction of the carried state that each boundary leaves, whatever the phases' lengths."""
    return math.exp(-a * mass)


def selectivity(a: float, mass: float) -> float:
    """S, eq. (lam_sel): how much better content of the current phase survives than equally old content from before the boundary.

    It is 1 for every a without a burst, eq. (lam_sel_fixed), and at most exp(a W) for a burst of width W, eq. (lam_bound)."""
    return 1 / boundary_survival(a, mass)


def rate_without_bursts(a: float, mass: float, age: float) -> float:
    """a', eq. (lam_aprime): the constant decay that suppresses content of this age as much as a and a burst together do."""
    return a * (age + mass) / age


def capacity_kept(mass: float, age: float) -> float:
    """Eq. (lam_cost_eq): the share of its capacity a model keeps when it forgets by a constant rate instead of by bursts."""
    return age / (age + mass)


def contrast_after_boundary(a: float, mass: float, mean_squared_gain: float) -> float:
    """Eq. (lam_snr): energy written since a boundary over energy carried across it, relative to no burst."""
    return selectivity(a, mass) ** 2 * mean_squared_gain


def smallest_fixed_rate(theta: float, shortest: float) -> float:
    """Eq. (lam_amin): the decay a constant step needs so that even the shortest phase forgets its predecessor."""
    return math.log(1 / theta) / shortest


def smallest_burst(theta: float, a: float) -> float:
    """Eq. (lam_aMbound): the M with which one boundary leaves at most theta."""
    return math.log(1 / theta) / a


def capacity_ratio(theta: float, longest: float, shortest: float) -> float:
    """Eq. (lam_ratio): memory with bursts over memory with a constant step, eq. (lam_capfixed). Grows with the spread of lengths."""
    with_bursts = longest
    fixed = 1 / smallest_fixed_rate(theta, shortest)
    return with_bursts / fixed


def burst_cost(a: float, rise: float, fall: float) -> tuple[float, float]:
    """D_L and D_R, eq. (lam_DLDR): energy a burst destroys before and after the boundary, per frame's worth of input energy."""
    return BURST_MASS_PER_WIDTH * rise, 2 * a * fall**2


def widest_fall(a: float) -> float:
    """Eq. (lam_sigR): beyond this sigma_R the burst weakens the new phase instead of strengthening it; 0.55 / a."""
    return math.log(2) / (a * BURST_MASS_PER_WIDTH)


def widest_cheap_fall(a: float) -> float:
    """Below this sigma_R a frame of forgetting costs less after the boundary than before it; 0.31 / a (below eq. lam_DLDR)."""
    return BURST_MASS_PER_WIDTH / (4 * a)
