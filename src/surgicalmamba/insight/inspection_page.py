"""The page of an inspection: ribbons, planes, states, intensity and decay, each a figure with its numbers."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from surgicalmamba.eval.pairs import BoolArray, FloatArray, IntArray
from surgicalmamba.eval.score import Json, to_json
from surgicalmamba.files import make_folder, write_atomic
from surgicalmamba.insight.inspection import (
    BARE,
    OWN,
    TRUTH,
    Inspection,
    Projection,
    Spread,
    Trace,
    accuracy,
    alignment,
    chunk_phases,
    generator_similarity,
    shared_projection,
    stillness,
)
from surgicalmamba.report.colours import colour, hatch
from surgicalmamba.report.figures import draw_strip, draw_timelines, phase_patches
from surgicalmamba.report.page import html_figure, html_table, write_page
from surgicalmamba.report.sections import provenance_line
from surgicalmamba.report.tables import number
from surgicalmamba.train.inside import around_boundaries, plane_similarity

# Figures of the inner views. Each function draws one and returns it.


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
    for column, similarity in enumerate(shown):
        axes = figure.add_subplot(matrices[column])
        image = axes.imshow(similarity, cmap="cividis", vmin=least, vmax=1, interpolation="nearest")
        width = max(0.8, len(phases) / 25)
        for chunk, phase in enumerate(phases.tolist()):
            for corner, size in (((chunk - 0.5, -0.8 - width), (1.0, width)), ((-0.8 - width, chunk - 0.5), (width, 1.0))):
                if phase >= 0:
                    axes.add_patch(Rectangle(corner, *size, facecolor=colour(phase), hatch=hatch(phase), edgecolor="none", linewidth=0))
        axes.set_xlim(-0.8 - width, len(phases) - 0.5)
        axes.set_ylim(len(phases) - 0.5, -0.8 - width)
        axes.set_title(f"block {column}", loc="left", fontsize=10)
        axes.set_xlabel("chunk")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=figure.axes, shrink=0.8, label="mean cosine")
    for column, (title, of_blocks) in enumerate(gaps.items()):
        _gaps(figure.add_subplot(strips[column]), of_blocks[: len(shown)], title, with_legend=column == 0)
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
    for column, view in enumerate(views):
        axes = figure.add_subplot(1, len(views), column + 1)
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


# An inspection in words: for the terminal, and as a section of a results page.


PICTURES = {
    "ribbons": "Annotated and predicted phases over time, errors in black",
    "planes": "Similarity of rotation planes between chunks",
    "state": "The carried state on two principal axes, coloured by phase",
    "decay": "Intensity and effective decay over the video, with the annotated phases above",
}
"""Figures that an inspection draws where the model has what they show, and what to say of them."""
GAPS = {"gap": "gap", "relative_gap": "relative gap"}


def summary_text(results: Mapping[str, Json], out: Path) -> str:
    """For the terminal: accuracies, alignment, angles and content dependence beside the untrained mean, plateau."""
    lines = [f"{results['video']} of {results['dataset']}"]
    scores, planes, rotation, decay = (results[key] for key in ("strict_accuracy", "planes", "rotation", "decay"))
    assert isinstance(scores, dict) and isinstance(decay, dict)
    lines += [f"  strict accuracy      {name}: {score:.2f} %" for name, score in scores.items() if isinstance(score, float)]
    if isinstance(planes, dict) and isinstance(planes["blocks"], list):
        for block, numbers in enumerate(planes["blocks"]):
            assert isinstance(numbers, dict)
            lines.append(
                f"  planes, block {block}      same phase {_told(numbers['same_phase'])}, other phase {_told(numbers['other_phase'])}"
            )
            for name, words in GAPS.items():
                trained, untrained, verdict = _compared(numbers[name])
                lines.append(f"    {words:<19}{trained}, untrained {untrained}: {verdict}")
    for name, numbers in decay.items():
        assert isinstance(numbers, dict)
        kept, after = _told(numbers["plateau_per_s"]), _told(numbers["at_boundaries"])
        lines.append(f"  decay                {name}: keeps {kept} a second within phases, {after} a sample after boundaries")
    if beside := [*_rotation_lines(rotation), *_intensity_lines(decay[OWN])]:
        lines += [*beside, "  in parentheses: the same with untrained rotators and intensity, mean over draws"]
    return "\n".join([*lines, f"{out / 'index.html'}"])


def _rotation_lines(rotation: Json) -> Iterator[str]:
    for path, numbers in (rotation if isinstance(rotation, dict) else {}).items():
        theta, high, content = (_beside(numbers, measure) for measure in ("theta_q50", "theta_q90", "content_dependence"))
        yield f"  rotation, {path:<11}median theta {theta}, 0.9 quantile {high}, content dependence {content}"


def _intensity_lines(decay: Json) -> Iterator[str]:
    assert isinstance(decay, dict)
    blocks = decay.get("intensity_of_blocks")
    for block, numbers in enumerate(blocks if isinstance(blocks, list) else []):
        precision, entropy = (_beside(numbers, measure) for measure in ("average_precision", "bce"))
        chance, constant = (_told(_trained(numbers)[measure]) for measure in ("boundary_share", "bce_of_constant"))
        found = f"average precision {precision}, by chance {chance}; cross-entropy {entropy}, of a constant {constant}"
        yield f"  intensity, block {block}   {found}"


def _told(value: Json, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if isinstance(value, float) else "-"


def _compared(gap: Json) -> list[str]:
    """A gap of the trained model, of the untrained draws, and where the one lies in the range of the others."""
    assert isinstance(gap, dict) and isinstance(gap["untrained"], dict)
    mean, low, high = (_told(gap["untrained"][key]) for key in ("mean", "low", "high"))
    return [_told(gap["trained"]), f"{mean} ({low} to {high})", str(gap["verdict"])]


def _beside(part: Json, measure: str) -> str:
    """A measure of a path or a block, and its mean over untrained draws in parentheses."""
    assert isinstance(part, dict) and isinstance(part["untrained"], dict)
    spread = part["untrained"][measure]
    assert isinstance(spread, dict)
    return f"{_told(_trained(part)[measure])} ({_told(spread['mean'])})"


def _trained(part: Json) -> dict[str, Json]:
    assert isinstance(part, dict) and isinstance(part["trained"], dict)
    return part["trained"]


def section(results: Mapping[str, Json], title: str, pictures: str) -> str:
    """The inspection on a results page: what was run, the four views with their numbers. `pictures` are lines that show the figures."""
    scores, planes, rotation, states, decay = (results[key] for key in ("strict_accuracy", "planes", "rotation", "state", "decay"))
    assert isinstance(scores, dict) and isinstance(states, dict) and isinstance(decay, dict)
    lines = [
        f"## {title}",
        "",
        f"{provenance_line(results)} `{results['video']}` of {results['dataset']}.",
        "",
        f"```\n{results['command']}\n```",
        "",
        pictures,
        "",
        "| | strict accuracy | kept a second within phases | kept a sample after boundaries | intensity within phases | after boundaries "
        "| directions of the state |",
        "|---" * 7 + "|",
    ]
    for name in dict.fromkeys([*scores, *states, *decay]):
        state, kept = (part.get(name) or {} for part in (states, decay))
        assert isinstance(state, dict) and isinstance(kept, dict)
        numbers = [_told(kept.get(key)) for key in ("plateau_per_s", "at_boundaries", "intensity_inside", "intensity_at_boundaries")]
        lines.append(f"| {name} | " + " | ".join([_told(scores.get(name), 2), *numbers, _told(state.get("dimensions"), 2)]) + " |")
    if isinstance(planes, dict) and isinstance(planes["blocks"], list):
        lines += ["", "| rotation planes | same phase | other phase | | trained | untrained, mean and range | |", "|---" * 7 + "|"]
        for block, numbers_of in enumerate(planes["blocks"]):
            assert isinstance(numbers_of, dict)
            means = [_told(numbers_of[key]) for key in ("same_phase", "other_phase")]
            lines += [
                f"| block {block} | " + " | ".join([*means, words, *_compared(numbers_of[name])]) + " |" for name, words in GAPS.items()
            ]
    if isinstance(rotation, dict):
        lines += ["", "| rotation | theta, 0.1 quantile | median | 0.9 quantile | content dependence |", "|---" * 5 + "|"]
        for path, of_path in rotation.items():
            measures = ("theta_q10", "theta_q50", "theta_q90", "content_dependence")
            lines.append(f"| {path} | " + " | ".join(_beside(of_path, measure) for measure in measures) + " |")
        lines += ["", "Untrained, and in parentheses: the mean over draws of the same network with rotators and intensity never trained."]
    return "\n".join(lines) + "\n"


def pictures_on_page(results: Mapping[str, Json], folder: Path, page: Path, name: str) -> str:
    """Put the figures that show something into the page's `images` folder; the lines of Markdown that show them."""
    images = page.parent / "images"
    make_folder(images)
    lines = []
    for view, alt in PICTURES.items():
        if results.get(view, True) is not None:
            write_atomic(images / f"{name}-{view}.png", (folder / f"{view}.png").read_bytes())
            lines.append(f"![{alt}](images/{name}-{view}.png)")
    return "\n\n".join(lines)


