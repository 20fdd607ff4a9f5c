"""From a chunk's summary to the rotation of the carried state: per-head networks for planes and angles."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surgicalmamba.config import RotationConfig
from surgicalmamba.core.precision import in_full_precision
from surgicalmamba.core.rotation import Form, Solve, coordinate_pairs, faster_form, regram, unit_columns


class PerHeadMLP(nn.Module):
    """A two-layer SiLU network with its own weights for every head, evaluated for all heads at once.

    Weights are stored (head, in, out): a product with one row per head then reads them in order. They start as in the release: Xavier's
    normal with gain 1, then 2, so that the output depends on the input from the first update; hidden biases are zero."""

    def __init__(self, n_heads: int, d_in: int, d_hidden: int, bias: Tensor) -> None:
        super().__init__()
        self.w1 = nn.Parameter(_xavier(n_heads, d_in, d_hidden, gain=1.0))
        self.b1 = nn.Parameter(torch.zeros(n_heads, d_hidden))
        self.w2 = nn.Parameter(_xavier(n_heads, d_hidden, bias.shape[1], gain=2.0))
        self.b2 = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (b, h, d_in) -> (b, h, d_out)."""
        rows = x.transpose(0, 1)  # (h, b, d_in)
        hidden = F.silu(torch.baddbmm(self.b1[:, None], rows, self.w1))
        return torch.baddbmm(self.b2[:, None], hidden, self.w2).transpose(0, 1)


class PerHeadConstant(nn.Module):
    """A learned vector for every head, whatever comes in: the control whose rotation does not depend on content."""

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.b2 = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (b, h, d_in) -> (b, h, d_out)."""
        return self.b2.expand(x.shape[0], -1, -1)


def _xavier(n_heads: int, d_in: int, d_out: int, gain: float) -> Tensor:
    return torch.randn(n_heads, d_in, d_out) * gain * math.sqrt(2 / (d_in + d_out))


def _plane_bias(n_heads: int, size: int) -> Tensor:
    """U's and V's biases (h, 2 * size), entries of about 0.5: vectors of different heads are orthogonal as far as there is room."""
    halves = [nn.init.orthogonal_(torch.empty(size, n_heads)) for _ in range(2)]
    columns = torch.cat([F.normalize(half, dim=0) for half in halves])
    return (0.5 * math.sqrt(size) * columns.T).contiguous()


class Rotator(nn.Module):
    """Turns a carried state by an amount the chunk that just ended decides, eqs. (phi), (uvtheta), (skew), (cayley)."""

    def __init__(self, n_heads: int, d_head: int, d_state: int, config: RotationConfig) -> None:
        super().__init__()
        self.rank = config.rank
        self.d_state = d_state
        self.form: Form = faster_form(d_state, config.rank) if config.form == "auto" else config.form
        angle_bias = torch.full((n_heads, config.rank), math.log(math.expm1(config.start_angle)))
        plane_bias = _plane_bias(n_heads, d_state * config.rank)
        self.planes: nn.Module | None
        self.angles: nn.Module
        if config.kind == "constant":
            self.planes, self.angles = PerHeadConstant(plane_bias), PerHeadConstant(angle_bias)
        else:
            self.planes = None if config.kind == "pairs" else PerHeadMLP(n_heads, d_head, config.d_hidden, plane_bias)
            self.angles = PerHeadMLP(n_heads, d_head, config.d_hidden, angle_bias)

    @in_full_precision
    def factors(self, summary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Planes U, V (b, h, n, r) with unit columns and angles theta (b, h, r) of a chunk's mean output (b, h, p)."""
        phi = F.layer_norm(summary, summary.shape[-1:])
        theta = F.softplus(self.angles(phi))
        if self.planes is None:
            U, V = coordinate_pairs(self.d_state, self.rank, phi).expand(2, *phi.shape[:2], -1, -1)
            return U, V, theta
        U, V = self.planes(phi).unflatten(-1, (2, self.d_state, self.rank)).unbind(2)
        return unit_columns(U), unit_columns(V), theta

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
