"""The training objectives of section 3.6: L = L_CE + w_sm L_smooth + w_trans L_trans, over labelled frames.

Labels are integers, -1 where a frame is unlabelled or padding; such frames enter no loss."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from surgicalmamba.model.recognizer import Output
from surgicalmamba.train.config import LossSettings
from surgicalmamba.train.distributed import World

UNLABELLED = -1


def masked_cross_entropy(
    logits: Tensor, labels: Tensor, label_smoothing: float = 0.0, class_weights: Tensor | None = None
) -> Tensor:
    """Mean cross-entropy over labelled frames; zero when there are none. logits (b, l, k), labels (b, l)."""
    if not (labels != UNLABELLED).any():
        return logits.sum() * 0.0
    return F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        class_weights,
        ignore_index=UNLABELLED,
        label_smoothing=label_smoothing,
    )


def confidence(log_probabilities: Tensor) -> Tensor:
    """c = 1 - H(p) / log k: one for a certain prediction, zero for a uniform one. (..., k) -> (...)."""
    entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
    return 1 - entropy / math.log(log_probabilities.shape[-1])


def smoothness(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of c_t c_{t+1} KL(p_t || p_{t+1}) over neighbouring labelled frames, c the confidence.

    The paper gives the weights but not the measure of change; the divergence is that of the authors' release.
    As there, gradients flow through both frames and both confidences. logits (b, l, k), labels (b, l)."""
    log_p = F.log_softmax(logits, dim=-1)
    valid = (labels[:, 1:] != UNLABELLED) & (labels[:, :-1] != UNLABELLED)
    if not valid.any():
        return logits.sum() * 0.0
    now, following = log_p[:, :-1], log_p[:, 1:]
    divergence = (now.exp() * (now - following)).sum(-1)
    return (confidence(now) * confidence(following) * divergence)[valid].mean()


def phase_boundaries(labels: Tensor) -> Tensor:
    """Frames at which a new phase begins, across unlabelled gaps. labels (t) -> indices; never frame 0."""
    labelled = (labels != UNLABELLED).nonzero()[:, 0]
    names = labels[labelled]
    return labelled[1:][names[1:] != names[:-1]]


def transition_target(labels: Tensor, fps: float = 1.0, rise_s: float = 2.0, fall_s: float = 12.0) -> Tensor:
    """Where the intensity should rise, eq. (lam_target): an asymmetric Gaussian with its peak of 1 on the
    first frame of each new phase.

    Pass the labels of a whole procedure (t), so that no boundary at the edge of a clip is lost; where two
    bursts overlap the higher one counts. rise_s and fall_s are standard deviations before and after, in
    seconds (sigma_L, sigma_R)."""
    return _bursts(phase_boundaries(labels), len(labels), fps, rise_s, fall_s)


def release_target(labels: Tensor, fps: float = 1.0, rise_s: float = 2.0, fall_s: float = 12.0) -> Tensor:
    """The released code's target for the labels of one clip (t): peaks on the last frame of the old phase,
    nothing beyond three sigma. A boundary between two clips vanishes, and bursts are cut at the end of a
    clip."""
    labelled = (labels != UNLABELLED).nonzero()[:, 0]
    last_of_old = labelled[:-1][labels[labelled[1:]] != labels[labelled[:-1]]]
    return _bursts(last_of_old, len(labels), fps, rise_s, fall_s, cut=3.0)


def _bursts(
    peaks: Tensor, length: int, fps: float, rise_s: float, fall_s: float, cut: float = math.inf
) -> Tensor:
    """The maximum of asymmetric Gaussians of height 1 at these frames, each zero beyond `cut` deviations."""
    time_s = torch.arange(length, device=peaks.device) / fps
    if len(peaks) == 0:
        return torch.zeros_like(time_s)
    since_s = time_s[None] - peaks[:, None] / fps  # (n_peaks, t)
    deviations = since_s / torch.where(since_s < 0, rise_s, fall_s)
    return torch.where(deviations.abs() <= cut, torch.exp(-0.5 * deviations**2), 0.0).amax(0)