def write_inspection(found: Inspection, out: Path, about: Mapping[str, Json]) -> dict[str, Json]:
    """Figures as PNG and SVG, one page, results.json. Returns what results.json holds."""
    make_folder(out / "figures")
    results: dict[str, object] = {"study": "inspect", **about, "dataset": found.dataset.name, "video": found.video.id, "block": found.block}
    body = [
        f"<h1>{escape(found.video.id)} of {escape(found.dataset.name)}, seen from inside</h1>",
        f'<p class="settings">{found.video.n_samples:,} samples at {found.fps:g} per second. {escape(str(about["command"]))}</p>',
    ]
    for part in (_ribbons, _planes, _rotations, _states, _decay):
        html, numbers = part(found, out / "figures")
        body.append(html)
        results |= numbers
    write_page(out / "index.html", f"{found.video.id} from inside", body)
    document = to_json(results)
    assert isinstance(document, dict)
    write_atomic(out / "results.json", (json.dumps(document, indent=1) + "\n").encode())
    return document


Part = tuple[str, dict[str, object]]
GAP_TITLES = {"gap": "gap: same phase - other phase", "relative_gap": "relative gap: gap / (1 - other phase)"}
"""Measures by which the planes of the trained model are compared with those of untrained draws."""


def _ribbons(found: Inspection, folder: Path) -> Part:
    scores = {name: accuracy(found.rows[TRUTH], row) for name, row in found.rows.items() if name != TRUTH}
    told = "; ".join(f"{name} {number(score)} %" for name, score in scores.items())
    rows = [(name, row) for name, row in found.rows.items()]
    caption = f"Phases over time; black above a ribbon marks errors. Strict accuracy: {told}."
    figure = draw_timelines(rows, found.dataset.phases, found.fps, found.video.id)
    return f"<h2>Ribbons</h2>{html_figure(figure, folder, 'ribbons', caption)}", {"strict_accuracy": scores}


