"""What intensity does to memory, by numbers: appendix What intensity modulation buys. Step 1, A = -a; bursts are the training target's."""

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

from surgicalmamba.core.ssd import ssd_scan, warp_step
from surgicalmamba.insight import regime as retention
from surgicalmamba.train.losses import transition_target
from surgicalmamba_lab.studies.equations_page import Check, Section, deviation, panels

PLATEAU_RATE = 0.083
"""a of the paper's within-phase plateau of 0.92."""
SHAPES = ((2.0, 12.0), (7.0, 7.0), (12.0, 2.0))
"""sigma_L and sigma_R of equal sum."""


def burst(rise: float, fall: float, before: int = 100, after: int = 100) -> Tensor:
    """The intensity around one boundary, (l), whose first frame of the new phase is number `before`."""
    labels = torch.arange(2).repeat_interleave(torch.tensor([before, after]))
    return transition_target(labels, rise_s=rise, fall_s=fall).double()


def survival(a: float, intensity: Tensor) -> Tensor:
    """What the recurrence leaves of a unit write after each of these frames (l), none of which writes."""
    length = len(intensity)
    nothing = torch.zeros(1, length, 1, 1, dtype=torch.float64)
    dt = warp_step(torch.ones(1, length, 1, dtype=torch.float64), intensity[None])
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    read, _ = ssd_scan(nothing, dt, torch.tensor([-a], dtype=torch.float64), nothing, nothing + 1, one)
    return read[0, :, 0, 0]


def selectivity_section() -> Section:
    """Selectivity S = e^(aM)."""
    rows, checks = [], []
    for rise, fall in SHAPES:
        intensity = burst(rise, fall)
        mass = float(intensity.sum())
        for a in (0.02, PLATEAU_RATE):
            # two writes of equal age, 200 frames: one had the boundary after it, the other had none
            within, across = survival(a, torch.zeros(200, dtype=torch.float64))[-1], survival(a, intensity)[-1]
            measured, stated = float(within / across), retention.selectivity(a, mass)
            rows.append((f"{rise:g}, {fall:g}", f"{a:g}", f"{mass:.3f}", f"{retention.burst_mass(rise, fall):.3f}", f"{measured:.4f}"))
            checks.append(abs(measured / stated - 1))
    return Section(
        "Selectivity",
        "`lam_kernel`, `lam_geo`, `lam_sel_fixed`, `lam_sel`",
        "Two writes of the same age, one from before the last boundary and one from after it. A constant decay leaves the same of both. A "
        "burst at the boundary leaves S = e^(aM) times more of the newer one, where M is the sum of the intensity in the burst: its shape "
        "does not matter, nor do the lengths of the phases.",
        ("sigma_L, sigma_R", "a", "M, summed", "M, closed form", "S, measured"),
        tuple(rows),
        (
            Check("S of the scan against e^(aM)", max(checks)),
            Check("without a burst only the age of a write counts, so S is one", _only_age_counts()),
            Check("every boundary leaves the same fraction, whatever the lengths of the phases", _geometric()),
            Check("an intensity of one everywhere is twice the step", _constant_intensity()),
        ),
        "equations-selectivity",
        "What is left, 60 frames after a boundary, of a write by when it was made. The burst takes a constant factor off everything before "
        "it; a constant decay that suppresses the old as much (eq. lam_aprime) also loses the new.",
        _draw_selectivity,
    )


def _only_age_counts() -> float:
    """How much writes of one age differ under a constant step, by the frame they were made at: lane s writes at frame s, read 20 later."""
    length, age = 60, 20
    x = torch.eye(length, dtype=torch.float64)[..., None, None]
    ones = torch.ones(length, length, 1, 1, dtype=torch.float64)
    empty = torch.zeros(length, 1, 1, 1, dtype=torch.float64)
    read, _ = ssd_scan(x, ones[..., 0], torch.tensor([-PLATEAU_RATE], dtype=torch.float64), ones, ones, empty)
    left = torch.stack([read[s, s + age, 0, 0] for s in range(length - age)])
    return deviation(left, left[0].expand_as(left))