def target_of(labels: Tensor, settings: LossSettings, fps: float, clip_len: int) -> Tensor:
    """The transition target of a whole video (t), by the scope of the settings."""
    widths = (fps, settings.rise_s, settings.fall_s)
    if settings.target_scope == "video":
        return transition_target(labels, *widths)
    return torch.cat([release_target(clip, *widths) for clip in labels.split(clip_len)])


def transition_loss(intensity_logits: Tensor, target: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of every block's intensity with the target, over labelled frames.

    intensity_logits (b, l, n_blocks), target and labels (b, l)."""
    valid = labels != UNLABELLED
    if not valid.any():
        return intensity_logits.sum() * 0.0
    expanded = target[..., None].expand_as(intensity_logits).to(intensity_logits.dtype)
    return F.binary_cross_entropy_with_logits(intensity_logits[valid], expanded[valid])


TERMS = ("cross_entropy", "smoothness", "transition", "own")
"""`own` only for a network with its own loss (`Recognizer.training_loss`)."""


@dataclass(frozen=True)
class ClipLoss:
    """Sums of the terms over a clip and their divisors, in the order of TERMS. The loss of an update is the
    sum over the clips of a window, divided by the counts of all processes."""

    sums: Tensor  # (3,) or (4,), with gradient history
    counts: Tensor

    def __add__(self, other: "ClipLoss") -> "ClipLoss":
        return ClipLoss(self.sums + other.sums, self.counts + other.counts)


class Objective:
    """L = L_CE + w_sm L_smooth + w_trans L_trans over labelled frames."""

    def __init__(self, settings: LossSettings, class_weights: Tensor | None) -> None:
        self.settings = settings
        self.class_weights = class_weights
        self.weights = torch.tensor([1.0, settings.smooth_weight, settings.transition_weight, 1.0])

    def of_clip(
        self, output: Output[Any], labels: Tensor, target: Tensor, network_loss: Tensor | None = None
    ) -> ClipLoss:
        """labels, target (b, l); network_loss: `Recognizer.training_loss`, a mean over labelled frames."""
        logits, intensity = output.logits.float(), output.intensity_logits
        valid = labels != UNLABELLED
        n_frames = valid.sum().float()
        n_weighted = n_frames if self.class_weights is None else self.class_weights[labels[valid]].sum()
        terms = [
            masked_cross_entropy(logits, labels, self.settings.label_smoothing, self.class_weights),
            smoothness(logits, labels),
            logits.sum() * 0.0 if intensity is None else transition_loss(intensity, target, labels),
        ]
        n_pairs = (valid[:, 1:] & valid[:, :-1]).sum()
        counts = [n_weighted.float(), n_pairs.float(), n_frames * (intensity is not None)]
        if network_loss is not None:
            terms.append(network_loss.float())
            counts.append(n_frames)
        divisors = torch.stack(counts)
        return ClipLoss(torch.stack(terms) * divisors, divisors)

    def total(self, clips: ClipLoss, world: World) -> tuple[Tensor, Tensor]:
        """The loss of this process, whose gradients are to be summed over processes; and the terms of all
        processes together."""
        counts = world.sum(clips.counts.detach()).clamp(min=1.0)
        terms = clips.sums / counts
        return (self.weights_of(terms) * terms).sum(), world.sum(terms.detach())

    def weights_of(self, terms: Tensor) -> Tensor:
        """The weights of the terms, on their device."""
        return self.weights[: len(terms)].to(terms.device)


def class_weights_of(labels: list[NDArray[np.int64]], n_phases: int, rule: str) -> Tensor | None:
    """Weights with mean one over the phases that occur; None for no weighting."""
    if rule == "none":
        return None
    counts = np.bincount(np.concatenate([part[part >= 0] for part in labels]), minlength=n_phases)
    occurs, frequency = counts > 0, np.maximum(counts, 1)
    rarity = 1 / np.sqrt(frequency) if rule == "inverse-sqrt" else np.median(counts[occurs]) / frequency
    weights = np.where(occurs, rarity, 0.0)
    return torch.tensor(weights / weights[occurs].mean(), dtype=torch.float32)
