"""The figure of a regime: how long segments last, how bursts of any width would overlap, and which rates of decay serve what."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from surgicalmamba.core.retention import BURST_REACH
from surgicalmamba.insight.regime import Regime
from surgicalmamba.insight.timelines import Annotations
from surgicalmamba.report.colours import colour, hatch

_PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
_SET, _SUGGESTED, _INK = "#D55E00", "#009E73", "#1a1a1a"


def draw_regime(regime: Regime, annotations: Annotations) -> Figure:
    """Three panels: lengths by phase, overlap by burst width, rates."""
    n_phases = len(regime.phases)
    figure = Figure(figsize=(10, 3.6 + 0.3 * n_phases), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=[0.3 * n_phases + 0.9, 2.3])
    _lengths(figure.add_subplot(grid[0, :]), regime, annotations)
    _overlap(figure.add_subplot(grid[1, 0]), regime, annotations)
    _rates(figure.add_subplot(grid[1, 1]), regime)
    figure.suptitle(f"{regime.dataset}: {regime.verdict}", x=0.01, ha="left", fontsize=11)
    return figure


def _lengths(axes: Axes, regime: Regime, annotations: Annotations) -> None:
    """Every segment as a dot, phase by phase; the lines are what the equations use."""
    phase = np.concatenate([video.phase for video in annotations.videos])
    spread = np.random.default_rng(0)
    for row, entry in enumerate(regime.phases):
        number = annotations.phases.index(entry.name)
        lengths = annotations.length_s[phase == number]
        place = row + spread.uniform(-0.28, 0.28, len(lengths))
        axes.scatter(
            lengths, place, s=11, color=colour(number), alpha=0.8, linewidths=0.3, edgecolors=_INK, marker="s" if hatch(number) else "o"
        )
        axes.plot([entry.median] * 2, [row - 0.38, row + 0.38], color=_INK, linewidth=1.6)
    lines = {
        f"burst W = {regime.burst_width_s:.3g}": (regime.burst_width_s, _SET, "-"),
        f"L_q = {regime.overall.low:.3g}": (regime.overall.low, _INK, ":"),
        f"mean = {regime.overall.mean:.3g}": (regime.overall.mean, _INK, "--"),
        f"L_max = {regime.overall.longest:.4g}": (regime.overall.longest, _INK, "-."),
    }
    for label, (at, ink, style) in lines.items():
        axes.axvline(at, color=ink, linestyle=style, linewidth=1.2, label=label)
    axes.set_xscale("log")
    axes.set_ylim(len(regime.phases) - 0.4, -0.6)
    axes.set_yticks(range(len(regime.phases)), [entry.name for entry in regime.phases], fontsize=8)
    axes.xaxis.set_major_formatter(_PLAIN)
    axes.set_xlabel("length of a segment in seconds (short bar: median of the phase)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _overlap(axes: Axes, regime: Regime, annotations: Annotations) -> None:
    """Share of the stretches between boundaries that a burst of each width would fill."""
    between = np.concatenate([np.diff(video.boundaries_s) for video in annotations.videos])
    marks = {
        f"set: {regime.burst_width_s:.3g} s": (regime.burst_width_s, _SET, "o"),
        f"suggested: {_suggested(regime):.3g} s": (_suggested(regime), _SUGGESTED, "D"),
    }
    if len(between):
        widths = np.geomspace(min(between.min(), _suggested(regime)) / 2, max(between.max(), regime.burst_width_s) * 1.2, 300)
        axes.plot(widths, [100 * float((between < width).mean()) for width in widths], color=_INK, linewidth=1.5)
    for label, (width, ink, marker) in marks.items():
        share = 100 * float((between < width).mean()) if len(between) else 0.0
        axes.plot([width], [share], marker, color=ink, markersize=7, label=label, linestyle="none")
    axes.set_xscale("log")
    axes.set_ylim(-3, 103)
    axes.xaxis.set_major_formatter(_PLAIN)
    axes.set_xlabel("width W of a burst in seconds")
    axes.set_ylabel("% of stretches it fills", fontsize=9)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)


def _suggested(regime: Regime) -> float:
    return BURST_REACH * (regime.suggested_rise_s + regime.suggested_fall_s)


def _rates(axes: Axes, regime: Regime) -> None:
    """Which rate serves what, on one axis: memory asks for the left, clearing for the right."""
    longest, mean, fixed, trained = (rate.per_s for rate in regime.rates)
    rows = [
        (longest, "remembers the longest segment, 1 / L_max", "<"),
        (mean, "remembers a mean segment, 1 / mu", "<"),
        (fixed, "fixed step that clears the short segments", ">"),
        (regime.window_per_s[0], "one burst clears to theta, log(1/theta) / M", ">"),
        (trained, f"trained state keeping {regime.assumptions.plateau:g} a second", "o"),
    ]
    for row, (rate, label, marker) in enumerate(rows):
        ink = {"<": "#0072B2", ">": _SET, "o": _INK}[marker]
        axes.plot([rate], [row], marker, color=ink, markersize=8)
        axes.annotate(label, (rate, row), xytext=(0, 7), textcoords="offset points", fontsize=7.5, ha="center", annotation_clip=False)
    rates = [rate for rate, *_ in rows]
    axes.set_xscale("log")
    axes.set_xlim(min(rates) / 20, max(rates) * 20)
    axes.set_ylim(len(rows) - 0.4, -0.9)
    axes.set_yticks([])
    axes.set_xlabel("rate of decay per second (◀ at most, ▶ at least)")
    axes.spines[["top", "right", "left"]].set_visible(False)
