"""The measuring process of `bench train`: a real trainer on a real loader, with a clock around each part."""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor

from surgicalmamba.core.state import LaneState
from surgicalmamba.data.clips import ClipBatch, ClipLoader
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.devices import resident
from surgicalmamba.model.recognizer import Output
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.distributed import World
from surgicalmamba.train.loop import Clip, Trainer
from surgicalmamba.train.run import build_trainer, fit_model
from surgicalmamba_lab.bench.timing import summarise
from surgicalmamba_lab.bench.train import PARTS, WARMUP, StepBench, StepTask, step_model


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
    """Trains as ever, with a clock. A backward pass is the temporal model's until the features have their gradient, then the backbone's."""

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
    config = TrainConfig(preset=task.preset, data=data, optim={"clips_per_update": 1}, precision="float32", device="cpu")
    dataset = PreparedDataset.open(task.data)
    config = config.with_(model=step_model(task.preset, task.quick))
    config = config.with_(model=fit_model(config, dataset))
    built = build_trainer(config, dataset, torch.device("cpu"), World(0, 1))
    trainer = TimedTrainer(**{field.name: getattr(built, field.name) for field in fields(built)})
    trainer.clock = clock = Clock()
    trainer.run_epoch(lambda _trainer, _losses: clock.end_step())
    peak = resident().peak
    steps = clock.steps[WARMUP:]
    totals = [step["total"] for step in steps]
    compute = summarise([step["total"] - step["loader"] for step in steps])
    alone = summarise(loader_alone(trainer.loader)[WARMUP:])
    step = summarise(totals)
    return StepBench(
        inputs="pixels" if dataset.kind == "frames" else "features",
        lanes=task.n_lanes,
        clip_len=config.model.clip_len,
        threads=torch.get_num_threads(),
        step=step,
        frames_per_s=task.n_lanes * config.model.clip_len / step.median_ms * 1e3,
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
