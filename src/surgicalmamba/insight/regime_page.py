"""A regime in words, as tables for the terminal and for a results page, and as a figure."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from surgicalmamba.eval.score import Json
from surgicalmamba.files import make_folder, write_atomic
from surgicalmamba.insight.regime import (
    LARGE_SPREAD,
    LITTLE_SPREAD,
    Annotations,
    Regime,
    boundary_survival,
    burst_mass,
    burst_width,
    share,
)
from surgicalmamba.report.colours import colour, hatch
from surgicalmamba.report.figures import save_figure
from surgicalmamba.report.tables import align, markdown_table

_HEADLINE = {
    "fits": "Intensity modulation fits this procedure as it is set.",
    "fits with narrower bursts": "Intensity modulation fits this procedure, with narrower bursts than set.",
    "little to gain": "Intensity modulation has little to give here: the segments are too alike in length.",
}
CAVEAT = (
    "This weighs what a state can hold, not accuracy: the ablation measures whether phases are recognized "
    "better. The limits of 'little', 'much' and 'crowded' are rules of thumb of this package; the equations "
    "are the paper's."
)


def verdict_sentences(regime: Regime) -> list[str]:
    """The verdict and its reasons, for a reader who knows the operation and not the equations."""
    return [_HEADLINE[regime.verdict], _gain(regime), _bursts(regime), _window(regime), _suggestion(regime)]


def _gain(regime: Regime) -> str:
    overall, assumed = regime.overall, regime.assumptions
    spread = regime.spread
    amount = "little" if spread < LITTLE_SPREAD else "much" if spread >= LARGE_SPREAD else "something"
    return (
        f"There is {amount} to gain: the longest segment ({_seconds(overall.longest)}) is {spread:.3g} times "
        f"as long as a short one ({_percent(assumed.quantile)} of the segments last at most "
        f"{_seconds(overall.low)}). A constant decay that forgets the old phase within a short segment, down "
        f"to {assumed.theta:g}, holds {regime.capacity_ratio:.3g} times less than one that may remember the "
        "longest."
    )


def _bursts(regime: Regime) -> str:
    assumed = regime.assumptions
    apart = "stand apart" if regime.overlapping <= assumed.quantile else "run into each other"
    return (
        f"Bursts of sigma {assumed.rise_s:g} and {assumed.fall_s:g} s last {_seconds(regime.burst_width_s)}, "
        f"{regime.width_over_mean:.2g} of a mean segment ({_seconds(regime.overall.mean)}), and {apart}: "
        f"{_percent(regime.overlapping)} of the stretches between two boundaries are shorter than a burst, "
        f"{_percent(regime.merged)} so short that two bursts are one, and {_percent(regime.time_in_bursts)} "
        "of the time lies in a burst. Where bursts run together the intensity is a constant that only speeds "
        "up the clock."
    )


def _window(regime: Regime) -> str:
    least, most = regime.window_per_s
    cleared = 1 - boundary_survival(most, regime.burst_mass_s)
    state = "open" if regime.window_is_open else "closed"
    if least <= most and not regime.window_is_open:
        state += ", if only because bursts crowd each other"
    return (
        f"The usable window is {state}. A state that still remembers a mean segment loses at most {most:.3g} "
        f"of itself a second, and one burst then clears {_percent(cleared)} of what it carries over a "
        f"boundary; to clear it to {regime.assumptions.theta:g} at one boundary takes {least:.3g} a second, "
        f"a memory of {_seconds(1 / least)}. A model settles between the two, head by head: expect a steady "
        "effect, not a dramatic one."
    )


def _suggestion(regime: Regime) -> str:
    trained, fall_s = regime.rates[-1], regime.assumptions.fall_s
    beyond = " The fall that is set lies beyond both." if fall_s > trained.widest_fall_s else ""
    return (
        f"Suggested: loss.rise_s={regime.suggested_rise_s:.2g} loss.fall_s={regime.suggested_fall_s:.2g}, "
        f"with at least {regime.least_fps:.2g} samples per second so that the fall spans two; "
        f"{_percent(regime.suggested_overlapping)} of the stretches are then shorter than a burst. For a "
        f"{trained.what}, the fall should stay below {_seconds(trained.widest_cheap_fall_s)} to cost less "
        f"after the boundary than before it, and below {_seconds(trained.widest_fall_s)} to help the new "
        f"phase at all.{beyond} `surgicalmamba inspect` measures what your model keeps."
    )


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %" if part == 0 or part >= 0.01 else f"{100 * part:.1f} %"


def length_rows(regime: Regime) -> list[list[str]]:
    """A header, a row per phase, and a row for all of them."""
    quantile = f"{regime.assumptions.quantile:g} quantile"
    lengths = ("shortest", quantile, "median", "mean", "longest")
    rows = [["seconds", "segments", "videos", "% of time", *lengths, "% < burst"]]
    for of in (*regime.phases, regime.overall):
        values = (f"{value:.1f}" for value in (of.shortest, of.low, of.median, of.mean, of.longest))
        counts = [of.name, str(of.segments), str(of.videos), f"{100 * of.share_of_time:.1f}"]
        rows.append([*counts, *values, f"{100 * of.shorter_than_burst:.0f}"])
    return rows


def rate_rows(regime: Regime) -> list[list[str]]:
    """What follows from each rate of decay that somebody might choose."""
    head = ["rate of decay", "per second", "kept over a mean segment", "left by a boundary", "selectivity"]
    rows = [[*head, "0.31 / a", "0.55 / a"]]
    for rate in regime.rates:
        kept, left = f"{rate.kept_over_mean_segment:.2g}", f"{rate.boundary_survival:.2g}"
        falls = (f"{rate.widest_cheap_fall_s:.3g}", f"{rate.widest_fall_s:.3g}")
        rows.append([rate.what, f"{rate.per_s:.3g}", kept, left, f"{rate.selectivity:.3g}", *falls])
    return rows


def _counts(regime: Regime) -> str:
    return f"{regime.videos} videos, {regime.overall.segments} segments, {regime.boundaries} boundaries"


def text(regime: Regime) -> str:
    """Everything for the terminal."""
    tables = [*align(length_rows(regime)), "", *align(rate_rows(regime))]
    head = f"{regime.dataset}: {_counts(regime)} ({regime.clock})"
    return "\n".join([head, "", *tables, "", *verdict_sentences(regime), "", CAVEAT])


def markdown(regime: Regime, about: Mapping[str, Json]) -> str:
    """The section of a results page."""
    mass = burst_mass(regime.suggested_rise_s, regime.suggested_fall_s)
    code = f"{about['date']}, version {about['version']}, commit {about['commit'] or 'unknown'}"
    assumed = f"theta {regime.assumptions.theta:g}, L_q the {regime.assumptions.quantile:g} quantile"
    lines = [
        f"## Regime of {regime.dataset}",
        "",
        f"{code}. {_counts(regime)}; {regime.clock}. {assumed}.",
        "",
        f"```\n{about['command']}\n```",
        "",
        *markdown_table(length_rows(regime), align_right=True),
        "",
        f"L_max / L_q {regime.spread:.1f}, capacity ratio {regime.capacity_ratio:.1f}, "
        f"W {regime.burst_width_s:.1f} s, W / mu {regime.width_over_mean:.3f}, "
        f"M {regime.burst_mass_s:.1f} s (suggested {mass:.1f} s).",
        "",
        *markdown_table(rate_rows(regime), align_right=True),
        "",
        *verdict_sentences(regime),
    ]
    return "\n".join(lines) + "\n"


def write_regime(out: Path, regime: Regime, annotations: Annotations, document: Mapping[str, object]) -> None:
    """The figure as PNG and SVG, then results.json."""
    make_folder(out)
    save_figure(draw_regime(regime, annotations), out, "regime")
    write_atomic(out / "results.json", json.dumps(document, indent=1) + "\n")


_PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
_SET, _SUGGESTED, _INK = "#D55E00", "#009E73", "#1a1a1a"


def draw_regime(regime: Regime, annotations: Annotations) -> Figure:
    """Three panels: lengths by phase, overlap by burst width, rates."""
    n_phases = len(regime.phases)
    figure = Figure(figsize=(10, 3.6 + 0.3 * n_phases), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=[0.3 * n_phases + 0.9, 2.3])
    _draw_lengths(figure.add_subplot(grid[0, :]), regime, annotations)
    _draw_overlap(figure.add_subplot(grid[1, 0]), regime, annotations)
    _draw_rates(figure.add_subplot(grid[1, 1]), regime)
    figure.suptitle(f"{regime.dataset}: {regime.verdict}", x=0.01, ha="left", fontsize=11)
    return figure


def _draw_lengths(axes: Axes, regime: Regime, annotations: Annotations) -> None:
    """Every segment as a dot, phase by phase; the vertical lines are what the equations use."""
    jitter = np.random.default_rng(0)
    for row, entry in enumerate(regime.phases):
        phase = annotations.phases.index(entry.name)
        lengths = annotations.length_s[annotations.phase == phase]
        place = row + jitter.uniform(-0.28, 0.28, len(lengths))
        marker = "s" if hatch(phase) else "o"
        axes.scatter(lengths, place, s=11, color=colour(phase), alpha=0.8, linewidths=0.3, edgecolors=_INK,
                     marker=marker)
        axes.plot([entry.median] * 2, [row - 0.38, row + 0.38], color=_INK, linewidth=1.6)
    overall, width_s = regime.overall, regime.burst_width_s
    for at, label, ink, style in (
        (width_s, f"burst W = {width_s:.3g}", _SET, "-"),
        (overall.low, f"L_q = {overall.low:.3g}", _INK, ":"),
        (overall.mean, f"mean = {overall.mean:.3g}", _INK, "--"),
        (overall.longest, f"L_max = {overall.longest:.4g}", _INK, "-."),
    ):
        axes.axvline(at, color=ink, linestyle=style, linewidth=1.2, label=label)
    axes.set_xscale("log")
    axes.set_ylim(len(regime.phases) - 0.4, -0.6)
    axes.set_yticks(range(len(regime.phases)), [entry.name for entry in regime.phases], fontsize=8)
    axes.xaxis.set_major_formatter(_PLAIN)
    axes.set_xlabel("length of a segment in seconds (short bar: median of the phase)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_overlap(axes: Axes, regime: Regime, annotations: Annotations) -> None:
    """Share of the stretches between boundaries that a burst of each width would fill."""
    between = annotations.between_s
    set_s, suggested_s = regime.burst_width_s, burst_width(regime.suggested_rise_s, regime.suggested_fall_s)
    if len(between):
        widths = np.geomspace(min(between.min(), suggested_s) / 2, max(between.max(), set_s) * 1.2, 300)
        axes.plot(widths, [100 * share(between < width) for width in widths], color=_INK, linewidth=1.5)
    for name, width, ink, marker in (("set", set_s, _SET, "o"), ("suggested", suggested_s, _SUGGESTED, "D")):
        axes.plot([width], [100 * share(between < width)], marker, color=ink, markersize=7, linestyle="none",
                  label=f"{name}: {width:.3g} s")
    axes.set_xscale("log")
    axes.set_ylim(-3, 103)
    axes.xaxis.set_major_formatter(_PLAIN)
    axes.set_xlabel("width W of a burst in seconds")
    axes.set_ylabel("% of stretches it fills", fontsize=9)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_rates(axes: Axes, regime: Regime) -> None:
    """Which rate is needed for what, on one axis: memory needs a low rate, clearing a high one."""
    longest, mean, fixed, trained = (rate.per_s for rate in regime.rates)
    rows = [
        (longest, "remembers the longest segment, 1 / L_max", "<", "#0072B2"),
        (mean, "remembers a mean segment, 1 / mu", "<", "#0072B2"),
        (fixed, "fixed step that clears the short segments", ">", _SET),
        (regime.window_per_s[0], "one burst clears to theta, log(1/theta) / M", ">", _SET),
        (trained, f"trained state keeping {regime.assumptions.plateau:g} a second", "o", _INK),
    ]
    for row, (rate, label, marker, ink) in enumerate(rows):
        axes.plot([rate], [row], marker, color=ink, markersize=8)
        axes.annotate(label, (rate, row), xytext=(0, 7), textcoords="offset points", fontsize=7.5,
                      ha="center", annotation_clip=False)
    rates = [rate for rate, *_ in rows]
    axes.set_xscale("log")
    axes.set_xlim(min(rates) / 20, max(rates) * 20)
    axes.set_ylim(len(rows) - 0.4, -0.9)
    axes.set_yticks([])
    axes.set_xlabel("rate of decay per second (◀ at most, ▶ at least)")
    axes.spines[["top", "right", "left"]].set_visible(False)
