"""Fit an output stage: the temperature on validation predictions, the transitions on training labels; and measure what it does.

The scores on validation videos are of videos the fit has not seen: each is scored with what the others give (leave one out). With a
single video that is impossible, and the result says so."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from surgicalmamba.config import Section
from surgicalmamba.data.labels import PhaseVocabulary
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.eval.files import read_rows
from surgicalmamba.eval.probabilities import log_losses, reliability
from surgicalmamba.eval.protocols import score
from surgicalmamba.eval.score import Score
from surgicalmamba.files import write_atomic

# What may follow the model, off unless asked for: calibrated probabilities, and a forward filter over phases. Both look at the past
# alone and answer at once: their declared delay is 0 frames.


FORMAT = 1
Floats = NDArray[np.float64]


class ForwardFilter(Section):
    """The forward recursion of a hidden Markov model whose states are the phases.

    belief_t(i) ~ (p_t(i) / prior(i))^weight * sum_j belief_{t-1}(j) transitions(j, i), and start(i) in place of the sum at the first frame.
    A weight of 1 is the textbook filter. It takes frames for independent witnesses, which those of a recurrent model are not; a
    smaller weight, fitted with the temperature, discounts them."""

    start: tuple[float, ...] = Field(description="Probability of each phase at the first frame of a procedure.")
    transitions: tuple[tuple[float, ...], ...] = Field(description="Row j: probabilities of the next frame's phase after phase j.")
    prior: tuple[float, ...] = Field(description="Share of each phase among the training frames.")
    weight: float = Field(1.0, gt=0, le=1, description="Exponent of the evidence.")

    @model_validator(mode="after")
    def _check(self) -> "ForwardFilter":
        k = len(self.prior)
        rows = {"start": self.start, "prior": self.prior, **{f"transitions[{j}]": row for j, row in enumerate(self.transitions)}}
        if len(self.transitions) != k:
            raise ValueError(f"transitions has {len(self.transitions)} rows for {k} phases.")
        for name, row in rows.items():
            if len(row) != k or min(row) < 0 or abs(sum(row) - 1) > 1e-6:
                raise ValueError(f"{name} must be {k} probabilities that sum to 1.")
        if min(self.prior) <= 0:
            raise ValueError("prior must be positive for every phase.")
        return self

    @cached_property
    def _arrays(self) -> tuple[Floats, Floats, Floats]:
        return np.array(self.start), np.array(self.transitions), np.log(self.prior)

    def step(self, probabilities: Floats, belief: Floats | None) -> Floats:
        """The belief after one more frame; `belief` None before the first."""
        return self.steps(probabilities, belief, self.weight)

    def steps(self, probabilities: Floats, belief: Floats | None, weight: float | Floats) -> Floats:
        """The same for several weights at once: weight (w, 1) and belief (w, k) give beliefs (w, k)."""
        start, transitions, log_prior = self._arrays
        expected = start if belief is None else belief @ transitions
        with np.errstate(divide="ignore"):
            log = weight * (np.log(probabilities) - log_prior) + np.log(expected)
        possible = np.isfinite(log).any(axis=-1, keepdims=True)
        # Evidence for nothing but what is impossible: start anew from the evidence.
        return np.where(possible, softmax(np.where(possible, log, 0.0)), probabilities)


class OutputStage(Section):
    """Calibration and, where there is one, the filter; fitted for one model's phases at one rate."""

    format: int = Field(FORMAT, description="Version of this file's form.")
    phases: tuple[str, ...] | None = Field(None, description="Phase names it was fitted for.")
    fps: str = Field("1", description="Frames per second of the labels it was fitted on.")
    temperature: float = Field(1.0, gt=0, description="Logits are divided by it; fitted on validation videos.")
    filter: ForwardFilter | None = Field(None, description="Forward filter; null for none.")
    fitted_on: dict[str, str | int | list[str]] = Field({}, description="Where the numbers come from.")
    measured: dict[str, dict[str, float]] = Field({}, description="Scores on the validation videos before and after.")

    @property
    def delay_frames(self) -> int:
        """Frames by which an answer is later than the model's."""
        return 0

    def apply(self, logits: Floats, belief: Floats | None) -> tuple[Floats, Floats | None]:
        """Logits (k,) of one frame -> probabilities (k,), and the filter's belief to pass with the next frame."""
        probabilities = softmax(logits / self.temperature)
        if self.filter is None:
            return probabilities, None
        belief = self.filter.step(probabilities, belief)
        return belief, belief

    def check_fits(self, n_phases: int, phases: tuple[str, ...] | None, fps: str) -> None:
        """Refuse a stage that was fitted for other phases or at another rate."""
        if self.phases is not None and phases is not None and self.phases != phases:
            raise ConfigError(f"the output stage was fitted for phases {', '.join(self.phases)}; the model has {', '.join(phases)}.")
        if self.filter is not None and len(self.filter.prior) != n_phases:
            raise ConfigError(f"the output stage is for {len(self.filter.prior)} phases; the model has {n_phases}.")
        if self.filter is not None and self.fps != fps:
            raise ConfigError(f"the output stage's transitions are per frame at {self.fps} fps; this session runs at {fps} fps.")

    @classmethod
    def load(cls, path: Path) -> "OutputStage":
        """Read a file that `save` wrote."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(f"cannot read output stage {path}: {error.strerror}.") from None
        except ValueError as error:
            raise DataError(f"{path} is no output stage: {error}") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise DataError(f"{path} is no output stage of format {FORMAT}; write one with `surgicalmamba predict --fit-output`.")
        try:
            return cls(**document)
        except (ConfigError, TypeError) as error:
            raise DataError(f"{path}: {error}") from None

    def save(self, path: Path) -> None:
        """Write the stage as JSON, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, (json.dumps(self.model_dump(mode="json"), indent=1) + "\n").encode())