def _geometric() -> float:
    a, wave = 0.05, burst(1, 4, 20, 30)
    gamma = retention.boundary_survival(a, float(wave.sum()))
    worst = 0.0
    for first, second in ((0, 80), (40, 40), (80, 0)):
        quiet = [torch.zeros(n, dtype=torch.float64) for n in (first, second)]
        whole = torch.cat([quiet[0], wave, quiet[1], wave])
        worst = max(worst, abs(float(survival(a, whole)[-1]) / (math.exp(-a * len(whole)) * gamma**2) - 1))
    return worst


def _constant_intensity() -> float:
    full, none = torch.ones(50, dtype=torch.float64), torch.zeros(50, dtype=torch.float64)
    return deviation(survival(0.05, full), survival(0.1, none))


def _draw_selectivity() -> Figure:
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.add_subplot()
    a, after = PLATEAU_RATE, 60
    intensity = burst(2, 12, 60, after)
    age = torch.arange(len(intensity)).flip(0)
    faster = retention.rate_without_bursts(a, retention.burst_mass(2, 12), after)
    curves = {
        f"constant decay, a = {a:g}": (torch.exp(-a * age), "#0072B2", "--"),
        "the same with a burst at the boundary": (_left_at_the_end(a, intensity), "#D55E00", "-"),
        f"constant decay that forgets as much, a' = {faster:.3f}": (torch.exp(-faster * age), "#009E73", ":"),
    }
    for label, (left, ink, style) in curves.items():
        axes.plot(-age.numpy(), left.numpy(), color=ink, linestyle=style, linewidth=1.8, label=label)
    axes.axvline(-after, color="#888888", linewidth=1)
    axes.annotate("boundary", (-after, 1.0), xytext=(4, -2), textcoords="offset points", fontsize=8, va="top")
    axes.set_yscale("log")
    axes.set_xlabel("frame of the write, counted from now")
    axes.set_ylabel("share that is left")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _left_at_the_end(a: float, intensity: Tensor) -> Tensor:
    """R(s, n) for every s, n the last frame."""
    values = intensity.tolist()
    return torch.tensor([retention.retention(a, values[s + 1 :]) for s in range(len(values))], dtype=torch.float64)


def energy_destroyed(a: float, intensity: Tensor, start: float) -> float:
    """Energy that bursts take off a state of incoherent unit inputs, in inputs' worth: at every frame the difference between what
    plain decay and warped decay leave. `start` is the energy before the first frame. The energy decays at 2a and gains 1 a frame."""
    alpha = 1 + intensity
    length = len(intensity)
    dt = warp_step(torch.ones(1, length, 1, dtype=torch.float64), intensity[None])
    gain = (1 / alpha).reshape(1, length, 1, 1)  # undoes the write gain, which is no part of this bookkeeping
    ones = torch.ones(1, length, 1, 1, dtype=torch.float64)
    energy, _ = ssd_scan(
        gain, dt, torch.tensor([-2 * a], dtype=torch.float64), ones, ones, torch.full((1, 1, 1, 1), start, dtype=torch.float64)
    )
    before = torch.cat([torch.tensor([start], dtype=torch.float64), energy[0, :-1, 0, 0]])
    return float((before * (math.exp(-2 * a) - torch.exp(-2 * a * alpha))).sum())


def cost_before(a: float, rise: float) -> float:
    """D_L measured: the rising half of a burst strikes a state that is full."""
    return energy_destroyed(a, burst(rise, 1.0, 400, 1)[:-1], 1 / (1 - math.exp(-2 * a)))


def cost_after(a: float, fall: float) -> float:
    """D_R measured: the falling half strikes a state that has just begun to fill."""
    return energy_destroyed(a, burst(1.0, fall, 1, 400)[1:], 0.0)


def net_gain(a: float, fall: float) -> float:
    """A write on the boundary's frame, doubled by the burst and then decayed by its falling half, relative to no burst (eq. lam_sigR)."""
    falling = burst(1.0, fall, 1, 400)[1:]
    return 2 * float(survival(a, falling[1:])[-1] / survival(a, torch.zeros(len(falling) - 1, dtype=torch.float64))[-1])


