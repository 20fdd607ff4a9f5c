"""From a chunk's summary to the rotation of the carried state: per-head networks for planes and angles."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surgicalmamba.config import RotationConfig
from surgicalmamba.core.precision import in_full_precision
from surgicalmamba.core.rotation import Form, Solve, faster_form, regram, unit_columns


class PerHeadMLP(nn.Module):
    """A two-layer SiLU network with its own weights for every head, evaluated for all heads at once.

    Weights are stored (head, in, out): a product with one row per head then reads them in order."""

    def __init__(self, n_heads: int, d_in: int, d_hidden: int, d_out: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(_uniform(n_heads, d_in, d_hidden, fan_in=d_in))
        self.b1 = nn.Parameter(_uniform(n_heads, d_hidden, fan_in=d_in))
        self.w2 = nn.Parameter(_uniform(n_heads, d_hidden, d_out, fan_in=d_hidden))
        self.b2 = nn.Parameter(_uniform(n_heads, d_out, fan_in=d_hidden))

    def forward(self, x: Tensor) -> Tensor:
        """x (b, h, d_in) -> (b, h, d_out)."""
        rows = x.transpose(0, 1)  # (h, b, d_in)
        hidden = F.silu(torch.baddbmm(self.b1[:, None], rows, self.w1))
        return torch.baddbmm(self.b2[:, None], hidden, self.w2).transpose(0, 1)


def _uniform(*shape: int, fan_in: int) -> Tensor:
    """The initialisation of nn.Linear."""
    bound = 1 / math.sqrt(fan_in)
    return torch.empty(*shape).uniform_(-bound, bound)


class Rotator(nn.Module):
    """Turns a carried state by an amount the chunk that just ended decides, eqs. (phi), (uvtheta), (skew), (cayley)."""

    def __init__(self, n_heads: int, d_head: int, d_state: int, config: RotationConfig) -> None:
        super().__init__()
        self.rank = config.rank
        self.d_state = d_state
        self.form: Form = faster_form(d_state, config.rank) if config.form == "auto" else config.form
        self.planes = PerHeadMLP(n_heads, d_head, config.d_hidden, 2 * d_state * config.rank)
        self.angles = PerHeadMLP(n_heads, d_head, config.d_hidden, config.rank)
        nn.init.normal_(self.planes.b2)  # directions in general position, so that no two planes coincide at the start
        nn.init.constant_(self.angles.b2, math.log(math.expm1(config.theta_init)))

    @in_full_precision
    def factors(self, summary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Planes U, V (b, h, n, r) with unit columns and angles theta (b, h, r) of a chunk's mean output (b, h, p)."""
        phi = F.layer_norm(summary, summary.shape[-1:])
        U, V = self.planes(phi).unflatten(-1, (2, self.d_state, self.rank)).unbind(2)
        return unit_columns(U), unit_columns(V), F.softplus(self.angles(phi))

    def forward(self, state: Tensor, summary: Tensor) -> Tensor:
        """state (b, h, p, n) and the chunk's mean output (b, h, p) -> the rotated state."""
        (rotated,) = rotate_together([self], [state], [summary])
        return rotated


def rotate_together(
    rotators: Sequence[Rotator], states: Sequence[Tensor], summaries: Sequence[Tensor], solve: Solve = torch.linalg.solve
) -> list[Tensor]:
    """Rotate the states of paths of one size, each by its own rotator. Heads are independent, so all are solved at once."""
    factors = [rotator.factors(summary) for rotator, summary in zip(rotators, summaries, strict=True)]
    if len(rotators) == 1:
        return [regram(states[0], *factors[0], rotators[0].form, solve)]
    U, V, theta = (torch.cat(parts, dim=1) for parts in zip(*factors, strict=True))
    rotated = regram(torch.cat(list(states), dim=1), U, V, theta, rotators[0].form, solve)
    return list(rotated.split([state.shape[1] for state in states], dim=1))
