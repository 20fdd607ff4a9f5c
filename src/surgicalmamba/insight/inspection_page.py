"""The page of an inspection: ribbons, rotation planes, angles, carried state, intensity and decay.

A view has a figure, tables, notes and numbers. `views_of` makes the five views, each once; the HTML page, the
text of the terminal and the section of a results page show the same tables."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from surgicalmamba.eval.frame import accuracy, confusion_matrix
from surgicalmamba.eval.pairs import BoolArray, FloatArray, IntArray
from surgicalmamba.eval.score import Json, to_json
from surgicalmamba.eval.segments import find_segments
from surgicalmamba.files import make_folder, write_atomic
from surgicalmamba.insight.inspection import (
    BARE,
    OWN,
    TRUTH,
    Inspection,
    Projection,
    Spread,
    Trace,
    alignment,
    chunk_phases,
    generator_similarity,
    shared_projection,
    stillness,
)
from surgicalmamba.report.colours import colour, hatch
from surgicalmamba.report.figures import draw_ribbons, draw_strip, phase_patches
from surgicalmamba.report.page import html_figure, html_lines, html_table, write_page
from surgicalmamba.report.sections import provenance_line
from surgicalmamba.report.tables import align, markdown_table, number
from surgicalmamba.train.inside import around_boundaries, plane_similarity

Table = list[list[str]]


@dataclass(frozen=True, eq=False)
class View:
    """One part of an inspection."""

    name: str
    """Of its key in results.json and of its figure's files."""
    title: str
    numbers: object = None
    """For results.json; None where the model does not have what the view shows."""
    figure: Figure | None = None
    caption: str = ""
    alt: str = ""
    """The caption on a results page."""
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


def views_of(found: Inspection) -> list[View]:
    """Every view, in the order of the page."""
    return [part(found) for part in (_ribbons, _planes, _rotations, _states, _decay)]


def _ribbons(found: Inspection) -> View:
    truth, n_phases = found.rows[TRUTH], len(found.dataset.phases)
    others = {name: row for name, row in found.rows.items() if name != TRUTH}
    scores = {name: float(accuracy(confusion_matrix(truth, row, n_phases))) for name, row in others.items()}
    return View(
        "ribbons",
        "Ribbons",
        scores,
        draw_ribbons(found.rows, found.dataset.phases, found.fps, found.video.id),
        "Phases over time; black above a ribbon marks errors.",
        "Annotated and predicted phases over time, errors in black",
        [[["", "strict accuracy, %"], *([name, number(score)] for name, score in scores.items())]],
    )


GAPS = {"gap": "gap: same phase - other phase", "relative_gap": "relative gap: gap / (1 - other phase)"}
"""Measures by which the planes of the trained model are compared with those of untrained draws."""


def _planes(found: Inspection) -> View:
    planes, control, chunk_len = found.own.planes, found.control, found.own.chunk_len
    if found.bare is None or control is None:
        return View("planes", "Rotation planes", notes=["This model does not rotate: there are no planes."])
    if not planes or len(planes[0]) < 2:
        short = f"The video ends before two chunks of {chunk_len} samples are full, so none can be compared."
        return View("planes", "Rotation planes", notes=[short])
    similarities = [plane_similarity(block) for block in planes]
    phases = chunk_phases(found.video.labels, chunk_len, len(planes[0]))
    means = {"same_phase": "same phase", "other_phase": "other phase"}
    means |= {f"next_{name}": f"next chunk, {words}" for name, words in means.items()}
    rows: Table = [["rotation planes", *means.values(), "generators: same, other"]]
    compared: Table = [["rotation planes", "", "trained", "untrained, mean and range", ""]]
    numbers: list[dict[str, object]] = []
    gaps: dict[str, list[Gap]] = {title: [] for title in GAPS.values()}
    for block, (similarity, chosen) in enumerate(zip(similarities, planes, strict=True)):
        aligned, whole = alignment(similarity, phases), alignment(generator_similarity(chosen), phases)
        generators = f"{number(whole.same_phase)}, {number(whole.other_phase)}"
        rows.append([f"block {block}", *(number(getattr(aligned, name), 3) for name in means), generators])
        numbers.append({**asdict(aligned), "generators": asdict(whole)})
        for name, title in GAPS.items():
            trained, draws = float(getattr(aligned, name)), control.alignment(block, name)
            spread = Spread.of(draws)
            verdict = spread.verdict(trained)
            compared.append([f"block {block}", title, number(trained, 3), _range(spread), verdict])
            untrained = {**asdict(spread), "draws": draws}
            numbers[-1][name] = {"trained": trained, "untrained": untrained, "verdict": verdict}
            gaps[title].append(Gap(trained, draws))
    n_draws = len(control.measured)
    return View(
        "planes",
        "Rotation planes",
        {"chunk_len": chunk_len, "draws": n_draws, "blocks": numbers},
        draw_planes(similarities, phases, found.dataset.phases, gaps),
        f"Similarity of the slow path's rotation planes between chunks of {chunk_len} samples: mean cosine "
        "of the two principal angles, plane by plane. Strips show the most frequent phase of a chunk. Below: "
        "how much more alike planes are within phases than between them, and the same as a share of how much "
        "they differ between phases.",
        "Similarity of rotation planes between chunks",
        [rows, compared],
        [
            f"Pairs of chunks: {numbers[0]['pairs']}.",
            "Untrained: the same network with rotators and intensity drawn at random and never trained, mean "
            f"and range of {n_draws} draws. Chunks of one phase have similar summaries, so their planes are "
            "alike under any rotator. A gap beyond that range may only mean that planes vary more; a "
            "relative gap beyond it means that they follow the phases more.",
        ],
    )


