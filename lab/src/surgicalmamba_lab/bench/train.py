"""`surgicalmamba bench train`: an optimizer step in frames per second, peak memory, and where the time goes.

The dataset is generated, and trained on in a new process each time, so that the peak memory is that of
training: `python -m surgicalmamba_lab.bench.train TASK` is that process, a real trainer on a real loader
with a clock around each part."""

import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from surgicalmamba.core.state import LaneState
from surgicalmamba.data.clips import ClipBatch, ClipLoader
from surgicalmamba.data.manifest import FORMAT, Kind, Manifest
from surgicalmamba.data.pictures import Preprocess, encode_jpeg
from surgicalmamba.data.store import PreparedDataset, SampleTable, VideoDraft, finish
from surgicalmamba.devices import resident
from surgicalmamba.errors import SurgicalMambaError
from surgicalmamba.model.recognizer import Output
from surgicalmamba.model.surgical_mamba import ModelConfig
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.distributed import World
from surgicalmamba.train.loop import Clip, Trainer
from surgicalmamba.train.run import build_trainer, fit_network
from surgicalmamba_lab.bench.timing import Report, Timing, machine, summarise

PARTS = ("loader", "backbone", "temporal", "optimizer", "other")
WARMUP = 1  # steps before timing: the optimizer's moments are allocated in the first
LANES = {"paper": 1, "release": 1, "tiny": 4}  # as in the shipped configs


@dataclass(frozen=True)
class StepTask:
    """What a new process is to measure."""

    data: str
    preset: str
    n_lanes: int
    runs: int
    threads: int | None
    quick: bool


@dataclass(frozen=True)
class StepBench:
    """Optimizer steps of one clip per lane. Shares are of the measured time of a step and sum to one."""

    inputs: str
    lanes: int
    clip_len: int
    threads: int
    step: Timing
    frames_per_s: float
    shares: dict[str, float]
    loader_alone: Timing
    loader_over_compute: float
    """Time of the loader alone for a step's batch over the time of computing; below one, reading ahead
    hides it."""
    peak_memory_bytes: int


@dataclass(frozen=True)
class TrainBench(Report):
    """What `bench train` reports."""

    preset: str
    quick: bool
    machine: dict[str, object]
    steps: list[StepBench]

    def lines(self) -> list[str]:
        note = ": quick, clips are short and figures mean little" if self.quick else ""
        text = [f"{self.preset} preset on {self.machine}{note}"]
        for step in self.steps:
            timing, clips = step.step, f"{step.lanes} lane(s) x {step.clip_len} frames"
            ms = f"median {timing.median_ms:.0f} ms  p95 {timing.p95_ms:.0f} ms  ({timing.runs} runs)"
            alone, share = step.loader_alone.median_ms, step.loader_over_compute
            text += [
                f"  one update from {step.inputs}, {clips}, {step.threads} thread(s)",
                f"    {step.frames_per_s:.1f} frames/s  {ms}",
                "    time: " + ", ".join(f"{name} {share:.1%}" for name, share in step.shares.items()),
                f"    loader alone {alone:.0f} ms a step, {share:.3f} of the computing",
                f"    peak memory {step.peak_memory_bytes / 2**30:.2f} GiB",
            ]
        return text


def bench_train(
    preset: str, features_only: bool, runs: int, threads: int | None = None, quick: bool = False
) -> TrainBench:
    """Measure training from pixels (unless left out) and from stored features, each in a process of its
    own."""
    config, n_samples = ModelConfig.preset(preset), step_model(preset, quick).clip_len * (WARMUP + runs)
    kinds: list[Kind] = ["features"] if features_only else ["frames", "features"]
    steps = []
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            _generate(Path(folder), kind, LANES[preset], n_samples, config)
            steps.append(_measure_in_child(StepTask(folder, preset, LANES[preset], runs, threads, quick)))
    return TrainBench(preset, quick, machine(), steps)


def step_model(preset: str, quick: bool) -> ModelConfig:
    """The preset's model; `quick` shortens clips and chunks."""
    config = ModelConfig.preset(preset)
    return config.with_paths(chunk_len=16).with_(clip_len=32) if quick else config


