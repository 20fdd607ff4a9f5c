"""Which clip runs in which lane at which step: numbers only, no images.

A lane walks through one procedure clip by clip, then takes the next procedure that nobody has. All lanes of all processes are planned
together, so every process of a distributed run has the same number of steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Span:
    """Samples `start` to `stop` (exclusive) of video number `video`, as one clip."""

    video: int
    start: int
    stop: int
    is_first: bool
    is_last: bool


Step = tuple[Span | None, ...]
"""What each lane does at a step; None for a lane that has nothing left."""


def epoch_order(lengths: Sequence[int], n_lanes: int, seed: int, epoch: int) -> list[int]:
    """Videos in random order; the last ones, two per lane, start longest first, so that lanes finish together."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=(epoch,))))
    order: list[int] = rng.permutation(len(lengths)).tolist()
    cut = max(len(order) - 2 * n_lanes, 0)
    return order[:cut] + sorted(order[cut:], key=lambda video: -lengths[video])


def plan_lanes(lengths: Sequence[int], order: Sequence[int], n_lanes: int, clip_len: int) -> list[Step]:
    """All steps of an epoch: a free lane takes the next video of `order`; every sample occurs once."""
    waiting = list(reversed(order))
    current: list[Span | None] = [None] * n_lanes
    steps: list[Step] = []
    while True:
        for lane, span in enumerate(current):
            if span is not None and not span.is_last:
                current[lane] = _span(span.video, span.stop, lengths[span.video], clip_len)
            else:
                current[lane] = _span(video := waiting.pop(), 0, lengths[video], clip_len) if waiting else None
        if not any(current):
            return steps
        steps.append(tuple(current))


def _span(video: int, start: int, length: int, clip_len: int) -> Span:
    stop = min(start + clip_len, length)
    return Span(video, start, stop, start == 0, stop == length)


def share_used(steps: Sequence[Step]) -> float:
    """Share of lane-steps that hold a clip; the rest is padding at the end of the epoch."""
    return sum(span is not None for step in steps for span in step) / max(sum(len(step) for step in steps), 1)
