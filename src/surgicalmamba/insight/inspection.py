"""One video run through a checkpoint with everything recorded inside, beside other models and predictions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from surgicalmamba.core.rotation import generator
from surgicalmamba.core.state import PathState
from surgicalmamba.data.labels import PhaseVocabulary
from surgicalmamba.data.store import PreparedDataset, PreparedVideo
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.eval.files import find_files, read_rows
from surgicalmamba.eval.pairs import FloatArray, IntArray
from surgicalmamba.model.checkpoint import CONFIG_FILE, best_of, looks_like_hub_id, read_about
from surgicalmamba.model.surgical_mamba import PathOutput, SSMPath, SurgicalMamba
from surgicalmamba.train.config import LossSettings
from surgicalmamba.train.inside import (
    BoundaryFrames,
    Inside,
    Measured,
    Planes,
    around_boundaries,
    boundary_frames,
    look_inside,
    plane_similarity,
)
from surgicalmamba.train.losses import phase_boundaries, transition_target
from surgicalmamba.train.predict import Predictor, features_of, predict_video

TRUTH, OWN, BARE = "annotated", "this model", "this model, Z left out"
MOST_STATES = 400
"""Points of the carried state that are kept of a video; a long one is sampled more coarsely."""
ROUNDING = 1e-9
"""Similarities that differ by less are equal: planes that never change differ by rounding."""
N_DRAWS = 19
"""An untrained network lies beyond the range of 19 others in one case of twenty."""
FIRST_SEED = 1_000_000
"""Of the untrained draws: not the seed of a run, whose own start would then be among them."""


@dataclass(frozen=True, eq=False)
class Inspection:
    """Everything that was measured on one video."""

    dataset: PreparedDataset
    video: PreparedVideo
    rows: dict[str, IntArray]
    """Phases by name of the row, the annotation first."""
    traces: dict[str, "Trace"]
    """Of every model that could be run, this one first."""
    bare: "Trace | None"
    """This model without its rotations; None where it has none."""
    block: int
    bursts: dict[str, tuple[float, float]]
    """sigma_L and sigma_R that each model was trained with."""
    measured: dict[str, Measured]
    """Measures of the rotation and the intensity of every model that could be run."""
    control: "Control | None"
    """This model with untrained rotators and intensity; None where it has neither."""

    @property
    def fps(self) -> float:
        return float(self.dataset.fps)

    @property
    def own(self) -> "Trace":
        return self.traces[OWN]


def inspect_video(
    checkpoint: str,
    data: Path,
    video_id: str,
    others: Mapping[str, str],
    block: int | None,
    device: str,
    draws: int = N_DRAWS,
) -> Inspection:
    """Run the video through the model and through `others` that are models; read the predictions of the rest.
    `draws` untrained networks are the control."""
    first = Predictor.open(checkpoint, data, "all", Path(), device)
    dataset, model = first.dataset, first.model.in_pieces()
    if model is None:
        raise DataError(f"{checkpoint} is no SurgicalMamba, and the inner views are of its slow paths; show "
                        "it beside one, with --with.")
    if video_id not in dataset.videos:
        known = ", ".join([*list(dataset.videos)[:5], *(["..."] if len(dataset.videos) > 5 else [])])
        raise DataError(f"{data} has no video {video_id!r}; it has {known}.")
    video = dataset.videos[video_id]
    n_blocks = model.config.n_blocks
    chosen = n_blocks - 1 if block is None else block
    if not 0 <= chosen < n_blocks:
        raise ConfigError(f"block {chosen} does not exist: {checkpoint} has blocks 0 to {n_blocks - 1}.")
    traces = {OWN: trace_video(model, video, first.device, chosen)}
    rotates = model.config.block.slow.rotation is not None
    bare = trace_video(without_rotation(model), video, first.device, chosen) if rotates else None
    rows = {TRUTH: video.labels, OWN: traces[OWN].predicted}
    bursts = {OWN: trained_bursts(checkpoint)}
    for name, place in others.items():
        if not is_checkpoint(place):
            rows[name] = read_predicted(Path(place), video, PhaseVocabulary(dataset.name, dataset.phases))
            continue
        other = Predictor.open(place, data, "all", Path(), device)
        network = other.model.in_pieces()
        if network is None:
            rows[name] = predict_video(other.model, video, other.device).phase
            continue
        traces[name] = trace_video(network, video, other.device, min(chosen, network.config.n_blocks - 1))
        rows[name], bursts[name] = traces[name].predicted, trained_bursts(place)
    frames, labels, fps = {}, video.labels, float(dataset.fps)
    for name, (rise_s, fall_s) in bursts.items():
        target = transition_target(torch.from_numpy(labels.copy()), fps, rise_s, fall_s).double().numpy()
        frames[name] = boundary_frames([labels], [target], fps, rise_s, fall_s)
    measured = {name: trace.inside.measure(frames[name]) for name, trace in traces.items()}
    has_either = rotates or traces[OWN].intensity is not None
    control = untrained_control(model, video, frames[OWN], draws) if has_either else None
    return Inspection(dataset, video, rows, traces, bare, chosen, bursts, measured, control)


def is_checkpoint(place: str) -> bool:
    """Whether a place holds a model (a checkpoint, a run, a Hub id) rather than prediction files."""
    is_local = (Path(best_of(place)) / CONFIG_FILE).is_file()
    return is_local or (not Path(place).exists() and looks_like_hub_id(place))


def read_predicted(place: Path, video: PreparedVideo, vocabulary: PhaseVocabulary) -> IntArray:
    """Predictions of any system for this video, on the samples of the prepared dataset."""
    files = find_files(place, "predictions")
    if place.is_dir() and video.id.casefold() not in files:
        raise DataError(f"{place} has no predictions of {video.id}; it has {', '.join(list(files)[:5])}.")
    file = place if place.is_file() else files[video.id.casefold()]
    rows = read_rows(file, vocabulary, allow_unlabelled=False)
    if len(rows.phase) != video.n_samples:
        raise DataError(f"{rows.path} has {len(rows.phase)} rows, {video.id} has {video.n_samples} samples; "
                        "predict the same samples.")
    return rows.phase


def trained_bursts(checkpoint: str) -> tuple[float, float]:
    """sigma_L and sigma_R of the checkpoint's training, or the defaults where it has no record of them."""
    folder = Path(best_of(checkpoint))
    part: object = read_about(folder).get("provenance") if (folder / CONFIG_FILE).is_file() else None
    for key in ("training", "loss"):
        part = part.get(key) if isinstance(part, dict) else None
    loss, usual = part if isinstance(part, dict) else {}, LossSettings()
    return float(loss.get("rise_s", usual.rise_s)), float(loss.get("fall_s", usual.fall_s))


