"""What a live frame costs a recognizer after T frames of a procedure: milliseconds of a step and bytes of its memory.

A memory of T frames is made, not lived through: after enough frames to fill the network's windows, growing tensors are repeated up to
T and the clock is set. What a step computes depends on the sizes alone."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median

import numpy as np
import torch
from torch import Tensor

from surgicalmamba.core.state import LaneState
from surgicalmamba.model.recognizer import AnyRecognizer

LENGTHS = (100, 2_000, 6_000, 20_000)
"""Frames of a procedure at which a step is measured: up to five and a half hours at one frame per second."""
STEPS = 64
"""Frames of a turn: a whole chunk of the paper's slow path, so its rotation has its share."""
TURNS = 3
ENOUGH_S = 4.0
"""A turn that takes longer ends early."""


@dataclass(frozen=True)
class StepCost:
    """At one length: milliseconds of a frame, as the mean of a turn, median over turns; what 95 % of single frames stay below; and the
    memory of one procedure."""

    frames: int
    frame_ms: float
    p95_ms: float
    state_bytes: int

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@torch.inference_mode()
def step_costs(model: AnyRecognizer, lengths: Sequence[int] = LENGTHS, steps: int = STEPS, turns: int = TURNS) -> list[StepCost]:
    """Measure at every length, one lane, one frame per call, as live."""
    model.eval()
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(1, max(min(lengths), steps), model.feature_width, generator=draw).to(model.device, model.dtype)
    start = model.remember(features[:, : min(lengths)], model.initial_state(1))
    costs = []
    for length in lengths:
        state = model.remember(features[:, :1], lengthened(start, length - 1))
        times = [_turn(model, features[:, :steps], state) for _ in range(turns)]
        p95 = float(np.percentile([frame for turn in times for frame in turn], 95))
        costs.append(StepCost(length, 1e3 * median(mean(turn) for turn in times), 1e3 * p95, state.nbytes))
    return costs


def lengthened(state: LaneState, length: int) -> LaneState:
    """A memory of one lane as if it had seen `length` frames: what grows is repeated to that length, the rest stays."""
    seen = max(state.length, 1)

    def repeat(tensor: Tensor) -> Tensor:
        return tensor[:, torch.arange(length, device=tensor.device) % seen]

    grown = dict(zip(state.names(), state.tensors(), strict=True))
    tensors = [repeat(tensor) if name in state.GROWING and state.length else tensor for name, tensor in grown.items()]
    return state.with_tensors(tensors).at([length])


def _turn(model: AnyRecognizer, features: Tensor, state: LaneState) -> list[float]:
    """Seconds of consecutive frames; the state of T frames grows by them."""
    state = model.forward_features(features[:, :1], state).state  # not timed: a turn copies, once, what it shares with the others
    times: list[float] = []
    for frame in features.split(1, dim=1):
        started = time.perf_counter()
        state = model.forward_features(frame, state).state
        times.append(time.perf_counter() - started)
        if sum(times) > ENOUGH_S:
            break
    return times
