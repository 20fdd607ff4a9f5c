"""What the two mechanisms do, in numbers: how far and how differently states are rotated, and whether the
intensity finds boundaries.

First the measures of rotations and of the intensity. Then `look_inside`, which collects their input while a
model runs over videos: no second pass, and the outputs stay the same."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surgicalmamba.core.rotation import faster_form, regram
from surgicalmamba.eval.frame import average_precision
from surgicalmamba.eval.pairs import BoolArray, FloatArray, IntArray
from surgicalmamba.eval.segments import BURST_REACH
from surgicalmamba.model.recognizer import AnyRecognizer, Output
from surgicalmamba.model.surgical_mamba import Rotator
from surgicalmamba.train.losses import UNLABELLED, phase_boundaries

CHUNKS_AT_ONCE = 64
"""Chunks whose rotations are held in memory together."""
Factors = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
AT_BOUNDARY = 0.5
"""A frame with at least this transition target counts as being at a boundary: from 1.18 sigma_L before it to
1.18 sigma_R after it."""
MOST_CHUNKS = 64
"""Chunks per path that are kept of a validation: a bound on memory and time for any number of videos."""


@dataclass(frozen=True, eq=False)
class Planes:
    """How a path turned its state at the end of every chunk: U and V (chunks, h, n, r) with unit columns,
    theta (chunks, h, r)."""

    U: Tensor
    V: Tensor
    theta: Tensor

    def __len__(self) -> int:
        return len(self.theta)


@dataclass(frozen=True)
class RotationMeasures:
    """One path's rotations over a set of chunks; nan where there are too few chunks."""

    theta_q10: float
    theta_q50: float
    theta_q90: float
    theta_mean: float
    """Quantiles and mean of theta over chunks, heads and planes."""
    content_dependence: float
    plane_similarity: float
    """Mean of `plane_similarity` over pairs of different chunks."""


def rotation_measures(planes: Planes) -> RotationMeasures:
    """Every measure of a path's rotations."""
    n_chunks = len(planes)
    if n_chunks == 0:
        return RotationMeasures(*[math.nan] * 6)
    theta = planes.theta.double().numpy()
    low, median, high = np.quantile(theta, (0.1, 0.5, 0.9)).tolist()
    similarity = plane_similarity(planes)[np.triu_indices(n_chunks, k=1)]
    similar = float(similarity.mean()) if len(similarity) else math.nan
    return RotationMeasures(low, median, high, float(theta.mean()), content_dependence(planes), similar)


def content_dependence(planes: Planes) -> float:
    """|Z_c - Z_c'|_F / |Z_c - I|_F: the root mean square over all pairs of chunks and heads, over the one
    over chunks and heads.

    0 for a rotation that is the same after every chunk, sqrt(2) where the turns Z - I of two chunks are
    unrelated. With D_c = Z_c - I the mean square over the pairs of m chunks is 2 m / (m - 1) (mean
    |D_c|^2 - |mean D_c|^2), so no pair is formed. nan with fewer than two chunks, or where nothing turns."""
    m = len(planes)
    if m < 2:
        return math.nan
    n, r = planes.U.shape[-2:]
    identity = torch.eye(n, dtype=torch.float64)
    squares, total = 0.0, torch.zeros(())
    parts = (part.double().split(CHUNKS_AT_ONCE) for part in (planes.U, planes.V, planes.theta))
    for U, V, theta in zip(*parts, strict=True):
        turn = regram(identity, U, V, theta, faster_form(n, r)) - identity  # (c, h, n, n)
        squares += float(turn.square().sum())
        total = total + turn.sum(0)
    if squares == 0:
        return math.nan
    common = float((total / m).square().sum()) / (squares / m)  # share of the turns common to all chunks
    return math.sqrt(2 * m / (m - 1) * max(0.0, 1 - common))


def plane_similarity(planes: Planes) -> FloatArray:
    """(chunks, chunks): mean cosine of the principal angles between a chunk's planes and another's, plane by
    plane and head by head.

    A plane is spanned by one column of U and the same column of V. Column r of one chunk is compared with
    column r of the other."""
    columns = torch.stack([planes.U, planes.V], dim=-1).double()  # (c, h, n, r, 2)
    bases = torch.linalg.qr(columns.permute(1, 3, 0, 2, 4).flatten(0, 1)).Q  # (h r, c, n, 2)
    total = torch.zeros(len(planes), len(planes), dtype=torch.float64)
    for basis in bases:
        total += mean_principal_cosine(torch.einsum("cni,dnj->cdij", basis, basis))
    return (total / len(bases)).numpy()


