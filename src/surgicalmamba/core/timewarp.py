"""Intensity-modulated stepping, eq. (warpdisc): event time runs 1 + intensity times as fast as the clock."""

from torch import Tensor


def warp_step(dt: Tensor, intensity: Tensor) -> Tensor:
    """The step under intensity, (1 + lambda) dt: at most doubled, never shortened. dt (b, l, h), intensity (b, l) in 0..1."""
    return dt * (1 + intensity[..., None])
