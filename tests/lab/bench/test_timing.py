"""The arithmetic of the measurements."""

import pytest

from surgicalmamba_lab.bench.timing import percentile, summarise, take_turns


def test_median_and_95th_percentile_by_hand():
    timing = summarise([i / 1000 for i in range(1, 21)])  # 1 to 20 ms
    assert timing.median_ms == pytest.approx(10.5)
    assert timing.p95_ms == pytest.approx(19)  # nearest rank: the 19th of 20
    assert summarise([0.004]).p95_ms == 4.0


def test_calls_take_turns_and_warm_up_runs_are_not_counted():
    order = []
    timings = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, runs=3, warmup=2)
    assert order == ["a", "b"] * 5
    assert timings["a"].runs == timings["b"].runs == 3


def test_percentiles_are_values_that_were_measured():
    assert [percentile([3.0, 1.0, 2.0, 4.0], p) for p in (25, 50, 51, 99, 100)] == [1.0, 2.0, 3.0, 4.0, 4.0]
