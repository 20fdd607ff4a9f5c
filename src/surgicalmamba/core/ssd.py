"""The SSD recurrence, eq. (ssd_recur): h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T,  y_t = h_t C_t.

Two forms of one map: `ssd_step` advances one frame, `ssd_scan` any number of them by matrix products. They
agree in value, final state and every gradient. `scan` takes a fused kernel where one passes a parity check.

Shapes: x (b, l, h, p), dt (b, l, h) positive, A (h) negative, B and C (b, l, h, n), state (b, h, p, n). A
step has no l. State, step, scan and rotation stay in full precision under autocast too: the state is
multiplied by a decay near one tens of thousands of times, and the solve behind a rotation must not change a
norm."""

import warnings
from collections.abc import Callable
from functools import lru_cache, wraps
from importlib import import_module
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
Scan = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

BLOCK_LEN = 64
"""Frames per matrix product. It changes cost, not values: longer blocks are fewer, at quadratic cost."""
NOT_INSTALLED = "it is not installed"
FUSED_DEVICES = ("cuda",)
"""Types of device on which a fused kernel is tried."""
PARITY_TOLERANCE = 1e-3
"""Largest difference, relative to the largest value, of a fused kernel. Tensor cores may round to TF32."""


def full_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays float64; everything else is computed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def full(tensor: Tensor) -> Tensor:
    """The tensor in full precision; no copy when it already is."""
    return tensor.to(full_dtype(tensor.dtype))


def in_full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function of tensors outside autocast, with its positional tensors in full precision."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        tensors = [value for value in args if isinstance(value, Tensor)]
        device_type = tensors[0].device.type
        are_full = all(tensor.dtype == full_dtype(tensor.dtype) for tensor in tensors)
        if are_full and not torch.is_autocast_enabled(device_type):
            return function(*args, **kwargs)
        lifted = [full(value) if isinstance(value, Tensor) else value for value in args]
        with torch.autocast(device_type, enabled=False):
            return function(*lifted, **kwargs)  # type: ignore[arg-type]

    return run