PLAIN = OutputStage()
"""The model's own probabilities."""


def softmax(logits: Floats) -> Floats:
    """Over the last axis."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


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
    """The stage over a whole video (t, k), frame by frame as it would go live."""
    belief: Floats | None = None
    rows = []
    for row in log_p:
        probabilities, belief = stage.apply(row, belief)
        rows.append(probabilities)
    return np.array(rows)


def losses_by_weight(temperature: float, phase_filter: ForwardFilter, videos: Sequence[Video]) -> Floats:
    """Mean negative log-likelihood of the labelled frames, in nats, for every weight of `_WEIGHTS`."""
    losses = []
    for video in videos:
        beliefs: list[Floats] = []
        for row in softmax(video.log_p / temperature):
            beliefs.append(phase_filter.steps(row, beliefs[-1] if beliefs else None, _WEIGHTS[:, None]))
        table = np.stack(beliefs, axis=1)  # (w, t, k)
        losses.append(np.stack([log_losses(one, video.labels) for one in table]))
    return np.asarray(np.concatenate(losses, axis=1).mean(axis=1))


def golden(function: Callable[[float], float], low: float, high: float, tolerance: float = 1e-3) -> float:
    """Where a function with one valley is smallest, between low and high."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = function(a), function(b)
    while high - low > tolerance:
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = function(b)
    return (low + high) / 2


def fit_temperature(videos: Sequence[Video]) -> float:
    """The temperature with the smallest loss. In 1 / temperature the loss is convex, so there is one valley."""
    log_p = np.concatenate([video.log_p for video in videos])
    labels = np.concatenate([video.labels for video in videos])
    kept, truth = log_p[labels >= 0], labels[labels >= 0]

    def loss(log_temperature: float) -> float:
        scaled = kept / math.exp(log_temperature)
        top = scaled.max(axis=1)
        return float(np.mean(np.log(np.exp(scaled - top[:, None]).sum(axis=1)) + top - scaled[np.arange(len(truth)), truth]))

    return math.exp(golden(loss, math.log(_TEMPERATURES[0]), math.log(_TEMPERATURES[1])))


def learn_filter(labels: Sequence[Ints], n_phases: int) -> ForwardFilter:
    """Start, transitions and prior from training labels, by counting; every cell begins with 1 / k, so nothing is impossible."""
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


def fit(videos: Sequence[Video], phase_filter: ForwardFilter | None) -> OutputStage:
    """Temperature, then, where there is a filter, the weight of its evidence, both by the loss on these videos."""
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
    """Each video through a stage fitted on the others; a single video through its own."""
    if len(videos) == 1:
        return [run_stage(fit(videos, phase_filter), videos[0].log_p)]
    return [run_stage(fit([*videos[:i], *videos[i + 1 :]], phase_filter), video.log_p) for i, video in enumerate(videos)]


def fit_stage(videos: Sequence[Video], train_labels: Sequence[Ints], phases: tuple[str, ...], fps: str, rate: float) -> OutputStage:
    """A stage with its measurements. The filter is kept only if it lowers the loss on videos it was not fitted on."""
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
            raise DataError(f"{rows.path}: {len(rows.phase)} rows for {video.n_samples} samples, or no probabilities; predict it anew.")
        videos.append(Video(np.log(np.maximum(rows.probabilities, _SMALLEST)), video.labels))
    stage = fit_stage(videos, [video.labels for video in train], dataset.phases, str(dataset.fps), float(dataset.fps))
    scored = "leave one video out" if len(videos) > 1 else "the one video it was fitted on"
    origin: dict[str, object] = {"dataset": dataset.name, "split": f"{name}:{role}", "videos": [video.id for video in chosen]}
    return stage.with_(fitted_on={**origin, "training_videos": len(train), "protocol": PROTOCOL, "scored": scored})


def table_text(stage: OutputStage) -> str:
    """The measurements as a table for people."""
    lines = [f"{'':12}{'accuracy':>10}{'Jaccard':>10}{'NLL':>10}{'ECE':>10}"]
    for name, values in stage.measured.items():
        lines.append(f"{name:12}{values['accuracy']:10.2f}{values['jaccard']:10.2f}{values['nll']:10.4f}{values['ece']:10.2f}")
    kept = "kept" if stage.filter is not None else "left out: it does not lower the loss"
    weight = f", weight {stage.filter.weight:.3g}" if stage.filter is not None else ""
    lines.append(f"temperature {stage.temperature:.3f}; filter {kept}{weight}; delay {stage.delay_frames} frames")
    where = stage.fitted_on
    lines.append(f"{where['dataset']}, {where['split']}, {where['protocol']} protocol, {stage.fps} fps, scored on {where['scored']}")
    return "\n".join(lines)

