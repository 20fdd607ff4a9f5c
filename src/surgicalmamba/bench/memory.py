"""Resident memory of this process."""

import sys
from pathlib import Path


def resident_mb() -> tuple[float, float]:
    """Peak and present resident memory of this process in megabytes."""
    status = Path("/proc/self/status")
    if status.exists():  # not getrusage: its peak is inherited from the process that started this one
        sizes = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines())
        return tuple(int(sizes[key].split()[0]) * 1024 / 1e6 for key in ("VmHWM", "VmRSS"))  # type: ignore[return-value]
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    return peak, peak
