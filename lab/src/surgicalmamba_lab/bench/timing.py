"""Fair timing on a noisy machine: warm up, take turns, report medians."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Report:
    """The result of a benchmark: its fields as JSON, or `lines` as text."""

    def lines(self) -> list[str]:
        raise NotImplementedError

    def text(self, as_json: bool) -> str:
        return json.dumps(asdict(self), indent=2) if as_json else "\n".join(self.lines())


@dataclass(frozen=True)
class Timing:
    """Wall-clock milliseconds of one call, over several runs."""

    median_ms: float
    p95_ms: float
    runs: int


def summarise(seconds: list[float]) -> Timing:
    """Median and 95th percentile (nearest rank) of measured durations."""
    return Timing(1e3 * statistics.median(seconds), 1e3 * percentile(seconds, 95), len(seconds))


def percentile(values: list[float], percent: int) -> float:
    """The smallest value that at least this share of the values does not exceed (nearest rank)."""
    return sorted(values)[-(-percent * len(values) // 100) - 1]


def take_turns(calls: Mapping[str, Callable[[], object]], runs: int, warmup: int = 1) -> dict[str, Timing]:
    """Time several calls in alternation, so that other load slows all of them and ratios stay fair."""
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
    system, kind, python = platform.system(), platform.machine(), platform.python_version()
    return {"system": system, "machine": kind, "python": python, "cores": os.cpu_count()}
