"""Figures of the inner views. Each function draws one and returns it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from surgicalmamba.eval.pairs import BoolArray, FloatArray, IntArray
from surgicalmamba.insight.inspect_trace import Trace
from surgicalmamba.insight.inspect_views import Projection
from surgicalmamba.report.colours import colour, hatch
from surgicalmamba.report.figures import draw_strip, phase_patches

MOST_BLOCKS = 4
_INKS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")


@dataclass(frozen=True)
class Gap:
    """Of one block: how much more alike planes are within phases than between them, trained and for every untrained draw."""

    trained: float
    untrained: Sequence[float]


def draw_planes(similarities: Sequence[FloatArray], phases: IntArray, names: Sequence[str], gaps: Mapping[str, Sequence[Gap]]) -> Figure:
    """Similarity of every pair of chunks, block by block, with the phase of each chunk along two sides; below, gaps by their title."""
    shown = list(similarities[:MOST_BLOCKS])
    least = min(float(similarity.min()) for similarity in shown)
    below = 0.8 + 0.3 * len(shown)
    figure = Figure(figsize=(1.4 + 3.1 * max(2, len(shown)), 4.3 + below), layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=(3.4, below))
    matrices, strips = grid[0].subgridspec(1, len(shown)), grid[1].subgridspec(1, len(gaps))
    for number, similarity in enumerate(shown):
        axes = figure.add_subplot(matrices[number])
        image = axes.imshow(similarity, cmap="cividis", vmin=least, vmax=1, interpolation="nearest")
        width = max(0.8, len(phases) / 25)
        for chunk, phase in enumerate(phases.tolist()):
            for corner, size in (((chunk - 0.5, -0.8 - width), (1.0, width)), ((-0.8 - width, chunk - 0.5), (width, 1.0))):
                if phase >= 0:
                    axes.add_patch(Rectangle(corner, *size, facecolor=colour(phase), hatch=hatch(phase), edgecolor="none", linewidth=0))
        axes.set_xlim(-0.8 - width, len(phases) - 0.5)
        axes.set_ylim(len(phases) - 0.5, -0.8 - width)
        axes.set_title(f"block {number}", loc="left", fontsize=10)
        axes.set_xlabel("chunk")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=figure.axes, shrink=0.8, label="mean cosine")
    for number, (title, of_blocks) in enumerate(gaps.items()):
        _gaps(figure.add_subplot(strips[number]), of_blocks[: len(shown)], title, with_legend=number == 0)
    _phase_legend(figure, phases, names)
    return figure


def _gaps(axes: Axes, gaps: Sequence[Gap], title: str, with_legend: bool) -> None:
    """A row per block: grey circles for untrained draws, a diamond for the trained model."""
    for block, gap in enumerate(gaps):
        labels = (f"untrained ({len(gap.untrained)} draws)", "trained") if block == 0 else (None, None)
        rows = [block] * len(gap.untrained)  # above the diamond, which could hide one
        axes.plot(gap.untrained, rows, "o", color="#666666", markerfacecolor="none", markersize=6, label=labels[0], zorder=3)
        axes.plot([gap.trained], [block], "D", color=_INKS[0], markersize=9, label=labels[1], zorder=2)
    axes.axvline(0, color="#999999", linewidth=0.6, zorder=0)
    axes.set_yticks(range(len(gaps)), [f"block {block}" for block in range(len(gaps))])
    axes.set_ylim(len(gaps) - 0.5, -0.5)
    axes.set_xlabel(title, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.spines[["top", "right"]].set_visible(False)
    if with_legend:
        axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)


@dataclass(frozen=True, eq=False)
class StateView:
    """One panel of the carried state."""

    title: str
    projection: Projection
    phases: IntArray
    """Annotated phase of each point."""
    wrong: BoolArray
    shares_axes: bool
    """Whether its axes are those of the first panel; a model trained apart has a basis of its own."""


def draw_states(views: Sequence[StateView], names: Sequence[str]) -> Figure:
    """The carried state on two axes; the way through them is a thin line, misclassified samples are crosses."""
    figure = Figure(figsize=(0.6 + 3.5 * len(views), 4.4), layout="constrained")
    common = np.concatenate([view.projection.points for view in views if view.shares_axes])
    for number, view in enumerate(views):
        axes = figure.add_subplot(1, len(views), number + 1)
        _scatter(axes, view)
        _frame(axes, common if view.shares_axes else view.projection.points)
        first, second = view.projection.share
        shown = f"{100 * first:.0f} % + {100 * second:.0f} % of its variance"
        axes.set_title(f"{view.title}\n{shown}, {view.projection.dimensions:.1f} dimensions", loc="left", fontsize=9)
        kind = "shared" if view.shares_axes else "own"
        axes.set_xlabel(f"{kind} axis 1")
        axes.set_ylabel(f"{kind} axis 2")
        axes.spines[["top", "right"]].set_visible(False)
    _phase_legend(figure, np.concatenate([view.phases for view in views]), names)
    return figure


def _scatter(axes: Axes, view: StateView) -> None:
    x, y = view.projection.points.T
    axes.plot(x, y, color="#bbbbbb", linewidth=0.6, zorder=1)
    for phase in np.unique(view.phases).tolist():
        here = view.phases == phase
        right, mistaken = here & ~view.wrong, here & view.wrong
        ink = colour(phase) if phase >= 0 else "#dddddd"
        marker = "s" if phase >= 0 and hatch(phase) else "o"
        axes.scatter(x[right], y[right], s=14, color=ink, marker=marker, linewidths=0.3, edgecolors="#1a1a1a", zorder=2)
        axes.scatter(x[mistaken], y[mistaken], s=26, color=ink, marker="x", linewidths=1.4, zorder=3)


def _frame(axes: Axes, points: FloatArray) -> None:
    """Limits that hold all of these points."""
    low, high = points.min(axis=0), points.max(axis=0)
    pad = 0.05 * (high - low) + 1e-9
    axes.set_xlim(low[0] - pad[0], high[0] + pad[0])
    axes.set_ylim(low[1] - pad[1], high[1] + pad[1])


def draw_decay(traces: Mapping[str, Trace], labels: IntArray, names: Sequence[str], fps: float) -> Figure:
    """Intensity above, effective decay below; the first run with every block, the others by their means."""
    with_intensity = {name: trace for name, trace in traces.items() if trace.intensity is not None}
    n_panels = 2 if with_intensity else 1
    figure = Figure(figsize=(11, 1.9 + 2.1 * n_panels), layout="constrained")
    axes = [figure.add_subplot(n_panels, 1, number + 1) for number in range(n_panels)]
    minutes = np.arange(len(labels)) / fps / 60
    inks = {name: _INKS[number % len(_INKS)] for number, name in enumerate(traces)}
    for name, trace in with_intensity.items():
        assert trace.intensity is not None
        axes[0].plot(minutes, trace.intensity.mean(axis=1), color=inks[name], linewidth=1.2, label=name)
    if with_intensity:
        axes[0].set_ylim(0, 1.15)
        axes[0].set_ylabel("intensity λ(t)")
    first = next(iter(traces))
    kept = traces[first].decay.mean(axis=2)
    for block in range(kept.shape[1] if kept.shape[1] > 1 else 0):
        axes[-1].plot(minutes, kept[:, block], color=inks[first], linewidth=0.5, alpha=0.45)
    for name, trace in traces.items():
        axes[-1].plot(minutes, trace.decay.mean(axis=(1, 2)), color=inks[name], linewidth=1.2, label=name, zorder=3 if name == first else 2)
    axes[-1].set_ylabel("effective decay dA(t)")
    low = min(float(trace.decay.mean(axis=2).min()) for trace in traces.values())
    axes[-1].set_ylim(low - 0.06 * (1 - low), 1 + 0.12 * (1 - low))
    axes[-1].set_xlabel("minutes")
    for one in axes:
        _boundaries(one, labels, fps)
        one.set_xlim(0, len(labels) / fps / 60)
        one.spines[["top", "right"]].set_visible(False)
        one.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=6)
    _phase_legend(figure, labels, names)
    return figure


def _boundaries(axes: Axes, labels: IntArray, fps: float) -> None:
    """The annotated phases as a strip along the top, and a line at every change."""
    low, high = axes.get_ylim()
    draw_strip(axes, labels, fps, high - 0.05 * (high - low), 0.05 * (high - low))
    for change in np.flatnonzero(labels[1:] != labels[:-1]) + 1:
        axes.axvline(change / fps / 60, color="#999999", linewidth=0.6, zorder=0)
    axes.set_ylim(low, high)


def _phase_legend(figure: Figure, phases: IntArray, names: Sequence[str]) -> None:
    shown = [phase for phase in np.unique(phases).tolist() if phase >= 0]
    figure.legend(handles=phase_patches(shown, names), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
