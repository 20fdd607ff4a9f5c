"""`surgicalmamba bench stream --long` and `--checkpoint`: an engine over many frames.

--long          ten hours at one frame per second: does it slow down, grow or drift?
--checkpoint    how often does it name the phase that the model names in float32, on prepared videos?"""

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from surgicalmamba.data.clips import read_frame
from surgicalmamba.data.store import PreparedDataset, PreparedVideo
from surgicalmamba.data.transforms import WholeFrame
from surgicalmamba.devices import resident
from surgicalmamba.engines.engine import Engine
from surgicalmamba.engines.select import open_engine
from surgicalmamba.errors import DataError, InputError
from surgicalmamba.model.checkpoint import load
from surgicalmamba.model.recognizer import AnyRecognizer
from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba
from surgicalmamba.train.predict import predict_video, videos_of
from surgicalmamba_lab.bench.timing import Report

WINDOW = 1000


@dataclass(frozen=True)
class EngineReports(Report):
    """One report per engine, of either measurement."""

    machine: dict[str, object]
    engines: "Sequence[LongRun | Agreement]"

    def lines(self) -> list[str]:
        return [line for report in self.engines for line in report.lines()]


@dataclass(frozen=True)
class LongRun:
    """One engine over many frames. Early frames are numbers 1,000 to 2,000, after any warm-up. A second
    session runs through them in turns with the last frames of the first, so that other load on the machine
    slows both alike."""

    engine: str
    frames: int
    early_median_ms: float
    late_median_ms: float
    late_over_early: float
    resident_growth_mb: float
    logit_drift: float

    def lines(self) -> list[str]:
        return [
            f"{self.engine}, {self.frames:,} frames: median {self.early_median_ms:.2f} ms over frames 1,000 "
            "to 2,000, "
            f"{self.late_median_ms:.2f} ms over the last 1,000 (ratio {self.late_over_early:.3f})",
            f"  resident memory grew by {self.resident_growth_mb:.1f} MB after frame 2,000; "
            f"largest difference of the last 1,000 frames' logits from the clip form {self.logit_drift:.1e}",
        ]


def bench_long(engine_name: str, n_frames: int, threads: int) -> LongRun:
    """The tiny preset on feature vectors of noise."""
    if n_frames < 3 * WINDOW:
        raise InputError(f"{n_frames} frames are too few for early and late ones; use {3 * WINDOW} or more.")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = SurgicalMamba(ModelConfig.preset("tiny")).eval()
    engine = open_engine(model, engine_name, threads=threads)
    features = torch.randn(n_frames, model.feature_width, generator=torch.Generator().manual_seed(1))
    early_s, late_s, grown_mb, last_logits = _push_all(engine, features)
    early, late = 1e3 * median(early_s), 1e3 * median(late_s)
    drift = float((last_logits - _clip_form(model, features)[-WINDOW:]).abs().max())
    return LongRun(engine.name, n_frames, early, late, late / early, grown_mb, drift)


def _push_all(engine: Engine, features: Tensor) -> tuple[list[float], list[float], float, Tensor]:
    """Seconds of early and of late frames, growth of resident memory in MB after frame 2,000, logits of
    the last frames."""
    state, young = engine.initial_state(1), engine.initial_state(1)
    early_s, late_s, last = [], [], []
    start_mb = 0.0
    for number, vector in enumerate(features):
        if number == WINDOW:
            young = state
        if number == 2 * WINDOW:
            gc.collect()
            start_mb = resident().now / 1e6
        start = time.perf_counter()
        output = engine.advance(vector[None], state)
        stop = time.perf_counter()
        state = output.state
        turn = number - (len(features) - WINDOW)
        if turn >= 0:
            late_s.append(stop - start)
            last.append(output.logits)
            start = time.perf_counter()
            young = engine.advance(features[WINDOW + turn][None], young).state
            early_s.append(time.perf_counter() - start)
    gc.collect()
    return early_s, late_s, resident().now / 1e6 - start_mb, torch.cat(last)


@torch.no_grad()
def _clip_form(model: SurgicalMamba, features: Tensor) -> Tensor:
    """The same frames clip by clip, as in training."""
    state, logits = model.initial_state(1), []
    for clip in features.split(model.config.clip_len):
        output = model.forward_features(clip[None], state)
        state = output.state
        logits.append(output.logits[0])
    return torch.cat(logits)


@dataclass(frozen=True)
class Agreement:
    """Frames on which an engine, frame by frame and with its own backbone, names the phase that the model
    names clip by clip."""

    engine: str
    frames: int
    agreeing: int
    share: float
    largest_probability_difference: float

    def lines(self) -> list[str]:
        return [
            f"{self.engine} names the model's phase on {self.agreeing:,} of {self.frames:,} frames "
            f"({100 * self.share:.2f} %); largest difference of a probability "
            f"{self.largest_probability_difference:.3f}"
        ]


def bench_agreement(
    checkpoint: str, data: Path, split: str, engine_name: str, max_frames: int | None, threads: int
) -> Agreement:
    """Compare on every frame of a split, or on the first `max_frames` of each video."""
    torch.set_num_threads(threads)
    model = load(checkpoint)
    engine = open_engine(model, engine_name, threads=threads)
    videos = videos_of(PreparedDataset.open(data), split)
    if not videos:
        raise DataError(f"{data} has no videos in split {split!r}; name another with --split.")
    frames = agreeing = 0
    largest = 0.0
    for video in videos:
        expected = predict_video(model, video, torch.device("cpu")).probabilities
        assert expected is not None
        expected = expected[:max_frames]
        found = _probabilities(engine, model, video, len(expected))
        frames += len(expected)
        agreeing += int((found.argmax(-1) == expected.argmax(-1)).sum())
        largest = max(largest, float(np.abs(found - expected).max()))
    return Agreement(engine.name, frames, agreeing, agreeing / frames, largest)


def _probabilities(engine: Engine, model: AnyRecognizer, video: PreparedVideo, n_frames: int) -> np.ndarray:
    """A video through an engine as a live session would push it."""
    state, rows = engine.initial_state(1), []
    for features in _vectors(engine, model, video, n_frames):
        output = engine.advance(features, state)
        state = output.state
        rows.append(torch.softmax(output.logits[0].double(), -1))
    return torch.stack(rows).numpy()


def _vectors(engine: Engine, model: AnyRecognizer, video: PreparedVideo, n_frames: int) -> Iterator[Tensor]:
    if video.kind == "features":
        for row in video.features[:n_frames]:
            yield torch.from_numpy(np.array(row))[None]
        return
    assert model.config.backbone is not None
    transform = WholeFrame(model.config.backbone.image_size)
    picture = np.empty((1, transform.image_size, transform.image_size, 3), np.uint8)
    (draw,) = transform.draw(np.random.default_rng(0), 1)
    for number in range(n_frames):
        transform.apply(read_frame(video, number, transform.decode_side), draw, picture[0])
        yield engine.encode(torch.from_numpy(picture))
