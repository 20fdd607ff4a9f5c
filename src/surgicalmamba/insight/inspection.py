"""A video run through a checkpoint with everything seen, beside other models and other systems' predictions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from surgicalmamba.data.store import PreparedDataset, PreparedVideo
from surgicalmamba.data.vocabulary import PhaseVocabulary
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.eval.folders import find_files
from surgicalmamba.eval.pairs import IntArray
from surgicalmamba.eval.rows import read_rows
from surgicalmamba.insight.inspect_control import N_DRAWS, Control, untrained_control
from surgicalmamba.insight.inspect_trace import Trace, trace_video, without_rotation
from surgicalmamba.model.checkpoint import CONFIG_FILE, best_of, looks_like_hub_id, read_about
from surgicalmamba.model.surgical_mamba import SurgicalMamba
from surgicalmamba.train.config import LossSettings
from surgicalmamba.train.inside import BoundaryFrames, boundary_frames
from surgicalmamba.train.look_inside import Measured
from surgicalmamba.train.losses import transition_target
from surgicalmamba.train.predict import Predictor, predict_video

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
