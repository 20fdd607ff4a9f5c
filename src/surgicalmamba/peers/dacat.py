"""DACAT (Yang et al., 2024): each frame attends to the part of the past that resembles it most.

Published (code released): two branches, each ending in an LSTM of 512 whose state is carried through the
video and a linear layer; the answer is the mean of their logits. One branch takes the frame's feature. The
other keeps a cache of up to 8192 features; a cached frame's score is the channel mean of its product with the
current feature, scores are summed from the newest frame back, and the clip that runs to the current frame
starts at the largest sum. Single-head attention, without residual, norm or output projection, goes from the
current feature to that clip.
Published and not causal: in training one clip is chosen for 64 frames together, by correlating the 64 with
every stretch of 64 of the cache, and each of the 64 attends to the clip's end, up to 63 frames ahead.
Inference, one frame at a time, looks at nothing ahead.
Uncertain: nothing of the temporal part.
Changed: every frame chooses its own clip from its own past, in training too.
`attention="published-lookahead"` trains as published; outside training its answers are causal, while the
release also validates with the look-ahead during training. The published cache is filled by a second, frozen
backbone, and both branches start from a pretrained network; here both see the same features and start from
random weights. Keys and values are not formed per cached frame: scores come from the query multiplied by the
key projection, and the value projection follows the weighted mean, which gives the same numbers at O(T D) per
frame. The key has no bias, which would shift all scores of a query alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from surgicalmamba.config import Positive
from surgicalmamba.core.chunks import chunk_segments
from surgicalmamba.core.ssd import full
from surgicalmamba.core.state import LaneState
from surgicalmamba.model.recognizer import Output, Recognizer, RecognizerConfig
from surgicalmamba.peers.attention import join_cache, visible_in_cache
from surgicalmamba.peers.lstm import LSTMLayers, LSTMMemory


class DACATConfig(RecognizerConfig):
    """Settings of DACAT."""

    clip_len: Positive = Field(
        64,
        description="Frames per call in training; with the published look-ahead, frames that share a clip.",
    )
    d_hidden: Positive = Field(512, description="Units of both LSTMs. Release: 512.")
    cache_len: Positive = Field(8192, description="Frames kept; older ones are forgotten. Release: 8192.")
    attention: Literal["causal", "published-lookahead"] = Field(
        "causal",
        description="In training: each frame's clip from its own past, or one clip for clip_len frames that "
        "see all of it (release).",
    )


@dataclass(frozen=True)
class DACATState(LaneState):
    """The features so far, and the state of both LSTMs."""

    GROWING: ClassVar[frozenset[str]] = frozenset({"cache"})

    cache: Tensor  # (b, t, d_feature)
    frame: LSTMMemory
    clip: LSTMMemory


class DACAT(Recognizer[DACATState]):
    """(frame LSTM(f_t) + clip LSTM(attention(f_t, clip of t))) / 2."""

    name = "dacat"
    config_class = DACATConfig
    config: DACATConfig
    memory = "O(T)"

    def __init__(self, config: DACATConfig) -> None:
        super().__init__(config)
        width, d_hidden = config.feature_width, config.d_hidden
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.frame_lstm, self.clip_lstm = LSTMLayers(width, d_hidden), LSTMLayers(width, d_hidden)
        self.frame_classifier = nn.Linear(d_hidden, config.n_phases)
        self.clip_classifier = nn.Linear(d_hidden, config.n_phases)

    def initial_state(self, n_lanes: int) -> DACATState:
        shape = (n_lanes, 1, self.config.d_hidden)
        frame, clip = (LSTMMemory(self.zeros(*shape), self.zeros(*shape)) for _ in range(2))
        return DACATState((0,) * n_lanes, self.zeros(n_lanes, 0, self.feature_width), frame, clip)

    def temporal(self, features: Tensor, state: DACATState) -> Output[DACATState]:
        return self._answer(features, state, chosen_clip)

    def temporal_in_training(
        self, features: Tensor, state: DACATState, n_frames: Tensor
    ) -> Output[DACATState]:
        if self.config.attention == "causal":
            return self.temporal(features, state)

        def choose(features: Tensor, line: Tensor, visible: Tensor) -> Tensor:
            return self._shared_clip(features, line, visible, state.frame_index, n_frames.tolist())

        return self._answer(features, state, choose)

    def _answer(
        self, features: Tensor, state: DACATState, choose: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Output[DACATState]:
        """`choose` returns the clip of each frame (b, l, t), given the frames (b, l, d), the line (b, t, d)
        and what each frame may see of it (b, l, t)."""
        length, limit = features.shape[1], self.config.cache_len
        line, cache = join_cache(state.cache, full(features), state.frame_index, limit)
        line = line.to(features.dtype)
        visible = visible_in_cache(state.frame_index, length, state.length, limit).to(features.device)
        clip = choose(features, line, visible)
        frame, frame_state = self.frame_lstm(features, state.frame)
        attended, clip_state = self.clip_lstm(self._attend(features, line, clip), state.clip)
        logits = (self.frame_classifier(frame) + self.clip_classifier(attended)) / 2
        after = replace(state, cache=cache, frame=frame_state, clip=clip_state)
        return Output(logits, None, after.advance(length))

    def _attend(self, features: Tensor, line: Tensor, clip: Tensor) -> Tensor:
        """Attention from each frame (b, l, d) to its clip (b, l, t) of the line (b, t, d)."""
        query = self.query(features) @ self.key.weight
        scores = query @ line.transpose(1, 2) * line.shape[-1] ** -0.5
        return self.value(scores.masked_fill(~clip, -torch.inf).softmax(-1) @ line)

    def _shared_clip(
        self, features: Tensor, line: Tensor, visible: Tensor, seen: Sequence[int], ends: Sequence[int]
    ) -> Tensor:
        """The choice of the released training: frames of a call that are in the same clip_len frames share
        one clip and see it to its end.

        seen: frames of each lane before this call; ends: its frames in this call, without padding."""
        clip = visible.clone()
        for part in chunk_segments(features.shape[1], seen, self.config.clip_len):
            for lane, end in enumerate(ends):
                if part.start < end:
                    shared = slice(part.start, min(part.stop, end))
                    slots = visible[lane, shared].any(0).nonzero()[:, 0]  # visible to any frame of the part
                    start = best_stretch(features[lane, shared], line[lane, slots])
                    clip[lane, shared] = False
                    clip[lane, shared, slots[start:]] = True
        return clip


def chosen_clip(features: Tensor, line: Tensor, visible: Tensor) -> Tensor:
    """Which entries of the line (b, t, d) are the clip of each frame (b, l, d): those from the largest suffix
    sum of scores on. (b, l, t).

    Sums instead of channel means have the same maximum. They are float64, so that ties stay ties however a
    procedure is cut; the earlier start wins."""
    scores = (features @ line.transpose(1, 2)).double().masked_fill(~visible, 0.0)
    sums = scores.flip(-1).cumsum(-1).flip(-1).masked_fill(~visible, -torch.inf)
    start = sums.argmax(-1, keepdim=True)
    return visible & (torch.arange(line.shape[1], device=line.device) >= start)


def best_stretch(frames: Tensor, line: Tensor) -> int:
    """Where the clip of several frames (l, d) starts in the line (t, d) that ends with them. The score of a
    stretch of l neighbours is the sum of its products with the frames, one by one; the clip starts at the
    largest sum of scores from a stretch to the last one."""
    places = torch.arange(len(line), device=line.device)
    offsets = places[: len(frames), None] + places[: len(line) - len(frames) + 1]
    scores = (frames @ line.T).double().gather(1, offsets).sum(0)
    return int(scores.flip(0).cumsum(0).flip(0).argmax())
