"""Surgformer's hierarchical temporal attention (Yang et al., MICCAI 2024), on frame features instead of
patches.

Published (code released): a TimeSformer-style ViT-B/16 of 12 blocks on 16 frames, 4 seconds apart, that end
at the current one; at the start of a video the earliest frame on this grid is repeated. A block has temporal
attention per patch at three scales (last 4, last 8, all 16 frames), each with its own projections; the
projected answer of a shorter scale is averaged half and half into the end of the next wider one before that
is projected; then a linear layer and a residual. Spatial attention within each frame over its patches and the
class token follows, whose answers for the class token are averaged over frames; then an MLP. Attention inside
the window goes both ways, but the window ends now.
Uncertain: nothing of the temporal part.
Changed: a frame is one feature instead of 196 patches: spatial attention is between this feature and the
class token. A feature projection and learned codes of the 16 places replace patch embedding and its position
codes. Only the raw features can be kept between frames, because tokens mix from the first block on; so a live
frame costs 16 tokens through every block.
Left out: Kinetics weights, mixup and other image augmentation, stochastic depth, and the variant in which the
last frame's class token attends to the others (HTA-KCA)."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from surgicalmamba.config import Positive
from surgicalmamba.core.state import LaneState
from surgicalmamba.model.backbone import FeedForward
from surgicalmamba.model.recognizer import Output, Recognizer
from surgicalmamba.peers.attention import AttentionConfig, join_window


class SurgformerConfig(AttentionConfig):
    """Settings of Surgformer at feature level."""

    clip_len: Positive = Field(
        64, description="Frames per call in training; each of them is a window of its own."
    )
    n_frames: Positive = Field(16, description="Frames in a window. Release: 16.")
    stride: Positive = Field(
        4, description="Frames from one of the window to the next. Release: 4 at one frame per second."
    )
    d_model: Positive = Field(768, description="Width of the tokens. Release: 768.")
    n_blocks: Positive = Field(12, description="Blocks. Release: 12.")
    n_heads: Positive = Field(12, description="Attention heads. Release: 12.")
    mlp_ratio: Positive = Field(4, description="Width of the MLP over d_model. Release: 4.")

    @model_validator(mode="after")
    def _check(self) -> "SurgformerConfig":
        if self.n_frames % 4:
            problem = f"n_frames={self.n_frames} is not a multiple of 4"
            raise ValueError(f"{problem}: the scales are a quarter, a half and all of a window.")
        return self


@dataclass(frozen=True)
class SurgformerState(LaneState):
    """The features that later windows may contain."""

    features: Tensor  # (b, (n_frames - 1) * stride, d_feature)


class Surgformer(Recognizer[SurgformerState]):
    """window of f -> blocks of three-scale temporal attention, attention with the class token, MLP -> class
    token -> linear."""

    name = "surgformer"
    config_class = SurgformerConfig
    config: SurgformerConfig
    memory = "O(W)"

    def __init__(self, config: SurgformerConfig) -> None:
        super().__init__(config)
        width = config.d_model
        self.embed = nn.Linear(config.feature_width, width)
        self.class_token = nn.Parameter(0.02 * torch.randn(width))
        self.place_codes = nn.Parameter(torch.zeros(config.n_frames, width))
        blocks = [HierarchicalBlock(width, config.n_heads, config.mlp_ratio) for _ in range(config.n_blocks)]
        self.blocks = nn.ModuleList(blocks)
        for block in blocks[1:]:  # as released: there temporal attention starts at zero
            nn.init.zeros_(block.temporal_out.weight)
            nn.init.zeros_(block.temporal_out.bias)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.classifier = nn.Linear(width, config.n_phases)

    def initial_state(self, n_lanes: int) -> SurgformerState:
        reach = (self.config.n_frames - 1) * self.config.stride
        return SurgformerState((0,) * n_lanes, self.zeros(n_lanes, reach, self.feature_width))

    def temporal(self, features: Tensor, state: SurgformerState) -> Output[SurgformerState]:
        n_lanes, length = features.shape[:2]
        line, tail = join_window(state.features, features)
        step = torch.arange(length, device=features.device)
        place = torch.tensor(state.frame_index, device=features.device)[:, None] + step
        ages = window_ages(place, self.config.n_frames, self.config.stride)  # (b, l, n)
        slots = state.features.shape[1] + step[:, None] - ages
        lanes = torch.arange(n_lanes, device=features.device)[:, None, None]
        tokens = self.embed(line)[lanes, slots] + self.place_codes
        tokens = tokens.flatten(0, 1)  # (b l, n, d): a window per frame
        summary = self.class_token.to(tokens.dtype).expand(tokens.shape[0], 1, -1)
        for block in self.blocks:
            tokens, summary = block(tokens, summary)
        logits = self.classifier(self.norm(summary[:, 0])).unflatten(0, (n_lanes, length))
        return Output(logits, None, replace(state, features=tail).advance(length))


def window_ages(place: Tensor, n_frames: int, stride: int) -> Tensor:
    """How many frames back each frame of a window lies, oldest first: (b, l) places in the procedure -> (b,
    l, n).

    A window that would reach before the first frame repeats the earliest frame that a whole number of strides
    reaches."""
    ages = stride * torch.arange(n_frames - 1, -1, -1, device=place.device)
    return torch.minimum(ages, (place // stride * stride)[..., None])


class HierarchicalBlock(nn.Module):
    """Temporal attention at three scales, attention between each frame and the class token, and an MLP, each
    with a residual."""

    def __init__(self, width: int, n_heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.temporal_norm = nn.LayerNorm(width, eps=1e-6)
        self.scales = nn.ModuleList(SelfAttention(width, n_heads) for _ in range(3))  # quarter, half, all
        self.temporal_out = nn.Linear(width, width)
        self.frame_norm = nn.LayerNorm(width, eps=1e-6)
        self.frame_attention = SelfAttention(width, n_heads)
        self.mlp_norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = FeedForward(width, mlp_ratio)

    def forward(self, tokens: Tensor, summary: Tensor) -> tuple[Tensor, Tensor]:
        """tokens (m, n, d), class token (m, 1, d); m windows."""
        tokens = tokens + self.temporal_out(self.hierarchical(self.temporal_norm(tokens)))
        pairs = torch.stack([summary.expand(-1, tokens.shape[1], -1), tokens], dim=2)  # (m, n, 2, d)
        mixed = self.frame_attention.between_two(self.frame_norm(pairs))
        summary = summary + mixed[:, :, 0].mean(1, keepdim=True)
        tokens = tokens + mixed[:, :, 1]
        both = torch.cat([summary, tokens], dim=1)
        both = both + self.mlp(self.mlp_norm(both))
        return both[:, 1:], both[:, :1]

    def hierarchical(self, tokens: Tensor) -> Tensor:
        """Attention over the last quarter, the last half and all frames; a shorter scale is averaged into the
        end of the next."""
        n_frames = tokens.shape[1]
        answer = tokens[:, :0]
        for scale, length in zip(self.scales, (n_frames // 4, n_frames // 2, n_frames), strict=True):
            assert isinstance(scale, SelfAttention)
            mixed = scale.mix(tokens[:, n_frames - length :])
            early, late = mixed.split([length - answer.shape[1], answer.shape[1]], dim=1)
            answer = scale.project(torch.cat([early, 0.5 * late + 0.5 * answer], dim=1))
        return answer


class SelfAttention(nn.Module):
    """Multi-head self-attention over all tokens of a set, in two steps: mix, then project."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.packed = nn.Linear(width, 3 * width)  # [query, key, value]
        self.project = nn.Linear(width, width)

    def mix(self, x: Tensor) -> Tensor:
        """x (m, n, d) -> (m, n, d)."""
        query, key, value = (
            part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in self.packed(x).chunk(3, dim=-1)
        )
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)

    def between_two(self, x: Tensor) -> Tensor:
        """Attention within sets of two tokens (..., 2, d), where the softmax is a sigmoid of the difference:
        fast for many small sets."""
        parts = self.packed(x).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.n_heads, -1)) for part in parts)  # (..., 2, h, c)
        (first, second), (early, late) = key.unbind(-3), value.unbind(-3)
        scores = (query * (first - second).unsqueeze(-3)).sum(-1, keepdim=True)
        share = torch.sigmoid(scores / query.shape[-1] ** 0.5)
        return self.project((late.unsqueeze(-3) + share * (early - late).unsqueeze(-3)).flatten(-2))