def _generate(folder: Path, kind: Kind, n_videos: int, n_samples: int, config: ModelConfig) -> None:
    """As many random videos as lanes, all of one length, so that every batch is full. Blurred noise takes
    as long to decode as a picture."""
    rng = np.random.default_rng(0)
    size, rows = Preprocess().size, np.arange(n_samples)
    entries = {}
    for number in range(n_videos):
        name = f"video{number + 1}"
        draft = VideoDraft(folder, name, kind)
        if kind == "features":
            draft.set_features(rng.standard_normal((n_samples, config.feature_width)).astype(np.float32))
        for _ in range(n_samples if kind == "frames" else 0):
            coarse = rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)
            picture = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC).astype(np.uint8)
            draft.add_image(encode_jpeg(picture))
        table = SampleTable(rows, rows.astype(float), rows * config.n_phases // n_samples)
        entries[name] = draft.commit(table, {"sources": {}, "settings_sha256": ""})
    manifest = Manifest(
        format=FORMAT,
        name="bench",
        kind=kind,
        phases=[f"phase {number}" for number in range(config.n_phases)],
        fps="1",
        source="generated",
        settings={},
        splits={"bench": {"train": list(entries)}},
        videos=entries,
    )
    finish(folder, manifest)


def _measure_in_child(task: StepTask) -> StepBench:
    command = [sys.executable, "-m", "surgicalmamba_lab.bench.train", json.dumps(asdict(task))]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        raise SurgicalMambaError(
            f"the measuring process failed ({result.returncode}); its messages are above."
        )
    values = json.loads(result.stdout)
    step, loader_alone = (Timing(**values.pop(name)) for name in ("step", "loader_alone"))
    return StepBench(**values, step=step, loader_alone=loader_alone)


# The measuring process.


class Clock:
    """Seconds by part, one record per optimizer step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._current: dict[str, float] = defaultdict(float)
        self._began = time.perf_counter()

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._current[part] += time.perf_counter() - start

    def move(self, seconds: float, source: str, target: str) -> None:
        self._current[source] -= seconds
        self._current[target] += seconds

    def end_step(self) -> None:
        now = time.perf_counter()
        total = now - self._began
        self._current["other"] += total - sum(self._current.values())
        self.steps.append({"total": total, **self._current})
        self._current, self._began = defaultdict(float), now


class TimedTrainer(Trainer):
    """A trainer with a clock. A backward pass counts for the temporal model until the features have their
    gradient, then for the backbone."""

    clock: Clock

    def _batches(self) -> Iterator[ClipBatch]:
        batches = super()._batches()
        while True:
            with self.clock.timing("loader"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _features(self, inputs: Tensor) -> Tensor:
        with self.clock.timing("backbone" if inputs.dtype == torch.uint8 else "other"):
            features = super()._features(inputs)
        self._reached_backbone: float | None = None
        if features.requires_grad:
            features.register_hook(self._note_arrival)
        return features

    def _note_arrival(self, _gradient: Tensor) -> None:
        self._reached_backbone = time.perf_counter()

    def _temporal(self, features: Tensor, before: LaneState, n_frames: Tensor) -> Output[Any]:
        with self.clock.timing("temporal"):
            return super()._temporal(features, before, n_frames)

    def _backward(self, loss: Tensor) -> None:
        with self.clock.timing("temporal"):
            super()._backward(loss)
        if self._reached_backbone is not None:
            self.clock.move(time.perf_counter() - self._reached_backbone, "temporal", "backbone")

    def _apply(self, window: list[Clip]) -> tuple[float, float]:
        with self.clock.timing("optimizer"):
            return super()._apply(window)


def measure(task: StepTask) -> StepBench:
    """One epoch over the generated dataset; then the loader by itself over the same batches."""
    if task.threads is not None:
        torch.set_num_threads(task.threads)
    data = {"path": task.data, "split": "bench", "n_lanes": task.n_lanes}
    settings = {"data": data, "optim": {"clips_per_update": 1}, "precision": "float32", "device": "cpu"}
    config = TrainConfig(**settings).with_network(step_model(task.preset, task.quick))
    dataset = PreparedDataset.open(task.data)
    config = fit_network(config, dataset)
    built = build_trainer(config, dataset, torch.device("cpu"), World(0, 1))
    trainer = TimedTrainer(**{field.name: getattr(built, field.name) for field in fields(built)})
    trainer.clock = clock = Clock()
    trainer.run_epoch(lambda _trainer, _losses: clock.end_step())
    peak = resident().peak
    steps = clock.steps[WARMUP:]
    totals = [step["total"] for step in steps]
    step = summarise(totals)
    compute = summarise([step["total"] - step["loader"] for step in steps])
    alone = summarise(loader_alone(trainer.loader)[WARMUP:])
    return StepBench(
        inputs="pixels" if dataset.kind == "frames" else "features",
        lanes=task.n_lanes,
        clip_len=config.network.clip_len,
        threads=torch.get_num_threads(),
        step=step,
        frames_per_s=task.n_lanes * config.network.clip_len / step.median_ms * 1e3,
        shares={part: sum(s.get(part, 0.0) for s in steps) / sum(totals) for part in PARTS},
        loader_alone=alone,
        loader_over_compute=alone.median_ms / compute.median_ms,
        peak_memory_bytes=peak,
    )


def loader_alone(loader: ClipLoader) -> list[float]:
    """Seconds per batch when nothing else runs."""
    seconds, start = [], time.perf_counter()
    for _ in loader:
        now = time.perf_counter()
        seconds.append(now - start)
        start = now
    return seconds


if __name__ == "__main__":
    print(json.dumps(asdict(measure(StepTask(**json.loads(sys.argv[1]))))))
