"""The intensity network: reads a phase boundary from the convolved frame feature, eq. (lambda)."""

import math

from torch import Tensor, nn

from surgicalmamba.config import IntensityConfig


class IntensityNet(nn.Module):
    """One logit per frame; its sigmoid is the intensity. The input is detached: the transition loss trains this network alone."""

    def __init__(self, d_inner: int, config: IntensityConfig) -> None:
        super().__init__()
        hidden = max(1, d_inner // config.reduction)
        self.up = nn.Linear(d_inner, hidden)
        self.out = nn.Linear(hidden, 1)
        nn.init.constant_(self.out.bias, math.log(config.intensity_init / (1 - config.intensity_init)))

    def forward(self, x: Tensor) -> Tensor:
        """x (b, l, d_inner) -> logits (b, l)."""
        hidden = nn.functional.silu(self.up(x.detach()))
        return self.out(hidden)[..., 0]
