"""`surgicalmamba bench stream`: what a live frame costs in each engine, taking turns in one run; memory of
each engine in a process of its own; and how many streams of one frame per second each holds.

`python -m surgicalmamba_lab.bench.stream ENGINE FOLDER THREADS` is that process."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch

from surgicalmamba.core.state import ModelState
from surgicalmamba.devices import resident
from surgicalmamba.engines.engine import EagerEngine, Engine
from surgicalmamba.engines.parity import Parity, answers, model_config, require
from surgicalmamba.errors import EngineError, InputError
from surgicalmamba.files import atomic_path
from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba
from surgicalmamba_lab.bench.timing import Report, machine, percentile, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENGINES = ("eager", "compiled", "onnx", "onnx-int8")
POOL_SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 32, 48, 64)
POOL_LIMIT_MS = 1000.0


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
class Memory:
    """Resident megabytes (10^6 bytes) of the whole process, Python and libraries included: at most, and
    while it runs."""

    peak_mb: float
    resident_mb: float


@dataclass(frozen=True)
class PoolRow:
    """Rounds of a pool of one size. `chunk_ends_ms` is a round in which every stream ends a chunk, the
    worst case."""

    streams: int
    median_ms: float
    p95_ms: float
    chunk_ends_ms: float
    holds: bool


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
class StreamBench(Report):
    """What `bench stream` reports. `left_out` has the engines that cannot run here, with the reason."""

    preset: str
    runs: int
    machine: dict[str, object]
    engines: list[EngineRow]
    left_out: dict[str, str]

    def lines(self) -> list[str]:
        head = ("engine, ms", "backbone", "temporal", "frame", "p95", "p99", "boundary", "ratio", "x eager")
        layout = "  {:<10} {:>9} {:>9} {:>9} {:>7} {:>7} {:>9} {:>6} {:>8}"
        text = [
            f"{self.preset} preset, one stream, {self.runs} runs, on {self.machine}",
            layout.format(*head),
        ]
        for row in self.engines:
            frame = row.ordinary
            parts = (
                row.backbone.median_ms,
                row.temporal.median_ms,
                frame.median_ms,
                frame.p95_ms,
                frame.p99_ms,
            )
            cells = [f"{ms:.1f}" for ms in (*parts, row.boundary.median_ms)]
            text.append(
                layout.format(row.engine, *cells, f"{row.boundary_over_ordinary:.2f}", f"{row.speedup:.2f}")
            )
        for row in self.engines:
            if row.memory is not None:
                peak, now = row.memory.peak_mb, row.memory.resident_mb
                text.append(f"  {row.engine:<10} peak memory {peak:.0f} MB, {now:.0f} MB when running")
            for pool in row.pool:
                round_ms = f"a round takes {pool.median_ms:.0f} ms, p95 {pool.p95_ms:.0f}"
                held = "held" if pool.holds else "too slow"
                text.append(f"  {row.engine:<10} {pool.streams:>3} streams: {round_ms}: {held}")
        return text + [f"  {name} left out: {reason}" for name, reason in self.left_out.items()]


def bench_stream(
    preset: str, engines: Sequence[str], runs: int, threads: int, memory: bool = True, pool: bool = True
) -> StreamBench:
    """Measure a preset with random weights, which cost what trained ones cost."""
    unknown = [name for name in engines if name not in ENGINES]
    if unknown:
        raise InputError(f"there is no engine {unknown[0]!r} to measure; engines: {', '.join(ENGINES)}.")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = SurgicalMamba(ModelConfig.preset(preset)).eval()
    names = ["eager", *(name for name in engines if name != "eager")]
    with TemporaryDirectory(prefix="surgicalmamba-bench-") as place:
        folders = {name: Path(place) / (name if name.startswith("onnx") else "checkpoint") for name in names}
        opened, left_out = open_all(model, folders, threads)
        times = take_turns_live({name: engine for name, (engine, _) in opened.items()}, model, runs)
        pools = {
            name: measure_pool(engine, max(3, runs // 3)) if pool else []
            for name, (engine, _) in opened.items()
        }
        parities = {name: None if p is None else p.as_dict() for name, (_, p) in opened.items()}
        del opened
        if memory:
            model.save(folders["eager"])
        memories = {name: measure_memory(name, folders[name], threads) if memory else None for name in times}
    base_ms = Spread.of(times["eager"].ordinary).median_ms
    rows = [times[name].row(name, base_ms, parities[name], memories[name], pools[name]) for name in times]
    versions: dict[str, object] = {"torch": torch.__version__, "onnxruntime": _onnxruntime_version()}
    return StreamBench(preset, runs, {**machine(), **versions, "threads": threads}, rows, left_out)


def _onnxruntime_version() -> str | None:
    from importlib.metadata import version

    return version("onnxruntime") if find_spec("onnxruntime") else None


def open_all(
    model: SurgicalMamba, folders: dict[str, Path], threads: int
) -> tuple[dict[str, tuple[Engine, Parity | None]], dict[str, str]]:
    """Every engine that can run here, with its parity figures; and why the others cannot. Exports go to
    `folders`."""
    from surgicalmamba.engines.compiled import CompiledEngine
    from surgicalmamba.engines.export import export
    from surgicalmamba.engines.onnx import OnnxEngine

    eager = EagerEngine(model)
    reference = answers(eager)
    opened: dict[str, tuple[Engine, Parity | None]] = {"eager": (eager, None)}
    left_out: dict[str, str] = {}
    for name in list(folders)[1:]:
        try:
            if name == "compiled":
                engine: Engine = CompiledEngine(model)
            else:
                graphs = folders["onnx"] if name == "onnx-int8" and "onnx" in opened else None
                export(model, folders[name], int8=name == "onnx-int8", graphs_from=graphs)
                engine = OnnxEngine(folders[name], threads)
            opened[name] = engine, require(engine, reference)
        except EngineError as error:
            left_out[name] = str(error)
    return opened, left_out


@dataclass(frozen=True)
class Times:
    """Seconds of each part of a frame, run by run, of one engine."""

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
        self,
        name: str,
        base_ms: float,
        parity: dict[str, object] | None,
        memory: Memory | None,
        pool: list[PoolRow],
    ) -> EngineRow:
        """The engine's row of the report; `base_ms` is an ordinary frame of the eager engine."""
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
            streams_held=largest_pool(pool) if pool else None,
        )


def take_turns_live(
    engines: dict[str, Engine], model: SurgicalMamba, runs: int, warmup: int = 2
) -> dict[str, Times]:
    """A picture, a frame in mid-chunk and a frame on which every slow path closes its chunk, in each
    engine in turn."""
    config = model.config
    assert config.backbone is not None
    size, chunk_len = config.backbone.image_size, config.block.slow.chunk_len
    generator = torch.Generator().manual_seed(0)
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
    """The state after some frames of noise."""
    features = torch.randn(
        1, n_frames, model.feature_width, generator=torch.Generator().manual_seed(n_frames)
    )
    return model.forward_features(features).state


# How many streams an engine holds: a round of one frame of every stream must end within a second.


def measure_pool(engine: Engine, rounds: int) -> list[PoolRow]:
    """Rounds at growing sizes, up to the first that misses the limit at the 95th percentile."""
    rows: list[PoolRow] = []
    for n_streams in POOL_SIZES:
        rows.append(_rounds(engine, n_streams, rounds))
        if not rows[-1].holds:
            break
    return rows


def largest_pool(rows: list[PoolRow]) -> int:
    """The largest size that holds, all smaller ones holding too."""
    return max((row.streams for row in rows if row.holds), default=0)


def _rounds(engine: Engine, n_streams: int, rounds: int) -> PoolRow:
    """Streams spread evenly over a chunk, as streams that began at different times are."""
    config = model_config(engine)
    assert config.backbone is not None
    size, chunk_len = config.backbone.image_size, config.block.slow.chunk_len
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (n_streams, size, size, 3), dtype=torch.uint8, generator=generator)
    state = engine.initial_state(n_streams).at([lane * chunk_len // n_streams for lane in range(n_streams)])
    for ending in (1, n_streams):  # an engine that compiles for each shape does so here
        engine.advance(
            engine.encode(pictures), state.at([chunk_len - 1] * ending + [0] * (n_streams - ending))
        )
    seconds = []
    for turn in range(1 + rounds):
        start = time.perf_counter()
        state = engine.advance(engine.encode(pictures), state).state
        if turn:
            seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    engine.advance(engine.encode(pictures), state.at([chunk_len - 1] * n_streams))
    worst_ms = 1e3 * (time.perf_counter() - start)
    timing = summarise(seconds)
    return PoolRow(n_streams, timing.median_ms, timing.p95_ms, worst_ms, timing.p95_ms < POOL_LIMIT_MS)


# Memory of an engine, in a process that holds nothing else.


def measure_memory(engine: str, folder: Path, threads: int) -> Memory:
    """Open the engine in a new process and run a few frames over the end of a chunk."""
    command = [sys.executable, "-m", "surgicalmamba_lab.bench.stream", engine, str(folder), str(threads)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        last = result.stderr.strip().splitlines()[-1:]
        raise EngineError(f"the {engine} engine failed in a process of its own: {last}")
    return Memory(**json.loads(result.stdout.splitlines()[-1]))


def _open_in_child(name: str, folder: Path, threads: int) -> Engine:
    if name.startswith("onnx"):
        from surgicalmamba.engines.onnx import OnnxEngine

        return OnnxEngine(folder, threads)
    from surgicalmamba.engines.compiled import CompiledEngine
    from surgicalmamba.model.checkpoint import load

    model = load(folder)
    assert isinstance(model, SurgicalMamba)  # as the measurement saved it
    return EagerEngine(model) if name == "eager" else CompiledEngine(model)


def _run_frames(name: str, folder: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    engine = _open_in_child(name, folder, threads)
    config = model_config(engine)
    assert config.backbone is not None
    size = config.backbone.image_size
    state = engine.initial_state(1).at([config.block.slow.chunk_len - 2])
    for _ in range(4):
        features = engine.encode(torch.zeros(1, size, size, 3, dtype=torch.uint8))
        state = engine.advance(features, state).state


# The figure.


def plot_stream(report: StreamBench, file: Path) -> None:
    """Draw the cost of a frame in each engine, and rounds against the number of streams, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    pools = [row for row in report.engines if row.pool]
    axes = figure.subplots(1, 2 if pools else 1, squeeze=False)[0]
    _draw_frames(axes[0], report.engines)
    if pools:
        _draw_pools(axes[1], pools)
    about = f"{report.machine['threads']} threads, {report.machine['machine']}, {report.runs} runs"
    figure.suptitle(f"{report.preset} model, {about}", fontsize=10)
    with atomic_path(file) as draft:
        figure.savefig(draft, dpi=150, format="png")


def _draw_frames(axes: "Axes", rows: Sequence[EngineRow]) -> None:
    from surgicalmamba.report.colours import colour

    places, left = range(len(rows)), [0.0] * len(rows)
    parts = (
        ("backbone", colour(0), [row.backbone.median_ms for row in rows]),
        ("temporal part", colour(1), [row.temporal.median_ms for row in rows]),
        (
            "more at the end of a chunk",
            "#999999",
            [row.temporal_boundary.median_ms - row.temporal.median_ms for row in rows],
        ),
    )
    for label, ink, values in parts:
        axes.barh(places, values, left=left, color=ink, label=label, height=0.6)
        left = [a + b for a, b in zip(left, values, strict=True)]
    for place, row, end in zip(places, rows, left, strict=True):
        axes.text(end, place, f"  {row.ordinary.median_ms:.0f} ms, x{row.speedup:.2f}", va="center", size=9)
    axes.set_yticks(places, [row.engine for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * max(left))
    axes.set_xlabel("ms per frame, median (beside the bar: an ordinary frame)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=8, frameon=False)


def _draw_pools(axes: "Axes", rows: Sequence[EngineRow]) -> None:
    from matplotlib.ticker import MaxNLocator

    from surgicalmamba.report.colours import colour

    for number, (row, mark) in enumerate(zip(rows, "os^D", strict=False)):
        streams, seconds = [pool.streams for pool in row.pool], [pool.p95_ms / 1e3 for pool in row.pool]
        ink = colour(number - 1) if number else "black"
        axes.plot(streams, seconds, color=ink, marker=mark, label=f"{row.engine}: {row.streams_held} streams")
    axes.axhline(1.0, color="#555555", linestyle="--", linewidth=1)
    axes.set_xlabel("streams of one frame per second")
    axes.set_ylabel("seconds per round, 95th percentile")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="lower right", fontsize=8)


if __name__ == "__main__":
    _run_frames(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    held = resident()
    print(json.dumps({"peak_mb": held.peak / 1e6, "resident_mb": held.now / 1e6}))
