"""The intensity network: reads a phase boundary from the convolved frame feature, eq. (lambda), and from running means of it."""

import math

import torch
from torch import Tensor, nn

from surgicalmamba.config import IntensityConfig
from surgicalmamba.core.ssd import running_means


class IntensityNet(nn.Module):
    """One logit per frame; its sigmoid is the intensity. The input is detached: the transition loss trains this network alone.

    A boundary is a change, and a single frame does not show one. With `memory` the network also sees running means of its input."""

    def __init__(self, d_inner: int, config: IntensityConfig) -> None:
        super().__init__()
        hidden = max(config.d_hidden_min, d_inner // config.reduction)
        self.up = nn.Linear(d_inner * (1 + len(config.memory)), hidden)
        self.out = nn.Linear(hidden, 1)
        self.frames: Tensor
        self.register_buffer("frames", torch.tensor(config.memory, dtype=torch.float32), persistent=False)
        nn.init.constant_(self.out.bias, math.log(config.intensity_init / (1 - config.intensity_init)))

    def forward(self, x: Tensor, means: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x (b, l, d_inner), means (b, s, d_inner) before its first frame -> logits (b, l) and the means after its last."""
        seen = x.detach()
        if means is not None:
            past, means = running_means(seen, self.frames, means)
            seen = torch.cat([seen, past.flatten(-2).to(seen.dtype)], dim=-1)
        hidden = nn.functional.silu(self.up(seen))
        return self.out(hidden)[..., 0], means
