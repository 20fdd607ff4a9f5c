"""The training objectives of section 3.6: L = L_CE + w_sm L_smooth + w_trans L_trans, over labelled frames.

Labels are integers, -1 where a frame is unlabelled or padding; such frames enter no loss."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

UNLABELLED = -1


def masked_cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0, class_weights: Tensor | None = None) -> Tensor:
    """Mean cross-entropy over labelled frames; zero when there are none. logits (b, l, k), labels (b, l)."""
    if not (labels != UNLABELLED).any():
        return logits.sum() * 0.0
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), class_weights, ignore_index=UNLABELLED, label_smoothing=label_smoothing)


def confidence(log_probabilities: Tensor) -> Tensor:
    """c = 1 - H(p) / log k: one for a certain prediction, zero for a uniform one. (..., k) -> (...)."""
    entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
    return 1 - entropy / math.log(log_probabilities.shape[-1])


def smoothness(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of c_t c_{t+1} KL(p_t || p_{t+1}) over neighbouring labelled frames, c the confidence.

    The paper gives the weights and not the measure of change; the divergence is the authors' release's. As there, gradients flow through
    both frames and through both confidences. logits (b, l, k), labels (b, l)."""
    log_p = F.log_softmax(logits, dim=-1)
    valid = (labels[:, 1:] != UNLABELLED) & (labels[:, :-1] != UNLABELLED)
    if not valid.any():
        return logits.sum() * 0.0
    now, following = log_p[:, :-1], log_p[:, 1:]
    divergence = (now.exp() * (now - following)).sum(-1)
    return (confidence(now) * confidence(following) * divergence)[valid].mean()


def phase_boundaries(labels: Tensor) -> Tensor:
    """Frames at which a new phase begins, skipping unlabelled stretches. labels (t) -> indices; frame 0 is none."""
    labelled = (labels != UNLABELLED).nonzero()[:, 0]
    names = labels[labelled]
    return labelled[1:][names[1:] != names[:-1]]


def transition_target(labels: Tensor, fps: float = 1.0, rise_s: float = 2.0, fall_s: float = 12.0) -> Tensor:
    """Where the intensity should rise, eq. (lam_target): an asymmetric Gaussian with its peak of 1 on each new phase's first frame.

    Give the labels of a whole procedure (t), so that a boundary at a clip's edge is not lost; where two bursts overlap the higher
    one counts. rise_s and fall_s are standard deviations before and after, in seconds (sigma_L = 2, sigma_R = 12)."""
    return _bursts(phase_boundaries(labels), len(labels), fps, rise_s, fall_s)


def release_target(labels: Tensor, fps: float = 1.0, rise_s: float = 2.0, fall_s: float = 12.0) -> Tensor:
    """The released code's target for the labels of one clip (t): peaks on the last frame of the old phase, nothing beyond three sigma.

    A boundary between two clips vanishes, and bursts are cut at a clip's end."""
    labelled = (labels != UNLABELLED).nonzero()[:, 0]
    last_of_old = labelled[:-1][labels[labelled[1:]] != labels[labelled[:-1]]]
    return _bursts(last_of_old, len(labels), fps, rise_s, fall_s, cut=3.0)


def _bursts(peaks: Tensor, length: int, fps: float, rise_s: float, fall_s: float, cut: float = math.inf) -> Tensor:
    """Asymmetric Gaussians of height 1 at these frames, zero beyond `cut` deviations; where two overlap the higher one counts."""
    time_s = torch.arange(length, device=peaks.device) / fps
    if len(peaks) == 0:
        return torch.zeros_like(time_s)
    since_s = time_s[None] - peaks[:, None] / fps  # (n_peaks, t)
    deviations = since_s / torch.where(since_s < 0, rise_s, fall_s)
    return torch.where(deviations.abs() <= cut, torch.exp(-0.5 * deviations**2), 0.0).amax(0)


def transition_loss(intensity_logits: Tensor, target: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of every block's intensity with the target, over labelled frames.

    intensity_logits (b, l, n_blocks), target and labels (b, l)."""
    valid = labels != UNLABELLED
    if not valid.any():
        return intensity_logits.sum() * 0.0
    wanted = target[..., None].expand_as(intensity_logits).to(intensity_logits.dtype)
    return F.binary_cross_entropy_with_logits(intensity_logits[valid], wanted[valid])
