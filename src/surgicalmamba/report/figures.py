"""Figures of an evaluation. Each function draws one, without pyplot and its global state; `save_figure`
writes it."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from surgicalmamba.eval.frame import Reliability
from surgicalmamba.eval.pairs import FloatArray, IntArray
from surgicalmamba.eval.segments import Segments, find_segments
from surgicalmamba.files import write_atomic
from surgicalmamba.report.colours import colour, hatch


def save_figure(figure: Figure, folder: Path, name: str) -> str:
    """Write `<name>.png` and `<name>.svg`, each whole or not at all, and return the SVG. Equal figures
    give equal files."""
    png, svg = io.BytesIO(), io.StringIO()
    figure.savefig(png, dpi=150, format="png")
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(svg, format="svg", metadata={"Date": None})
    write_atomic(folder / f"{name}.png", png.getvalue())
    write_atomic(folder / f"{name}.svg", svg.getvalue())
    return svg.getvalue()


def draw_ribbons(rows: Mapping[str, IntArray], names: Sequence[str], fps: float, title: str) -> Figure:
    """Phases over time, one ribbon under the other: the annotation first, then each system with a thin
    line of its errors above it."""
    truth = next(iter(rows.values()))
    shown = [phase for phase in range(len(names)) if any((labels == phase).any() for labels in rows.values())]
    # Inches are set by hand: fitting a layout to each of some dozens of videos would take most of a report's
    # time.
    left = 0.3 + 0.075 * max(map(len, rows))
    plot, right = 7.3, 0.55 + 0.064 * max(len(names[phase]) for phase in shown)
    width, height = left + plot + right, max(0.9 + 0.5 * len(rows), 0.45 + 0.165 * len(shown))
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((left / width, 0.5 / height, plot / width, (height - 0.8) / height))
    for row, labels in enumerate(rows.values()):
        draw_strip(axes, labels, fps, -row - 0.36, 0.72)
        wrong = find_segments(np.where((truth >= 0) & (labels != truth), 0, -1))
        axes.broken_barh(_spans(wrong, fps), (-row + 0.39, 0.1), facecolor="black", linewidth=0)
    axes.set_yticks([-row for row in range(len(rows))], list(rows))
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, len(truth) / fps / 60)
    axes.set_ylim(-len(rows) + 0.55, 0.55)
    axes.set_xlabel("minutes")
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)
    patches = phase_patches(shown, names)
    axes.legend(handles=patches, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7.5, frameon=False)
    return figure


def draw_strip(axes: Axes, labels: IntArray, fps: float, bottom: float, height: float) -> None:
    """The phases of a video as a ribbon inside axes whose x is minutes."""
    segments = find_segments(labels)
    for phase in np.unique(segments.phase).tolist():
        mine = segments.phase == phase
        spans = _spans(Segments(segments.phase[mine], segments.start[mine], segments.stop[mine]), fps)
        axes.broken_barh(spans, (bottom, height), **_look(phase))


def _spans(segments: Segments, fps: float) -> list[tuple[float, float]]:
    """Start and duration of each segment in minutes."""
    minutes = np.stack((segments.start, segments.length), axis=1) / fps / 60
    return [(float(start), float(length)) for start, length in minutes]


def phase_patches(phases: Sequence[int], names: Sequence[str]) -> list[Patch]:
    """Legend entries of phases."""
    return [Patch(label=names[phase], **_look(phase)) for phase in phases]


def _look(phase: int) -> dict[str, Any]:
    edge = "#00000066" if hatch(phase) else "none"
    return {"facecolor": colour(phase), "hatch": hatch(phase), "edgecolor": edge, "linewidth": 0}


def draw_confusion(confusion: IntArray, names: Sequence[str]) -> Figure:
    """Rows of all videos pooled: each line is an annotated phase, its cells the share predicted as each
    phase, in percent."""
    k = len(names)
    longest = 0.07 * max(map(len, names))
    size = (2.4 + longest + 0.55 * k, 1.2 + 0.75 * longest + 0.45 * k)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    totals = confusion.sum(axis=1, keepdims=True)
    share = np.divide(100.0 * confusion, totals, out=np.full(confusion.shape, np.nan), where=totals > 0)
    image = axes.imshow(share, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    for row, column in np.argwhere(confusion > 0):
        value = share[row, column]
        text, ink = "<0.1" if value < 0.1 else f"{value:.1f}", "black" if value > 55 else "white"
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color=ink)
    axes.set_xticks(range(k), names, rotation=40, ha="right", rotation_mode="anchor", fontsize=8)
    lines = [f"{name} ({int(total):,})" for name, total in zip(names, totals[:, 0], strict=True)]
    axes.set_yticks(range(k), lines, fontsize=8)
    axes.set_xlabel("predicted")
    axes.set_ylabel("annotated (rows)")
    figure.colorbar(image, ax=axes, shrink=0.8, label="% of the annotated phase")
    return figure


def draw_latency(delays_s: FloatArray, window_s: float, fps: float) -> Figure:
    """Signed delay of every noticed transition; early on the left, late on the right, missed ones counted
    in the title."""
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.add_subplot()
    noticed = delays_s[~np.isnan(delays_s)]
    # Delays are whole rows. A bin holds an odd number of them and one is centred on 0, so that all bins are
    # alike.
    width = (2 * int(0.15 * window_s * fps) + 1) / fps
    limit = 20 * width
    bins, inside = width * (np.arange(42) - 20.5), np.clip(noticed, -limit, limit)
    within = f"within {window_s:g} s"
    axes.axvspan(-window_s, window_s, color="#56B4E9", alpha=0.25, linewidth=0, label=within)
    axes.hist(inside, bins=bins.tolist(), color="#0072B2", edgecolor="white", linewidth=0.5)
    axes.axvline(0, color="black", linewidth=1)
    axes.set_xlabel(f"delay in seconds (early < 0 < late; outermost bars hold all beyond ±{limit:g})")
    axes.set_ylabel("transitions")
    axes.set_title(f"{len(noticed)} noticed, {len(delays_s) - len(noticed)} missed", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_reliability(overall: Reliability, near: Reliability) -> Figure:
    """Accuracy against confidence, over all rows and near transitions; the diagonal is perfect
    calibration."""
    figure = Figure(figsize=(4.8, 5.0), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="#888888", linewidth=1, linestyle="--", label="perfectly calibrated")
    for name, curve, style in (("all rows", overall, "o-"), ("near transitions", near, "s-")):
        filled = curve.count > 0
        error = f"error {curve.expected_calibration_error:.1f} points" if filled.any() else "no rows"
        ink = "#0072B2" if curve is overall else "#D55E00"
        axes.plot(curve.confidence[filled], curve.accuracy[filled], style, color=ink, markersize=5,
                  linewidth=1.5, label=f"{name} ({error})")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.set_xlabel("confidence (highest probability)")
    axes.set_ylabel("accuracy")
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    return figure