def mean_principal_cosine(overlap: Tensor) -> Tensor:
    """Mean cosine of the two principal angles between planes with orthonormal bases P and Q, from M = P^T Q:
    (..., 2, 2) -> (...).

    The cosines are the singular values s1, s2 of M, and (s1 + s2)^2 = |M|_F^2 + 2 |det M|."""
    determinant = overlap[..., 0, 0] * overlap[..., 1, 1] - overlap[..., 0, 1] * overlap[..., 1, 0]
    return (overlap.square().sum((-2, -1)) + 2 * determinant.abs()).sqrt() / 2


@dataclass(frozen=True, eq=False)
class BoundaryFrames:
    """Where boundaries are in the frames of one or more videos, one after the other: (t) each."""

    target: FloatArray
    """The transition target."""
    labelled: BoolArray
    inside: BoolArray
    after: BoolArray
    """Inside phases and after boundaries, as `around_boundaries` defines them."""


def boundary_frames(
    labels: Sequence[IntArray], targets: Sequence[FloatArray], fps: float, rise_s: float, fall_s: float
) -> BoundaryFrames:
    """The frames of several videos, from the labels and the transition target of each."""
    around = [around_boundaries(part, fps, rise_s, fall_s) for part in labels]
    inside, after = (np.concatenate(parts) for parts in zip(*around, strict=True))
    target, labelled = np.concatenate(targets).astype(np.float64), np.concatenate(labels) != UNLABELLED
    return BoundaryFrames(target, labelled, inside, after)


def around_boundaries(
    labels: IntArray, fps: float, rise_s: float, fall_s: float
) -> tuple[BoolArray, BoolArray]:
    """Samples beyond the reach of every burst, and samples from a boundary to sigma_R after it."""
    time_s = np.arange(len(labels)) / fps
    inside, at = np.ones(len(labels), bool), np.zeros(len(labels), bool)
    for boundary in (phase_boundaries(torch.from_numpy(labels)).numpy() / fps).tolist():
        inside &= (time_s < boundary - BURST_REACH * rise_s) | (time_s > boundary + BURST_REACH * fall_s)
        at |= (time_s >= boundary) & (time_s <= boundary + fall_s)
    return inside, at


@dataclass(frozen=True)
class IntensityMeasures:
    """One block's intensity over a set of frames; nan where there are no frames of a kind."""

    inside: float
    """Mean inside phases, beyond the reach of every burst."""
    after_boundaries: float
    """Mean from a boundary to sigma_R after it."""
    average_precision: float
    """Of the intensity as a detector of frames at a boundary (transition target of 0.5 or more): 0 to 1."""
    boundary_share: float
    """Share of these frames: the average precision of random scores."""
    bce: float
    """Binary cross-entropy with the transition target."""
    bce_of_constant: float
    """The same for the best constant, the target's mean. Only an intensity below it has learned something
    from the frames."""


def intensity_measures(logits: FloatArray, frames: BoundaryFrames) -> IntensityMeasures:
    """Every measure of a block's intensity logits (t). The last four use labelled frames only, like the
    loss."""
    intensity = 1 / (1 + np.exp(-logits))
    known, target = logits[frames.labelled], frames.target[frames.labelled]
    at_boundary = target >= AT_BOUNDARY
    constant = float(np.clip(_mean(target), 1e-12, 1 - 1e-12))
    return IntensityMeasures(
        inside=_mean(intensity[frames.inside]),
        after_boundaries=_mean(intensity[frames.after]),
        average_precision=average_precision(known, at_boundary) / 100,
        boundary_share=_mean(at_boundary.astype(np.float64)),
        bce=_mean(np.logaddexp(0, known) - target * known),
        bce_of_constant=-constant * math.log(constant) - (1 - constant) * math.log(1 - constant),
    )


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else math.nan


@dataclass
class ChunkSample:
    """Summaries (h, p) of the chunks that a path closed: all in order, or a random sample of `most` of them
    (reservoir sampling).

    The choice depends only on the number of chunks: every epoch of a run is measured on the same chunks."""

    most: int | None
    kept: list[Tensor] = field(default_factory=list)
    seen: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def add(self, summaries: Tensor) -> None:
        """Add the summaries of chunks that end together, one per lane: (b, h, p)."""
        for summary in summaries.detach():
            self.seen += 1
            if self.most is None or len(self.kept) < self.most:
                self.kept.append(summary)
            elif (place := self._random.randrange(self.seen)) < self.most:
                self.kept[place] = summary


