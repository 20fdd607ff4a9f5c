"""`study inspect`: a checkpoint and a video, outside (ribbons) and inside (planes, states, intensity and decay), on one page."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

import numpy as np

from surgicalmamba.data.store import PreparedDataset, PreparedVideo, make_folder, write_atomic
from surgicalmamba.data.vocabulary import PhaseVocabulary
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.eval.folders import find_files
from surgicalmamba.eval.pairs import IntArray
from surgicalmamba.eval.rows import read_rows
from surgicalmamba.eval.score import Json, to_json
from surgicalmamba.model.checkpoint import CONFIG_FILE, looks_like_hub_id, read_about
from surgicalmamba.report.figures import draw_timelines
from surgicalmamba.report.html import save_figure, table, write_page
from surgicalmamba.report.tables import number
from surgicalmamba.studies import inspect_figures as figures
from surgicalmamba.studies.inspect_trace import Trace, trace_video, without_rotation
from surgicalmamba.studies.inspect_views import (
    Projection,
    alignment,
    around_boundaries,
    chance_similarity,
    chunk_phases,
    generator_similarity,
    plane_similarity,
    shared_projection,
    stillness,
)
from surgicalmamba.train.config import LossSettings
from surgicalmamba.train.predict import Predictor

TRUTH, OWN, BARE = "annotated", "this model", "this model, Z left out"


@dataclass(frozen=True, eq=False)
class Inspection:
    """Everything that was found out about one video."""

    dataset: PreparedDataset
    video: PreparedVideo
    rows: dict[str, IntArray]
    """Phases by name of the row, the annotation first."""
    traces: dict[str, Trace]
    """Of every model that could be run, this one first."""
    bare: Trace | None
    """This model without its rotations."""
    block: int
    bursts: dict[str, tuple[float, float]]
    """sigma_L and sigma_R that each model was trained with."""

    @property
    def fps(self) -> float:
        return float(self.dataset.fps)

    @property
    def own(self) -> Trace:
        return self.traces[OWN]


def inspect_video(checkpoint: str, data: Path, video_id: str, others: Mapping[str, str], block: int | None, device: str) -> Inspection:
    """Load everything, run what can be run, and read what was predicted before."""
    first = Predictor.open(checkpoint, data, "all", Path(), device)
    dataset = first.dataset
    if video_id not in dataset.videos:
        known = ", ".join(list(dataset.videos)[:5])
        raise DataError(f"{data} has no video {video_id!r}; it has {known}{', ...' if len(dataset.videos) > 5 else ''}.")
    video = dataset.videos[video_id]
    n_blocks = first.model.config.n_blocks
    chosen = n_blocks - 1 if block is None else block
    if not 0 <= chosen < n_blocks:
        raise ConfigError(f"block {chosen} does not exist: {checkpoint} has blocks 0 to {n_blocks - 1}.")
    traces = {OWN: trace_video(first.model, video, first.device, chosen)}
    rotates = first.model.config.block.slow.rotation is not None
    bare = trace_video(without_rotation(first.model), video, first.device, chosen) if rotates else None
    rows = {TRUTH: video.labels, OWN: traces[OWN].predicted}
    bursts = {OWN: trained_bursts(checkpoint)}
    for name, place in others.items():
        if is_checkpoint(place):
            other = Predictor.open(place, data, "all", Path(), device)
            traces[name] = trace_video(other.model, video, other.device, min(chosen, other.model.config.n_blocks - 1))
            rows[name], bursts[name] = traces[name].predicted, trained_bursts(place)
        else:
            rows[name] = read_predicted(Path(place), video, PhaseVocabulary(dataset.name, dataset.phases))
    return Inspection(dataset, video, rows, traces, bare, chosen, bursts)


def is_checkpoint(place: str) -> bool:
    """Whether a place holds a model (a checkpoint, a run, a Hub id) rather than prediction files."""
    folder = Path(place)
    return (folder / CONFIG_FILE).is_file() or (folder / "best").is_dir() or (not folder.exists() and looks_like_hub_id(place))


def read_predicted(place: Path, video: PreparedVideo, vocabulary: PhaseVocabulary) -> IntArray:
    """Predictions of any system for this video, on the samples of the prepared dataset."""
    files = find_files(place, "predictions")
    if place.is_dir() and video.id.casefold() not in files:
        raise DataError(f"{place} has no predictions of {video.id}; it has {', '.join(list(files)[:5])}.")
    rows = read_rows(next(iter(files.values())) if place.is_file() else files[video.id.casefold()], vocabulary, allow_unlabelled=False)
    if len(rows.phase) != video.n_samples:
        raise DataError(f"{rows.path} has {len(rows.phase)} rows, {video.id} has {video.n_samples} samples; predict the same samples.")
    return rows.phase


def trained_bursts(checkpoint: str) -> tuple[float, float]:
    """sigma_L and sigma_R of the checkpoint's training, or the defaults where it does not say."""
    folder = Path(checkpoint) / "best" if (Path(checkpoint) / "best").is_dir() else Path(checkpoint)
    usual = LossSettings()
    if not (folder / CONFIG_FILE).is_file():
        return usual.rise_s, usual.fall_s
    part: object = read_about(folder).get("provenance")
    for key in ("training", "loss"):
        part = part.get(key) if isinstance(part, dict) else None
    loss = part if isinstance(part, dict) else {}
    return float(loss.get("rise_s", usual.rise_s)), float(loss.get("fall_s", usual.fall_s))


