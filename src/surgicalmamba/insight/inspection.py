"""A video run through a checkpoint with everything seen, beside other models and other systems' predictions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from surgicalmamba.model.surgical_mamba import ModelConfig, PathOutput, SSMPath, SurgicalMamba
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

# One video through one model, with what happens inside: decay, intensity, rotation planes and the carried state of the slow paths.


MOST_STATES = 400
"""Points of the carried state that are kept of a video; a long one is sampled more coarsely."""


@dataclass(frozen=True, eq=False)
class Trace:
    """A model's way through a video of t samples."""

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
    """(points, h, p, n) of the block that was asked for."""


@dataclass
class _Watched:
    """The decay of one block's slow path, call by call."""

    decays: list[Tensor] = field(default_factory=list)

    def __call__(self, path: nn.Module, inputs: tuple[Tensor, PathState, Sequence[int]], output: PathOutput) -> None:
        assert isinstance(path, SSMPath)
        u, state, _ = inputs
        self.decays.append(path.decay(u, state)[0].cpu())


@torch.inference_mode()
def trace_video(model: SurgicalMamba, video: PreparedVideo, device: torch.device, block: int) -> Trace:
    """Run the video from its first sample to its last, in calls so short that the state can be seen after each."""
    slow = [_slow_path(part) for part in model.blocks]
    watched = [_Watched() for _ in slow]
    hooks = [path.register_forward_hook(watch) for path, watch in zip(slow, watched, strict=True)]
    stride = min(model.config.clip_len, -(-video.n_samples // MOST_STATES))
    logits, rows, states = [], [], []
    memory = model.initial_state(1)
    try:
        with look_inside(model, most_chunks=None) as inside:
            for clip in range(0, video.n_samples, model.config.clip_len):
                features = features_of(model, video, clip, min(clip + model.config.clip_len, video.n_samples), device)
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
        torch.cat(logits).argmax(-1).numpy(),
        torch.sigmoid(torch.cat(inside.logits)).numpy() if inside.logits else None,
        torch.stack([torch.cat(watch.decays) for watch in watched], dim=1).double().numpy(),
        tuple(planes for name, planes in inside.planes().items() if name.startswith("slow")),
        inside,
        model.config.block.slow.chunk_len,
        np.array(rows),
        torch.stack(states),
    )


def _slow_path(block: nn.Module) -> SSMPath:
    path = block.slow
    assert isinstance(path, SSMPath)
    return path


def without_rotation(model: SurgicalMamba) -> SurgicalMamba:
    """The same weights with every Z left out. Not an ablation, which would be trained this way, but the same model without its turns."""
    config: ModelConfig = model.config.with_paths(rotation=None)
    bare = SurgicalMamba(config)
    bare.load_state_dict({name: value for name, value in model.state_dict().items() if ".rotator." not in name})
    return bare.to(next(model.parameters()).device).eval()


# Numbers behind the inner views: similarity of rotation planes, a shared projection of states, decay within and at phases' ends.


ROUNDING = 1e-9
"""Similarities that differ by less are equal: planes that never change, as of a rotation without content, differ by rounding."""


def generator_similarity(planes: Planes) -> FloatArray:
    """(chunks, chunks): cosine between the skew matrices S themselves, angles and all, mean over heads."""
    S = generator(planes.U.double(), planes.V.double(), planes.theta.double()).flatten(-2)  # (c, h, n n)
    unit = torch.nn.functional.normalize(S, dim=-1)
    return torch.einsum("chm,dhm->cd", unit, unit).div(S.shape[1]).numpy()


def chunk_phases(labels: IntArray, chunk_len: int, n_chunks: int) -> IntArray:
    """The phase that holds most of each finished chunk; -1 where nothing in it is labelled."""
    found = []
    for chunk in range(n_chunks):
        here = labels[chunk * chunk_len : (chunk + 1) * chunk_len]
        here = here[here >= 0]
        found.append(int(np.bincount(here).argmax()) if len(here) else -1)
    return np.array(found, np.int64)


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
        """How much more alike planes are within phases than between them. It grows with any variation of the planes."""
        return self.same_phase - self.other_phase

    @property
    def relative_gap(self) -> float:
        """The same as a share of how much planes differ between phases: 0 if phases do not matter, 1 if planes differ by phase alone."""
        varies = 1 - self.other_phase > ROUNDING
        return self.gap / (1 - self.other_phase) if varies else math.nan


def alignment(similarity: FloatArray, phases: IntArray) -> Alignment:
    """Means over all pairs of chunks and over neighbours, by whether the two hold the same phase."""
    first, second = np.triu_indices(len(phases), k=1)
    labelled = (phases[first] >= 0) & (phases[second] >= 0)
    first, second = first[labelled], second[labelled]
    same, near = phases[first] == phases[second], second - first == 1
    groups = (same, ~same, near & same, near & ~same)
    means = [float(similarity[first[group], second[group]].mean()) if group.any() else math.nan for group in groups]
    return Alignment(means[0], means[1], means[2], means[3], tuple(int(group.sum()) for group in groups))


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
    """The first two principal axes of all runs' states together, (points, ...) each of one shape, and every run on them.

    Runs are centred one by one: a common offset of one run is no movement. Worked in the Gram matrix, since states are wider than many."""
    centred = [(run.flatten(1) - run.flatten(1).mean(0)).double() for run in runs]
    together = torch.cat(centred)
    values, vectors = torch.linalg.eigh(together @ together.T)
    top = values[[-1, -2]].clamp(min=0)
    scores = vectors[:, [-1, -2]] * top.sqrt()
    projections = []
    for run, points in zip(centred, scores.split([len(run) for run in centred]), strict=True):
        spectrum = torch.linalg.eigvalsh(run @ run.T).clamp(min=0)
        total = float(spectrum.sum()) or 1.0
        first, second = (points.square().sum(0) / total).tolist()
        dimensions = float(spectrum.sum().square() / spectrum.square().sum()) if float(spectrum.sum()) else 0.0
        projections.append(Projection(points.numpy(), (first, second), dimensions))
    return projections


@dataclass(frozen=True)
class Stillness:
    """Intensity and decay inside phases, away from every boundary, and on the frames just after boundaries."""

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
        plateau,
        plateau**fps,
        float(kept[at].mean()) if at.any() else math.nan,
        float(intensity[inside].mean()) if inside.any() else math.nan,
        float(intensity[at].mean()) if at.any() else math.nan,
        len(phase_boundaries(torch.from_numpy(labels))),
    )