# A model run over the video.


@dataclass(frozen=True, eq=False)
class Trace:
    """What a model did on a video of t samples."""

    predicted: IntArray
    intensity: FloatArray | None
    """(t, n_blocks), or None where the model has no intensity."""
    decay: FloatArray
    """(t, n_blocks, h): the share of its state that each head keeps over the sample."""
    planes: tuple[Planes, ...]
    """Of the slow paths, one for each block; empty where the model does not rotate, or no chunk is full."""
    inside: Inside
    """All paths and blocks, for the measures."""
    chunk_len: int
    state_rows: IntArray
    """Samples after which the state was kept."""
    states: Tensor
    """(points, h, p, n) of the chosen block."""


@torch.inference_mode()
def trace_video(model: SurgicalMamba, video: PreparedVideo, device: torch.device, block: int) -> Trace:
    """Run the video from its first sample to its last, in calls short enough to keep the state after each."""
    decays: list[list[Tensor]] = [[] for _ in model.blocks]

    def record_decay(path: nn.Module, inputs: tuple[Tensor, PathState, Sequence[int]], _: PathOutput) -> None:
        assert isinstance(path, SSMPath)
        u, state, _positions = inputs
        decays[slow.index(path)].append(path.decay(u, state)[0].cpu())

    slow = [part.get_submodule("slow") for part in model.blocks]
    hooks = [path.register_forward_hook(record_decay) for path in slow]
    stride = min(model.config.clip_len, -(-video.n_samples // MOST_STATES))
    logits, rows, states = [], [], []
    memory = model.initial_state(1)
    try:
        with look_inside(model, most_chunks=None) as inside:
            for features in _clips(model, video, device):
                for piece in features.split(stride, dim=1):
                    output = model.forward_features(piece, memory)
                    inside.observe(output)
                    memory = output.state
                    logits.append(output.logits[0].cpu())
                    rows.append(memory.frame_index[0] - 1)
                    states.append(memory.blocks[block].slow.ssm[0].cpu())
    finally:
        for hook in hooks:
            hook.remove()
    return Trace(
        predicted=torch.cat(logits).argmax(-1).numpy(),
        intensity=torch.sigmoid(torch.cat(inside.logits)).numpy() if inside.logits else None,
        decay=torch.stack([torch.cat(of_block) for of_block in decays], dim=1).double().numpy(),
        planes=_slow_planes(inside),
        inside=inside,
        chunk_len=model.config.block.slow.chunk_len,
        state_rows=np.array(rows),
        states=torch.stack(states),
    )


def _clips(model: SurgicalMamba, video: PreparedVideo, device: torch.device) -> Iterator[Tensor]:
    """The features of the video, clip by clip."""
    for start in range(0, video.n_samples, model.config.clip_len):
        yield features_of(model, video, start, min(start + model.config.clip_len, video.n_samples), device)


def _slow_planes(inside: Inside) -> tuple[Planes, ...]:
    return tuple(planes for name, planes in inside.planes().items() if name.startswith("slow"))


def without_rotation(model: SurgicalMamba) -> SurgicalMamba:
    """The same weights with every Z left out. This is not an ablation, which would be trained that way."""
    bare = SurgicalMamba(model.config.with_paths(rotation=None))
    weights = model.state_dict()
    bare.load_state_dict({name: weights[name] for name in weights if ".rotator." not in name})
    return bare.to(model.device).eval()


# Measures: similarity of rotation planes, a shared projection of states, decay within phases and at their
# ends.


def generator_similarity(planes: Planes) -> FloatArray:
    """(chunks, chunks): cosine between the skew matrices S themselves, with their angles, mean over heads."""
    S = generator(planes.U.double(), planes.V.double(), planes.theta.double()).flatten(-2)  # (c, h, n n)
    unit = torch.nn.functional.normalize(S, dim=-1)
    return torch.einsum("chm,dhm->cd", unit, unit).div(S.shape[1]).numpy()


def chunk_phases(labels: IntArray, chunk_len: int, n_chunks: int) -> IntArray:
    """The most frequent phase of each finished chunk; -1 where nothing in it is labelled."""
    chunks = labels[: n_chunks * chunk_len].reshape(n_chunks, chunk_len) + 1
    counts = np.stack([np.bincount(chunk, minlength=chunks.max(initial=0) + 1) for chunk in chunks])
    counts[:, 0] = 0  # unlabelled
    return np.asarray(counts.argmax(axis=1) - 1, np.int64)


@dataclass(frozen=True)
class Alignment:
    """Whether planes follow the phases: mean similarity of pairs of chunks, and how many pairs there are."""

    same_phase: float
    other_phase: float
    next_same_phase: float
    next_other_phase: float
    pairs: tuple[int, ...]
    """In the order of the means."""

    @property
    def gap(self) -> float:
        """How much more alike planes are within phases than between them. It grows with any variation of the
        planes."""
        return self.same_phase - self.other_phase

    @property
    def relative_gap(self) -> float:
        """The gap as a share of how much planes differ between phases: 0 if phases do not matter, 1 if planes
        differ by phase alone."""
        varies = 1 - self.other_phase > ROUNDING
        return self.gap / (1 - self.other_phase) if varies else math.nan


def alignment(similarity: FloatArray, phases: IntArray) -> Alignment:
    """Means over all pairs of chunks and over neighbours, by whether the two have the same phase."""
    first, second = np.triu_indices(len(phases), k=1)
    labelled = (phases[first] >= 0) & (phases[second] >= 0)
    first, second = first[labelled], second[labelled]
    same, near = phases[first] == phases[second], second - first == 1
    groups = (same, ~same, near & same, near & ~same)
    means = [_mean(similarity[first[group], second[group]]) for group in groups]
    return Alignment(means[0], means[1], means[2], means[3], tuple(int(group.sum()) for group in groups))


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else math.nan


@dataclass(frozen=True, eq=False)
class Projection:
    """States of one run under the axes that all runs share."""

    points: FloatArray
    """(points, 2)."""
    share: tuple[float, float]
    """Of this run's own variance, what the two shared axes show."""
    dimensions: float
    """Participation ratio: in how many directions the run spreads, were they all used alike."""


def shared_projection(runs: Sequence[Tensor]) -> list[Projection]:
    """The first two principal axes of all runs' states together, (points, ...) each of one shape, and each
    run on them.

    Runs are centred one by one: a common offset of one run is no movement. Computed from the Gram matrix,
    since a state has more values than there are points."""
    centred = [(run.flatten(1) - run.flatten(1).mean(0)).double() for run in runs]
    together = torch.cat(centred)
    values, vectors = torch.linalg.eigh(together @ together.T)
    scores = vectors[:, [-1, -2]] * values[[-1, -2]].clamp(min=0).sqrt()
    projections = []
    for run, points in zip(centred, scores.split([len(run) for run in centred]), strict=True):
        spectrum = torch.linalg.eigvalsh(run @ run.T).clamp(min=0)
        total = float(spectrum.sum())
        first, second = (points.square().sum(0) / (total or 1.0)).tolist()
        dimensions = total**2 / float(spectrum.square().sum()) if total else 0.0
        projections.append(Projection(points.numpy(), (first, second), dimensions))
    return projections


@dataclass(frozen=True)
class Stillness:
    """Intensity and decay inside phases, away from every boundary, and on the frames just after
    boundaries."""

    plateau: float
    """Median of the decay, heads and blocks averaged, inside phases: the share kept over a sample."""
    plateau_per_s: float
    at_boundaries: float
    """Mean decay from a boundary to sigma_R after it."""
    intensity_inside: float
    intensity_at_boundaries: float
    boundaries: int


def stillness(trace: Trace, labels: IntArray, fps: float, rise_s: float, fall_s: float) -> Stillness:
    """Split the samples by the annotated boundaries; a burst reaches three deviations to either side."""
    inside, at = around_boundaries(labels, fps, rise_s, fall_s)
    kept = trace.decay.mean(axis=(1, 2))
    intensity = np.full(len(labels), math.nan) if trace.intensity is None else trace.intensity.mean(axis=1)
    plateau = float(np.median(kept[inside])) if inside.any() else math.nan
    return Stillness(
        plateau=plateau,
        plateau_per_s=plateau**fps,
        at_boundaries=_mean(kept[at]),
        intensity_inside=_mean(intensity[inside]),
        intensity_at_boundaries=_mean(intensity[at]),
        boundaries=len(phase_boundaries(torch.from_numpy(labels))),
    )


# The control: the same network with rotators and intensity as random as before training.


@dataclass(frozen=True)
class Spread:
    """A measure over the untrained draws."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """nan where no draw could be measured."""
        known = [value for value in values if not math.isnan(value)] or [math.nan]
        return cls(sum(known) / len(known), min(known), max(known))

    def verdict(self, trained: float) -> str:
        """Where the trained value lies. Inside the range, training cannot be distinguished from chance."""
        if math.isnan(trained) or math.isnan(self.mean):
            return "not measured"
        if trained > self.high + ROUNDING:
            return "beyond the untrained range"
        return ("below" if trained < self.low - ROUNDING else "inside") + " the untrained range"


@dataclass(frozen=True)
class Control:
    """What untrained rotators and an untrained intensity show on the same video, draw by draw."""

    measured: tuple[Measured, ...]
    alignments: tuple[tuple[Alignment, ...], ...]
    """Of every draw, the slow paths block by block; empty where they closed fewer than two chunks."""

    def alignment(self, block: int, measure: str) -> list[float]:
        """`gap` or `relative_gap` of a block's planes, draw by draw."""
        return [float(getattr(blocks[block], measure)) for blocks in self.alignments if blocks]

    def rotation(self, path: str, measure: str) -> Spread:
        found = [draw.rotations[path] for draw in self.measured if path in draw.rotations]
        return Spread.of([float(getattr(measures, measure)) for measures in found])

    def intensity(self, block: int, measure: str) -> Spread:
        return Spread.of([float(getattr(draw.intensities[block], measure)) for draw in self.measured])


@torch.inference_mode()
def untrained_control(
    model: SurgicalMamba, video: PreparedVideo, frames: BoundaryFrames, n_draws: int
) -> Control:
    """Run the video through untrained draws of the model. All have the same backbone, so the video is encoded
    once."""
    clips = list(_clips(model, video, model.device))
    measured: list[Measured] = []
    alignments: list[tuple[Alignment, ...]] = []
    for seed in range(FIRST_SEED, FIRST_SEED + n_draws):
        draw = untrained(model, seed)
        state = draw.initial_state(1)
        with look_inside(draw, most_chunks=None) as inside:
            for clip in clips:
                output = draw.forward_features(clip, state)
                inside.observe(output)
                state = output.state
        measured.append(inside.measure(frames))
        planes = _slow_planes(inside)
        if not planes or len(planes[0]) < 2:
            alignments.append(())
            continue
        phases = chunk_phases(video.labels, model.config.block.slow.chunk_len, len(planes[0]))
        alignments.append(tuple(alignment(plane_similarity(block), phases) for block in planes))
    return Control(tuple(measured), tuple(alignments))


def untrained(model: SurgicalMamba, seed: int) -> SurgicalMamba:
    """The same network with rotators and intensity drawn again from its config and never trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = SurgicalMamba(model.config)
    weights = model.state_dict()
    kept = {name: weights[name] for name in weights if ".rotator." not in name and ".intensity." not in name}
    fresh.load_state_dict(fresh.state_dict() | kept)
    return fresh.to(model.device).eval()
