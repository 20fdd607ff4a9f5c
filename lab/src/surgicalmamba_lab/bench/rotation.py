"""`surgicalmamba bench rotation`: the two equal forms of the state rotation over sizes, behind the rule of `faster_form`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from surgicalmamba.core.rotation import Form, faster_form, regram, unit_columns
from surgicalmamba_lab.bench.timing import Timing, take_turns

SIZES = tuple((d_state, d_state // share) for d_state in (16, 32, 64, 128) for share in (16, 8, 4, 2))
"""(d_state, rank) pairs up to 2 rank = d_state, where the two systems are equally large."""


FORMS: tuple[Form, ...] = ("low-rank", "dense")


@dataclass(frozen=True)
class RotationBench:
    """Both forms at one size, for 24 heads of width 64 (the paper's model)."""

    d_state: int
    rank: int
    device: str
    low_rank: Timing
    dense: Timing
    dense_over_low_rank: float
    chosen: Form
    measured_faster: Form


def bench_rotation(device: str, runs: int, threads: int | None = None) -> list[RotationBench]:
    """Time both forms at every size. `chosen` is what `form: auto` takes."""
    if threads is not None:
        torch.set_num_threads(threads)
    results = []
    for d_state, rank in SIZES:
        U, V = (unit_columns(torch.randn(1, 24, d_state, rank, device=device)) for _ in range(2))
        theta, state = torch.rand(1, 24, rank, device=device), torch.randn(1, 24, 64, d_state, device=device)

        calls: dict[str, Callable[[], object]] = {form: _call(form, state, U, V, theta) for form in FORMS}
        timings = take_turns(calls, runs, warmup=3)
        ratio = timings["dense"].median_ms / timings["low-rank"].median_ms
        faster: Form = "low-rank" if ratio > 1 else "dense"
        chosen = faster_form(d_state, rank)
        results.append(RotationBench(d_state, rank, device, timings["low-rank"], timings["dense"], ratio, chosen, faster))
    return results


def _call(form: Form, state: Tensor, U: Tensor, V: Tensor, theta: Tensor) -> Callable[[], object]:
    return lambda: float(regram(state, U, V, theta, form).flatten()[0])  # reading a value waits for the device


def lines(results: list[RotationBench]) -> list[str]:
    """The sweep as a table."""
    text = ["state  rank   low-rank ms      dense ms   dense/low-rank  auto takes"]
    for r in results:
        times = f"{r.low_rank.median_ms:>13.3f} {r.dense.median_ms:>13.3f} {r.dense_over_low_rank:>16.2f}"
        note = "" if r.chosen == r.measured_faster else "  (the other form was faster here: set rotation.form)"
        text.append(f"{r.d_state:>5} {r.rank:>5} {times}  {r.chosen}{note}")
    return text
