"""`surgicalmamba bench stream`: what a live frame costs in each engine, taking turns in one run; memory, agreement and pools beside it."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from surgicalmamba.core.state import ModelState
from surgicalmamba.engines.engine import EagerEngine, Engine
from surgicalmamba.engines.export import export
from surgicalmamba.engines.parity import Parity, answers, require
from surgicalmamba.errors import EngineError, InputError
from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba
from surgicalmamba_lab.bench.stream_memory import Memory, measure_memory
from surgicalmamba_lab.bench.stream_pool import PoolRow, largest_pool, measure_pool
from surgicalmamba_lab.bench.timing import machine, percentile, summarise

ENGINES = ("eager", "compiled", "onnx", "onnx-int8")


@dataclass(frozen=True)
class Spread:
    """Milliseconds over several runs."""

    median_ms: float
    p95_ms: float
    p99_ms: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Spread":
        timing = summarise(seconds)
        return cls(timing.median_ms, timing.p95_ms, 1e3 * percentile(seconds, 99))


@dataclass(frozen=True)
class EngineRow:
    """One engine. `ordinary` and `boundary` are whole frames: backbone and temporal part."""

    engine: str
    parity: dict[str, object] | None
    backbone: Spread
    temporal: Spread
    temporal_boundary: Spread
    ordinary: Spread
    boundary: Spread
    boundary_over_ordinary: float
    speedup: float
    memory: Memory | None
    pool: list[PoolRow]
    streams_held: int | None


@dataclass(frozen=True)
class StreamBench:
    preset: str
    runs: int
    machine: dict[str, object]
    engines: list[EngineRow]
    left_out: dict[str, str]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def lines(self) -> list[str]:
        """The report as text."""
        text = [f"{self.preset} preset, one stream, {self.runs} runs, on {self.machine}"]
        heads = f"{'backbone':>9} {'temporal':>9} {'frame':>9} {'p95':>7} {'p99':>7} {'boundary':>9} {'ratio':>6} {'x eager':>8}"
        text.append(f"  {'engine, ms':<10} {heads}")
        for row in self.engines:
            f = row.ordinary
            text.append(
                f"  {row.engine:<10} {row.backbone.median_ms:>9.1f} {row.temporal.median_ms:>9.1f} {f.median_ms:>9.1f} {f.p95_ms:>7.1f}"
                f" {f.p99_ms:>7.1f} {row.boundary.median_ms:>9.1f} {row.boundary_over_ordinary:>6.2f} {row.speedup:>8.2f}"
            )
        for row in self.engines:
            if row.memory is not None:
                text.append(f"  {row.engine:<10} peak memory {row.memory.peak_mb:.0f} MB, {row.memory.resident_mb:.0f} MB when running")
            for pool in row.pool:
                held = "held" if pool.holds else "too slow"
                round_ms = f"a round takes {pool.median_ms:.0f} ms, p95 {pool.p95_ms:.0f}"
                text.append(f"  {row.engine:<10} {pool.streams:>3} streams: {round_ms}: {held}")
        return text + [f"  {name} left out: {reason}" for name, reason in self.left_out.items()]


def bench_stream(preset: str, engines: Sequence[str], runs: int, threads: int, memory: bool = True, pool: bool = True) -> StreamBench:
    """Measure a preset with fresh weights. Values do not change the cost; how well int8 agrees needs a trained model."""
    unknown = [name for name in engines if name not in ENGINES]
    if unknown:
        raise InputError(f"there is no engine {unknown[0]!r} to measure; engines: {', '.join(ENGINES)}.")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = SurgicalMamba(ModelConfig.preset(preset)).eval()
    eager = EagerEngine(model)
    with TemporaryDirectory(prefix="surgicalmamba-bench-") as place:
        homes = {"eager": Path(place) / "checkpoint", "compiled": Path(place) / "checkpoint"}
        homes |= {"onnx": Path(place) / "fp32", "onnx-int8": Path(place) / "int8"}
        opened, left_out = open_all(model, eager, ["eager", *(name for name in engines if name != "eager")], homes, threads)
        times = take_turns_live({name: engine for name, (engine, _) in opened.items()}, model, runs)
        pools = {name: measure_pool(engine, max(3, runs // 3)) if pool else [] for name, (engine, _) in opened.items()}
        parities = {name: None if parity is None else parity.as_dict() for name, (_, parity) in opened.items()}
        del opened
        if memory:
            model.save(homes["eager"])
        memories = {name: measure_memory(name, homes[name], threads) if memory else None for name in times}
    base = Spread.of(times["eager"].ordinary).median_ms
    rows = [
        times[name].row(name, base, parities[name], memories[name], pools[name], largest_pool(pools[name]) if pool else None)
        for name in times
    ]
    versions = {"torch": torch.__version__, "onnxruntime": _version("onnxruntime"), "threads": threads}
    return StreamBench(preset, runs, {**machine(), **versions}, rows, left_out)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def open_all(
    model: SurgicalMamba, eager: EagerEngine, names: Sequence[str], homes: dict[str, Path], threads: int
) -> tuple[dict[str, tuple[Engine, Parity | None]], dict[str, str]]:
    """Every engine that can run here, with its parity figures; and why the others cannot."""
    from surgicalmamba.engines.compiled import CompiledEngine
    from surgicalmamba.engines.onnx import ExportedEngine

    reference = answers(eager)
    opened: dict[str, tuple[Engine, Parity | None]] = {}
    left_out: dict[str, str] = {}
    for name in names:
        try:
            if name == "eager":
                opened[name] = eager, None
                continue
            if name == "compiled":
                engine: Engine = CompiledEngine(model)
            else:
                other = homes["onnx"] if name == "onnx-int8" and homes["onnx"].exists() else None
                export(model, homes[name], int8=name == "onnx-int8", graphs_from=other)
                engine = ExportedEngine(homes[name], threads)
            opened[name] = engine, require(engine, reference)
        except EngineError as error:
            left_out[name] = str(error)
    return opened, left_out


@dataclass(frozen=True)
class Times:
    """Seconds of each part, run by run, of one engine."""

    backbone: list[float]
    temporal: list[float]
    temporal_boundary: list[float]

    @property
    def ordinary(self) -> list[float]:
        return [a + b for a, b in zip(self.backbone, self.temporal, strict=True)]

    @property
    def boundary(self) -> list[float]:
        return [a + b for a, b in zip(self.backbone, self.temporal_boundary, strict=True)]

    def row(
        self, name: str, base_ms: float, parity: dict[str, object] | None, memory: Memory | None, pool: list[PoolRow], held: int | None
    ) -> EngineRow:
        ordinary, boundary = Spread.of(self.ordinary), Spread.of(self.boundary)
        return EngineRow(
            engine=name,
            parity=parity,
            backbone=Spread.of(self.backbone),
            temporal=Spread.of(self.temporal),
            temporal_boundary=Spread.of(self.temporal_boundary),
            ordinary=ordinary,
            boundary=boundary,
            boundary_over_ordinary=boundary.median_ms / ordinary.median_ms,
            speedup=base_ms / ordinary.median_ms,
            memory=memory,
            pool=pool,
            streams_held=held,
        )


def take_turns_live(engines: dict[str, Engine], model: SurgicalMamba, runs: int, warmup: int = 2) -> dict[str, Times]:
    """A picture, a frame in mid-chunk and a frame on which every slow path closes its chunk, in each engine in turn."""
    config = model.config
    assert config.backbone is not None
    generator = torch.Generator().manual_seed(0)
    size, chunk_len = config.backbone.image_size, config.block.slow.chunk_len
    picture = torch.randint(0, 256, (1, size, size, 3), dtype=torch.uint8, generator=generator)
    middle, before_boundary = (state_after(model, n) for n in (chunk_len // 4, chunk_len - 1))
    times = {name: Times([], [], []) for name in engines}
    for turn in range(warmup + runs):
        for name, engine in engines.items():
            marks = [time.perf_counter()]
            features = engine.encode(picture)
            marks.append(time.perf_counter())
            for state in (middle, before_boundary):
                engine.advance(features, state)
                marks.append(time.perf_counter())
            if turn >= warmup:
                parts = (times[name].backbone, times[name].temporal, times[name].temporal_boundary)
                for part, start, stop in zip(parts, marks, marks[1:], strict=False):
                    part.append(stop - start)
    return times


@torch.no_grad()
def state_after(model: SurgicalMamba, n_frames: int) -> ModelState:
    """The memory after some frames of noise."""
    features = torch.randn(1, n_frames, model.feature_width, generator=torch.Generator().manual_seed(n_frames))
    return model.forward_features(features).state
