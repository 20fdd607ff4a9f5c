"""State regramming: an orthogonal Z from planes U, V and angles theta, applied to the carried state at chunk
ends.

Shapes: U and V (b, h, n, r), theta (b, h, r), state (b, h, p, n), generator and rotation (b, h, n, n), all in
float32 or float64."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from surgicalmamba.core.ssd import in_full_precision

Form = Literal["low-rank", "dense"]
Solve = Callable[[Tensor, Tensor], Tensor]
"""X of A X = B for a batch of square A: `torch.linalg.solve`, or `solve_by_blocks` where it is missing."""


def unit_columns(planes: Tensor) -> Tensor:
    """Columns of length one, so that only theta has magnitude (below eq. uvtheta). planes (b, h, n, r)."""
    return F.normalize(planes, dim=-2)


def coordinate_pairs(d_state: int, rank: int, like: Tensor) -> Tensor:
    """Planes of coordinates (0, 1), (2, 3), ...: U and V stacked, (2, 1, 1, n, r), typed as `like`."""
    pairs = torch.eye(d_state, 2 * rank, dtype=like.dtype, device=like.device)
    return torch.stack([pairs[:, 0::2], pairs[:, 1::2]])[:, None, None]


def generator(U: Tensor, V: Tensor, theta: Tensor) -> Tensor:
    """S = U diag(theta) V^T minus its transpose, eq. (skew): skew-symmetric, of rank at most 2r."""
    half = (U * theta[..., None, :]) @ V.transpose(-1, -2)
    return half - half.transpose(-1, -2)


def cayley(generator: Tensor, solve: Solve = torch.linalg.solve) -> Tensor:
    """Z = (I - S/2)^-1 (I + S/2), eq. (cayley): orthogonal for every skew-symmetric S, and smooth."""
    identity = torch.eye(generator.shape[-1], dtype=generator.dtype, device=generator.device)
    return solve(identity - generator / 2, identity + generator / 2)


def rotate_state(state: Tensor, rotation: Tensor) -> Tensor:
    """Turn every head's state, h <- h Z. The Frobenius norm is kept."""
    return state @ rotation


def rotate_state_low_rank(
    state: Tensor, U: Tensor, V: Tensor, theta: Tensor, solve: Solve = torch.linalg.solve
) -> Tensor:
    """h Z without ever forming Z: a 2r x 2r solve (Woodbury) instead of an N x N one.

    With S = P Q^T, P = [U theta, -V theta] and Q = [V, U], Z = I + P (I - Q^T P / 2)^-1 Q^T. Columns are
    ordered plane by plane (u1, v1, u2, v2, ...), which `solve_by_blocks` relies on."""
    P = torch.stack([U * theta[..., None, :], -V * theta[..., None, :]], dim=-1).flatten(-2)  # (b, h, n, 2r)
    Q = torch.stack([V, U], dim=-1).flatten(-2)
    core = torch.eye(P.shape[-1], dtype=P.dtype, device=P.device) - Q.transpose(-1, -2) @ P / 2
    return state + (state @ P) @ solve(core, Q.transpose(-1, -2))


def solve_by_blocks(A: Tensor, B: Tensor) -> Tensor:
    """X of A X = B by matrix products alone, for runtimes without a solver. A (..., m, m), B (..., m, c).

    Eliminates halves of even size, down to 2 x 2, and never exchanges rows. That is safe only for systems
    like the two above: the first k planes of `core` are the system of a rotation with k planes, whose
    determinant is at least 1, and I - S/2 has a positive definite symmetric part."""
    size = A.shape[-1]
    if size == 1:
        return B / A
    if size == 2:
        J = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=A.dtype, device=A.device)
        adjugate = J.T @ A.transpose(-1, -2) @ J
        return adjugate @ B / (A @ adjugate)[..., :1, :1]  # A times its adjugate is det(A) I
    parts = [size // 4 * 2 or 2, size - (size // 4 * 2 or 2)]
    (A11, A12), (A21, A22) = (rows.split(parts, dim=-1) for rows in A.split(parts, dim=-2))
    B1, B2 = B.split(parts, dim=-2)
    solved = solve_by_blocks(A11, torch.cat([A12, B1], dim=-1))
    coupling, above = solved.split([parts[1], B.shape[-1]], dim=-1)
    below = solve_by_blocks(A22 - A21 @ coupling, B2 - A21 @ above)
    return torch.cat([above - coupling @ below, below], dim=-2)


def faster_form(d_state: int, rank: int) -> Form:
    """Which of the two equal forms costs less: the one that solves the smaller system, as measured on CPUs.

    A rule, not a timing at run time: with a timing, noise decides, and a resumed run differs in its last
    bits. `surgicalmamba bench rotation` measures it on any device; RotationConfig.form overrides it."""
    return "low-rank" if 2 * rank < d_state else "dense"


@in_full_precision
def regram(
    state: Tensor, U: Tensor, V: Tensor, theta: Tensor, form: Form, solve: Solve = torch.linalg.solve
) -> Tensor:
    """Rotate the carried state by the Cayley transform of the generator, in one of two equal forms."""
    if form == "low-rank":
        return rotate_state_low_rank(state, U, V, theta, solve)
    return rotate_state(state, cayley(generator(U, V, theta), solve))


def turn_pairs(vectors: Tensor, angle: Tensor) -> Tensor:
    """Rotary embedding: coordinate pairs (0, 1), (2, 3), ... turned by their angles, other coordinates
    unchanged.

    vectors (..., n), angle (..., pairs) with 2 * pairs <= n. With B and C turned by angles accumulated since
    the start, a write is read turned by the angle accumulated in between: the state rotates every frame and
    the scan needs no change (appendix Relation to Mamba-3)."""
    turned, rest = vectors.split([2 * angle.shape[-1], vectors.shape[-1] - 2 * angle.shape[-1]], dim=-1)
    even, odd = turned.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = torch.cos(angle), torch.sin(angle)
    pairs = torch.stack([cos * even - sin * odd, sin * even + cos * odd], dim=-1).flatten(-2)
    return torch.cat([pairs, rest], dim=-1)