def accuracy(truth: IntArray, predicted: IntArray) -> float:
    """Share of the labelled samples that are right, in percent."""
    labelled = truth >= 0
    return 100 * float((truth[labelled] == predicted[labelled]).mean()) if labelled.any() else float("nan")


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
    runs = {OWN: found.own}
    if found.bare is not None:
        runs[BARE] = found.bare
    shape = found.own.states.shape[1:]
    left_out = [name for name, trace in found.traces.items() if trace.states.shape[1:] != shape]
    runs |= {name: trace for name, trace in found.traces.items() if name != OWN and name not in left_out}
    projections = dict(zip(runs, shared_projection([trace.states for trace in runs.values()]), strict=True))
    phases = {name: found.video.labels[trace.state_rows] for name, trace in runs.items()}
    wrong = {name: (phases[name] >= 0) & (trace.predicted[trace.state_rows] != phases[name]) for name, trace in runs.items()}
    caption = (
        f"The state that block {found.block}'s slow path carries, projected on the two principal axes of all panels together, each centred "
        "by itself. Colours: annotated phase; crosses: misclassified."
    )
    figure = figures.draw_states(projections, phases, wrong, found.dataset.phases)
    notes = [] if found.bare is not None else ["This model does not rotate, so there is no view with Z left out."]
    notes += [f"{name}: its state has another shape and cannot share the axes." for name in left_out]
    rows = [["run", "axis 1, % of its variance", "axis 2", "directions used (participation ratio)"]]
    rows += [[name, *(f"{100 * share:.1f}" for share in p.share), f"{p.dimensions:.2f}"] for name, p in projections.items()]
    html = f"<h2>Carried state</h2>{save_figure(figure, folder, 'state', caption)}{table(rows)}" + _notes(notes)
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
            notes.append(
                f"{name}: no sample of this video lies beyond the reach of a burst (sigma {rise_s:g} and {fall_s:g} s), so there is no plateau."
            )
    html = f"<h2>Intensity and effective decay</h2>{save_figure(figure, folder, 'decay', caption)}{table(rows)}" + _notes(notes)
    return html, {"decay": numbers}


def _plateaus(trace: Trace, labels: IntArray, found: Inspection, name: str) -> list[float]:
    """The plateau block by block."""
    inside, _ = around_boundaries(labels, found.fps, *found.bursts[name])
    kept = trace.decay.mean(axis=2)
    return [float(np.median(kept[inside, block])) if inside.any() else float("nan") for block in range(kept.shape[1])]


def _notes(notes: Sequence[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def summary_text(results: Mapping[str, Json], out: Path) -> str:
    """For the terminal: accuracies, alignment, plateau."""
    lines = [f"{results['video']} of {results['dataset']}"]
    scores, planes, decay = results["strict_accuracy"], results["planes"], results["decay"]
    assert isinstance(scores, dict) and isinstance(decay, dict)
    lines += [f"  strict accuracy      {name}: {score:.2f} %" for name, score in scores.items() if isinstance(score, float)]
    if isinstance(planes, dict) and isinstance(planes["blocks"], list):
        for block, numbers in enumerate(planes["blocks"]):
            assert isinstance(numbers, dict)
            lines.append(
                f"  planes, block {block}      same phase {_told(numbers['same_phase'])}, other phase {_told(numbers['other_phase'])}"
            )
    for name, numbers in decay.items():
        assert isinstance(numbers, dict)
        kept, after = _told(numbers["plateau_per_s"]), _told(numbers["at_boundaries"])
        lines.append(f"  decay                {name}: keeps {kept} a second within phases, {after} a sample after boundaries")
    return "\n".join([*lines, f"{out / 'index.html'}"])


def _told(value: Json) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "-"
