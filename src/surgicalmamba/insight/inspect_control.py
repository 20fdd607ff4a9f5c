"""The control of the inner views: the same network with rotators and intensity as random as before training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from surgicalmamba.data.store import PreparedVideo
from surgicalmamba.eval.pairs import IntArray
from surgicalmamba.insight.inspect_views import ROUNDING, Alignment, alignment, chunk_phases
from surgicalmamba.model.surgical_mamba import SurgicalMamba
from surgicalmamba.train.inside import BoundaryFrames, plane_similarity
from surgicalmamba.train.look_inside import Measured, look_inside
from surgicalmamba.train.predict import features_of

N_DRAWS = 19
"""An untrained network lies beyond the range of 19 others in one case of twenty."""
FIRST_SEED = 1_000_000
"""Of the draws: not the seed of a run, whose own start would then be among them."""
TRAINED_PARTS = (".rotator.", ".intensity.")
"""What is drawn again; every other weight stays as trained."""


@dataclass(frozen=True)
class Spread:
    """A measure over the untrained draws."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """nan where no draw could be measured."""
        known = [value for value in values if not math.isnan(value)]
        return cls(sum(known) / len(known), min(known), max(known)) if known else cls(math.nan, math.nan, math.nan)

    def verdict(self, trained: float) -> str:
        """Where the trained value lies. Inside the range, training cannot be told from chance."""
        if math.isnan(trained) or math.isnan(self.mean):
            return "not measured"
        place = "beyond" if trained > self.high + ROUNDING else "below" if trained < self.low - ROUNDING else "inside"
        return f"{place} the untrained range"


@dataclass(frozen=True)
class Control:
    """What untrained rotators and an untrained intensity show on the same video, draw by draw."""

    measured: tuple[Measured, ...]
    alignments: tuple[tuple[Alignment, ...], ...]
    """Of every draw, the slow paths block by block; empty where they closed fewer than two chunks."""

    def alignment(self, block: int, measure: str) -> list[float]:
        """`gap` or `relative_gap` of a block's planes, draw by draw."""
        return [float(getattr(blocks[block], measure)) for blocks in self.alignments if blocks]

    def rotation(self, path: str, measure: str) -> Spread:
        return Spread.of([float(getattr(draw.rotations[path], measure)) for draw in self.measured if path in draw.rotations])

    def intensity(self, block: int, measure: str) -> Spread:
        return Spread.of([float(getattr(draw.intensities[block], measure)) for draw in self.measured])


def untrained(model: SurgicalMamba, seed: int) -> SurgicalMamba:
    """The same network with rotators and intensity drawn again from its config and never trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = SurgicalMamba(model.config)
    kept = {name: value for name, value in model.state_dict().items() if not any(part in name for part in TRAINED_PARTS)}
    fresh.load_state_dict({**fresh.state_dict(), **kept})
    return fresh.to(model.device).eval()


@torch.inference_mode()
def untrained_control(model: SurgicalMamba, video: PreparedVideo, frames: BoundaryFrames, n_draws: int) -> Control:
    """Run the video through untrained draws of the model. The backbone is the same in all, so the video is encoded once."""
    cuts = range(0, video.n_samples, model.config.clip_len)
    clips = [features_of(model, video, start, min(start + model.config.clip_len, video.n_samples), model.device) for start in cuts]
    draws = [_run(untrained(model, seed), clips, video.labels, frames) for seed in range(FIRST_SEED, FIRST_SEED + n_draws)]
    return Control(tuple(measured for measured, _ in draws), tuple(aligned for _, aligned in draws))


def _run(model: SurgicalMamba, clips: Sequence[Tensor], labels: IntArray, frames: BoundaryFrames) -> tuple[Measured, tuple[Alignment, ...]]:
    state = model.initial_state(1)
    with look_inside(model, most_chunks=None) as inside:
        for clip in clips:
            output = model.forward_features(clip, state)
            inside.observe(output)
            state = output.state
    slow = [planes for name, planes in inside.planes().items() if name.startswith("slow")]
    phases = chunk_phases(labels, model.config.block.slow.chunk_len, len(slow[0])) if slow else None
    aligned = [] if phases is None or len(phases) < 2 else [alignment(plane_similarity(planes), phases) for planes in slow]
    return inside.measure(frames), tuple(aligned)