def _planes(found: Inspection, folder: Path) -> Part:
    planes, control = found.own.planes, found.control
    if found.bare is None or control is None:
        return "<h2>Rotation planes</h2><p>This model does not rotate: there are no planes.</p>", {"planes": None}
    if not planes or len(planes[0]) < 2:
        short = f"The video ends before two chunks of {found.own.chunk_len} samples are full: there are no two sets of planes to compare."
        return f"<h2>Rotation planes</h2><p>{short}</p>", {"planes": None}
    similarities = [plane_similarity(block) for block in planes]
    phases = chunk_phases(found.video.labels, found.own.chunk_len, len(planes[0]))
    rows = [["block", "same phase", "other phase", "next chunk, same phase", "next chunk, other phase", "generators: same, other"]]
    compared = [["block", "", "trained", "untrained", ""]]
    numbers: list[dict[str, object]] = []
    gaps: dict[str, list[Gap]] = {name: [] for name in GAP_TITLES}
    for block, (similarity, chosen) in enumerate(zip(similarities, planes, strict=True)):
        aligned, whole = alignment(similarity, phases), alignment(generator_similarity(chosen), phases)
        means = (aligned.same_phase, aligned.other_phase, aligned.next_same_phase, aligned.next_other_phase)
        rows.append([str(block), *(number(mean, 3) for mean in means), f"{number(whole.same_phase)}, {number(whole.other_phase)}"])
        numbers.append({**asdict(aligned), "generators": asdict(whole)})
        for name, title in GAP_TITLES.items():
            trained, draws = float(getattr(aligned, name)), control.alignment(block, name)
            spread = Spread.of(draws)
            compared.append([str(block), title, number(trained, 3), _spread(spread, 3), spread.verdict(trained)])
            numbers[-1][name] = {"trained": trained, "untrained": {**asdict(spread), "draws": draws}, "verdict": spread.verdict(trained)}
            gaps[name].append(Gap(trained, draws))
    caption = (
        f"Similarity of the slow path's rotation planes between chunks of {found.own.chunk_len} samples: mean cosine of the two principal "
        "angles, plane by plane. Strips show the phase that holds most of a chunk. Below: how much more alike planes are within phases "
        "than between them, and the same as a share of how much they differ between phases."
    )
    titled = {GAP_TITLES[name]: of_blocks for name, of_blocks in gaps.items()}
    picture = html_figure(draw_planes(similarities, phases, found.dataset.phases, titled), folder, "planes", caption)
    notes = [
        f"Pairs of chunks: {numbers[0]['pairs']}.",
        "Untrained: the same network with rotators and intensity drawn at random and never trained, mean and range of "
        f"{len(control.measured)} draws. Chunks of one phase have similar summaries, so their planes are alike under any rotator. "
        "A gap beyond that range may only mean that planes vary more; a relative gap beyond it means that they follow the phases more.",
    ]
    html = f"<h2>Rotation planes</h2>{picture}{html_table(rows)}{html_table(compared)}{_notes(notes)}"
    return html, {"planes": {"chunk_len": found.own.chunk_len, "draws": len(control.measured), "blocks": numbers}}


