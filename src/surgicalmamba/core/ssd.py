"""The SSD recurrence, eq. (ssd_recur): h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T,  y_t = h_t C_t.

Two forms of one map: `ssd_step` advances one frame, `ssd_scan` any number of them by matrix products. They agree in value,
final state and every gradient.

Shapes: x (b, l, h, p), dt (b, l, h) positive, A (h) negative, B and C (b, l, h, n), state (b, h, p, n). A step has no l."""

import torch
from torch import Tensor

from surgicalmamba.core.precision import in_full_precision

BLOCK_LEN = 64
"""Frames handled by one matrix product. Changes cost, not values: the products grow with its square, their number shrinks with it."""


def segment_sum(log_decay: Tensor) -> Tensor:
    """log a(t:s) of appendix Matrix view: entry [t, s] is the sum of log_decay over s+1..t, and -inf above the diagonal.

    log_decay (..., l) -> (..., l, l). Sums of the entries themselves, not differences of a running total, which would cancel."""
    length = log_decay.shape[-1]
    lower = torch.ones(length, length, dtype=torch.bool, device=log_decay.device).tril()
    terms = log_decay[..., :, None].expand(*log_decay.shape, length).masked_fill(~lower.tril(-1), 0.0)
    return terms.cumsum(-2).masked_fill(~lower, -torch.inf)


@in_full_precision
def ssd_step(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Advance one frame: x (b, h, p), dt (b, h), B and C (b, h, n). Returns y (b, h, p) and the new state."""
    decay = torch.exp(dt * A)[..., None, None]
    state = decay * state + (dt[..., None] * x)[..., None] * B[..., None, :]
    return torch.einsum("bhpn,bhn->bhp", state, C), state


@in_full_precision
def ssd_scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, block_len: int = BLOCK_LEN) -> tuple[Tensor, Tensor]:
    """Advance any number of frames. Returns y (b, l, h, p) and the state after the last one."""
    length = x.shape[1]
    if length == 1:
        y, state = ssd_step(x[:, 0], dt[:, 0], A, B[:, 0], C[:, 0], state)
        return y[:, None], state
    outputs = []
    for x_, dt_, B_, C_ in zip(*(whole.split(block_len, dim=1) for whole in (x, dt, B, C)), strict=True):
        y, state = _scan_block(x_, dt_, A, B_, C_, state)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


@in_full_precision
def running_means(x: Tensor, frames: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Exponential means m_t = m_{t-1} + (x_t - m_{t-1}) / k for every k of `frames` (s): the same recurrence, a head per mean, B = C = 1.

    x (b, l, d), means (b, s, d) before the first frame -> (b, l, s, d) and the means after the last."""
    b, length, _ = x.shape
    ones = x.new_ones(b, length, len(frames), 1)
    written = x[:, :, None] / frames[:, None]  # (b, l, s, d)
    y, state = ssd_scan(written, ones[..., 0], torch.log1p(-1 / frames), ones, ones, means[..., None])
    return y, state[..., 0]


def _scan_block(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One block as matrix products, eq. (intra) plus what the carried state contributes."""
    log_decay = (dt * A).transpose(1, 2)  # (b, h, l)
    written = (dt[..., None] * x).transpose(1, 2)  # (b, h, l, p)
    B, C = B.transpose(1, 2), C.transpose(1, 2)  # (b, h, l, n)
    since_start = log_decay.cumsum(-1)

    # 1. Frames of this block reading frames of this block: M[t, s] = a(t:s) C_t . B_s for s <= t.
    kernel = torch.exp(segment_sum(log_decay)) * (C @ B.transpose(-1, -2))  # (b, h, l, l)
    y = kernel @ written

    # 2. Frames of this block reading what was carried in.
    y = y + torch.exp(since_start)[..., None] * (C @ state.transpose(-1, -2))

    # 3. What this block leaves behind: the carried state decayed to its end, and each write decayed from where it happened.
    until_end = log_decay.flip(-1).cumsum(-1).flip(-1) - log_decay
    state = torch.exp(since_start[..., -1])[..., None, None] * state
    state = state + (torch.exp(until_end)[..., None] * written).transpose(-1, -2) @ B
    return y.transpose(1, 2), state
