"""Fit an output stage: the temperature on validation predictions, the transitions on training labels.

Every validation video is scored with a stage fitted on the others (leave one out). With a single video that
is impossible, and the result states it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.labels import PhaseVocabulary
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import DataError
from surgicalmamba.eval.files import read_rows
from surgicalmamba.eval.frame import log_losses, reliability
from surgicalmamba.eval.protocols import score
from surgicalmamba.eval.score import Score
from surgicalmamba.live.output import Floats, ForwardFilter, OutputStage, softmax

Ints = NDArray[np.int64]
_TEMPERATURES = (0.05, 20.0)
_WEIGHTS = np.geomspace(0.005, 1.0, 25)
_SMALLEST = 1e-300
PROTOCOL = "strict"


@dataclass(frozen=True, eq=False)
class Video:
    """A validation video: log-probabilities (t, k) of the model, labels (t,) with -1 for unlabelled."""

    log_p: Floats
    labels: Ints


def run_stage(stage: OutputStage, log_p: Floats) -> Floats:
    """The stage over a whole video (t, k), frame by frame as in a live session."""
    belief: Floats | None = None
    rows = []
    for row in log_p:
        probabilities, belief = stage.apply(row, belief)
        rows.append(probabilities)
    return np.array(rows)


def fit_temperature(videos: Sequence[Video]) -> float:
    """The temperature with the smallest loss, which is convex in 1 / temperature."""
    log_p = np.concatenate([video.log_p for video in videos])
    labels = np.concatenate([video.labels for video in videos])
    kept, truth = log_p[labels >= 0], labels[labels >= 0]

    def loss(log_temperature: float) -> float:
        scaled = kept / math.exp(log_temperature)
        top = scaled.max(axis=1)
        log_sum = np.log(np.exp(scaled - top[:, None]).sum(axis=1)) + top
        return float(np.mean(log_sum - scaled[np.arange(len(truth)), truth]))

    return math.exp(minimum(loss, math.log(_TEMPERATURES[0]), math.log(_TEMPERATURES[1])))


def minimum(function: Callable[[float], float], low: float, high: float, tolerance: float = 1e-3) -> float:
    """Where a function with one valley is smallest, on grids that zoom in on it."""
    while high - low > tolerance:
        grid = np.linspace(low, high, 9)
        best = int(np.argmin([function(point) for point in grid]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 8)]
    return float(low + high) / 2


def learn_filter(labels: Sequence[Ints], n_phases: int) -> ForwardFilter:
    """Start, transitions and prior by counting labels; cells begin at 1 / k, so none is impossible."""
    begin = 1 / n_phases
    start, prior = np.full(n_phases, begin), np.full(n_phases, begin)
    transitions = np.full((n_phases, n_phases), begin)
    for video in labels:
        seen = video[video >= 0]
        if len(seen):
            start[seen[0]] += 1
            prior += np.bincount(seen, minlength=n_phases)
        pairs = (video[:-1] >= 0) & (video[1:] >= 0)
        np.add.at(transitions, (video[:-1][pairs], video[1:][pairs]), 1)
    rows = transitions / transitions.sum(axis=1, keepdims=True)
    return ForwardFilter(
        start=tuple((start / start.sum()).tolist()),
        transitions=tuple(tuple(row) for row in rows.tolist()),
        prior=tuple((prior / prior.sum()).tolist()),
    )


def losses_by_weight(temperature: float, phase_filter: ForwardFilter, videos: Sequence[Video]) -> Floats:
    """Mean negative log-likelihood of the labelled frames, in nats, for every weight of `_WEIGHTS`."""
    losses = []
    for video in videos:
        beliefs: list[Floats] = []
        for row in softmax(video.log_p / temperature):
            beliefs.append(phase_filter.step(row, beliefs[-1] if beliefs else None, _WEIGHTS[:, None]))
        table = np.stack(beliefs, axis=1)  # (w, t, k)
        losses.append(np.stack([log_losses(one, video.labels) for one in table]))
    return np.asarray(np.concatenate(losses, axis=1).mean(axis=1))


def fit(videos: Sequence[Video], phase_filter: ForwardFilter | None) -> OutputStage:
    """Temperature, then the weight of a filter's evidence, both by the loss on these videos."""
    calibrated = OutputStage(temperature=fit_temperature(videos))
    if phase_filter is None:
        return calibrated
    best = int(losses_by_weight(calibrated.temperature, phase_filter, videos).argmin())
    return calibrated.with_(filter=phase_filter.with_(weight=float(_WEIGHTS[best])))


