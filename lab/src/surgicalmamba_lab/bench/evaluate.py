"""How long scoring takes: the whole command as a process, and reading and scoring as the number of rows grows."""

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
from surgicalmamba_lab.bench.timing import Timing, machine, take_turns

DATASET = "cholec80"
VIDEO_ROWS = 2456  # the mean over the 40 test videos of Cholec80: 98,234 rows at one per second
TEST_VIDEOS = 39


@dataclass(frozen=True)
class Growth:
    """Reading and scoring one size, in all protocols that label files allow."""

    rows: int
    videos: int
    read: Timing
    score: Timing

    def as_dict(self, smallest: "Growth") -> dict[str, object]:
        """Times, time per row, and time per row relative to the smallest size: 1 is exactly linear."""

        def cost(part: str) -> float:
            return float(getattr(self, part).median_ms) * 1e3 / self.rows

        def base(part: str) -> float:
            return float(getattr(smallest, part).median_ms) * 1e3 / smallest.rows

        return {
            "rows": self.rows,
            "videos": self.videos,
            "read": vars(self.read) | {"us_per_row": cost("read"), "per_row_ratio": cost("read") / base("read")},
            "score": vars(self.score) | {"us_per_row": cost("score"), "per_row_ratio": cost("score") / base("score")},
        }


def make_video(generator: np.random.Generator, rows: int) -> tuple[IntArray, IntArray]:
    """A procedure of seven phases in order, and a prediction that changes early or late and flickers in one row of a hundred."""
    cuts = np.sort(generator.choice(np.arange(1, rows), size=6, replace=False))
    moved = np.sort(np.clip(cuts + generator.integers(-20, 21, size=6), 1, rows - 1))
    clock = np.arange(rows)
    truth = np.searchsorted(cuts, clock, side="right")
    predicted = np.searchsorted(moved, clock, side="right")
    flicker = generator.random(rows) < 0.01
    predicted[flicker] = generator.integers(0, 7, size=int(flicker.sum()))
    return truth.astype(np.int64), predicted.astype(np.int64)


def write_videos(folder: Path, rows: int, seed: int = 0) -> int:
    """Fill `labels` and `predictions` below a folder with about `rows` rows of each; returns the number of videos."""
    generator = np.random.default_rng(seed)
    names = load_vocabulary(DATASET).names
    videos = max(1, round(rows / VIDEO_ROWS))
    frames = [str(25 * index) for index in range(VIDEO_ROWS)]
    for side in ("labels", "predictions"):
        (folder / side).mkdir(parents=True)
    for number in range(videos):
        for side, ids in zip(("labels", "predictions"), make_video(generator, VIDEO_ROWS), strict=True):
            lines = [f"{frame}\t{names[phase]}" for frame, phase in zip(frames, ids.tolist(), strict=True)]
            (folder / side / f"video{number:05d}-phase.txt").write_text("Frame\tPhase\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return videos


@dataclass(frozen=True)
class Command:
    """The whole command as a process, beside a process that only imports numpy."""

    videos: int
    rows: int
    protocols: list[str]
    process: Timing
    numpy_process: Timing

    def as_dict(self) -> dict[str, object]:
        return {
            "videos": self.videos,
            "rows": self.rows,
            "protocols": self.protocols,
            **vars(self.process),
            "baseline": "a process that only imports numpy",
            "baseline_median_ms": self.numpy_process.median_ms,
            "ratio": self.process.median_ms / self.numpy_process.median_ms,
        }


@dataclass(frozen=True)
class Result:
    command: Command
    growth: list[Growth]

    def as_dict(self) -> dict[str, object]:
        smallest = self.growth[0]
        return {"machine": machine(), "command": self.command.as_dict(), "growth": [entry.as_dict(smallest) for entry in self.growth]}

    def lines(self) -> list[str]:
        """The table for people."""
        command, smallest = self.command, self.growth[0]
        lines = [
            f"command, {command.videos} videos, {command.rows:,} rows, {len(command.protocols)} protocols, start-up included: "
            f"median {command.process.median_ms:.0f} ms, p95 {command.process.p95_ms:.0f} ms "
            f"({command.process.median_ms / command.numpy_process.median_ms:.1f} x a process that only imports numpy)",
            f"{'rows':>12}  {'read ms':>10}  {'us/row':>8}  {'x':>5}  {'score ms':>10}  {'us/row':>8}  {'x':>5}",
        ]
        for entry in self.growth:
            cells = [f"{entry.rows:>12,}"]
            for time, base in ((entry.read, smallest.read), (entry.score, smallest.score)):
                cost = time.median_ms * 1e3 / entry.rows
                cells.append(f"{time.median_ms:>10.0f}  {cost:>8.3f}  {cost / (base.median_ms * 1e3 / smallest.rows):>5.2f}")
            lines.append("  ".join(cells))
        return [*lines, "x: time per row relative to the smallest size; 1 is linear"]


def measure(sizes: list[int], runs: int, labels: Path | None = None, predictions: Path | None = None) -> Result:
    """Time the command over one test set (made up, unless folders are given), and reading and scoring at each size."""
    if min(sizes) < VIDEO_ROWS:
        raise ConfigError(f"a size of {min(sizes)} rows is below one video; the smallest is {VIDEO_ROWS}.")
    with tempfile.TemporaryDirectory(prefix="surgicalmamba-bench-") as temporary:
        root = Path(temporary)
        if labels is None or predictions is None:
            write_videos(root / "test-set", TEST_VIDEOS * VIDEO_ROWS)
            labels, predictions = root / "test-set" / "labels", root / "test-set" / "predictions"
        command = _measure_command(labels, predictions, runs)
        growth = [_measure_growth(root / str(size), size, runs) for size in sorted(sizes)]
    return Result(command, growth)


def _measure_command(labels: Path, predictions: Path, runs: int) -> Command:
    evaluation = evaluate(labels, [predictions], DATASET, ["all"])
    arguments = ["--labels", str(labels), "--predictions", str(predictions), "--phases", DATASET, "--protocol", "all", "--json"]
    calls = {
        "command": lambda: _run([sys.executable, "-m", "surgicalmamba", "evaluate", *arguments]),
        "import numpy": lambda: _run([sys.executable, "-c", "import numpy"]),
    }
    times = take_turns(calls, runs)
    return Command(
        videos=len(evaluation.report.videos),
        rows=sum(len(video.truth) for video in evaluation.runs[0]),
        protocols=list(evaluation.report.scores),
        process=times["command"],
        numpy_process=times["import numpy"],
    )


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _measure_growth(folder: Path, size: int, runs: int) -> Growth:
    videos = write_videos(folder, size)
    vocabulary = load_vocabulary(DATASET)

    evaluation = evaluate(folder / "labels", [folder / "predictions"], DATASET, ["strict"])
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: load(folder / "labels", [folder / "predictions"], vocabulary),
        "score": lambda: score_runs(evaluation.runs, evaluation.settings, ["all"]),
    }
    times = take_turns(calls, runs)
    return Growth(videos * VIDEO_ROWS, videos, times["read"], times["score"])
