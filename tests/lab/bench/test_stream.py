"""Figures of `bench stream` that do not depend on the machine."""

import json
import subprocess
import sys

import pytest
import torch

from engines.conftest import live_config
from surgicalmamba.devices import resident
from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba.errors import InputError
from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba
from surgicalmamba_lab.bench import stream_long
from surgicalmamba_lab.bench.stream import (
    ENGINES,
    PoolRow,
    Spread,
    Times,
    bench_stream,
    largest_pool,
    measure_memory,
    measure_pool,
    plot_stream,
)
from surgicalmamba_lab.bench.stream_long import Agreement, bench_long


@pytest.fixture
def small(monkeypatch):
    """Presets are the small model of the engine tests."""
    monkeypatch.setattr(ModelConfig, "preset", classmethod(lambda cls, name, **changes: live_config()))
    return SurgicalMamba(live_config()).eval()


def test_a_whole_frame_is_backbone_and_temporal_part_of_the_same_run():
    times = Times([0.010, 0.030, 0.020], [0.005, 0.001, 0.002], [0.007, 0.003, 0.004])
    row = times.row("onnx", base_ms=44.0, parity=None, memory=None, pool=[])
    assert row.ordinary == Spread(
        pytest.approx(22.0), pytest.approx(31.0), pytest.approx(31.0)
    )  # 15, 31 and 22 ms
    assert row.boundary.median_ms == pytest.approx(24.0)
    assert row.boundary_over_ordinary == pytest.approx(24 / 22) and row.speedup == pytest.approx(2.0)


def test_engines_are_measured_and_those_that_cannot_run_are_named(small, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no compiler
    monkeypatch.delenv("CXX", raising=False)
    report = bench_stream("small", ["eager", "compiled"], runs=2, threads=1)
    assert [row.engine for row in report.engines] == ["eager"] and "C++ compiler" in report.left_out[
        "compiled"
    ]
    (row,) = report.engines
    assert row.speedup == 1.0 and row.memory.peak_mb >= row.memory.resident_mb > 50
    assert row.streams_held == max(pool.streams for pool in row.pool if pool.holds)
    plot_stream(report, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG") and len(
        list(tmp_path.iterdir())
    ) == 1
    assert any("eager" in line and "streams" in line for line in report.lines())
    json.loads(report.text(as_json=True))


def test_an_engine_nobody_knows_is_refused():
    with pytest.raises(InputError, match="no engine 'tensor'"):
        bench_stream("tiny", ["tensor"], runs=1, threads=1)


def test_the_memory_of_a_process_is_its_own_and_not_its_parents(small, tmp_path):
    ballast = torch.ones(100_000_000)  # 400 MB here
    small.save(tmp_path / "checkpoint")
    memory = measure_memory("eager", tmp_path / "checkpoint", threads=1)
    assert memory.peak_mb < resident().peak / 1e6 - ballast.nbytes / 1e6 / 2


def test_a_pool_grows_until_a_round_misses_a_second(small, monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr("surgicalmamba_lab.bench.stream.time.perf_counter", lambda: next(clock) * 0.4)
    rows = measure_pool(EagerEngine(small), rounds=3)
    assert [row.holds for row in rows] == [True] * len(rows)  # every round lasts 0.4 s by this clock
    monkeypatch.setattr("surgicalmamba_lab.bench.stream.time.perf_counter", lambda: next(clock) * 2.0)
    rows = measure_pool(EagerEngine(small), rounds=3)
    assert [(row.streams, row.holds) for row in rows] == [(1, False)] and largest_pool(rows) == 0
    assert (
        largest_pool([PoolRow(4, 1, 1, 1, True), PoolRow(8, 1, 1, 1, True), PoolRow(16, 1, 1, 1, False)]) == 8
    )


def test_a_long_run_compares_frame_by_frame_with_clip_by_clip(small, monkeypatch):
    with pytest.raises(InputError, match="use 3000 or more"):
        bench_long("eager", 100, threads=1)
    monkeypatch.setattr(stream_long, "WINDOW", 30)
    report = bench_long("eager", 100, threads=1)
    assert report.frames == 100 and report.logit_drift < 1e-5
    assert report.late_over_early == pytest.approx(report.late_median_ms / report.early_median_ms)


def test_a_drift_in_the_last_frames_of_a_long_run_is_seen(small, monkeypatch):
    class Drifting(EagerEngine):
        def advance(self, features, state):
            output = super().advance(features, state)
            off = 0.5 if state.frame_index[0] == 99 else 0.0
            return type(output)(output.logits + off, output.intensity_logits, output.state)

    monkeypatch.setattr(stream_long, "WINDOW", 30)
    monkeypatch.setattr(stream_long, "open_engine", lambda model, name, threads: Drifting(model))
    assert bench_long("drifting", 100, threads=1).logit_drift == pytest.approx(0.5, abs=1e-4)


def test_agreement_reads_as_a_sentence():
    assert "on 199 of 200 frames (99.50 %)" in Agreement("onnx-int8", 200, 199, 0.995, 0.2).lines()[0]


def test_agreement_is_counted_on_the_frames_of_a_prepared_dataset(small, tmp_path, monkeypatch):
    source = tmp_path / "arrays"
    source.mkdir()
    prepare_features(source, tmp_path / "prepared")
    small.save(tmp_path / "checkpoint")

    class Opposite(EagerEngine):
        """Says the reverse on every frame after the twelfth."""

        name = "opposite"

        def advance(self, features, state):
            output = super().advance(features, state)
            sign = 1 if state.frame_index[0] < 12 else -1
            return type(output)(sign * output.logits, output.intensity_logits, output.state)

    monkeypatch.setattr(stream_long, "open_engine", lambda model, name, threads: Opposite(model))
    result = stream_long.bench_agreement(
        str(tmp_path / "checkpoint"), tmp_path / "prepared", "all", "opposite", None, threads=1
    )
    assert (result.frames, result.agreeing) == (30, 12)
    shorter = stream_long.bench_agreement(
        str(tmp_path / "checkpoint"), tmp_path / "prepared", "all", "opposite", 10, threads=1
    )
    assert (shorter.frames, shorter.agreeing) == (10, 10)


def prepare_features(source, out):
    """One video of 30 feature vectors as a prepared dataset, through the command."""
    import numpy as np

    np.save(source / "video01.npy", np.random.default_rng(0).standard_normal((30, 10)).astype(np.float32))
    (source / "phases.yaml").write_text("phases: [a, b, c, d]\n")
    (source / "video01.txt").write_text(
        "Frame\tPhase\n" + "".join(f"{i}\t{'abcd'[i // 8]}\n" for i in range(30))
    )
    command = [
        sys.executable,
        "-m",
        "surgicalmamba",
        "prepare",
        "features",
        "--source",
        str(source),
        "--out",
        str(out),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_engines_that_are_measured_by_default_are_all_there_are():
    from surgicalmamba.engines.select import ENGINE_NAMES

    assert set(ENGINES) == set(ENGINE_NAMES) - {"auto"}