@in_full_precision
def ssd_step(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Advance one frame: x (b, h, p), dt (b, h), B and C (b, h, n). Returns y (b, h, p) and the new state."""
    decay = torch.exp(dt * A)[..., None, None]
    state = decay * state + (dt[..., None] * x)[..., None] * B[..., None, :]
    return torch.einsum("bhpn,bhn->bhp", state, C), state


@in_full_precision
def ssd_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, block_len: int = BLOCK_LEN
) -> tuple[Tensor, Tensor]:
    """Advance any number of frames. Returns y (b, l, h, p) and the state after the last one."""
    if x.shape[1] == 1:
        y, state = ssd_step(x[:, 0], dt[:, 0], A, B[:, 0], C[:, 0], state)
        return y[:, None], state
    outputs = []
    for x_, dt_, B_, C_ in zip(*(whole.split(block_len, dim=1) for whole in (x, dt, B, C)), strict=True):
        y, state = _scan_block(x_, dt_, A, B_, C_, state)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


def _scan_block(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One block as matrix products, eq. (intra), plus what the carried state contributes."""
    log_decay = (dt * A).transpose(1, 2)  # (b, h, l)
    written = (dt[..., None] * x).transpose(1, 2)  # (b, h, l, p)
    B, C = B.transpose(1, 2), C.transpose(1, 2)  # (b, h, l, n)
    since_start = log_decay.cumsum(-1)

    # 1. Frames of this block read frames of this block: M[t, s] = a(t:s) C_t . B_s for s <= t.
    kernel = torch.exp(segment_sum(log_decay)) * (C @ B.transpose(-1, -2))  # (b, h, l, l)
    y = kernel @ written

    # 2. Frames of this block read the carried state.
    y = y + torch.exp(since_start)[..., None] * (C @ state.transpose(-1, -2))

    # 3. The state after this block: the carried one, decayed to its end, and each write, decayed since then.
    until_end = log_decay.flip(-1).cumsum(-1).flip(-1) - log_decay
    state = torch.exp(since_start[..., -1])[..., None, None] * state
    state = state + (torch.exp(until_end)[..., None] * written).transpose(-1, -2) @ B
    return y.transpose(1, 2), state


def segment_sum(log_decay: Tensor) -> Tensor:
    """log a(t:s) of appendix Matrix view: [t, s] is the sum of log_decay over s+1..t, -inf for s > t.

    log_decay (..., l) -> (..., l, l). Sums, not differences of a running total, which would cancel."""
    length = log_decay.shape[-1]
    lower = torch.ones(length, length, dtype=torch.bool, device=log_decay.device).tril()
    terms = log_decay[..., :, None].expand(*log_decay.shape, length).masked_fill(~lower.tril(-1), 0.0)
    return terms.cumsum(-2).masked_fill(~lower, -torch.inf)


def warp_step(dt: Tensor, intensity: Tensor) -> Tensor:
    """The step under intensity, (1 + lambda) dt, eq. (warpdisc): event time runs faster at a phase boundary.

    dt (b, l, h), intensity (b, l) in 0..1: the step is at most doubled and never shortened."""
    return dt * (1 + intensity[..., None])


@in_full_precision
def running_means(x: Tensor, frames: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Exponential means m_t = m_{t-1} + (x_t - m_{t-1}) / k for every k of `frames` (s).

    The SSD recurrence with a head per mean and B = C = 1. x (b, l, d), means (b, s, d) before the first frame
    -> (b, l, s, d) and the means after the last."""
    b, length, _ = x.shape
    ones = x.new_ones(b, length, len(frames), 1)
    written = x[:, :, None] / frames[:, None]  # (b, l, s, d)
    y, state = ssd_scan(written, ones[..., 0], torch.log1p(-1 / frames), ones, ones, means[..., None])
    return y, state[..., 0]


def scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """`ssd_scan`, or a fused kernel where the device has one that agrees. One frame takes `ssd_step`."""
    fused = _fused_scan(x.device) if x.shape[1] > 1 and x.device.type in FUSED_DEVICES else None
    return (fused or ssd_scan)(x, dt, A, B, C, state)


@lru_cache
def _fused_scan(device: torch.device) -> Scan | None:
    """The fused kernel, or None if it is not installed or fails its parity check (one warning)."""
    problem = _parity_problem(device)
    if problem and problem != NOT_INSTALLED:
        warnings.warn(f"the mamba-ssm scan is not used: {problem}", RuntimeWarning, stacklevel=2)
    return None if problem else _mamba_ssm_scan


def _parity_problem(device: torch.device) -> str:
    """Why the fused kernel cannot be used on this device; empty when it agrees with `ssd_scan`."""
    generator = torch.Generator().manual_seed(0)
    b, length, h, p, n = 2, BLOCK_LEN + 3, 2, 16, 16
    x, B, C = (torch.randn(b, length, h, width, generator=generator).to(device) for width in (p, n, n))
    dt = torch.rand(b, length, h, generator=generator).to(device) * 0.2
    A = -torch.rand(h, generator=generator).to(device) - 0.1
    state = torch.randn(b, h, p, n, generator=generator).to(device)
    try:
        results = _mamba_ssm_scan(x, dt, A, B, C, state)
    except ImportError:
        return NOT_INSTALLED
    except Exception as error:  # a foreign kernel can fail in any way on a device it was not built for
        return f"it fails on {device}: {error}"
    for ours, reference in zip(results, ssd_scan(x, dt, A, B, C, state), strict=True):
        difference = float((ours - reference).abs().max() / reference.abs().max())
        if not difference <= PARITY_TOLERANCE:
            limit = f"more than {PARITY_TOLERANCE:.0e}"
            return f"it differs from the reference by {difference:.1e} on {device}, {limit}"
    return ""


@in_full_precision
def _mamba_ssm_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    kernel = import_module("mamba_ssm.ops.triton.ssd_combined").mamba_chunk_scan_combined
    x, dt, B, C = (tensor.contiguous() for tensor in (x, dt, B, C))
    y, final = kernel(x, dt, A, B, C, BLOCK_LEN, initial_states=state, return_final_states=True)
    return y, final
