"""State regramming: an orthogonal Z from planes U, V and angles theta, applied to the carried state at a chunk boundary.

Shapes: U and V (b, h, n, r), theta (b, h, r), state (b, h, p, n), generator and rotation (b, h, n, n). Everything in float32 or
float64."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from surgicalmamba.core.precision import in_full_precision

Form = Literal["low-rank", "dense"]


def unit_columns(planes: Tensor) -> Tensor:
    """Columns of length one, so that theta alone carries magnitude (text below eq. uvtheta). planes (b, h, n, r)."""
    return F.normalize(planes, dim=-2)


def generator(U: Tensor, V: Tensor, theta: Tensor) -> Tensor:
    """S = U diag(theta) V^T minus its transpose, eq. (skew): skew-symmetric, of rank at most 2r."""
    half = (U * theta[..., None, :]) @ V.transpose(-1, -2)
    return half - half.transpose(-1, -2)


def cayley(generator: Tensor) -> Tensor:
    """Z = (I - S/2)^-1 (I + S/2), eq. (cayley): orthogonal for every skew-symmetric S, differentiable everywhere."""
    identity = torch.eye(generator.shape[-1], dtype=generator.dtype, device=generator.device)
    return torch.linalg.solve(identity - generator / 2, identity + generator / 2)


def rotate_state(state: Tensor, rotation: Tensor) -> Tensor:
    """Turn every head's state, h <- h Z. The Frobenius norm is kept."""
    return state @ rotation


def rotate_state_low_rank(state: Tensor, U: Tensor, V: Tensor, theta: Tensor) -> Tensor:
    """h Z without ever forming Z: a 2r x 2r solve (Woodbury) instead of an N x N one.

    With S = P Q^T, P = [U theta, -V theta] and Q = [V, U], Z = I + P (I - Q^T P / 2)^-1 Q^T."""
    P = torch.cat([U * theta[..., None, :], -V * theta[..., None, :]], dim=-1)  # (b, h, n, 2r)
    Q = torch.cat([V, U], dim=-1)
    core = torch.eye(P.shape[-1], dtype=P.dtype, device=P.device) - Q.transpose(-1, -2) @ P / 2
    return state + (state @ P) @ torch.linalg.solve(core, Q.transpose(-1, -2))


def faster_form(d_state: int, rank: int) -> Form:
    """Which of the two equal forms costs less: the one that solves the smaller system, as measured on CPUs.

    A rule and not a timing at run time, which would let noise decide and a resumed run differ in its last bits.
    `surgicalmamba bench rotation` measures it on any device; RotationConfig.form overrides it."""
    return "low-rank" if 2 * rank < d_state else "dense"


@in_full_precision
def regram(state: Tensor, U: Tensor, V: Tensor, theta: Tensor, form: Form) -> Tensor:
    """Rotate the carried state by the Cayley transform of the generator, in one of two equal forms."""
    if form == "low-rank":
        return rotate_state_low_rank(state, U, V, theta)
    return rotate_state(state, cayley(generator(U, V, theta)))
