"""What could an intensity network know? Classifiers of boundaries on what it sees, and on more, apart from any model.

The network of the first block sees the frames of its convolution. A classifier trained on just these frames of the raw features bounds what
it can learn; one that also sees running means or a longer window shows what `intensity.memory` or a deeper block could add."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surgicalmamba.core.ssd import running_means
from surgicalmamba.data.store import PreparedDataset, PreparedVideo
from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.pairs import FloatArray
from surgicalmamba.train.inside import IntensityMeasures, boundary_frames, intensity_measures
from surgicalmamba.train.losses import UNLABELLED, transition_target

EPOCHS, BATCH, RATE, HIDDEN = 6, 256, 2e-3, 64
View = Callable[[Tensor], Tensor]
"""Features of a video (t, d) -> what a classifier sees of each frame (t, any width), from the past alone."""


@dataclass(frozen=True, eq=False)
class Bound:
    """What a view allows: measures of every seed over all videos, each scored by a classifier that has not seen it."""

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
    """The same with running means, as `intensity.memory` gives them to the network."""

    def view(x: Tensor) -> Tensor:
        frames = torch.tensor(memory, dtype=x.dtype)
        means, _ = running_means(x[None], frames, x.new_zeros(1, len(memory), x.shape[1]))
        return torch.cat([last_frames(k)(x), means[0].flatten(1)], dim=1)

    return view


def usual_views(d_conv: int, memory: Sequence[int]) -> dict[str, View]:
    """What the first block sees, that with memory, and two longer windows."""
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
    """Train a classifier for every view, fold and seed, and measure it as the intensity of a model is measured."""
    if dataset.kind != "features":
        raise ConfigError(f"{dataset.folder} holds pictures; prepare features of them first (prepare ... --features MODEL).")
    videos = [dataset.videos[name] for name in sorted(dataset.videos)]
    if not 2 <= n_folds <= len(videos):
        raise ConfigError(f"--folds {n_folds}: {dataset.folder} has {len(videos)} videos; give 2 to {len(videos)}.")
    fps = float(dataset.fps)
    targets = [transition_target(torch.from_numpy(video.labels.copy()), fps, rise_s, fall_s) for video in videos]
    frames = boundary_frames([v.labels for v in videos], [t.double().numpy() for t in targets], fps, rise_s, fall_s)
    done, bounds = 0, []
    for name, view in views.items():
        seen = [view(torch.from_numpy(np.array(video.features, dtype=np.float32))) for video in videos]
        by_seed = []
        for seed in range(seeds):
            logits: list[FloatArray] = [np.empty(0)] * len(videos)
            for fold in range(n_folds):
                train = [i for i in range(len(videos)) if i % n_folds != fold]
                classifier = _trained([seen[i] for i in train], [targets[i] for i in train], [videos[i] for i in train], seed)
                for i in range(fold, len(videos), n_folds):
                    with torch.no_grad():
                        logits[i] = classifier(seen[i])[:, 0].double().numpy()
                done += 1
                progress(done)
            by_seed.append(intensity_measures(np.concatenate(logits), frames))
        bounds.append(Bound(name, tuple(by_seed)))
    return bounds


def _trained(seen: Sequence[Tensor], targets: Sequence[Tensor], videos: Sequence[PreparedVideo], seed: int) -> nn.Module:
    """A small network trained with the transition loss on single frames in random order."""
    x, target = torch.cat(list(seen)), torch.cat(list(targets)).float()
    labelled = torch.from_numpy(np.concatenate([video.labels for video in videos]) != UNLABELLED)
    x, target = x[labelled], target[labelled]
    mean, deviation = x.mean(0), x.std(0).clamp(min=1e-6)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 1))
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), generator=generator).split(BATCH):
            loss = F.binary_cross_entropy_with_logits(network((x[rows] - mean) / deviation)[:, 0], target[rows])
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
    rows = [["what is seen", "cross-entropy", "of a constant", "average precision", "by chance", "mean inside", "after boundaries"]]
    for bound in bounds:

        def shown(name: str, bound: Bound = bound) -> str:
            deviation = bound.deviation(name)
            return f"{bound.mean(name):.3f}" + ("" if math.isnan(deviation) else f" ± {deviation:.3f}")

        constant, chance = f"{bound.mean('bce_of_constant'):.3f}", f"{bound.mean('boundary_share'):.3f}"
        rows.append([bound.view, shown("bce"), constant, shown("average_precision"), chance, shown("inside"), shown("after_boundaries")])
    return rows
