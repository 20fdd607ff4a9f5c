"""What was being computed when a number stopped being finite: video, clip and block, in one line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surgicalmamba.core.state import LaneState
from surgicalmamba.data.clips import ClipBatch
from surgicalmamba.errors import NonFiniteError
from surgicalmamba.model.recognizer import AnyRecognizer, Output, part_of_name
from surgicalmamba.train.objective import TERMS, ClipLoss, Objective


@dataclass(frozen=True)
class Clip:
    """One clip of every lane in the current TBPTT window, with what it was computed from."""

    batch: ClipBatch
    features: Tensor  # (b, l, d_feature)
    before: LaneState
    output: Output[Any]
    labels: Tensor  # (b, l)
    target: Tensor  # (b, l)
    loss: ClipLoss


def explain(model: AnyRecognizer, objective: Objective, window: Sequence[Clip], update: int) -> NonFiniteError:
    """Why the loss of a window is not finite. `model` must be whole; the clips are run again in order."""
    for clip in window:
        try:
            with torch.no_grad():
                model.forward_features(clip.features, clip.before, torch.from_numpy(clip.batch.n_frames).to(clip.features.device))
        except NonFiniteError as error:
            return NonFiniteError(f"{error} {place(clip.batch, error.lane, update)}", error.lane)
    for clip in window:
        for lane in range(len(clip.batch.videos)):
            if found := _broken_term(objective, clip, lane):
                return NonFiniteError(f"{found}. {place(clip.batch, lane, update)}", lane)
    videos = "; ".join(place(clip.batch, None, update) for clip in window)
    return NonFiniteError(f"the loss is not finite, and no clip of this process repeats it. {videos}")


def _broken_term(objective: Objective, clip: Clip, lane: int) -> str | None:
    """The first term of the loss that one lane makes infinite, and the block it is read from."""
    one = slice(lane, lane + 1)
    intensity = clip.output.intensity_logits
    alone = Output(clip.output.logits[one].detach(), None if intensity is None else intensity[one].detach(), clip.output.state)
    sums = objective.of_clip(alone, clip.labels[one], clip.target[one]).sums
    for name, value in zip(TERMS, sums, strict=False):  # a loss of the network's own cannot be had by lane
        if not torch.isfinite(value):
            if name != "transition" or alone.intensity_logits is None:
                return f"the {name} loss is not finite, from logits of the head up to {float(alone.logits.abs().max()):.3g}"
            largest = alone.intensity_logits.abs().amax((0, 1))
            block, size = int(largest.argmax()), float(largest.max())
            return f"the transition loss is not finite, from intensity logits of block {block} up to {size:.3g}"
    return None


def gradient_error(broken: str, window: Sequence[Clip], update: int) -> NonFiniteError:
    """For a gradient that is not finite: the weight, with its block in its name, and every clip that had a part in it."""
    part = part_of_name(broken)
    places = "; ".join(_spans(clip.batch, None) for clip in window)
    return NonFiniteError(f"the gradient of {broken!r} in {part} is not finite. It comes from {places}; update {update}.")


def place(batch: ClipBatch, lane: int | None, update: int) -> str:
    """Which clip of which video, for one lane or for all of them."""
    return f"This is {_spans(batch, lane)}; update {update}."


def _spans(batch: ClipBatch, lane: int | None) -> str:
    clip_len = batch.labels.shape[1]
    if lane is None:
        return ", ".join(_spans(batch, number) for number, video in enumerate(batch.videos) if video is not None)
    first, n = int(batch.first_sample[lane]), int(batch.is_frame[lane].sum())
    return f"video {batch.videos[lane]}, clip {first // clip_len + 1} (samples {first} to {first + n - 1})"