def _rotations(found: Inspection, _: Path) -> Part:
    """Angles and content dependence of every path, beside those of untrained rotators."""
    control, measured = found.control, found.measured[OWN].rotations
    if control is None or not measured:
        return "", {"rotation": None}
    columns = {
        "theta_q10": "theta, 0.1 quantile",
        "theta_q50": "median",
        "theta_q90": "0.9 quantile",
        "theta_mean": "mean",
        "content_dependence": "content dependence",
        "plane_similarity": "plane similarity",
    }
    rows, numbers = [["path", *columns.values()]], {}
    for path, measures in measured.items():
        spreads = {name: control.rotation(path, name) for name in columns}
        rows.append([path, *(f"{getattr(measures, name):.3g}" for name in columns)])
        rows.append([f"{path}, untrained", *(_spread(spread) for spread in spreads.values())])
        numbers[path] = {"trained": asdict(measures), "untrained": {name: asdict(spread) for name, spread in spreads.items()}}
    notes = [
        "theta over chunks, heads and planes. Content dependence: root mean square of |Z_c - Z_c'| over pairs of chunks, over that of "
        "|Z_c - I|; 0 for a rotation that is the same after every chunk, 1.41 where the turns of two chunks have nothing in common. "
        "Plane similarity: mean over pairs of chunks. Untrained: mean and range over draws."
    ]
    return f"<h2>Angles and content dependence</h2>{html_table(rows)}{_notes(notes)}", {"rotation": numbers}


def _spread(spread: Spread, digits: int | None = None) -> str:
    """Mean and range; with three significant digits, or so many decimals."""
    form = ".3g" if digits is None else f".{digits}f"
    return "-" if math.isnan(spread.mean) else f"{spread.mean:{form}} ({spread.low:{form}} to {spread.high:{form}})"


def _states(found: Inspection, folder: Path) -> Part:
    same_basis = {OWN: found.own} if found.bare is None else {OWN: found.own, BARE: found.bare}
    others = {name: trace for name, trace in found.traces.items() if name != OWN}
    projections = dict(zip(same_basis, shared_projection([trace.states for trace in same_basis.values()]), strict=True))
    for name, trace in others.items():
        (projections[name],) = shared_projection([trace.states])
    views = []
    for name, trace in {**same_basis, **others}.items():
        phases = found.video.labels[trace.state_rows]
        wrong = (phases >= 0) & (trace.predicted[trace.state_rows] != phases)
        views.append(StateView(name, projections[name], phases, wrong, name in same_basis))
    caption = (
        f"The state that block {found.block}'s slow path carries, on the two principal axes of this model's runs together, each run "
        "centred by itself. Colours: annotated phase; crosses: misclassified."
    )
    notes = [] if found.bare is not None else ["This model does not rotate, so there is no run with Z left out."]
    if found.bare is not None:
        notes.append("Z left out: the same weights without their rotations, not a model trained that way.")
    if others:
        notes.append("A model trained apart holds its state in a basis of its own, so it is shown on its own two axes.")
    rows = [["run", "axis 1, % of its variance", "axis 2", "directions used (participation ratio)"]]
    rows += [[name, *(f"{100 * share:.1f}" for share in p.share), f"{p.dimensions:.2f}"] for name, p in projections.items()]
    picture = html_figure(draw_states(views, found.dataset.phases), folder, "state", caption)
    html = f"<h2>Carried state</h2>{picture}{html_table(rows)}" + _notes(notes)
    return html, {"state": {name: _as_numbers(projection) for name, projection in projections.items()}}


