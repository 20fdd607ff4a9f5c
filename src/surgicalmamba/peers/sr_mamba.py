"""SR-Mamba (Cao et al., 2024): Mamba blocks that scan the video in both directions; and the same blocks with
the forward scan only.

Published: a ResNet-34 trained together with a bidirectional Mamba decoder in one step, with workflow
anticipation as an auxiliary target. The repository holds no code. Scanning backwards in time needs the
future: an online answer at frame t needs a new scan of everything up to t in both directions for every frame,
at O(T) per frame and O(T^2) per video.
Uncertain: widths, depth, how the two directions are joined (here: summed before the gate), and the auxiliary
target, which is left out.
Changed: the blocks are those of our single-path control (SSD path, gated RMSNorm, feed-forward), without its
LayerNorm after the first projection; `sr-mamba-forward` differs only in the direction. Evaluation re-scans
the prefix for every frame and is causal. Training, as published, answers all frames of a clip from one pass
over the procedure up to the clip's end, so a training frame sees the rest of its clip. With a single block
the backward scan adds nothing online: at the newest frame it has seen that frame alone. What it adds comes
from the blocks above, whose forward scan reads tokens that it has revised."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from surgicalmamba.config import Positive
from surgicalmamba.core.ssd import full
from surgicalmamba.core.state import LaneState, PathState
from surgicalmamba.model.backbone import FeedForward
from surgicalmamba.model.recognizer import Output, Recognizer, RecognizerConfig
from surgicalmamba.model.surgical_mamba import PathConfig, SSMPath
from surgicalmamba.peers.attention import append

PREFIXES_AT_ONCE = 8
"""Prefixes of one call scanned together: a live frame has one, a stored video many. Changes no value."""


class SRMambaConfig(RecognizerConfig):
    """Settings of SR-Mamba and of its forward-only control."""

    d_model: Positive = Field(
        768, description="Width of the tokens. Not published; that of the vanilla control."
    )
    n_blocks: Positive = Field(4, description="Blocks. Not published; that of the vanilla control.")
    path: PathConfig = Field(PathConfig(rotation=None), description="Every scan, in either direction.")
    ffn_ratio: Positive = Field(4, description="Feed-forward width over model width.")

    @model_validator(mode="after")
    def _check(self) -> "SRMambaConfig":
        if self.path.rotation is not None or self.path.intensity is not None:
            raise ValueError("path.rotation and path.intensity must be null: these scans are plain.")
        if self.path.expand * self.d_model % self.path.d_head:
            inner = f"the inner width {self.path.expand * self.d_model}"
            raise ValueError(f"path.d_head={self.path.d_head} does not divide {inner}.")
        return self


def reverse(x: Tensor, lengths: Tensor | None) -> Tensor:
    """x (b, l, ...) with the first `lengths` (b,) frames of every lane, or all, in reverse order; the rest
    stays in place."""
    if lengths is None:
        return x.flip(1)
    at = torch.arange(x.shape[1], device=x.device)
    last = lengths[:, None] - 1
    order = torch.where(at <= last, last - at, at)
    return x[torch.arange(x.shape[0], device=x.device)[:, None], order]


def last_of(x: Tensor, lengths: Tensor) -> Tensor:
    """The last frame (b, 1, ...) of lanes (b, l, ...) that have `lengths` (b,) frames."""
    return x[torch.arange(x.shape[0], device=x.device), lengths - 1][:, None]


class ScanBlock(nn.Module):
    """x + Linear(RMSNorm((forward scan + backward scan) SiLU(gate))), then x + FFN(x), each behind a
    LayerNorm."""

    def __init__(self, config: SRMambaConfig, both_ways: bool) -> None:
        super().__init__()
        width = config.d_model
        self.norm = nn.LayerNorm(width)
        self.forward_path = SSMPath(width, config.path, None, conditioned=False, emits_gate=True)
        self.backward_path = (
            SSMPath(width, config.path, None, conditioned=False, emits_gate=False) if both_ways else None
        )
        self.out_norm = nn.RMSNorm(self.forward_path.d_inner, eps=1e-5)
        self.out_proj = nn.Linear(self.forward_path.d_inner, width, bias=False)
        self.ffn_norm = nn.LayerNorm(width)
        self.ffn = FeedForward(width, config.ffn_ratio)

    def forward(self, x: Tensor, state: PathState, lengths: Tensor | None = None) -> tuple[Tensor, PathState]:
        """x (b, l, d); the state is the forward scan's. lengths (b,): frames of a lane before its padding;
        None for no padding.

        The backward scan starts from a zero state at a lane's last frame. Both scans reach the padding last,
        so it changes no frame."""
        u = self.norm(x)
        ahead = self.forward_path(u, state, ())
        return self._join(x, u, ahead.y, ahead.gate, lengths), ahead.state

    def newest(self, x: Tensor, state: PathState, lengths: Tensor) -> Tensor:
        """The output of `forward` at each lane's last frame only: (b, 1, d). There the backward scan has seen
        just that frame."""
        u = self.norm(x)
        ahead = self.forward_path(u, state, ())
        last_x, last_u, y, gate = (last_of(line, lengths) for line in (x, u, ahead.y, ahead.gate))
        return self._join(last_x, last_u, y, gate, None)

    def _join(self, x: Tensor, u: Tensor, y: Tensor, gate: Tensor, lengths: Tensor | None) -> Tensor:
        """The backward scan of u beside the forward scan's y, then gate and feed-forward layer."""
        if self.backward_path is not None:
            empty = self.backward_path.initial_state(x.shape[0], x.dtype, x.device)
            y = y + reverse(self.backward_path(reverse(u, lengths), empty, ()).y, lengths)
        x = x + self.out_proj(self.out_norm(y * F.silu(gate)).to(x.dtype))
        return x + self.ffn(self.ffn_norm(x))


