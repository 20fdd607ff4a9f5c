"""A regime in words, as a table for the terminal, as files, and as a section of a results page."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from surgicalmamba.eval.score import Json
from surgicalmamba.eval.segments import BURST_REACH
from surgicalmamba.files import make_folder, write_atomic
from surgicalmamba.insight.regime import LARGE_SPREAD, LITTLE_SPREAD, Annotations, PhaseLengths, Regime, boundary_survival, burst_mass
from surgicalmamba.report.colours import colour, hatch
from surgicalmamba.report.figures import save_figure
from surgicalmamba.report.tables import align, markdown_table

# The figure of a regime: how long segments last, how bursts of any width would overlap, and which rates of decay serve what.


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


_HEADLINE = {
    "fits": "Intensity modulation fits this procedure as it is set.",
    "fits with narrower bursts": "Intensity modulation fits this procedure, but with narrower bursts than those set.",
    "little to gain": "Intensity modulation has little to give here: the segments are too alike in length.",
}
CAVEAT = (
    "This weighs what a state can hold, not accuracy: whether the phases are recognized better is for the ablation to measure. "
    "The limits of 'little', 'much' and 'crowded' are rules of thumb of this package; the equations are the paper's."
)


def verdict_sentences(regime: Regime) -> list[str]:
    """The verdict and its reasons, for a reader who knows the operation and not the equations."""
    return [_HEADLINE[regime.verdict], _what_there_is(regime), _whether_it_can_be_had(regime), _window(regime), _what_to_set(regime)]


def seconds(value: float) -> str:
    """A length with as many digits as it deserves."""
    return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.01 else f"{100 * share:.1f} %"


def _what_there_is(regime: Regime) -> str:
    overall, assumed = regime.overall, regime.assumptions
    amount = "little" if regime.spread < LITTLE_SPREAD else "much" if regime.spread >= LARGE_SPREAD else "something"
    return (
        f"There is {amount} to gain: the longest segment ({seconds(overall.longest)}) is {regime.spread:.3g} times as long as a short one "
        f"({percent(assumed.quantile)} of the segments last at most {seconds(overall.low)}). A constant decay that forgets the old phase "
        f"within a short segment, down to {assumed.theta:g}, holds {regime.capacity_ratio:.3g} times less than one that may remember the "
        "longest."
    )


def _whether_it_can_be_had(regime: Regime) -> str:
    assumed = regime.assumptions
    apart = "stand apart" if regime.overlapping <= assumed.quantile else "run into each other"
    return (
        f"Bursts of sigma {assumed.rise_s:g} and {assumed.fall_s:g} s last {seconds(regime.burst_width_s)}, {regime.width_over_mean:.2g} "
        f"of a mean segment ({seconds(regime.overall.mean)}), and {apart}: {percent(regime.overlapping)} of the stretches between two "
        f"boundaries are shorter than a burst, {percent(regime.merged)} so short that two bursts are one, and "
        f"{percent(regime.time_in_bursts)} of the time lies in a burst. Where bursts run together the intensity is a constant that only "
        "speeds up the clock."
    )


def _window(regime: Regime) -> str:
    least, most = regime.window_per_s
    cleared = 1 - boundary_survival(most, regime.burst_mass_s)
    state = "open" if regime.window_is_open else "closed" + (", if only because bursts crowd each other" if least <= most else "")
    return (
        f"The usable window is {state}. A state that still remembers a mean segment loses at most {most:.3g} of itself a second, and one "
        f"burst then clears {percent(cleared)} of what it carries over a boundary; to clear it to {regime.assumptions.theta:g} at one "
        f"boundary takes {least:.3g} a second, a memory of {seconds(1 / least)}. A model settles between the two, head by head: expect a "
        "steady effect, not a dramatic one."
    )


def _what_to_set(regime: Regime) -> str:
    rise, fall = regime.suggested_rise_s, regime.suggested_fall_s
    own = regime.rates[-1]
    beyond = " The fall that is set lies beyond both." if regime.assumptions.fall_s > own.widest_fall_s else ""
    return (
        f"Suggested: loss.rise_s={rise:.2g} loss.fall_s={fall:.2g}, with at least {regime.least_fps:.2g} samples per second so that the "
        f"fall spans two; {percent(regime.suggested_overlapping)} of the stretches are then shorter than a burst. For a {own.what}, the "
        f"fall should stay below {seconds(own.widest_cheap_fall_s)} to cost less after the boundary than before it, and below "
        f"{seconds(own.widest_fall_s)} to help the new phase at all.{beyond} `study inspect` measures what your model keeps."
    )


def length_rows(regime: Regime) -> list[list[str]]:
    """A header, a row per phase, and a row for all of them."""
    quantile = f"{regime.assumptions.quantile:g} quantile"
    head = ["seconds", "segments", "videos", "% of time", "shortest", quantile, "median", "mean", "longest", "% < burst"]
    return [head, *(_row(phase) for phase in (*regime.phases, regime.overall))]


def _row(phase: PhaseLengths) -> list[str]:
    lengths = (phase.shortest, phase.low, phase.median, phase.mean, phase.longest)
    shares = f"{100 * phase.share_of_time:.1f}", f"{100 * phase.shorter_than_burst:.0f}"
    return [phase.name, str(phase.segments), str(phase.videos), shares[0], *(f"{length:.1f}" for length in lengths), shares[1]]


def rate_rows(regime: Regime) -> list[list[str]]:
    """What follows from each rate of decay that somebody might choose."""
    head = ["rate of decay", "per second", "kept over a mean segment", "left by a boundary", "selectivity", "0.31 / a", "0.55 / a"]
    rows = [
        [
            *(rate.what, f"{rate.per_s:.3g}", f"{rate.kept_over_mean_segment:.2g}", f"{rate.boundary_survival:.2g}"),
            *(f"{rate.selectivity:.3g}", f"{rate.widest_cheap_fall_s:.3g}", f"{rate.widest_fall_s:.3g}"),
        ]
        for rate in regime.rates
    ]
    return [head, *rows]


def text(regime: Regime) -> str:
    """Everything for the terminal."""
    head = f"{regime.dataset}: {regime.videos} videos, {regime.overall.segments} segments, {regime.boundaries} boundaries ({regime.clock})"
    tables = [*align(length_rows(regime)), "", *align(rate_rows(regime))]
    return "\n".join([head, "", *tables, "", *verdict_sentences(regime), "", CAVEAT])


def write_regime(out: Path, regime: Regime, annotations: Annotations, document: Mapping[str, object]) -> None:
    """The figure as PNG and SVG, then results.json."""
    make_folder(out)
    save_figure(draw_regime(regime, annotations), out, "regime")
    write_atomic(out / "results.json", (json.dumps(document, indent=1) + "\n").encode())


def markdown(regime: Regime, about: Mapping[str, Json]) -> str:
    """The section of a results page."""
    mass = burst_mass(regime.suggested_rise_s, regime.suggested_fall_s)
    counts = f"{regime.videos} videos, {regime.overall.segments} segments, {regime.boundaries} boundaries"
    lines = [
        f"## Regime of {regime.dataset}",
        "",
        f"{about['date']}, version {about['version']}, commit {about['commit'] or 'unknown'}. {counts}; {regime.clock}. "
        f"theta {regime.assumptions.theta:g}, L_q the {regime.assumptions.quantile:g} quantile.",
        "",
        f"```\n{about['command']}\n```",
        "",
        *markdown_table(length_rows(regime), align_right=True),
        "",
        f"L_max / L_q {regime.spread:.1f}, capacity ratio {regime.capacity_ratio:.1f}, W {regime.burst_width_s:.1f} s, "
        f"W / mu {regime.width_over_mean:.3f}, M {regime.burst_mass_s:.1f} s (suggested {mass:.1f} s).",
        "",
        *markdown_table(rate_rows(regime), align_right=True),
        "",
        *verdict_sentences(regime),
    ]
    return "\n".join(lines) + "\n"