def _rotations(found: Inspection) -> View:
    """Angles and content dependence of every path, beside those of untrained rotators."""
    control, measured = found.control, found.measured[OWN].rotations
    if control is None or not measured:
        return View("rotation", "")
    columns = {
        "theta_q10": "theta, 0.1 quantile",
        "theta_q50": "median",
        "theta_q90": "0.9 quantile",
        "theta_mean": "mean",
        "content_dependence": "content dependence",
        "plane_similarity": "plane similarity",
    }
    rows: Table = [["rotation", *columns.values()]]
    numbers = {}
    for path, measures in measured.items():
        spreads = {name: control.rotation(path, name) for name in columns}
        rows.append([path, *(number(getattr(measures, name), 3) for name in columns)])
        rows.append([f"{path}, untrained", *(_range(spread) for spread in spreads.values())])
        untrained = {name: asdict(spread) for name, spread in spreads.items()}
        numbers[path] = {"trained": asdict(measures), "untrained": untrained}
    note = (
        "theta over chunks, heads and planes. Content dependence: root mean square of |Z_c - Z_c'| over "
        "pairs of chunks, over that of |Z_c - I|; 0 for a rotation that is the same after every chunk, 1.41 "
        "where the turns of two chunks have nothing in common. Plane similarity: mean over pairs of chunks. "
        "Untrained: mean and range over draws."
    )
    return View("rotation", "Angles and content dependence", numbers, tables=[rows], notes=[note])


def _states(found: Inspection) -> View:
    same_basis = {OWN: found.own} if found.bare is None else {OWN: found.own, BARE: found.bare}
    others = {name: trace for name, trace in found.traces.items() if name != OWN}
    shared = shared_projection([trace.states for trace in same_basis.values()])
    projections = dict(zip(same_basis, shared, strict=True))
    projections |= {name: shared_projection([trace.states])[0] for name, trace in others.items()}
    panels = []
    for name, trace in {**same_basis, **others}.items():
        phases = found.video.labels[trace.state_rows]
        wrong = (phases >= 0) & (trace.predicted[trace.state_rows] != phases)
        panels.append(StatePanel(name, projections[name], phases, wrong, name in same_basis))
    rows = [["carried state", "axis 1, % of its variance", "axis 2", "directions used (participation ratio)"]]
    for name, it in projections.items():
        rows.append([name, *(f"{100 * share:.1f}" for share in it.share), f"{it.dimensions:.2f}"])
    notes = ["Z left out: the same weights without their rotations, not a model trained that way."]
    if found.bare is None:
        notes = ["This model does not rotate, so there is no run with Z left out."]
    if others:
        notes.append("A model trained apart holds its state in a basis of its own, so it is shown on its own "
                     "two axes.")
    return View(
        "state",
        "Carried state",
        {name: {"variance_share": it.share, "dimensions": it.dimensions} for name, it in projections.items()},
        draw_states(panels, found.dataset.phases),
        f"The state that block {found.block}'s slow path carries, on the two principal axes of this model's "
        "runs together, each run centred by itself. Colours: annotated phase; crosses: misclassified.",
        "The carried state on two principal axes, coloured by phase",
        [rows],
        notes,
    )


