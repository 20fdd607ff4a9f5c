"""What the checks of a recognizer compare: answers to random features from fixed seeds, cut into calls in different ways."""

from collections.abc import Sequence

import torch
from torch import Tensor

from surgicalmamba.model.recognizer import AnyRecognizer

TOLERANCE = 1e-4
"""Largest difference of logits in units of their spread: what float32 leaves of two orders of summation."""
ROUNDING = 1e-6
"""And relative to a logit itself: some units in the last place of float32."""


class ContractError(Exception):
    """A check that did not hold."""


def draw(model: AnyRecognizer, n_lanes: int, n_frames: int, seed: int = 0) -> Tensor:
    """Features (b, l, d), the same for the same seed."""
    drawn = torch.randn(n_lanes, n_frames, model.feature_width, generator=torch.Generator().manual_seed(seed))
    return drawn.to(model.device, model.dtype)


def whole(model: AnyRecognizer, features: Tensor) -> Tensor:
    """Logits of a procedure in one call."""
    logits: Tensor = model.forward_features(features).logits
    return logits


def in_pieces(model: AnyRecognizer, features: Tensor, lengths: Sequence[int], state: object = None) -> tuple[Tensor, object]:
    """Logits of a procedure in calls of these lengths, and the memory after the last."""
    logits = []
    for piece in features.split(list(lengths), dim=1):
        output = model.forward_features(piece, state)
        state = output.state
        logits.append(output.logits)
    return torch.cat(logits, dim=1), state


def spread(logits: Tensor) -> float:
    """How far a phase's logits (b, l, k) go from their mean over time: that of the middle phase, so that one masked phase says nothing."""
    values = logits.double()
    return float((values - values.mean(1, keepdim=True)).abs().amax((0, 1)).median())


def excess(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """|a - b| in units of `scale`, less where a logit is so large that rounding alone moves it: up to TOLERANCE is equal."""
    allowed = scale + ROUNDING / TOLERANCE * b.double().abs()
    return ((a.double() - b.double()).abs() / allowed.clamp(min=1e-30)).nan_to_num(torch.inf, torch.inf)


def difference(a: Tensor, b: Tensor, scale: float | None = None) -> float:
    """The largest difference of logits in units of `scale` or the spread of b; infinite where one is not finite.

    A scale is for few frames, which have no spread of their own to speak of."""
    if a.shape != b.shape:
        raise ContractError(f"logits of shape {tuple(a.shape)} instead of {tuple(b.shape)}")
    return float(excess(a, b, spread(b) if scale is None else scale).max())


def require_equal(a: Tensor, b: Tensor, otherwise: str, scale: float | None = None) -> str:
    """Refuse logits that differ by more than rounding."""
    largest = difference(a, b, scale)
    if largest > TOLERANCE:
        raise ContractError(f"{otherwise} (largest difference {largest:.1e} of the logits' spread)")
    return f"largest difference {largest:.1e}"
