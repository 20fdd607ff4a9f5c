"""Collects what the measures of `train/inside.py` need while a model runs over videos: no second pass, and the same answers."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from surgicalmamba.model.recognizer import AnyRecognizer, Output
from surgicalmamba.model.rotator import Rotator
from surgicalmamba.model.surgical_mamba import SurgicalMamba
from surgicalmamba.train.inside import (
    BoundaryFrames,
    IntensityMeasures,
    Planes,
    RotationMeasures,
    intensity_measures,
    rotation_measures,
)

MOST_CHUNKS = 64
"""Chunks per path that are kept of a validation: bounds memory and time, however many videos there are."""
Factors = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass
class ChunkSample:
    """Summaries (h, p) of the chunks that a path closed: all in order, or `most` of them, each chunk with the same chance.

    Which ones depends on their number alone, so epochs of a run are measured on the same chunks (reservoir sampling)."""

    most: int | None
    kept: list[Tensor] = field(default_factory=list)
    seen: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def add(self, summaries: Tensor) -> None:
        """Summaries of chunks that end together, one per lane: (b, h, p)."""
        for summary in summaries.detach():
            self.seen += 1
            if self.most is None or len(self.kept) < self.most:
                self.kept.append(summary)
            elif (place := self._random.randrange(self.seen)) < self.most:
                self.kept[place] = summary


@dataclass
class Inside:
    """What was seen inside a model. A network without rotators and intensity leaves it empty."""

    rotators: Mapping[str, Rotator]
    """By the name of their path: slow0, slow1, ..., fast0, ..., head."""
    chunks: Mapping[str, ChunkSample]
    logits: list[Tensor] = field(default_factory=list)
    """Intensity logits (l, n_blocks) of every call."""

    def observe(self, output: Output[Any]) -> None:
        """Take the intensity of a call with one lane; calls come in the order of the frames."""
        if output.intensity_logits is not None:
            self.logits.append(output.intensity_logits[0].detach().double().cpu())

    @torch.inference_mode()
    def planes(self) -> dict[str, Planes]:
        """Every path's rotations at the chunks that were kept, by the weights that the model has now."""
        found = {}
        for name, rotator in self.rotators.items():
            if kept := self.chunks[name].kept:
                U, V, theta = type(rotator).factors(rotator, torch.stack(kept))  # the method itself, which records nothing
                found[name] = Planes(U.cpu(), V.cpu(), theta.cpu())
        return found

    def measure(self, frames: BoundaryFrames) -> "Measured":
        """Every measure, of the paths that closed a chunk and of the blocks with intensity, for the frames that were observed."""
        rotations = {name: rotation_measures(planes) for name, planes in self.planes().items()}
        logits = torch.cat(self.logits).T.numpy() if self.logits else ()
        return Measured(rotations, [intensity_measures(block, frames) for block in logits])


@contextmanager
def look_inside(model: AnyRecognizer, most_chunks: int | None = MOST_CHUNKS) -> Iterator[Inside]:
    """Record the summary of every chunk that closes while the context is open; None keeps all of them.

    `factors` of every rotator is replaced by itself with a note of its argument, and restored at the end. Outside the context
    nothing is recorded and nothing costs; engines that captured a model before are not affected."""
    rotators = rotators_of(model)
    inside = Inside(rotators, {name: ChunkSample(most_chunks) for name in rotators})
    try:
        for name, rotator in rotators.items():
            vars(rotator)["factors"] = _recorded(rotator.factors, inside.chunks[name])
        yield inside
    finally:
        for rotator in rotators.values():
            vars(rotator).pop("factors", None)


def _recorded(factors: Factors, sample: ChunkSample) -> Factors:
    def record(summary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sample.add(summary)
        return factors(summary)

    return record


def rotators_of(model: AnyRecognizer) -> dict[str, Rotator]:
    """The rotators of SurgicalMamba by the name of their path; no other network has any."""
    if not isinstance(model, SurgicalMamba):
        return {}
    paths = {f"{group}{i}" if group != "head" else group: path for group, of in model.rotating_paths().items() for i, path in enumerate(of)}
    return {name: path.rotator for name, path in paths.items() if path.rotator is not None}


@dataclass(frozen=True)
class Measured:
    """What a validation found inside a model; empty for a network that has neither mechanism."""

    rotations: Mapping[str, RotationMeasures]
    """By path."""
    intensities: Sequence[IntensityMeasures]
    """By block."""

    def values(self) -> dict[str, float]:
        """For the log: slow0.theta_q50, intensity1.average_precision and so on; what could not be measured is left out."""
        parts: dict[str, RotationMeasures | IntensityMeasures] = {**self.rotations}
        parts |= {f"intensity{block}": measures for block, measures in enumerate(self.intensities)}
        named = {f"{part}.{name}": value for part, measures in parts.items() for name, value in asdict(measures).items()}
        return {name: value for name, value in named.items() if not math.isnan(value)}

    def line(self) -> str:
        """For people: median and 0.9 quantile of theta, content dependence, average precision, each a mean over blocks."""
        parts = []
        for group in ("slow", "fast", "head"):
            paths = [measures for name, measures in self.rotations.items() if name.rstrip("0123456789") == group]
            if paths:
                median, high, content = (_mean(paths, name) for name in ("theta_q50", "theta_q90", "content_dependence"))
                parts.append(f"{group} theta {median:.2g}/{high:.2g} content {content:.2f}")
        if self.intensities:
            precision, chance = (_mean(self.intensities, name) for name in ("average_precision", "boundary_share"))
            parts.append(f"intensity AP {precision:.2f} (chance {chance:.2f})")
        return ", ".join(parts)


def _mean(measures: Sequence[RotationMeasures] | Sequence[IntensityMeasures], name: str) -> float:
    return sum(float(getattr(one, name)) for one in measures) / len(measures)
