"""The page of an inspection: ribbons, planes, states, intensity and decay, each a figure with its numbers."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

import numpy as np

from surgicalmamba.data.store import make_folder, write_atomic
from surgicalmamba.eval.pairs import IntArray
from surgicalmamba.eval.score import Json, to_json
from surgicalmamba.insight import inspect_figures as figures
from surgicalmamba.insight.inspect_control import Spread
from surgicalmamba.insight.inspect_trace import Trace
from surgicalmamba.insight.inspect_views import (
    Projection,
    alignment,
    chunk_phases,
    generator_similarity,
    shared_projection,
    stillness,
)
from surgicalmamba.insight.inspection import BARE, OWN, TRUTH, Inspection, accuracy
from surgicalmamba.report.figures import draw_timelines
from surgicalmamba.report.html import save_figure, table, write_page
from surgicalmamba.report.tables import number
from surgicalmamba.train.inside import around_boundaries, plane_similarity


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
GAPS = {"gap": "gap: same phase - other phase", "relative_gap": "relative gap: gap / (1 - other phase)"}
"""Measures by which the planes of the trained model are compared with those of untrained draws."""


def _ribbons(found: Inspection, folder: Path) -> Part:
    scores = {name: accuracy(found.rows[TRUTH], row) for name, row in found.rows.items() if name != TRUTH}
    told = "; ".join(f"{name} {number(score)} %" for name, score in scores.items())
    rows = [(name, row) for name, row in found.rows.items()]
    caption = f"Phases over time; black above a ribbon marks errors. Strict accuracy: {told}."
    figure = draw_timelines(rows, found.dataset.phases, found.fps, found.video.id)
    return f"<h2>Ribbons</h2>{save_figure(figure, folder, 'ribbons', caption)}", {"strict_accuracy": scores}


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
    gaps: dict[str, list[figures.Gap]] = {name: [] for name in GAPS}
    for block, (similarity, chosen) in enumerate(zip(similarities, planes, strict=True)):
        aligned, whole = alignment(similarity, phases), alignment(generator_similarity(chosen), phases)
        means = (aligned.same_phase, aligned.other_phase, aligned.next_same_phase, aligned.next_other_phase)
        rows.append([str(block), *(number(mean, 3) for mean in means), f"{number(whole.same_phase)}, {number(whole.other_phase)}"])
        numbers.append({**asdict(aligned), "generators": asdict(whole)})
        for name, title in GAPS.items():
            trained, draws = float(getattr(aligned, name)), control.alignment(block, name)
            spread = Spread.of(draws)
            compared.append([str(block), title, number(trained, 3), _spread(spread, 3), spread.verdict(trained)])
            numbers[-1][name] = {"trained": trained, "untrained": {**asdict(spread), "draws": draws}, "verdict": spread.verdict(trained)}
            gaps[name].append(figures.Gap(trained, draws))
    caption = (
        f"Similarity of the slow path's rotation planes between chunks of {found.own.chunk_len} samples: mean cosine of the two principal "
        "angles, plane by plane. Strips show the phase that holds most of a chunk. Below: how much more alike planes are within phases "
        "than between them, and the same as a share of how much they differ between phases."
    )
    titled = {GAPS[name]: of_blocks for name, of_blocks in gaps.items()}
    picture = save_figure(figures.draw_planes(similarities, phases, found.dataset.phases, titled), folder, "planes", caption)
    notes = [
        f"Pairs of chunks: {numbers[0]['pairs']}.",
        "Untrained: the same network with rotators and intensity drawn at random and never trained, mean and range of "
        f"{len(control.measured)} draws. Chunks of one phase have similar summaries, so their planes are alike under any rotator. "
        "A gap beyond that range may only mean that planes vary more; a relative gap beyond it means that they follow the phases more.",
    ]
    html = f"<h2>Rotation planes</h2>{picture}{table(rows)}{table(compared)}{_notes(notes)}"
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
    return f"<h2>Angles and content dependence</h2>{table(rows)}{_notes(notes)}", {"rotation": numbers}


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
        views.append(figures.StateView(name, projections[name], phases, wrong, name in same_basis))
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
    picture = save_figure(figures.draw_states(views, found.dataset.phases), folder, "state", caption)
    html = f"<h2>Carried state</h2>{picture}{table(rows)}" + _notes(notes)
    return html, {"state": {name: _as_numbers(projection) for name, projection in projections.items()}}


def _as_numbers(projection: Projection) -> dict[str, object]:
    return {"variance_share": list(projection.share), "dimensions": projection.dimensions}


def _decay(found: Inspection, folder: Path) -> Part:
    labels = found.video.labels
    figure = figures.draw_decay(found.traces, labels, found.dataset.phases, found.fps)
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
    picture = save_figure(figure, folder, "decay", caption)
    detector, blocks = _detectors(found)
    for name, of_blocks in blocks.items():
        numbers[name]["intensity_of_blocks"] = of_blocks
    html = f"<h2>Intensity and effective decay</h2>{picture}{table(rows)}{detector}" + _notes(notes)
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
    return (table(rows) + _notes(notes) if numbers else ""), numbers


def _plateaus(trace: Trace, labels: IntArray, found: Inspection, name: str) -> list[float]:
    """The plateau block by block."""
    inside, _ = around_boundaries(labels, found.fps, *found.bursts[name])
    kept = trace.decay.mean(axis=2)
    return [float(np.median(kept[inside, block])) if inside.any() else float("nan") for block in range(kept.shape[1])]


def _notes(notes: Sequence[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