def _decay(found: Inspection) -> View:
    columns = {
        "plateau": "kept a sample within phases",
        "plateau_per_s": "kept a second",
        "at_boundaries": "kept a sample after boundaries",
        "intensity_inside": "intensity within phases",
        "intensity_at_boundaries": "after boundaries",
    }
    rows: Table = [["decay", *columns.values()]]
    numbers: dict[str, dict[str, object]] = {}
    notes = []
    for name, trace in found.traces.items():
        rise_s, fall_s = found.bursts[name]
        still = stillness(trace, found.video.labels, found.fps, rise_s, fall_s)
        rows.append([name, *(number(getattr(still, column), 4) for column in columns)])
        inside, _ = around_boundaries(found.video.labels, found.fps, rise_s, fall_s)
        kept = trace.decay.mean(axis=2)[inside]
        plateaus = [float(np.median(of_block)) if inside.any() else math.nan for of_block in kept.T]
        numbers[name] = {**asdict(still), "rise_s": rise_s, "fall_s": fall_s, "plateau_of_blocks": plateaus}
        if trace.intensity is None:
            notes.append(f"{name} has no intensity: its decay is the selective step's alone.")
        if not inside.any():
            notes.append(f"{name}: every sample lies within reach of a burst (sigma {rise_s:g} and "
                         f"{fall_s:g} s), so there is no plateau.")
    detector = _detectors(found, numbers)
    if len(detector) > 1:
        notes.append("Average precision at frames whose transition target is 0.5 or more; by chance it is "
                     "their share. Cross-entropy with that target. Untrained: mean and range over draws.")
    return View(
        "decay",
        "Intensity and effective decay",
        numbers,
        draw_decay(found.traces, found.video.labels, found.dataset.phases, found.fps),
        "Intensity, and the share of its state that the slow path keeps over each sample, heads averaged. "
        "Thin: single blocks.",
        "Intensity and effective decay over the video, with the annotated phases above",
        [rows, detector] if len(detector) > 1 else [rows],
        notes,
    )


def _detectors(found: Inspection, numbers: dict[str, dict[str, object]]) -> Table:
    """Every block's intensity as a detector of boundaries, this model's beside those of untrained draws. The
    numbers of each run get the key `intensity_of_blocks`."""
    columns = {
        "inside": "within phases",
        "after_boundaries": "after boundaries",
        "average_precision": "average precision",
        "boundary_share": "by chance",
        "bce": "cross-entropy",
        "bce_of_constant": "of the best constant",
    }
    rows: Table = [["intensity", *columns.values()]]
    for name, measured in found.measured.items():
        blocks: list[dict[str, object]] = []
        for block, measures in enumerate(measured.intensities):
            values = (number(getattr(measures, column), 3) for column in columns)
            rows.append([f"{name}, block {block}", *values])
            blocks.append({"trained": asdict(measures)})
            if name == OWN and found.control is not None:
                spreads = {column: found.control.intensity(block, column) for column in columns}
                fixed = ("boundary_share", "bce_of_constant")  # they depend on the frames alone
                ranges = ("" if column in fixed else _range(spread) for column, spread in spreads.items())
                rows.append([f"untrained, block {block}", *ranges])
                blocks[-1]["untrained"] = {column: asdict(spread) for column, spread in spreads.items()}
        if blocks:
            numbers[name]["intensity_of_blocks"] = blocks
    return rows


def _range(spread: Spread) -> str:
    low, high = number(spread.low, 3), number(spread.high, 3)
    return "-" if math.isnan(spread.mean) else f"{spread.mean:.3f} ({low} to {high})"


# The three places where views are shown.


def write_inspection(
    found: Inspection, views: Sequence[View], out: Path, about: Mapping[str, Json]
) -> dict[str, Json]:
    """Write figures (PNG and SVG), index.html and results.json. Returns what results.json holds."""
    make_folder(out / "figures")
    name, dataset = found.video.id, found.dataset.name
    samples = f"{found.video.n_samples:,} samples at {found.fps:g} per second. {about['command']}"
    body = [
        f"<h1>{escape(name)} of {escape(dataset)}, seen from inside</h1>",
        *html_lines("settings", [samples]),
    ]
    for view in views:
        body.append(f"<h2>{view.title}</h2>" if view.title else "")
        if view.figure is not None:
            body.append(html_figure(view.figure, out / "figures", view.name, view.caption))
        body += [html_table(table) for table in view.tables]
        body += html_lines("note", view.notes)
    write_page(out / "index.html", f"{name} from inside", body)
    results: dict[str, object] = {"study": "inspect", **about, "dataset": dataset, "video": name}
    results["block"] = found.block
    results |= {"strict_accuracy" if view.name == "ribbons" else view.name: view.numbers for view in views}
    document = to_json(results)
    assert isinstance(document, dict)
    write_atomic(out / "results.json", json.dumps(document, indent=1) + "\n")
    return document


