"""The page of an inspection: ribbons, planes, states, intensity and decay, each a figure with its numbers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

import numpy as np

from surgicalmamba.data.store import make_folder, write_atomic
from surgicalmamba.eval.pairs import IntArray
from surgicalmamba.eval.score import Json, to_json
from surgicalmamba.report.figures import draw_timelines
from surgicalmamba.report.html import save_figure, table, write_page
from surgicalmamba.report.tables import number
from surgicalmamba.studies import inspect_figures as figures
from surgicalmamba.studies.inspect_trace import Trace
from surgicalmamba.studies.inspect_views import (
    Projection,
    alignment,
    chance_similarity,
    chunk_phases,
    generator_similarity,
    shared_projection,
    stillness,
)
from surgicalmamba.studies.inspection import BARE, OWN, TRUTH, Inspection, accuracy
from surgicalmamba.train.inside import around_boundaries, plane_similarity


def write_inspection(found: Inspection, out: Path, about: Mapping[str, Json]) -> dict[str, Json]:
    """Figures as PNG and SVG, one page, results.json. Returns what results.json holds."""
    make_folder(out / "figures")
    results: dict[str, object] = {"study": "inspect", **about, "dataset": found.dataset.name, "video": found.video.id, "block": found.block}
    body = [
        f"<h1>{escape(found.video.id)} of {escape(found.dataset.name)}, seen from inside</h1>",
        f'<p class="settings">{found.video.n_samples:,} samples at {found.fps:g} per second. {escape(str(about["command"]))}</p>',
    ]
    for part in (_ribbons, _planes, _states, _decay):
        html, numbers = part(found, out / "figures")
        body.append(html)
        results |= numbers
    write_page(out / "index.html", f"{found.video.id} from inside", body)
    document = to_json(results)
    assert isinstance(document, dict)
    write_atomic(out / "results.json", (json.dumps(document, indent=1) + "\n").encode())
    return document


Part = tuple[str, dict[str, object]]


def _ribbons(found: Inspection, folder: Path) -> Part:
    scores = {name: accuracy(found.rows[TRUTH], row) for name, row in found.rows.items() if name != TRUTH}
    told = "; ".join(f"{name} {number(score)} %" for name, score in scores.items())
    rows = [(name, row) for name, row in found.rows.items()]
    caption = f"Phases over time; black above a ribbon marks errors. Strict accuracy: {told}."
    figure = draw_timelines(rows, found.dataset.phases, found.fps, found.video.id)
    return f"<h2>Ribbons</h2>{save_figure(figure, folder, 'ribbons', caption)}", {"strict_accuracy": scores}


def _planes(found: Inspection, folder: Path) -> Part:
    planes = found.own.planes
    if not planes:
        return "<h2>Rotation planes</h2><p>This model does not rotate: there are no planes.</p>", {"planes": None}
    if len(planes[0]) < 2:
        short = f"The video ends before two chunks of {found.own.chunk_len} samples are full: there are no two sets of planes to compare."
        return f"<h2>Rotation planes</h2><p>{short}</p>", {"planes": None}
    similarities = [plane_similarity(block) for block in planes]
    phases = chunk_phases(found.video.labels, found.own.chunk_len, len(planes[0]))
    chance = chance_similarity(planes[0].U.shape[-2])
    rows = [
        [
            "block",
            "same phase",
            "other phase",
            "next chunk, same phase",
            "next chunk, other phase",
            "generators: same, other",
            "median angle theta",
        ]
    ]
    numbers = []
    for block, (similarity, chosen) in enumerate(zip(similarities, planes, strict=True)):
        aligned, whole = alignment(similarity, phases), alignment(generator_similarity(chosen), phases)
        theta = float(chosen.theta.median())
        means = (aligned.same_phase, aligned.other_phase, aligned.next_same_phase, aligned.next_other_phase)
        rows.append(
            [str(block), *(number(mean, 3) for mean in means), f"{number(whole.same_phase)}, {number(whole.other_phase)}", f"{theta:.3g}"]
        )
        numbers.append({**asdict(aligned), "generators": asdict(whole), "median_theta": theta})
    caption = (
        f"Similarity of the slow path's rotation planes between chunks of {found.own.chunk_len} samples: mean cosine of the two principal "
        "angles, plane by plane. Strips show the phase that holds most of a chunk."
    )
    picture = save_figure(figures.draw_planes(similarities, phases, found.dataset.phases, chance), folder, "planes", caption)
    note = f"Planes that have nothing to do with each other would score {chance:.3f}. Pairs of chunks: {numbers[0]['pairs']}."
    html = f"<h2>Rotation planes</h2>{picture}{table(rows)}<p class='note'>{escape(note)}</p>"
    return html, {"planes": {"chunk_len": found.own.chunk_len, "chance": chance, "blocks": numbers}}


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
    numbers, notes = {}, []
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
    html = f"<h2>Intensity and effective decay</h2>{save_figure(figure, folder, 'decay', caption)}{table(rows)}" + _notes(notes)
    return html, {"decay": numbers}


def _plateaus(trace: Trace, labels: IntArray, found: Inspection, name: str) -> list[float]:
    """The plateau block by block."""
    inside, _ = around_boundaries(labels, found.fps, *found.bursts[name])
    kept = trace.decay.mean(axis=2)
    return [float(np.median(kept[inside, block])) if inside.any() else float("nan") for block in range(kept.shape[1])]


def _notes(notes: Sequence[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