def cost_section() -> Section:
    """What a burst costs on either side."""
    rows = []
    for a in (0.02, PLATEAU_RATE):
        for sigma in (2.0, 5.0, 12.0):
            left, right = retention.burst_cost(a, sigma, sigma)
            rows.append(
                (f"{a:g}", f"{sigma:g}", f"{left:.2f}", f"{cost_before(a, sigma):.2f}", f"{right:.2f}", f"{cost_after(a, sigma):.2f}")
            )
    split = {shape: cost_before(0.02, shape[0]) + cost_after(0.02, shape[1]) for shape in ((1.0, 9.0), (5.0, 5.0), (9.0, 1.0))}
    told = ", ".join(f"({rise:g}, {fall:g}) costs {cost:.2f}" for (rise, fall), cost in split.items())
    small, wide = 1e-5, 50.0  # where first order and an empty state are true, and half a frame is little
    closed = retention.burst_cost(small, wide, wide)
    gain = net_gain(0.01, retention.widest_fall(0.01))
    return Section(
        "What a burst costs before and after the boundary",
        "`lam_target`, `lam_DLDR`, `lam_sigR`",
        "Forgetting destroys what the current phase has gathered. Before the boundary the state is full, so the cost grows with sigma_L; "
        "after it the state has just begun to fill, so the cost grows with the square of sigma_R and with a. These closed forms are no "
        "identities: they take the state before the boundary as full throughout, the one after it as filling without loss, and the extra "
        "decay to first order. The measured columns follow the energy frame by frame and come out lower: by half a frame at the boundary "
        "itself, and the more the larger a times sigma. "
        f"{_at_the_papers_setting()}\n\n"
        f"At a = 0.02 a burst of (sigma_L, sigma_R) = {told}: the same M, paid by another phase. For the paper's plateau, "
        f"a = {PLATEAU_RATE:g}, the bounds on sigma_R are {retention.widest_cheap_fall(PLATEAU_RATE):.2f} (0.31 / a) and "
        f"{retention.widest_fall(PLATEAU_RATE):.2f} (0.55 / a) frames; its own setting of 12 lies beyond both.",
        ("a", "sigma", "D_L, closed form", "D_L, measured", "D_R, closed form", "D_R, measured"),
        tuple(rows),
        (
            Check("D_L against its closed form where a sigma is small (0.0005)", abs(cost_before(small, wide) / closed[0] - 1), False),
            Check("D_R against its closed form where a sigma is small (0.0005)", abs(cost_after(small, wide) / closed[1] - 1), False),
            Check("at sigma_R = 0.55 / a, gain and decay of a write on the boundary cancel (a = 0.01)", abs(gain - 1), False),
        ),
        "equations-cost",
        "Cost of each side of a burst by its width, closed forms as lines and measured values as marks, for two rates. Vertical lines: "
        "0.31 / a and 0.55 / a.",
        _draw_cost,
    )


def _at_the_papers_setting() -> str:
    a, sigma = PLATEAU_RATE, 12.0
    left, right = retention.burst_cost(a, sigma, sigma)
    return (
        f"At a = {a:g} and sigma = {sigma:g} the closed forms are {left:.2f} before and {right:.2f} after the boundary; frame by frame it "
        f"is {cost_before(a, sigma):.2f} and {cost_after(a, sigma):.2f}."
    )


def _draw_cost() -> Figure:
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axes, a in zip(panels(figure, 2), (0.02, PLATEAU_RATE), strict=True):
        sigmas = [retention.widest_fall(a) * share for share in (0.1, 0.25, 0.4, 0.55, 0.75, 1.0, 1.25)]
        fine = torch.linspace(0, sigmas[-1], 60).tolist()
        closed = [retention.burst_cost(a, sigma, sigma) for sigma in fine]
        axes.plot(fine, [left for left, _ in closed], color="#0072B2", label="D_L, before")
        axes.plot(sigmas, [cost_before(a, sigma) for sigma in sigmas], "o", color="#0072B2")
        axes.plot(fine, [right for _, right in closed], color="#D55E00", linestyle="--", label="D_R, after")
        axes.plot(sigmas, [cost_after(a, sigma) for sigma in sigmas], "s", color="#D55E00")
        for bound in (retention.widest_cheap_fall(a), retention.widest_fall(a)):
            axes.axvline(bound, color="#888888", linewidth=1)
        axes.set_title(f"a = {a:g}", loc="left", fontsize=10)
        axes.set_xlabel("sigma in frames")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("energy destroyed, in frames of input")
    figure.axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    return figure