@dataclass
class Inside:
    """What was recorded inside a model. Stays empty for a network without rotators and intensity."""

    rotators: Mapping[str, Rotator]
    """By the name of their path: slow0, slow1, ..., fast0, ..., head."""
    chunks: Mapping[str, ChunkSample]
    logits: list[Tensor] = field(default_factory=list)
    """Intensity logits (l, n_blocks) of every call."""

    def observe(self, output: Output[Any]) -> None:
        """Record the intensity of a call with one lane; calls come in the order of the frames."""
        if output.intensity_logits is not None:
            self.logits.append(output.intensity_logits[0].detach().double().cpu())

    @torch.inference_mode()
    def planes(self) -> dict[str, Planes]:
        """Every path's rotations at the chunks that were kept, with the model's current weights."""
        found = {}
        for name, rotator in self.rotators.items():
            if kept := self.chunks[name].kept:
                U, V, theta = type(rotator).factors(rotator, torch.stack(kept))  # bypasses the wrapper
                found[name] = Planes(U.cpu(), V.cpu(), theta.cpu())
        return found

    def measure(self, frames: BoundaryFrames) -> "Measured":
        """Every measure of the paths that closed a chunk and of the blocks with intensity. `frames` are those
        that were observed."""
        rotations = {name: rotation_measures(planes) for name, planes in self.planes().items()}
        logits = torch.cat(self.logits).T.numpy() if self.logits else ()
        return Measured(rotations, [intensity_measures(block, frames) for block in logits])


@contextmanager
def look_inside(model: AnyRecognizer, most_chunks: int | None = MOST_CHUNKS) -> Iterator[Inside]:
    """Record the summary of every chunk that closes while the context is open; None keeps all of them.

    `factors` of every rotator is wrapped to record its argument, and restored at the end. Outside the context
    nothing is recorded and there is no cost; engines that captured a model before are not affected."""

    def recorded(factors: Factors, sample: ChunkSample) -> Factors:
        def record(summary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            sample.add(summary)
            return factors(summary)

        return record

    rotators = model.rotators()
    inside = Inside(rotators, {name: ChunkSample(most_chunks) for name in rotators})
    try:
        for name, rotator in rotators.items():
            vars(rotator)["factors"] = recorded(rotator.factors, inside.chunks[name])
        yield inside
    finally:
        for rotator in rotators.values():
            vars(rotator).pop("factors", None)


@dataclass(frozen=True)
class Measured:
    """What a validation measured inside a model; empty for a network without either mechanism."""

    rotations: Mapping[str, RotationMeasures]
    """By path."""
    intensities: Sequence[IntensityMeasures]
    """By block."""

    def values(self) -> dict[str, float]:
        """For the log: slow0.theta_q50, intensity1.average_precision and so on, without nan."""
        parts: dict[str, RotationMeasures | IntensityMeasures] = {**self.rotations}
        parts |= {f"intensity{block}": measures for block, measures in enumerate(self.intensities)}
        named = {
            f"{part}.{name}": value
            for part, measures in parts.items()
            for name, value in asdict(measures).items()
        }
        return {name: value for name, value in named.items() if not math.isnan(value)}

    def line(self) -> str:
        """For the terminal: median and 0.9 quantile of theta, content dependence, average precision, each a
        mean over blocks."""
        parts = []
        for group in ("slow", "fast", "head"):
            paths = [found for name, found in self.rotations.items() if name.rstrip("0123456789") == group]
            if paths:
                names = ("theta_q50", "theta_q90", "content_dependence")
                median, high, content = (_mean_of(paths, name) for name in names)
                parts.append(f"{group} theta {median:.2g}/{high:.2g} content {content:.2f}")
        if self.intensities:
            precision = _mean_of(self.intensities, "average_precision")
            chance = _mean_of(self.intensities, "boundary_share")
            parts.append(f"intensity AP {precision:.2f} (chance {chance:.2f})")
        return ", ".join(parts)


def _mean_of(measures: Sequence[RotationMeasures] | Sequence[IntensityMeasures], name: str) -> float:
    return sum(float(getattr(one, name)) for one in measures) / len(measures)
