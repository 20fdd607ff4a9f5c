"""Trans-SVNet (Gao et al., MICCAI 2021): a small transformer in which the current frame attends to the last
answers of TeCNO.

Published (code): frozen frame features and a frozen TeCNO (8 layers, 32 maps). A transformer as wide as there
are phases, with 8 heads of 32, feed-forward width 32, one encoder layer, one decoder layer and no positional
code. The encoder attends among TeCNO's last 30 logit vectors, zeros before the video's start. The decoder's
query is tanh of a bias-free projection of the current frame; it attends to the 30 and its output, as wide as
the phases, is the logits. Residual sums are normalised without learned scale. Three trainings one after the
other: SGD for the features, Adam 5e-4 for TeCNO, Adam 1e-3 for 25 epochs for the transformer.
Uncertain: nothing of the temporal part.
Changed: TeCNO learns at the same time, from its own cross-entropy, and gets no gradient from the transformer:
one training at one rate. As in the release, where TeCNO is trained before, the transformer learns from
answers without dropout; TeCNO learns with it. Class weights, if configured, apply to both; in the release
only to TeCNO. The zeros before the start take part in the attention, as published."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from surgicalmamba.config import Positive
from surgicalmamba.core.state import LaneState
from surgicalmamba.model.recognizer import Output, Recognizer
from surgicalmamba.peers.attention import windows
from surgicalmamba.peers.tecno import StageState, TeCNO, TeCNOConfig, TeCNOState, cross_entropy_of


class TransSVNetConfig(TeCNOConfig):
    """TeCNO's settings, and those of the transformer on it."""

    window: Positive = Field(30, description="Answers of TeCNO that the transformer sees. Published: 30.")
    n_heads: Positive = Field(8, description="Attention heads. Published: 8.")
    d_head: Positive = Field(32, description="Width of a head. Published: 32.")
    d_hidden: Positive = Field(32, description="Width of the feed-forward layers. Published: 32.")


@dataclass(frozen=True)
class TransSVNetState(LaneState):
    """TeCNO's memory, and its last logits."""

    stages: tuple[StageState, ...]
    answers: Tensor  # (b, window - 1, k)


class TransSVNet(Recognizer[TransSVNetState]):
    """decoder(tanh(embed(f)), encoder(last TeCNO logits))."""

    name = "trans-svnet"
    config_class = TransSVNetConfig
    memory = "O(W)"
    config: TransSVNetConfig

    def __init__(self, config: TransSVNetConfig) -> None:
        super().__init__(config)
        names = TeCNOConfig.model_fields.keys() - {"backbone", "standardise"}  # TeCNO gets final features
        settings = {name: value for name, value in dict(config).items() if name in names}
        self.tecno = TeCNO(TeCNOConfig(**{**settings, "d_feature": config.feature_width}))
        shape = (config.n_phases, config.n_heads, config.d_head, config.d_hidden)
        self.embed = nn.Linear(config.feature_width, config.n_phases, bias=False)
        self.encoder, self.decoder = NarrowLayer(*shape), NarrowLayer(*shape)

    def initial_state(self, n_lanes: int) -> TransSVNetState:
        answers = self.zeros(n_lanes, self.config.window - 1, self.n_phases)
        return TransSVNetState((0,) * n_lanes, self.tecno.initial_state(n_lanes).stages, answers)

    def temporal(self, features: Tensor, state: TransSVNetState) -> Output[TransSVNetState]:
        return self._ask(features, state, self.tecno.temporal(features, _memory_of_tecno(state)))

    def temporal_in_training(
        self, features: Tensor, state: TransSVNetState, n_frames: Tensor
    ) -> Output[TransSVNetState]:
        """Run TeCNO twice: with dropout for its own loss, and without for the transformer and the carried
        state."""
        learning = self.tecno.temporal(features, _memory_of_tecno(state))
        with torch.no_grad(), at_rest(self.tecno):
            answers = self.tecno.temporal(features, _memory_of_tecno(state))
        auxiliary = {**learning.auxiliary, "tecno": learning.logits}
        return replace(self._ask(features, state, answers), auxiliary=auxiliary)

    def _ask(
        self, features: Tensor, state: TransSVNetState, tecno: Output[TeCNOState]
    ) -> Output[TransSVNetState]:
        """The transformer's answers from those of TeCNO for these frames."""
        recent, answers = windows(tecno.logits.detach(), state.answers)  # (b, l, n, k)
        recent = recent.flatten(0, 1)
        query = torch.tanh(self.embed(features)).flatten(0, 1)[:, None]  # (b l, 1, k)
        logits = self.decoder(query, self.encoder(recent, recent)).unflatten(0, features.shape[:2])[:, :, 0]
        after = replace(state, stages=tecno.state.stages, answers=answers)
        return Output(logits, None, after.advance(features.shape[1]))

    def training_loss(
        self,
        output: Output[TransSVNetState],
        labels: Tensor,
        target: Tensor,
        class_weights: Tensor | None = None,
    ) -> Tensor | None:
        """Cross-entropy of every stage of TeCNO."""
        return cross_entropy_of(output.auxiliary.values(), labels, class_weights)


def _memory_of_tecno(state: TransSVNetState) -> TeCNOState:
    return TeCNOState(state.frame_index, state.stages)


@contextmanager
def at_rest(network: nn.Module) -> Iterator[None]:
    """In evaluation mode inside the context."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


class NarrowLayer(nn.Module):
    """Attention with heads wider than the tokens and a feed-forward layer, without biases; each added, then
    normalised."""

    def __init__(self, width: int, n_heads: int, d_head: int, d_hidden: int) -> None:
        super().__init__()
        self.width, self.n_heads = width, n_heads
        self.query, self.key, self.value = (nn.Linear(width, n_heads * d_head, bias=False) for _ in range(3))
        self.out = nn.Linear(n_heads * d_head, width, bias=False)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, d_hidden, bias=False), nn.ReLU(), nn.Linear(d_hidden, width, bias=False)
        )

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        """x (m, q, k) attends to source (m, n, k): (m, q, k).

        Tokens are narrower than heads, so the products of a head's matrices are small, k x k, and attention
        runs on the tokens themselves: (x Wq)(s Wk)^T = x (Wq Wk^T) s^T, and P (s Wv) Wo = (P s)(Wv Wo)."""
        layers = (self.query, self.key, self.value)
        query, key, value = (layer.weight.unflatten(0, (self.n_heads, -1)) for layer in layers)  # (h, p, k)
        pairs = torch.einsum("hpi,hpj->hij", query, key) / math.sqrt(query.shape[1])
        asked = torch.einsum("mqi,hij->mhqj", x, pairs)
        tokens = source[:, None].expand(-1, self.n_heads, -1, -1)
        seen = F.scaled_dot_product_attention(asked, tokens, tokens, scale=1.0)  # (m, h, q, k)
        mixed = torch.einsum("hpi,jhp->hij", value, self.out.weight.unflatten(1, (self.n_heads, -1)))
        x = F.layer_norm(x + torch.einsum("mhqi,hij->mqj", seen, mixed), (self.width,))
        return F.layer_norm(x + self.feed_forward(x), (self.width,))
