"""Fair timing on a noisy machine: warm up, take turns, report medians."""

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Wall-clock milliseconds of one call, over several runs."""

    median_ms: float
    p95_ms: float
    runs: int


def summarise(seconds: list[float]) -> Timing:
    """Median and 95th percentile (nearest rank) of measured durations."""
    ordered = sorted(seconds)
    n = len(ordered)
    median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return Timing(median * 1e3, percentile(seconds, 95) * 1e3, n)


def percentile(values: list[float], percent: int) -> float:
    """The smallest value that at least this share of the values does not exceed (nearest rank)."""
    return sorted(values)[-(-percent * len(values) // 100) - 1]


def take_turns(calls: Mapping[str, Callable[[], object]], runs: int, warmup: int = 1) -> dict[str, Timing]:
    """Time several calls in alternation, so that a busy neighbour slows all of them and ratios stay fair."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warmup + runs):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            elapsed = time.perf_counter() - start
            if turn >= warmup:
                seconds[name].append(elapsed)
    return {name: summarise(values) for name, values in seconds.items()}


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    return {"system": platform.system(), "machine": platform.machine(), "python": platform.python_version(), "cores": os.cpu_count()}