def summary_text(found: Inspection, views: Sequence[View], out: Path) -> str:
    """For the terminal: every table, and where the page is."""
    lines = [f"{found.video.id} of {found.dataset.name}", ""]
    for view in views:
        for table in view.tables:
            lines += [*align(table), ""]
    return "\n".join([*lines, f"{out / 'index.html'}"])


def section(results: Mapping[str, Json], views: Sequence[View], title: str, pictures: str) -> str:
    """The inspection on a results page. `pictures` are the lines of Markdown that show the figures."""
    about = f"{provenance_line(results)} `{results['video']}` of {results['dataset']}."
    lines = [f"## {title}", "", about, "", f"```\n{results['command']}\n```", "", pictures]
    for view in views:
        for table in view.tables:
            lines += ["", *markdown_table(table)]
    untrained = "mean and range over draws of the same network with rotators and intensity never trained"
    lines += ["", f"Untrained: {untrained}."]
    return "\n".join(lines) + "\n"


def pictures_on_page(views: Sequence[View], folder: Path, page: Path, name: str) -> str:
    """Copy the figures into the page's `images` folder; returns the lines of Markdown that show them."""
    images = page.parent / "images"
    make_folder(images)
    lines = []
    for view in views:
        if view.figure is not None:
            write_atomic(images / f"{name}-{view.name}.png", (folder / f"{view.name}.png").read_bytes())
            lines.append(f"![{view.alt}](images/{name}-{view.name}.png)")
    return "\n\n".join(lines)


# The figures.

MOST_BLOCKS = 4
_INKS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")


@dataclass(frozen=True)
class Gap:
    """Of one block: how much more alike planes are within phases than between them, trained and for every
    untrained draw."""

    trained: float
    untrained: Sequence[float]


def draw_planes(
    similarities: Sequence[FloatArray],
    phases: IntArray,
    names: Sequence[str],
    gaps: Mapping[str, Sequence[Gap]],
) -> Figure:
    """Similarity of every pair of chunks, block by block, with the phase of each chunk along two sides;
    below, gaps by their title."""
    shown = list(similarities[:MOST_BLOCKS])
    least = min(float(similarity.min()) for similarity in shown)
    below = 0.8 + 0.3 * len(shown)
    figure = Figure(figsize=(1.4 + 3.1 * max(2, len(shown)), 4.3 + below), layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=(3.4, below))
    matrices, strips = grid[0].subgridspec(1, len(shown)), grid[1].subgridspec(1, len(gaps))
    width = max(0.8, len(phases) / 25)
    edge = -0.8 - width
    for column, similarity in enumerate(shown):
        axes = figure.add_subplot(matrices[column])
        image = axes.imshow(similarity, cmap="cividis", vmin=least, vmax=1, interpolation="nearest")
        for chunk, phase in enumerate(phases.tolist()):
            for corner, size in (((chunk - 0.5, edge), (1.0, width)), ((edge, chunk - 0.5), (width, 1.0))):
                if phase >= 0:
                    axes.add_patch(Rectangle(corner, *size, facecolor=colour(phase), hatch=hatch(phase),
                                             edgecolor="none", linewidth=0))
        axes.set_xlim(edge, len(phases) - 0.5)
        axes.set_ylim(len(phases) - 0.5, edge)
        axes.set_title(f"block {column}", loc="left", fontsize=10)
        axes.set_xlabel("chunk")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=figure.axes, shrink=0.8, label="mean cosine")
    for column, (title, of_blocks) in enumerate(gaps.items()):
        axes = figure.add_subplot(strips[column])
        _draw_gaps(axes, of_blocks[: len(shown)], title, with_legend=column == 0)
    _phase_legend(figure, phases, names)
    return figure


def _draw_gaps(axes: Axes, gaps: Sequence[Gap], title: str, with_legend: bool) -> None:
    """A row per block: grey circles for untrained draws, a diamond for the trained model below them."""
    for block, gap in enumerate(gaps):
        labels = (f"untrained ({len(gap.untrained)} draws)", "trained") if block == 0 else (None, None)
        axes.plot(gap.untrained, [block] * len(gap.untrained), "o", color="#666666", markerfacecolor="none",
                  markersize=6, label=labels[0], zorder=3)
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
class StatePanel:
    """One panel of the carried state."""

    title: str
    projection: Projection
    phases: IntArray
    """Annotated phase of each point."""
    wrong: BoolArray
    shares_axes: bool
    """Whether its axes are those of the first panel; a model trained apart has a basis of its own."""


