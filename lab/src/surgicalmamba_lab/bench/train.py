"""`surgicalmamba bench train`: an optimizer step in frames per second, peak memory, and where the time goes.

The dataset is generated here and trained on in a fresh process each time, so that its peak memory is its own."""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np

from surgicalmamba.data.manifest import FORMAT, Kind, Manifest
from surgicalmamba.data.pictures import Preprocess, encode_jpeg
from surgicalmamba.data.store import SampleTable, VideoDraft, finish
from surgicalmamba.errors import SurgicalMambaError
from surgicalmamba.model.surgical_mamba import ModelConfig
from surgicalmamba_lab.bench.timing import Timing, machine

PARTS = ("loader", "backbone", "temporal", "optimizer", "other")
WARMUP = 1  # steps before timing: the optimizer's moments are allocated in the first
_LANES = {"paper": 1, "release": 1, "tiny": 4}  # as in the shipped configs


@dataclass(frozen=True)
class StepTask:
    """What a fresh process is to measure."""

    data: str
    preset: str
    n_lanes: int
    runs: int
    threads: int | None
    quick: bool


@dataclass(frozen=True)
class StepBench:
    """Optimizer steps of one clip per lane. Shares are of the time of a step as it was, and sum to one."""

    inputs: str
    lanes: int
    clip_len: int
    threads: int
    step: Timing
    frames_per_s: float
    shares: dict[str, float]
    loader_alone: Timing
    loader_over_compute: float
    """Time the loader alone needs for a step's batch over the time spent computing; below one, reading ahead hides it."""
    peak_memory_bytes: int


@dataclass(frozen=True)
class TrainBench:
    """What `bench train` reports."""

    preset: str
    quick: bool
    machine: dict[str, object]
    steps: list[StepBench]

    def lines(self) -> list[str]:
        """The report as text."""
        text = [f"{self.preset} preset on {self.machine}{': quick, clips are short and figures mean little' if self.quick else ''}"]
        for step in self.steps:
            timing = step.step
            text += [
                f"  one update from {step.inputs}, {step.lanes} lane(s) x {step.clip_len} frames, {step.threads} thread(s)",
                f"    {step.frames_per_s:.1f} frames/s  median {timing.median_ms:.0f} ms  p95 {timing.p95_ms:.0f} ms  ({timing.runs} runs)",
                "    time: " + ", ".join(f"{name} {share:.1%}" for name, share in step.shares.items()),
                f"    loader alone {step.loader_alone.median_ms:.0f} ms a step, {step.loader_over_compute:.3f} of the computing",
                f"    peak memory {step.peak_memory_bytes / 2**30:.2f} GiB",
            ]
        return text


def bench_train(preset: str, features_only: bool, runs: int, threads: int | None = None, quick: bool = False) -> TrainBench:
    """Measure training from pixels (unless left out) and from stored features, each in a process of its own."""
    config = ModelConfig.preset(preset)
    clip_len = step_model(preset, quick).clip_len
    n_lanes = _LANES[preset]
    kinds: list[Kind] = ["features"] if features_only else ["frames", "features"]
    steps = []
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            _generate(Path(folder), kind, n_lanes, clip_len * (WARMUP + runs), config)
            steps.append(_measure(StepTask(folder, preset, n_lanes, runs, threads, quick)))
    return TrainBench(preset, quick, machine(), steps)


def step_model(preset: str, quick: bool) -> ModelConfig:
    """The preset's model; `quick` shortens clips and chunks."""
    config = ModelConfig.preset(preset)
    return config.with_paths(chunk_len=16).with_(clip_len=32) if quick else config


def _measure(task: StepTask) -> StepBench:
    command = [sys.executable, "-m", "surgicalmamba_lab.bench.train_step", json.dumps(asdict(task))]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        raise SurgicalMambaError(f"the measuring process ended with code {result.returncode}; its messages are above.")
    values = json.loads(result.stdout)
    step, loader_alone = (Timing(**values.pop(name)) for name in ("step", "loader_alone"))
    return StepBench(**values, step=step, loader_alone=loader_alone)


def _generate(folder: Path, kind: Kind, n_videos: int, n_samples: int, config: ModelConfig) -> None:
    """As many random videos as lanes, all of one length, so that every batch is full. Blurred noise costs a decoder what a picture does."""
    rng = np.random.default_rng(0)
    size = Preprocess().size
    entries = {}
    for number in range(n_videos):
        name = f"video{number + 1}"
        draft = VideoDraft(folder, name, kind)
        if kind == "features":
            draft.set_features(rng.standard_normal((n_samples, config.feature_width)).astype(np.float32))
        for _ in range(n_samples if kind == "frames" else 0):
            coarse = rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)
            draft.add_image(encode_jpeg(cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC).astype(np.uint8)))
        rows = np.arange(n_samples)
        labels = rows * config.n_phases // n_samples
        entries[name] = draft.commit(SampleTable(rows, rows.astype(float), labels), {"sources": {}, "settings_sha256": ""})
    phases = [f"phase {number}" for number in range(config.n_phases)]
    splits = {"bench": {"train": list(entries)}}
    manifest = {"format": FORMAT, "name": "bench", "kind": kind, "phases": phases, "fps": "1", "source": "generated", "settings": {}}
    finish(folder, Manifest(**manifest, splits=splits, videos=entries))