def _as_numbers(projection: Projection) -> dict[str, object]:
    return {"variance_share": list(projection.share), "dimensions": projection.dimensions}


def _decay(found: Inspection, folder: Path) -> Part:
    labels = found.video.labels
    figure = draw_decay(found.traces, labels, found.dataset.phases, found.fps)
    caption = "Intensity, and the share of its state that the slow path keeps over each sample, heads averaged. Thin: single blocks."
    rows = [["run", "plateau within phases", "per second", "after boundaries", "intensity within phases", "after boundaries"]]
    numbers: dict[str, dict[str, object]] = {}
    notes = []
    for name, trace in found.traces.items():
        rise_s, fall_s = found.bursts[name]
        still = stillness(trace, labels, found.fps, rise_s, fall_s)
        values = (still.plateau, still.plateau_per_s, still.at_boundaries, still.intensity_inside, still.intensity_at_boundaries)
        rows.append([name, *(number(value, 4) for value in values)])
        numbers[name] = {**asdict(still), "rise_s": rise_s, "fall_s": fall_s, "plateau_of_blocks": _plateaus(trace, labels, found, name)}
        if trace.intensity is None:
            notes.append(f"{name} has no intensity: its decay is the selective step's alone.")
        if not np.isfinite(still.plateau):
            notes.append(f"{name}: every sample lies within reach of a burst (sigma {rise_s:g} and {fall_s:g} s), so there is no plateau.")
    picture = html_figure(figure, folder, "decay", caption)
    detector, blocks = _detectors(found)
    for name, of_blocks in blocks.items():
        numbers[name]["intensity_of_blocks"] = of_blocks
    html = f"<h2>Intensity and effective decay</h2>{picture}{html_table(rows)}{detector}" + _notes(notes)
    return html, {"decay": numbers}


def _detectors(found: Inspection) -> tuple[str, dict[str, list[dict[str, object]]]]:
    """Every block's intensity as a detector of boundaries, this model's beside those of untrained draws."""
    columns = {
        "inside": "within phases",
        "after_boundaries": "after boundaries",
        "average_precision": "average precision",
        "boundary_share": "by chance",
        "bce": "cross-entropy",
        "bce_of_constant": "of the best constant",
    }
    rows: list[list[str]] = [["intensity", *columns.values()]]
    numbers: dict[str, list[dict[str, object]]] = {}
    for name, measured in found.measured.items():
        for block, measures in enumerate(measured.intensities):
            rows.append([f"{name}, block {block}", *(f"{getattr(measures, column):.3f}" for column in columns)])
            entry: dict[str, object] = {"trained": asdict(measures)}
            if name == OWN and found.control is not None:
                spreads = {column: found.control.intensity(block, column) for column in columns}
                fixed = ("boundary_share", "bce_of_constant")  # of the frames alone
                rows.append(["untrained", *("" if column in fixed else _spread(spread, 3) for column, spread in spreads.items())])
                entry["untrained"] = {column: asdict(spread) for column, spread in spreads.items()}
            numbers.setdefault(name, []).append(entry)
    notes = [
        "Average precision at frames whose transition target is 0.5 or more; by chance it is their share. Cross-entropy with that target."
    ]
    return (html_table(rows) + _notes(notes) if numbers else ""), numbers


def _plateaus(trace: Trace, labels: IntArray, found: Inspection, name: str) -> list[float]:
    """The plateau block by block."""
    inside, _ = around_boundaries(labels, found.fps, *found.bursts[name])
    kept = trace.decay.mean(axis=2)
    return [float(np.median(kept[inside, block])) if inside.any() else float("nan") for block in range(kept.shape[1])]


def _notes(notes: Sequence[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)