class ScanStack(nn.Module):
    """linear -> blocks -> LayerNorm -> linear."""

    def __init__(self, config: SRMambaConfig, both_ways: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(config.feature_width, config.d_model)
        self.blocks = nn.ModuleList(ScanBlock(config, both_ways) for _ in range(config.n_blocks))
        self.norm = nn.LayerNorm(config.d_model)
        self.classifier = nn.Linear(config.d_model, config.n_phases)

    def initial_state(self, like: Tensor) -> tuple[PathState, ...]:
        """like (b, ...): gives the number of lanes, device and dtype of the state."""
        blocks = (block for block in self.blocks if isinstance(block, ScanBlock))
        return tuple(
            block.forward_path.initial_state(like.shape[0], like.dtype, like.device) for block in blocks
        )

    def forward(
        self, features: Tensor, state: tuple[PathState, ...], lengths: Tensor | None = None
    ) -> tuple[Tensor, tuple[PathState, ...]]:
        """features (b, l, d_feature) -> logits (b, l, k) and the forward scans' states."""
        x, after = self.embed(features), []
        for block, before in zip(self.blocks, state, strict=True):
            x, path_state = block(x, before, lengths)
            after.append(path_state)
        return self.classifier(self.norm(x)), tuple(after)

    def newest(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Logits (b, k) of each lane's last frame, for whole procedures (b, l, d_feature) of `lengths`
        frames."""
        x, (*states, last) = self.embed(features), self.initial_state(full(features))
        *blocks, top = self.blocks
        for block, state in zip(blocks, states, strict=True):
            x, _ = block(x, state, lengths)
        assert isinstance(top, ScanBlock)
        return self.classifier(self.norm(top.newest(x, last, lengths)))[:, 0]


@dataclass(frozen=True)
class PrefixState(LaneState):
    """All features so far."""

    GROWING: ClassVar[frozenset[str]] = frozenset({"cache"})

    cache: Tensor  # (b, t, d_feature)


class SRMamba(Recognizer[PrefixState]):
    """Both directions: the answer at t is the last output of a scan of frames 0..t."""

    name = "sr-mamba"
    config_class = SRMambaConfig
    config: SRMambaConfig
    memory = "O(T)"

    def __init__(self, config: SRMambaConfig) -> None:
        super().__init__(config)
        self.stack = ScanStack(config, both_ways=True)

    def initial_state(self, n_lanes: int) -> PrefixState:
        return PrefixState((0,) * n_lanes, self.zeros(n_lanes, 0, self.feature_width))

    def remember(self, features: Tensor, state: PrefixState) -> PrefixState:
        """Only the features are kept, so nothing is scanned."""
        known = features if self.standardise is None else self.standardise(features)
        return self._remember(known, state)

    def _remember(self, features: Tensor, state: PrefixState) -> PrefixState:
        cache = append(state.cache, full(features), state.frame_index)
        return replace(state, cache=cache).advance(features.shape[1])

    def temporal(self, features: Tensor, state: PrefixState) -> Output[PrefixState]:
        return self._answer(features, state, lambda known, seen, lanes: self._rescan(known, seen))

    def temporal_in_training(
        self, features: Tensor, state: PrefixState, n_frames: Tensor
    ) -> Output[PrefixState]:
        return self._answer(
            features, state, lambda known, seen, lanes: self._scan(known, seen, n_frames[lanes])
        )

    def _answer(
        self, features: Tensor, state: PrefixState, scan: Callable[[Tensor, int, list[int]], Tensor]
    ) -> Output[PrefixState]:
        """`scan` computes the logits (b, l, k) of lanes with the same number of frames before the call, from
        all their features, this number, and the indices of the lanes."""
        length, after = features.shape[1], self._remember(features, state)
        alike: dict[int, list[int]] = defaultdict(list)
        for lane, seen in enumerate(state.frame_index):
            alike[seen].append(lane)
        logits: dict[int, Tensor] = {}
        for seen, lanes in alike.items():
            known = after.cache[lanes, : seen + length].to(features.dtype)
            logits |= dict(zip(lanes, scan(known, seen, lanes), strict=True))
        return Output(torch.stack([logits[lane] for lane in range(len(state.frame_index))]), None, after)

    def _scan(self, known: Tensor, seen: int, n_frames: Tensor) -> Tensor:
        """Logits of the frames after the first `seen`, (b, l, k), from one pass in both directions over known
        (b, seen + l, d) without its padding."""
        return self.stack(known, self.stack.initial_state(full(known)), seen + n_frames)[0][:, seen:]

    def _rescan(self, known: Tensor, seen: int) -> Tensor:
        """The last logits of a pass over every prefix of more than `seen` frames: (b, l, k). Several prefixes
        share a pass."""
        answers = []
        for start in range(seen + 1, known.shape[1] + 1, PREFIXES_AT_ONCE):
            stop = min(start + PREFIXES_AT_ONCE, known.shape[1] + 1)
            stops = torch.arange(start, stop, device=known.device)
            lengths = stops.repeat(len(known))
            prefixes = known[:, : int(stops[-1])].repeat_interleave(len(stops), 0)
            answers.append(self.stack.newest(prefixes, lengths).unflatten(0, (len(known), len(stops))))
        return torch.cat(answers, dim=1)


@dataclass(frozen=True)
class ForwardState(LaneState):
    """The scans' states, block by block."""

    paths: tuple[PathState, ...]


class SRMambaForward(Recognizer[ForwardState]):
    """The causal control: the same blocks with the forward scan only, whose state is carried."""

    name = "sr-mamba-forward"
    config_class = SRMambaConfig
    config: SRMambaConfig
    memory = "O(1)"

    def __init__(self, config: SRMambaConfig) -> None:
        super().__init__(config)
        self.stack = ScanStack(config, both_ways=False)

    def initial_state(self, n_lanes: int) -> ForwardState:
        return ForwardState((0,) * n_lanes, self.stack.initial_state(self.zeros(n_lanes)))

    def temporal(self, features: Tensor, state: ForwardState) -> Output[ForwardState]:
        logits, paths = self.stack(features, state.paths)
        return Output(logits, None, replace(state, paths=paths).advance(features.shape[1]))
