"""Constant cost: ten hours at one frame per second through one engine, frame by frame. Does it slow down, grow or drift?"""

import gc
import time
from dataclasses import asdict, dataclass
from statistics import median

import torch
from torch import Tensor

from surgicalmamba.devices import resident
from surgicalmamba.engines.engine import Engine
from surgicalmamba.engines.select import open_engine
from surgicalmamba.errors import InputError
from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba

WINDOW = 1000


@dataclass(frozen=True)
class LongRun:
    """One engine over many frames. Early frames are numbers 1,000 to 2,000, so that warming up is over; a second session goes through them
    in turns with the last frames of the first, so that what else the machine does slows both alike."""

    engine: str
    frames: int
    early_median_ms: float
    late_median_ms: float
    late_over_early: float
    resident_growth_mb: float
    logit_drift: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def lines(self) -> list[str]:
        return [
            f"{self.engine}, {self.frames:,} frames: median {self.early_median_ms:.2f} ms over frames 1,000 to 2,000, "
            f"{self.late_median_ms:.2f} ms over the last 1,000 (ratio {self.late_over_early:.3f})",
            f"  resident memory grew by {self.resident_growth_mb:.1f} MB after frame 2,000; "
            f"largest difference of the last 1,000 frames' logits from the clip form {self.logit_drift:.1e}",
        ]


def bench_long(engine_name: str, n_frames: int, threads: int) -> LongRun:
    """The tiny preset on feature vectors of noise."""
    if n_frames < 3 * WINDOW:
        raise InputError(f"{n_frames} frames are too few to compare early with late ones; use {3 * WINDOW} or more.")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = SurgicalMamba(ModelConfig.preset("tiny")).eval()
    engine = open_engine(model, engine_name, threads=threads)
    features = torch.randn(n_frames, model.feature_width, generator=torch.Generator().manual_seed(1))
    early_s, late_s, grown, last_logits = _push_all(engine, features)
    expected = _clip_form(model, features)[-WINDOW:]
    early, late = 1e3 * median(early_s), 1e3 * median(late_s)
    drift = float((last_logits - expected).abs().max())
    return LongRun(engine.name, n_frames, early, late, late / early, grown, drift)


def _push_all(engine: Engine, features: Tensor) -> tuple[list[float], list[float], float, Tensor]:
    """Seconds of early and of late frames, growth of resident memory after frame 2,000, logits of the last frames."""
    state, young = engine.initial_state(1), engine.initial_state(1)
    early_s, late_s, last = [], [], []
    at_start = 0.0
    for number, vector in enumerate(features):
        if number == WINDOW:
            young = state
        if number == 2 * WINDOW:
            gc.collect()
            at_start = resident().now / 1e6
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
    return early_s, late_s, resident().now / 1e6 - at_start, torch.cat(last)


@torch.no_grad()
def _clip_form(model: SurgicalMamba, features: Tensor) -> Tensor:
    """The same frames clip by clip, as in training."""
    state, logits = model.initial_state(1), []
    for clip in features.split(model.config.clip_len):
        output = model.forward_features(clip[None], state)
        state = output.state
        logits.append(output.logits[0])
    return torch.cat(logits)