def measure(probabilities: Sequence[Floats], videos: Sequence[Video], fps: float) -> dict[str, float]:
    """Accuracy and Jaccard (strict) in percent, loss in nats, calibration error in percentage points."""
    labels, n_phases = [video.labels for video in videos], probabilities[0].shape[1]
    result = score(labels, [p.argmax(axis=1) for p in probabilities], n_phases, PROTOCOL, fps=fps)
    assert isinstance(result, Score)
    table, truth = np.concatenate(probabilities), np.concatenate(labels)
    return {
        "accuracy": result.metrics["accuracy"]["mean"],
        "jaccard": result.metrics["jaccard"]["mean"],
        "nll": float(log_losses(table, truth).mean()),
        "ece": reliability(table, truth).expected_calibration_error,
    }


def held_out(videos: Sequence[Video], phase_filter: ForwardFilter | None) -> list[Floats]:
    """Each video through a stage fitted on the others; a single video through a stage fitted on itself."""
    others = [[*videos[:i], *videos[i + 1 :]] or videos for i in range(len(videos))]
    return [
        run_stage(fit(rest, phase_filter), video.log_p) for video, rest in zip(videos, others, strict=True)
    ]


def fit_stage(
    videos: Sequence[Video], train_labels: Sequence[Ints], phases: tuple[str, ...], fps: str, rate: float
) -> OutputStage:
    """A stage with its measurements. The filter is kept only if it lowers the loss on held-out videos."""
    if not any((video.labels >= 0).any() for video in videos):
        raise DataError("not one validation frame is labelled; an output stage cannot be fitted.")
    phase_filter = learn_filter(train_labels, len(phases))
    measured = {
        "model": measure([run_stage(OutputStage(), video.log_p) for video in videos], videos, rate),
        "calibrated": measure(held_out(videos, None), videos, rate),
        "filtered": measure(held_out(videos, phase_filter), videos, rate),
    }
    helps = measured["filtered"]["nll"] < measured["calibrated"]["nll"]
    return fit(videos, phase_filter if helps else None).with_(phases=phases, fps=fps, measured=measured)


def fit_from_folder(dataset: PreparedDataset, split: str, predictions: Path) -> OutputStage:
    """From the prediction files of a split's validation videos and the labels of its training videos."""
    name, _, role = split.rpartition(":")
    name = name or next(iter(dataset.splits), "")
    if role in ("test", "train", "all"):
        raise DataError(f"an output stage is fitted on validation videos, not on {role!r}; use --split val.")
    chosen, train = dataset.split(name, role), dataset.split(name, "train")
    if shared := sorted({video.id for video in chosen} & {video.id for video in train}):
        raise DataError(f"{shared[0]} is in both train and {role} of split {name!r}; use another split.")
    vocabulary = PhaseVocabulary(dataset.name, dataset.phases)
    videos = []
    for video in chosen:
        rows = read_rows(predictions / f"{video.id}.csv", vocabulary)
        if rows.probabilities is None or len(rows.phase) != video.n_samples:
            found = f"{len(rows.phase)} rows for {video.n_samples} samples, or no probabilities"
            raise DataError(f"{rows.path}: {found}; predict it again.")
        videos.append(Video(np.log(np.maximum(rows.probabilities, _SMALLEST)), video.labels))
    labels = [video.labels for video in train]
    stage = fit_stage(videos, labels, dataset.phases, str(dataset.fps), float(dataset.fps))
    origin: dict[str, object] = {
        "dataset": dataset.name,
        "split": f"{name}:{role}",
        "videos": [video.id for video in chosen],
        "training_videos": len(train),
        "protocol": PROTOCOL,
        "scored": "leave one video out" if len(videos) > 1 else "the one video it was fitted on",
    }
    return stage.with_(fitted_on=origin)


def table_text(stage: OutputStage) -> str:
    """The measurements as a table for people."""
    lines = [f"{'':12}{'accuracy':>10}{'Jaccard':>10}{'NLL':>10}{'ECE':>10}"]
    for name, of in stage.measured.items():
        lines.append(
            f"{name:12}{of['accuracy']:10.2f}{of['jaccard']:10.2f}{of['nll']:10.4f}{of['ece']:10.2f}"
        )
    weight = "" if stage.filter is None else f"kept, weight {stage.filter.weight:.3g}"
    used = weight or "left out: it does not lower the loss"
    lines.append(f"temperature {stage.temperature:.3f}; filter {used}; delay {stage.delay_frames} frames")
    fit = stage.fitted_on
    data = f"{fit['dataset']}, {fit['split']}, {fit['protocol']} protocol, {stage.fps} fps"
    lines.append(f"{data}, scored on {fit['scored']}")
    return "\n".join(lines)