# The control of the inner views: the same network with rotators and intensity as random as before training.


N_DRAWS = 19
"""An untrained network lies beyond the range of 19 others in one case of twenty."""
FIRST_SEED = 1_000_000
"""Of the draws: not the seed of a run, whose own start would then be among them."""
TRAINED_PARTS = (".rotator.", ".intensity.")
"""What is drawn again; every other weight stays as trained."""


@dataclass(frozen=True)
class Spread:
    """A measure over the untrained draws."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """nan where no draw could be measured."""
        known = [value for value in values if not math.isnan(value)]
        return cls(sum(known) / len(known), min(known), max(known)) if known else cls(math.nan, math.nan, math.nan)

    def verdict(self, trained: float) -> str:
        """Where the trained value lies. Inside the range, training cannot be told from chance."""
        if math.isnan(trained) or math.isnan(self.mean):
            return "not measured"
        place = "beyond" if trained > self.high + ROUNDING else "below" if trained < self.low - ROUNDING else "inside"
        return f"{place} the untrained range"


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
        return Spread.of([float(getattr(draw.rotations[path], measure)) for draw in self.measured if path in draw.rotations])

    def intensity(self, block: int, measure: str) -> Spread:
        return Spread.of([float(getattr(draw.intensities[block], measure)) for draw in self.measured])


def untrained(model: SurgicalMamba, seed: int) -> SurgicalMamba:
    """The same network with rotators and intensity drawn again from its config and never trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = SurgicalMamba(model.config)
    kept = {name: value for name, value in model.state_dict().items() if not any(part in name for part in TRAINED_PARTS)}
    fresh.load_state_dict({**fresh.state_dict(), **kept})
    return fresh.to(model.device).eval()


