"""OperA (Czempiel et al., MICCAI 2021): a causal transformer over all frames so far.

Published: frame features, 11 identical encoder layers with one head and a causal mask, cross-entropy, and a
regularisation that turns attention away from frames which the features alone misclassify. The authors'
repository never received code.
Uncertain: width 64, feed-forward width 256, dropout 0.1, normalisation after each sum, no positional code and
the exact form and weight of the regularisation follow a later port, not the authors.
Changed: keys and values of every layer are kept, so a frame costs one token and attention to T cached ones.
The regularisation covers the frames of the call, whose labels are available; attention to frames of earlier
calls is left out of it."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from surgicalmamba.config import Positive
from surgicalmamba.core.state import LaneState
from surgicalmamba.model.recognizer import Output, Recognizer
from surgicalmamba.peers.attention import (
    AttentionConfig,
    TransformerLayer,
    attend_to_all,
    mask_of,
    visible_in_cache,
)


class OperAConfig(AttentionConfig):
    """Settings of OperA."""

    d_model: Positive = Field(64, description="Width of the tokens. Port: 64.")
    n_layers: Positive = Field(11, description="Encoder layers. Paper: 11.")
    n_heads: Positive = Field(1, description="Attention heads. Paper: 1.")
    d_hidden: Positive = Field(256, description="Width of the feed-forward layers. Port: 256.")
    dropout: float = Field(0.1, ge=0, lt=1, description="After every sublayer. Port: 0.1.")
    attention_weight: float = Field(
        1.0, ge=0, description="Weight of the attention regularisation. Not published; 0 leaves it out."
    )


@dataclass(frozen=True)
class OperAState(LaneState):
    """Keys and values of every layer, of every frame so far."""

    GROWING: ClassVar[frozenset[str]] = frozenset({"cache"})

    cache: Tensor  # (b, t, n_layers, 2 d)


class OperA(Recognizer[OperAState]):
    """linear -> causal encoder layers -> linear; and a second classifier on the bare features, for the
    regularisation."""

    name = "opera"
    config_class = OperAConfig
    config: OperAConfig
    memory = "O(T)"

    def __init__(self, config: OperAConfig) -> None:
        super().__init__(config)
        self.embed = nn.Linear(config.feature_width, config.d_model)
        shape = (config.d_model, config.n_heads, config.d_hidden, config.dropout)
        self.layers = nn.ModuleList(TransformerLayer(*shape) for _ in range(config.n_layers))
        self.classifier = nn.Linear(config.d_model, config.n_phases)
        self.frame_classifier = nn.Linear(config.feature_width, config.n_phases)

    def initial_state(self, n_lanes: int) -> OperAState:
        return OperAState(
            (0,) * n_lanes, self.zeros(n_lanes, 0, self.config.n_layers, 2 * self.config.d_model)
        )

    def temporal(self, features: Tensor, state: OperAState) -> Output[OperAState]:
        length = features.shape[1]
        x = self.embed(features)
        mask = mask_of(visible_in_cache(state.frame_index, length, state.length).to(features.device), x)
        regularised = self.training and self.config.attention_weight
        auxiliary = self._auxiliary(features, x, state, mask) if regularised else {}
        x, cache = attend_to_all(self.layers, x, state.cache, state.frame_index, mask)
        return Output(self.classifier(x), None, replace(state, cache=cache).advance(length), auxiliary)

    def _auxiliary(self, features: Tensor, x: Tensor, state: OperAState, mask: Tensor) -> dict[str, Tensor]:
        """What the regularisation needs: the first layer's attention among the frames of this call, and the
        logits of the features alone."""
        first = self.layers[0]
        assert isinstance(first, TransformerLayer)
        weights = first.attention.weights(x, x, state.cache[:, :, 0], mask)
        return {"attention": weights[:, :, state.length :], "frame_logits": self.frame_classifier(features)}

    def training_loss(
        self, output: Output[OperAState], labels: Tensor, target: Tensor, class_weights: Tensor | None = None
    ) -> Tensor | None:
        """The mean cross-entropy of the frame classifier, plus the attention regularisation: the same
        cross-entropy weighted by the attention a frame receives, divided by the number of frames that may
        attend to it, so that hard frames get less attention."""
        if not output.auxiliary:
            return None
        labelled = labels >= 0
        errors = F.cross_entropy(
            output.auxiliary["frame_logits"].float().transpose(1, 2), labels.clamp(min=0), reduction="none"
        )
        n_labelled = labelled.sum().clamp(min=1)
        received = attention_received(output.auxiliary["attention"].float(), labelled)
        regularisation = (received * errors.detach() * labelled).sum(1).mean()
        return (errors * labelled).sum() / n_labelled + self.config.attention_weight * regularisation


def attention_received(attention: Tensor, labelled: Tensor) -> Tensor:
    """Mean attention (b, l, l) that each frame of a call receives from the labelled frames at or after it:
    (b, l)."""
    asks = labelled.to(attention.dtype)
    n_asking = asks.flip(1).cumsum(1).flip(1)
    return (attention * asks[..., None]).sum(1) / n_asking.clamp(min=1)
