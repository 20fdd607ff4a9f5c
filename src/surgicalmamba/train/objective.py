"""The loss of one update: sums over the clips of a window, divided by counts over all processes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surgicalmamba.model.recognizer import Output
from surgicalmamba.train.config import LossSettings
from surgicalmamba.train.distributed import World
from surgicalmamba.train.losses import UNLABELLED, masked_cross_entropy, release_target, smoothness, transition_loss, transition_target

TERMS = ("cross_entropy", "smoothness", "transition", "own")
"""The last one only for a network that has a loss of its own (`Recognizer.training_loss`)."""


@dataclass(frozen=True)
class ClipLoss:
    """Sums of the terms over a clip and what each is to be divided by, in the order of TERMS."""

    sums: Tensor  # (3,) or (4,) with history
    counts: Tensor

    def __add__(self, other: "ClipLoss") -> "ClipLoss":
        return ClipLoss(self.sums + other.sums, self.counts + other.counts)


class Objective:
    """L = L_CE + w_sm L_smooth + w_trans L_trans over labelled frames."""

    def __init__(self, settings: LossSettings, class_weights: Tensor | None) -> None:
        self.settings = settings
        self.class_weights = class_weights
        self.weights = torch.tensor([1.0, settings.smooth_weight, settings.transition_weight, 1.0])

    def of_clip(self, output: Output[Any], labels: Tensor, target: Tensor, own: Tensor | None = None) -> ClipLoss:
        """labels and target (b, l); `own` is the network's own loss, a mean over labelled frames."""
        logits = output.logits.float()
        valid = labels != UNLABELLED
        pairs = (valid[:, 1:] & valid[:, :-1]).sum()
        frames = valid.sum() if self.class_weights is None else self.class_weights[labels[valid]].sum()
        ce = masked_cross_entropy(logits, labels, self.settings.label_smoothing, self.class_weights)
        smooth = smoothness(logits, labels)
        intensity = output.intensity_logits
        transition = logits.sum() * 0.0 if intensity is None else transition_loss(intensity, target, labels)
        counts = [frames.float(), pairs.float(), valid.sum().float() * (intensity is not None)]
        terms = [ce, smooth, transition]
        if own is not None:
            terms.append(own.float())
            counts.append(valid.sum().float())
        divide_by = torch.stack(counts)
        return ClipLoss(torch.stack(terms) * divide_by, divide_by)

    def total(self, clips: ClipLoss, world: World) -> tuple[Tensor, Tensor]:
        """The loss whose gradients, summed over processes, are those of the whole; and the terms of all processes."""
        counts = world.sum(clips.counts.detach()).clamp(min=1.0)
        terms = clips.sums / counts
        weights = self.weights_of(terms)
        return (weights * terms).sum(), world.sum(terms.detach())

    def weights_of(self, terms: Tensor) -> Tensor:
        """The weights of these terms, where they are."""
        return self.weights[: len(terms)].to(terms.device)


def target_of(labels: Tensor, settings: LossSettings, fps: float, clip_len: int) -> Tensor:
    """The transition target of a whole video (t), by the scope that the settings ask for."""
    if settings.target_scope == "video":
        return transition_target(labels, fps, settings.rise_s, settings.fall_s)
    return torch.cat([release_target(clip, fps, settings.rise_s, settings.fall_s) for clip in labels.split(clip_len)])


def class_weights_of(labels: list[NDArray[np.int64]], n_phases: int, rule: str) -> Tensor | None:
    """Weights with mean one over the phases that occur; None for no weighting."""
    if rule == "none":
        return None
    counts = np.bincount(np.concatenate([part[part >= 0] for part in labels]), minlength=n_phases)
    rarity = 1 / np.sqrt(np.maximum(counts, 1)) if rule == "inverse-sqrt" else np.median(counts[counts > 0]) / np.maximum(counts, 1)
    weights = np.where(counts > 0, rarity, 0.0)
    return torch.tensor(weights / weights[counts > 0].mean(), dtype=torch.float32)
