"""Causal depthwise convolution over frames, with the last inputs carried from call to call."""

import math

import torch
from torch import Tensor, nn


class CausalConv(nn.Module):
    """y_t = bias + sum_k weight[:, k] x_{t - d_conv + 1 + k}, for any number of frames per call.

    The tail holds the last d_conv - 1 inputs, zeros before the first frame, so cutting a sequence changes nothing
    (appendix Implementation, cross-clip carry)."""

    def __init__(self, width: int, d_conv: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(d_conv)
        self.weight = nn.Parameter(torch.empty(width, d_conv).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(width).uniform_(-bound, bound))

    def forward(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """x (b, l, d), tail (b, d_conv - 1, d) -> y (b, l, d) and the new tail."""
        length = x.shape[1]
        seen = torch.cat([tail.to(x.dtype), x], dim=1)
        y = self.bias.to(x.dtype)
        for k, tap in enumerate(self.weight.to(x.dtype).unbind(1)):
            y = y + tap * seen[:, k : k + length]
        return y, seen[:, length:].to(tail.dtype)
