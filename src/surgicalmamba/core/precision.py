"""Which parts stay in full precision: the SSM state, the step, the scan and the rotation, whatever autocast says.

Half precision is fine for projections. It is not for a state that is multiplied by a decay near one tens of thousands of times,
nor for the solve behind a rotation that must not change a norm."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


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
        if not torch.is_autocast_enabled(device_type) and all(t.dtype == full_dtype(t.dtype) for t in tensors):
            return function(*args, **kwargs)
        lifted = [full(value) if isinstance(value, Tensor) else value for value in args]
        with torch.autocast(device_type, enabled=False):
            return function(*lifted, **kwargs)  # type: ignore[arg-type]

    return run
