"""A network in the style of LoViT (Liu et al., 2023): two local windows of different length, a global part,
and a transition map.

Published: features of a ViT-B/16 trained with temporal context; two cascaded local transformers, each an
encoder over one line and a decoder over another; an Informer-style (ProbSparse) encoder over all past frames;
a head that joins local and global vectors; and beside the cross-entropy a regression of a map that rises
towards phase changes. Only weights, features and the map's code were released.
Uncertain: windows of 100 and 500 frames, 2 + 2 layers, width 512 and 8 heads come from ports; depth of the
global part, feed-forward width, dropout, the way vectors are joined and the weight of the map's loss are not
known.
Changed: the local parts keep keys and values instead of re-encoding their window (peers/attention.py). The
global part is full causal attention with a cache, where ProbSparse attention computes only a sample of the
queries. Local and global vectors are concatenated. The map is the trainer's transition target, drawn from the
labels of the whole video with the paper's deviations of 2 and 12 seconds: it peaks on the new phase's first
frame, while the released map is also 1 on the frame before, falls with 13 and ends at three deviations."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from surgicalmamba.config import Positive
from surgicalmamba.core.state import LaneState
from surgicalmamba.model.recognizer import Output, Recognizer
from surgicalmamba.peers.attention import (
    AttentionConfig,
    LocalState,
    LocalTransformer,
    TransformerLayer,
    attend_to_all,
    mask_of,
    visible_in_cache,
)


class LoViTConfig(AttentionConfig):
    """Settings of the LoViT-style network."""

    d_model: Positive = Field(512, description="Width of the tokens. Port: 512.")
    small_window: Positive = Field(100, description="Frames the first local part sees. Port: 100.")
    large_window: Positive = Field(500, description="Frames the second local part sees. Port: 500.")
    n_layers: Positive = Field(2, description="Layers of each encoder and of each decoder. Port: 2.")
    n_global_layers: Positive = Field(1, description="Layers over all past frames. Not published.")
    n_heads: Positive = Field(8, description="Attention heads. Port: 8.")
    d_hidden: Positive = Field(1024, description="Width of the feed-forward layers. Not published.")
    dropout: float = Field(0.1, ge=0, lt=1, description="After every sublayer. Not published.")
    map_weight: float = Field(
        1.0, ge=0, description="Weight of the transition map's loss. Not published; 0 leaves it out."
    )


@dataclass(frozen=True)
class LoViTState(LaneState):
    """Keys and values of both windows, and of every frame so far for the global part."""

    GROWING: ClassVar[frozenset[str]] = frozenset({"cache"})

    small: LocalState
    large: LocalState
    cache: Tensor  # (b, t, n_global_layers, 2 d)


class LoViT(Recognizer[LoViTState]):
    """small = local(f, f); large = local(f, small); global = causal attention over all f; (large, global) ->
    linear."""

    name = "lovit"
    config_class = LoViTConfig
    config: LoViTConfig
    memory = "O(T)"

    def __init__(self, config: LoViTConfig) -> None:
        super().__init__(config)
        width, shape = config.d_model, (config.n_heads, config.d_hidden, config.dropout)
        self.embed = nn.Linear(config.feature_width, width)
        self.small = LocalTransformer(width, config.small_window, config.n_layers, *shape)
        self.large = LocalTransformer(width, config.large_window, config.n_layers, *shape)
        self.global_layers = nn.ModuleList(
            TransformerLayer(width, *shape) for _ in range(config.n_global_layers)
        )
        self.fusion = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.LayerNorm(width))
        self.classifier = nn.Linear(width, config.n_phases)
        self.transition = nn.Linear(width, 1)

    def initial_state(self, n_lanes: int) -> LoViTState:
        cache = self.zeros(n_lanes, 0, self.config.n_global_layers, 2 * self.config.d_model)
        small, large = self.small.initial_state(cache), self.large.initial_state(cache)
        return LoViTState((0,) * n_lanes, small, large, cache)

    def temporal(self, features: Tensor, state: LoViTState) -> Output[LoViTState]:
        length = features.shape[1]
        x = self.embed(features)
        near, small = self.small(x, x, state.small, state.frame_index)
        local, large = self.large(x, near, state.large, state.frame_index)
        mask = mask_of(visible_in_cache(state.frame_index, length, state.length).to(features.device), x)
        x, cache = attend_to_all(self.global_layers, x, state.cache, state.frame_index, mask)
        joined = self.fusion(torch.cat([local, x], dim=-1))
        auxiliary = {"transition_map": self.transition(joined)[..., 0]} if self.training else {}
        after = replace(state, small=small, large=large, cache=cache).advance(length)
        return Output(self.classifier(joined), None, after, auxiliary)

    def training_loss(
        self, output: Output[LoViTState], labels: Tensor, target: Tensor, class_weights: Tensor | None = None
    ) -> Tensor | None:
        """Squared distance of the predicted transition map from the true one, mean over labelled frames."""
        if self.config.map_weight == 0 or not output.auxiliary:
            return None
        labelled = labels >= 0
        distance = (output.auxiliary["transition_map"].float() - target).square() * labelled
        return self.config.map_weight * distance.sum() / labelled.sum().clamp(min=1)
