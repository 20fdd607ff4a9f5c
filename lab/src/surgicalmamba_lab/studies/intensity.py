"""`study intensity`: what can an intensity network learn? Classifiers of boundaries on its input, and on
more, outside any model.

The network of the first block sees the frames of its convolution. A classifier trained on these frames of
the raw features bounds what it can learn; one that also sees running means or a longer window shows what
`intensity.memory` or a deeper block could add."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surgicalmamba.core.ssd import running_means
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.pairs import FloatArray, IntArray
from surgicalmamba.eval.score import Json
from surgicalmamba.report.tables import markdown_table
from surgicalmamba.train.inside import IntensityMeasures, boundary_frames, intensity_measures
from surgicalmamba.train.losses import UNLABELLED, transition_target
from surgicalmamba_lab.studies.results import section_head

EPOCHS, BATCH, RATE, HIDDEN = 6, 256, 2e-3, 64
View = Callable[[Tensor], Tensor]
"""Features of a video (t, d) -> input of a classifier for each frame (t, any width), from the past alone."""


@dataclass(frozen=True, eq=False)
class Bound:
    """The measures of every seed over all videos, each scored by a classifier that was not trained on it."""

    view: str
    by_seed: tuple[IntensityMeasures, ...]

    def mean(self, name: str) -> float:
        return float(np.mean([getattr(measures, name) for measures in self.by_seed]))

    def deviation(self, name: str) -> float:
        values = [getattr(measures, name) for measures in self.by_seed]
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def last_frames(k: int) -> View:
    """A window of the k frames up to each."""

    def view(x: Tensor) -> Tensor:
        padded = torch.cat([x.new_zeros(k - 1, x.shape[1]), x])
        return torch.cat([padded[i : i + len(x)] for i in range(k)], dim=1)

    return view


def with_means(k: int, memory: Sequence[int]) -> View:
    """The same with running means, as the network gets them with `intensity.memory`."""

    def view(x: Tensor) -> Tensor:
        frames = torch.tensor(memory, dtype=x.dtype)
        means, _ = running_means(x[None], frames, x.new_zeros(1, len(memory), x.shape[1]))
        return torch.cat([last_frames(k)(x), means[0].flatten(1)], dim=1)

    return view


def usual_views(d_conv: int, memory: Sequence[int]) -> dict[str, View]:
    """The input of the first block, the same with memory, and two longer windows."""
    means = ", ".join(map(str, memory))
    return {
        f"{d_conv} frames, as the first block": last_frames(d_conv),
        f"{d_conv} frames and means over {means}": with_means(d_conv, memory),
        "30 frames": last_frames(30),
        "120 frames": last_frames(120),
    }


def boundary_bounds(
    dataset: PreparedDataset,
    views: dict[str, View],
    rise_s: float,
    fall_s: float,
    n_folds: int,
    seeds: int,
    progress: Callable[[int], None],
) -> list[Bound]:
    """Train a classifier for every view, fold and seed, and measure it as the intensity of a model is
    measured."""
    if dataset.kind != "features":
        raise ConfigError(
            f"{dataset.folder} holds pictures; prepare features of them first (prepare ... --features MODEL)."
        )
    videos = [dataset.videos[name] for name in sorted(dataset.videos)]
    if not 2 <= n_folds <= len(videos):
        n = len(videos)
        raise ConfigError(f"--folds {n_folds}: {dataset.folder} has {n} videos; give 2 to {n}.")
    labels, fps = [video.labels for video in videos], float(dataset.fps)
    targets = [transition_target(torch.from_numpy(of.copy()), fps, rise_s, fall_s) for of in labels]
    frames = boundary_frames(labels, [target.double().numpy() for target in targets], fps, rise_s, fall_s)
    done, bounds = 0, []
    for name, view in views.items():
        seen = [view(torch.from_numpy(np.array(video.features, dtype=np.float32))) for video in videos]
        by_seed = []
        for seed in range(seeds):
            logits: list[FloatArray] = [np.empty(0)] * len(videos)
            for fold in range(n_folds):
                train = [i for i in range(len(videos)) if i % n_folds != fold]
                classifier = _trained([(seen[i], targets[i], labels[i]) for i in train], seed)
                for i in range(fold, len(videos), n_folds):
                    with torch.no_grad():
                        logits[i] = classifier(seen[i])[:, 0].double().numpy()
                done += 1
                progress(done)
            by_seed.append(intensity_measures(np.concatenate(logits), frames))
        bounds.append(Bound(name, tuple(by_seed)))
    return bounds


def _trained(videos: Sequence[tuple[Tensor, Tensor, IntArray]], seed: int) -> nn.Module:
    """A small network trained with the transition loss on single frames in random order. A video is its
    input, targets and labels."""
    seen, targets, labels = zip(*videos, strict=True)
    labelled = torch.from_numpy(np.concatenate(labels) != UNLABELLED)
    x, target = torch.cat(seen)[labelled], torch.cat(targets).float()[labelled]
    mean, deviation = x.mean(0), x.std(0).clamp(min=1e-6)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 1))
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), generator=generator).split(BATCH):
            loss = F.binary_cross_entropy_with_logits(
                network((x[rows] - mean) / deviation)[:, 0], target[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return nn.Sequential(_Scale(mean, deviation), network)


class _Scale(nn.Module):
    """(x - mean) / deviation."""

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.mean, self.deviation = mean, deviation

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation


def bounds_table(bounds: Sequence[Bound]) -> list[list[str]]:
    """Header and a row per view."""
    head = ["what is seen", "cross-entropy", "of a constant", "average precision", "by chance", "mean inside"]
    rows = [[*head, "after boundaries"]]
    for bound in bounds:
        cells = {}
        for name in (
            "bce",
            "bce_of_constant",
            "average_precision",
            "boundary_share",
            "inside",
            "after_boundaries",
        ):
            is_constant = name in ("bce_of_constant", "boundary_share") or math.isnan(bound.deviation(name))
            spread = "" if is_constant else f" ± {bound.deviation(name):.3f}"
            cells[name] = f"{bound.mean(name):.3f}{spread}"
        rows.append([bound.view, *cells.values()])
    return rows


def section(
    bounds: Sequence[Bound], about: Mapping[str, Json], title: str, seeds: int, folds: int, n_videos: int
) -> str:
    """The study's section of a results page."""
    scope = f"Seeds {', '.join(map(str, range(seeds)))}; {folds} folds, {n_videos} videos."
    note = "Classifiers on raw features; mean ± deviation over seeds. Measures as `inside` in a training log."
    return (
        "\n".join([*section_head(title, about, scope), *markdown_table(bounds_table(bounds)), "", note])
        + "\n"
    )
