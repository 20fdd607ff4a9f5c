"""A network in the style of SKiT (Liu et al., ICCV 2023): a window of recent frames, and the running maximum
of the whole past.

Published: features of a ViT-B/16, a local transformer over the last frames, and a "key recorder": a narrow
projection whose running element-wise maximum represents the whole past, at constant cost per frame. The code
was not released.
Uncertain: everything below follows later open code of the group or ports: window 20 (another port: 100), 2 +
2 layers of width 512 with 8 heads and feed-forward width 1024, recorder width 64 with ReLU and LayerNorm, and
the way both parts are joined. That the recorder reads the projected frame features is our interpretation.
Changed: the local part keeps keys and values instead of re-encoding its window (peers/attention.py), so its
reach is longer than one window. No transition map is predicted. A maximum never decays: one spurious peak
stays for the rest of the operation."""

from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor, nn

from surgicalmamba.config import Positive
from surgicalmamba.core.ssd import full
from surgicalmamba.core.state import LaneState
from surgicalmamba.model.recognizer import Output, Recognizer
from surgicalmamba.peers.attention import AttentionConfig, LocalState, LocalTransformer


class SKiTConfig(AttentionConfig):
    """Settings of the SKiT-style network."""

    d_model: Positive = Field(512, description="Width of the tokens. Port: 512.")
    window: Positive = Field(20, description="Frames the local part sees. Later open code: 20; a port: 100.")
    n_layers: Positive = Field(2, description="Layers of the encoder, and of the decoder. Port: 2.")
    n_heads: Positive = Field(8, description="Attention heads. Port: 8.")
    d_hidden: Positive = Field(1024, description="Width of the feed-forward layers. Port: 1024.")
    d_key: Positive = Field(64, description="Values whose running maximum is kept. Port: 64.")
    dropout: float = Field(0.1, ge=0, lt=1, description="After every sublayer. Not published.")


@dataclass(frozen=True)
class SKiTState(LaneState):
    """Keys and values of the window, and the largest values so far; zeros, which are ignored, before the
    first frame."""

    local: LocalState
    peaks: Tensor  # (b, d_key)


class SKiT(Recognizer[SKiTState]):
    """local(f) + expand(running maximum of narrow(f)) -> MLP -> linear."""

    name = "skit"
    config_class = SKiTConfig
    config: SKiTConfig
    memory = "O(W)"

    def __init__(self, config: SKiTConfig) -> None:
        super().__init__(config)
        width = config.d_model
        self.embed = nn.Linear(config.feature_width, width)
        self.local = LocalTransformer(
            width, config.window, config.n_layers, config.n_heads, config.d_hidden, config.dropout
        )
        self.narrow = nn.Sequential(nn.Linear(width, config.d_key), nn.ReLU(), nn.LayerNorm(config.d_key))
        self.expand = nn.Sequential(nn.Linear(config.d_key, width), nn.ReLU(), nn.LayerNorm(width))
        self.fusion_norm = nn.LayerNorm(width)
        self.fusion = nn.Sequential(
            nn.Linear(width, config.d_hidden),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.d_hidden, width),
        )
        self.last_norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, config.n_phases)

    def initial_state(self, n_lanes: int) -> SKiTState:
        peaks = self.zeros(n_lanes, self.config.d_key)
        return SKiTState((0,) * n_lanes, self.local.initial_state(peaks), peaks)

    def temporal(self, features: Tensor, state: SKiTState) -> Output[SKiTState]:
        x = self.embed(features)
        recent, local = self.local(x, x, state.local, state.frame_index)
        peaks = running_maximum(full(self.narrow(x)), state.peaks, state.frame_index)
        joined = self.fusion_norm(recent + self.expand(peaks.to(recent.dtype)))
        joined = self.last_norm(joined + self.fusion(joined))
        after = replace(state, local=local, peaks=peaks[:, -1])
        return Output(self.classifier(joined), None, after.advance(features.shape[1]))


def running_maximum(values: Tensor, before: Tensor, frame_index: tuple[int, ...]) -> Tensor:
    """Element-wise maximum of values (b, l, d) up to each frame, and of `before` (b, d) in lanes that have
    seen frames already."""
    fresh = torch.tensor([seen == 0 for seen in frame_index], device=values.device)[:, None]
    earlier = before.masked_fill(fresh, -torch.inf)[:, None]
    return torch.cat([earlier, values], dim=1).cummax(dim=1).values[:, 1:]
