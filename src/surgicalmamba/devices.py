"""The device to compute on, and the memory a process holds."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Resident:
    """Bytes of memory held: the most ever, and now."""

    peak: int
    now: int


def resident(process: int | str = "self") -> Resident:
    """Of this process, or of another by its id; zeros where the system has no such number."""
    try:  # not getrusage: its peak is inherited from the process that started this one
        lines = (Path("/proc") / str(process) / "status").read_text(encoding="utf-8").splitlines()
    except OSError:  # another system, or a process that has ended
        lines = []
    if lines:
        sizes = dict(line.split(":", 1) for line in lines)
        peak, now = (1024 * int(sizes.get(key, "0").split()[0]) for key in ("VmHWM", "VmRSS"))
        return Resident(peak, now)
    if process != "self":
        return Resident(0, 0)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Resident(peak, peak)


def pick_device(name: str) -> "torch.device":
    """`auto` is this process's GPU where there is one, then Apple's, then the CPU."""
    import torch

    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