def draw_states(panels: Sequence[StatePanel], names: Sequence[str]) -> Figure:
    """The carried state on two axes; a thin line joins the samples in order, misclassified samples are
    crosses."""
    figure = Figure(figsize=(0.6 + 3.5 * len(panels), 4.4), layout="constrained")
    common = np.concatenate([panel.projection.points for panel in panels if panel.shares_axes])
    for column, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), column + 1)
        _scatter(axes, panel)
        points = common if panel.shares_axes else panel.projection.points
        low, high = points.min(axis=0), points.max(axis=0)
        pad = 0.05 * (high - low) + 1e-9
        axes.set_xlim(low[0] - pad[0], high[0] + pad[0])
        axes.set_ylim(low[1] - pad[1], high[1] + pad[1])
        first, second = panel.projection.share
        variance = f"{100 * first:.0f} % + {100 * second:.0f} % of its variance"
        title = f"{panel.title}\n{variance}, {panel.projection.dimensions:.1f} dimensions"
        axes.set_title(title, loc="left", fontsize=9)
        kind = "shared" if panel.shares_axes else "own"
        axes.set_xlabel(f"{kind} axis 1")
        axes.set_ylabel(f"{kind} axis 2")
        axes.spines[["top", "right"]].set_visible(False)
    _phase_legend(figure, np.concatenate([panel.phases for panel in panels]), names)
    return figure


def _scatter(axes: Axes, panel: StatePanel) -> None:
    x, y = panel.projection.points.T
    axes.plot(x, y, color="#bbbbbb", linewidth=0.6, zorder=1)
    for phase in np.unique(panel.phases).tolist():
        right, wrong = (panel.phases == phase) & ~panel.wrong, (panel.phases == phase) & panel.wrong
        ink = colour(phase) if phase >= 0 else "#dddddd"
        marker = "s" if phase >= 0 and hatch(phase) else "o"
        axes.scatter(x[right], y[right], s=14, color=ink, marker=marker, linewidths=0.3, edgecolors="#1a1a1a",
                     zorder=2)
        axes.scatter(x[wrong], y[wrong], s=26, color=ink, marker="x", linewidths=1.4, zorder=3)


def draw_decay(traces: Mapping[str, Trace], labels: IntArray, names: Sequence[str], fps: float) -> Figure:
    """Intensity above, effective decay below; the first run with every block, the others by their means."""
    intensities = {name: it.intensity.mean(axis=1) for name, it in traces.items() if it.intensity is not None}
    n_panels = 2 if intensities else 1
    figure = Figure(figsize=(11, 1.9 + 2.1 * n_panels), layout="constrained")
    panels = [figure.add_subplot(n_panels, 1, panel + 1) for panel in range(n_panels)]
    minutes = np.arange(len(labels)) / fps / 60
    inks = {name: _INKS[i % len(_INKS)] for i, name in enumerate(traces)}
    for name, intensity in intensities.items():
        panels[0].plot(minutes, intensity, color=inks[name], linewidth=1.2, label=name)
        panels[0].set_ylim(0, 1.15)
        panels[0].set_ylabel("intensity λ(t)")
    below, first = panels[-1], next(iter(traces))
    kept = {name: trace.decay.mean(axis=2) for name, trace in traces.items()}  # (t, n_blocks)
    if kept[first].shape[1] > 1:
        below.plot(minutes, kept[first], color=inks[first], linewidth=0.5, alpha=0.45)
    for name, of_blocks in kept.items():
        order = 3 if name == first else 2
        below.plot(minutes, of_blocks.mean(axis=1), color=inks[name], linewidth=1.2, label=name, zorder=order)
    low = min(float(of_blocks.min()) for of_blocks in kept.values())
    below.set_ylim(low - 0.06 * (1 - low), 1 + 0.12 * (1 - low))
    below.set_ylabel("effective decay dA(t)")
    below.set_xlabel("minutes")
    for panel in panels:
        _draw_boundaries(panel, labels, fps)
        panel.set_xlim(0, len(labels) / fps / 60)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=6)
    _phase_legend(figure, labels, names)
    return figure


def _draw_boundaries(axes: Axes, labels: IntArray, fps: float) -> None:
    """The annotated phases as a strip along the top, and a line at every change."""
    low, high = axes.get_ylim()
    draw_strip(axes, labels, fps, high - 0.05 * (high - low), 0.05 * (high - low))
    for change in find_segments(labels, keep_gaps=True).start[1:]:
        axes.axvline(change / fps / 60, color="#999999", linewidth=0.6, zorder=0)
    axes.set_ylim(low, high)


def _phase_legend(figure: Figure, phases: IntArray, names: Sequence[str]) -> None:
    shown = [phase for phase in np.unique(phases).tolist() if phase >= 0]
    patches = phase_patches(shown, names)
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
