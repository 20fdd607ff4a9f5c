"""Numbers behind the inner views: similarity of rotation planes, a shared projection of states, decay within and at phases' ends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from surgicalmamba.core.rotation import generator
from surgicalmamba.eval.pairs import FloatArray, IntArray
from surgicalmamba.insight.inspect_trace import Trace
from surgicalmamba.train.inside import Planes, around_boundaries
from surgicalmamba.train.losses import phase_boundaries

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
