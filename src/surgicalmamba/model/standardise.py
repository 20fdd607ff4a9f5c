"""Raw signals to comparable ones: metres, metres per second and radians differ a hundredfold before the first weight sees them."""

import torch
from torch import Tensor, nn

SMALLEST_SHARE = 1e-6
"""A feature that varies less than this share of the largest one is taken as constant and only centred."""


class Standardise(nn.Module):
    """(x - mean) / scale per feature. Both are measured on the training videos and saved with the weights, so live input gets the same."""

    mean: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    @torch.no_grad()
    def fit(self, features: Tensor) -> None:
        """Measure mean and deviation on features (n, d)."""
        values = features.double()
        deviation = values.std(0, correction=0)
        varies = deviation > SMALLEST_SHARE * deviation.max()
        self.mean.copy_(values.mean(0))
        self.scale.copy_(torch.where(varies, deviation, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale
