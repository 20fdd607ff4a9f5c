"""`surgicalmamba bench evaluate`: how long scoring takes. The whole command as a process, and reading and
scoring as the number of rows grows."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from surgicalmamba.data.labels import load_vocabulary
from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.evaluate import evaluate
from surgicalmamba.eval.files import load
from surgicalmamba.eval.pairs import IntArray
from surgicalmamba.eval.protocols import score_runs
from surgicalmamba_lab.bench.timing import Report, Timing, machine, take_turns

DATASET = "cholec80"
VIDEO_ROWS = 2456  # the mean over the 40 test videos of Cholec80: 98,234 rows at one per second
TEST_VIDEOS = 39


@dataclass(frozen=True)
class Cost(Timing):
    """`per_row_ratio` is relative to the smallest size: 1 is linear."""

    us_per_row: float
    per_row_ratio: float


@dataclass(frozen=True)
class Growth:
    """Reading and scoring one size, in all protocols that label files allow."""

    rows: int
    videos: int
    read: Cost
    score: Cost


@dataclass(frozen=True)
class Command(Timing):
    """The whole command as a process, beside a process that only imports numpy."""

    videos: int
    rows: int
    protocols: list[str]
    baseline: str
    baseline_median_ms: float
    ratio: float


@dataclass(frozen=True)
class EvaluateBench(Report):
    machine: dict[str, object]
    command: Command
    growth: list[Growth]

    def lines(self) -> list[str]:
        command, layout = self.command, "{:>12}" + 2 * "  {:>10}  {:>8}  {:>5}"
        size = f"{command.videos} videos, {command.rows:,} rows, {len(command.protocols)} protocols"
        lines = [
            f"command, {size}, start-up included: median {command.median_ms:.0f} ms, p95 "
            f"{command.p95_ms:.0f} ms "
            f"({command.ratio:.1f} x {command.baseline})",
            layout.format("rows", "read ms", "us/row", "x", "score ms", "us/row", "x"),
        ]
        for entry in self.growth:
            cells = []
            for cost in (entry.read, entry.score):
                cells += [f"{cost.median_ms:.0f}", f"{cost.us_per_row:.3f}", f"{cost.per_row_ratio:.2f}"]
            lines.append(layout.format(f"{entry.rows:,}", *cells))
        return [*lines, "x: time per row relative to the smallest size; 1 is linear"]


def measure(
    sizes: list[int], runs: int, labels: Path | None = None, predictions: Path | None = None
) -> EvaluateBench:
    """Time the command over one test set (made up, unless folders are given), and reading and scoring at
    each size."""
    if min(sizes) < VIDEO_ROWS:
        raise ConfigError(f"a size of {min(sizes)} rows is below one video; the smallest is {VIDEO_ROWS}.")
    with tempfile.TemporaryDirectory(prefix="surgicalmamba-bench-") as temporary:
        root = Path(temporary)
        if labels is None or predictions is None:
            write_videos(root / "test-set", TEST_VIDEOS * VIDEO_ROWS)
            labels, predictions = root / "test-set" / "labels", root / "test-set" / "predictions"
        command = _measure_command(labels, predictions, runs)
        growth: list[Growth] = []
        for size in sorted(sizes):
            growth.append(_measure_growth(root / str(size), size, runs, growth[0] if growth else None))
    return EvaluateBench(machine(), command, growth)


def _measure_command(labels: Path, predictions: Path, runs: int) -> Command:
    evaluation = evaluate(labels, [predictions], DATASET, ["all"])
    arguments = ["--labels", str(labels), "--predictions", str(predictions), "--phases", DATASET]
    commands = {
        "command": ["-m", "surgicalmamba", "evaluate", *arguments, "--protocol", "all", "--json"],
        "numpy": ["-c", "import numpy"],
    }

    def call(command: list[str]) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)

    times = take_turns({name: call(command) for name, command in commands.items()}, runs)
    return Command(
        **vars(times["command"]),
        videos=len(evaluation.report.videos),
        rows=sum(len(video.truth) for video in evaluation.runs[0]),
        protocols=list(evaluation.report.scores),
        baseline="a process that only imports numpy",
        baseline_median_ms=times["numpy"].median_ms,
        ratio=times["command"].median_ms / times["numpy"].median_ms,
    )


def _measure_growth(folder: Path, size: int, runs: int, smallest: Growth | None) -> Growth:
    videos = write_videos(folder, size)
    vocabulary = load_vocabulary(DATASET)
    evaluation = evaluate(folder / "labels", [folder / "predictions"], DATASET, ["strict"])
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: load(folder / "labels", [folder / "predictions"], vocabulary),
        "score": lambda: score_runs(evaluation.runs, evaluation.settings, ["all"]),
    }
    rows, costs = videos * VIDEO_ROWS, {}
    for name, timing in take_turns(calls, runs).items():
        us_per_row = 1e3 * timing.median_ms / rows
        base = us_per_row if smallest is None else getattr(smallest, name).us_per_row
        costs[name] = Cost(**vars(timing), us_per_row=us_per_row, per_row_ratio=us_per_row / base)
    return Growth(rows, videos, **costs)


def write_videos(folder: Path, rows: int, seed: int = 0) -> int:
    """Fill `labels` and `predictions` below a folder with about `rows` rows each; return the number of
    videos."""
    generator = np.random.default_rng(seed)
    names = load_vocabulary(DATASET).names
    videos = max(1, round(rows / VIDEO_ROWS))
    for side in ("labels", "predictions"):
        (folder / side).mkdir(parents=True)
    for number in range(videos):
        for side, ids in zip(("labels", "predictions"), make_video(generator, VIDEO_ROWS), strict=True):
            lines = [f"{25 * row}\t{names[phase]}\n" for row, phase in enumerate(ids.tolist())]
            file = folder / side / f"video{number:05d}-phase.txt"
            file.write_text("Frame\tPhase\n" + "".join(lines), encoding="utf-8")
    return videos


def make_video(generator: np.random.Generator, rows: int) -> tuple[IntArray, IntArray]:
    """A procedure of seven phases in order, and a prediction that changes early or late and is wrong in
    one row of a hundred."""
    cuts = np.sort(generator.choice(np.arange(1, rows), size=6, replace=False))
    moved = np.sort(np.clip(cuts + generator.integers(-20, 21, size=6), 1, rows - 1))
    truth, predicted = (np.searchsorted(at, np.arange(rows), side="right") for at in (cuts, moved))
    wrong = generator.random(rows) < 0.01
    predicted[wrong] = generator.integers(0, 7, size=int(wrong.sum()))
    return truth.astype(np.int64), predicted.astype(np.int64)
