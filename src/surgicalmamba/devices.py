"""Resident memory of a process."""

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Resident:
    """Bytes of memory held: the most ever, and now."""

    peak: int
    now: int


def resident(process: int | str = "self") -> Resident:
    """Of this process or, by its number, of another; zeros where the system does not tell."""
    try:  # not getrusage: its peak is inherited from the process that started this one
        lines = (Path("/proc") / str(process) / "status").read_text(encoding="utf-8").splitlines()
    except OSError:  # another system, or a process that has ended
        lines = []
    if lines:
        sizes = dict(line.split(":", 1) for line in lines)
        peak, now = (int(sizes[key].split()[0]) * 1024 if key in sizes else 0 for key in ("VmHWM", "VmRSS"))
        return Resident(peak, now)
    if process != "self":
        return Resident(0, 0)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Resident(peak, peak)
