"""The SSD scan by a fused kernel where there is one, by the reference elsewhere. Decided once per process, overridable.

A fused kernel is used only on CUDA, only if it imports, and only after it has agreed with the reference on a small input, in
output and final state. When it does not, the reason is warned about once and the reference is used."""

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Literal

import torch
from torch import Tensor

from surgicalmamba.core.precision import in_full_precision
from surgicalmamba.core.ssd import BLOCK_LEN, ssd_scan

Scan = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Choice = Literal["auto", "reference", "mamba-ssm"]

PARITY_TOLERANCE = 1e-3
"""Largest difference, relative to the largest value, at which a fused kernel counts as equal. Tensor cores may round to TF32."""

_choice: Choice = "auto"
_fused: dict[str, Scan | None] = {}  # by device; None where no kernel passed


def choose_scan(choice: Choice) -> None:
    """Override the decision: "auto", or one backend by name. A named backend that fails its parity check raises."""
    global _choice
    _choice = choice
    _fused.clear()


def scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """`ssd_scan` by the backend in force. One frame is always the reference's step, which needs no kernel."""
    fused = None
    if _choice != "reference" and x.shape[1] > 1 and (x.is_cuda or _choice == "mamba-ssm"):
        fused = _fused_for(x.device)
    return (fused or ssd_scan)(x, dt, A, B, C, state)


def _fused_for(device: torch.device) -> Scan | None:
    key = str(device)
    if key not in _fused:
        problem = _parity_problem(device)
        if problem and _choice == "mamba-ssm":
            raise RuntimeError(f"the mamba-ssm scan was asked for but {problem}")
        if problem and "not installed" not in problem:
            warnings.warn(f"the mamba-ssm scan is not used: {problem}", RuntimeWarning, stacklevel=2)
        _fused[key] = None if problem else _mamba_ssm_scan
    return _fused[key]


def _parity_problem(device: torch.device) -> str:
    """Why the fused kernel cannot be used on this device; empty when it agrees with the reference."""
    generator = torch.Generator().manual_seed(0)
    b, length, h, p, n = 2, BLOCK_LEN + 3, 2, 16, 16
    x, B, C = (torch.randn(b, length, h, width, generator=generator).to(device) for width in (p, n, n))
    dt, A = torch.rand(b, length, h, generator=generator).to(device) * 0.2, -torch.rand(h, generator=generator).to(device) - 0.1
    state = torch.randn(b, h, p, n, generator=generator).to(device)
    try:
        results = _mamba_ssm_scan(x, dt, A, B, C, state)
    except ImportError:
        return "it is not installed"
    except Exception as error:  # a foreign kernel can fail in any way on a device it was not built for
        return f"it fails on {device}: {error}"
    for ours, reference in zip(results, ssd_scan(x, dt, A, B, C, state), strict=True):
        difference = float((ours - reference).abs().max() / reference.abs().max())
        if not difference <= PARITY_TOLERANCE:
            return f"it differs from the reference by {difference:.1e} on {device}, more than {PARITY_TOLERANCE:.0e}"
    return ""


@in_full_precision
def _mamba_ssm_scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    kernel = import_module("mamba_ssm.ops.triton.ssd_combined").mamba_chunk_scan_combined
    y, final = kernel(
        x.contiguous(), dt.contiguous(), A, B.contiguous(), C.contiguous(), BLOCK_LEN, initial_states=state, return_final_states=True
    )
    return y, final
