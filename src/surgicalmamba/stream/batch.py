"""One frame of several streams through an engine. A session is a batch of one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from surgicalmamba.core.state import LaneState
from surgicalmamba.errors import NonFiniteError
from surgicalmamba.stream.engine import Engine
from surgicalmamba.stream.estimate import PhaseEstimate
from surgicalmamba.stream.track import Step, Track


@dataclass(frozen=True)
class Work:
    """A stream's next step and the model's memory of it (one lane)."""

    track: Track
    step: Step
    state: LaneState


@dataclass(frozen=True)
class Result:
    """What the model made of a step. Nothing has happened to the stream yet: `complete` turns it into an estimate."""

    features: Tensor
    logits: Tensor
    intensity_logits: Tensor | None
    state: LaneState

    def complete(self, work: Work) -> PhaseEstimate:
        """Tell the stream."""
        return work.track.complete(work.step, self.features, self.logits, self.intensity_logits)


def advance(engine: Engine, batch: Sequence[Work]) -> list[Result]:
    """Every stream by its step: pictures are encoded together, and all lanes move together."""
    features = _features(engine, batch)
    states = [work.state for work in batch]
    output = engine.advance(features, states[0] if len(states) == 1 else type(states[0]).stack(states))
    if not torch.isfinite(output.logits).all():
        raise NonFiniteError("the engine gave logits that are not finite; try another engine.")
    results = []
    for lane in range(len(batch)):
        intensity = None if output.intensity_logits is None else output.intensity_logits[lane]
        state = output.state if len(batch) == 1 else output.state.select([lane])
        results.append(Result(features[lane], output.logits[lane], intensity, state))
    return results


def _features(engine: Engine, batch: Sequence[Work]) -> Tensor:
    """(b, d_feature): encoded pictures, given vectors, and held features, in the order of the batch."""
    like = next((tensor for tensor in batch[0].state.tensors() if tensor.is_floating_point()), torch.zeros(()))
    values = [work.step.value for work in batch]
    pictures = [value for value in values if value is not None and value.dtype == np.uint8]
    encoded = iter(engine.encode(torch.from_numpy(np.stack(pictures))) if pictures else ())
    rows = []
    for work, value in zip(batch, values, strict=True):
        if value is None:
            assert work.track.features is not None  # nothing is held before there is something to hold
            rows.append(work.track.features)
        else:
            rows.append(next(encoded) if value.dtype == np.uint8 else torch.from_numpy(value))
    return torch.stack([row.to(like) for row in rows])