@torch.inference_mode()
def untrained_control(model: SurgicalMamba, video: PreparedVideo, frames: BoundaryFrames, n_draws: int) -> Control:
    """Run the video through untrained draws of the model. The backbone is the same in all, so the video is encoded once."""
    cuts = range(0, video.n_samples, model.config.clip_len)
    clips = [features_of(model, video, start, min(start + model.config.clip_len, video.n_samples), model.device) for start in cuts]
    draws = [_run(untrained(model, seed), clips, video.labels, frames) for seed in range(FIRST_SEED, FIRST_SEED + n_draws)]
    return Control(tuple(measured for measured, _ in draws), tuple(aligned for _, aligned in draws))


def _run(model: SurgicalMamba, clips: Sequence[Tensor], labels: IntArray, frames: BoundaryFrames) -> tuple[Measured, tuple[Alignment, ...]]:
    state = model.initial_state(1)
    with look_inside(model, most_chunks=None) as inside:
        for clip in clips:
            output = model.forward_features(clip, state)
            inside.observe(output)
            state = output.state
    slow = [planes for name, planes in inside.planes().items() if name.startswith("slow")]
    phases = chunk_phases(labels, model.config.block.slow.chunk_len, len(slow[0])) if slow else None
    aligned = [] if phases is None or len(phases) < 2 else [alignment(plane_similarity(planes), phases) for planes in slow]
    return inside.measure(frames), tuple(aligned)


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
    measured: dict[str, Measured]
    """Measures of the rotation and the intensity of every model that could be run."""
    control: Control | None
    """This model with untrained rotators and intensity; None where it has neither."""

    @property
    def fps(self) -> float:
        return float(self.dataset.fps)

    @property
    def own(self) -> Trace:
        return self.traces[OWN]


def inspect_video(
    checkpoint: str, data: Path, video_id: str, others: Mapping[str, str], block: int | None, device: str, draws: int = N_DRAWS
) -> Inspection:
    """Load everything, run what can be run, and read what was predicted before. `draws` untrained networks are the control."""
    first = Predictor.open(checkpoint, data, "all", Path(), device)
    dataset, model = first.dataset, network_of(first.model)
    if model is None:
        raise DataError(f"{checkpoint} is no SurgicalMamba, and the inner views are of its slow paths; show it beside one, with --with.")
    if video_id not in dataset.videos:
        known = ", ".join(list(dataset.videos)[:5])
        raise DataError(f"{data} has no video {video_id!r}; it has {known}{', ...' if len(dataset.videos) > 5 else ''}.")
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
        network = network_of(other.model)
        if network is None:
            rows[name] = predict_video(other.model, video, other.device).phase
            continue
        traces[name] = trace_video(network, video, other.device, min(chosen, network.config.n_blocks - 1))
        rows[name], bursts[name] = traces[name].predicted, trained_bursts(place)
    frames = {name: _frames(video, float(dataset.fps), *bursts[name]) for name in traces}
    measured = {name: trace.inside.measure(frames[name]) for name, trace in traces.items()}
    has_either = rotates or traces[OWN].intensity is not None
    control = untrained_control(model, video, frames[OWN], draws) if has_either else None
    return Inspection(dataset, video, rows, traces, bare, chosen, bursts, measured, control)


def _frames(video: PreparedVideo, fps: float, rise_s: float, fall_s: float) -> BoundaryFrames:
    target = transition_target(torch.from_numpy(video.labels.copy()), fps, rise_s, fall_s).double().numpy()
    return boundary_frames([video.labels], [target], fps, rise_s, fall_s)


def network_of(recognizer: object) -> SurgicalMamba | None:
    """The recognizer if it has slow paths to look into; any other one has only its predictions to show."""
    return recognizer if isinstance(recognizer, SurgicalMamba) else None


def is_checkpoint(place: str) -> bool:
    """Whether a place holds a model (a checkpoint, a run, a Hub id) rather than prediction files."""
    return (Path(best_of(place)) / CONFIG_FILE).is_file() or (not Path(place).exists() and looks_like_hub_id(place))


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
    folder = Path(best_of(checkpoint))
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

