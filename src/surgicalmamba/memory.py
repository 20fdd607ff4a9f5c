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
    status = Path("/proc") / str(process) / "status"
    if status.exists():  # not getrusage: its peak is inherited from the process that started this one
        sizes = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines())
        peak, now = (int(sizes[key].split()[0]) * 1024 if key in sizes else 0 for key in ("VmHWM", "VmRSS"))
        return Resident(peak, now)
    if process != "self":
        return Resident(0, 0)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Resident(peak, peak)
