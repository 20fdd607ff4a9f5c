"""TeCNO: a causal multi-stage temporal convolutional network.

Published (code): each stage is a 1x1 convolution to F maps, L residual layers (kernel-3 convolution with
dilation 1, 2, 4, ..., ReLU, 1x1 convolution, dropout 0.5) and a 1x1 convolution to the phases; the second
stage reads the softmax of the first. L = 8, F = 32 in the released configuration; the author names L = 9, F =
64 as the best published one. One whole video per update, Adam 7e-5, 12 to 16 epochs, mean over stages of a
cross-entropy weighted by median frequency; features of a ResNet-50 trained on phases and tools.
Uncertain: how much of the published score is the feature extractor's.
Changed: no softmax before the cross-entropy (the released training applies it twice); the losses of the
stages are summed, not averaged, and label smoothing, if configured, is on the last stage only. Streaming
keeps the last 2 x dilation inputs of every layer."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from surgicalmamba.config import Positive
from surgicalmamba.core.state import LaneState, TensorRecord
from surgicalmamba.model.recognizer import Output, Recognizer, RecognizerConfig
from surgicalmamba.train.losses import masked_cross_entropy


class TeCNOConfig(RecognizerConfig):
    n_stages: Positive = Field(
        2, description="Stages; each refines the softmax of the one before. Published: 2."
    )
    n_layers: Positive = Field(
        8, description="Layers of a stage; dilations 1 to 2^(n_layers - 1). Published: 8, best model 9."
    )
    n_maps: Positive = Field(32, description="Feature maps of a stage. Published: 32, best model 64.")
    dropout: float = Field(0.5, ge=0, lt=1, description="In every layer. Published: 0.5.")


@dataclass(frozen=True)
class StageState(TensorRecord):
    """The last 2 x dilation inputs of every layer, layer after layer."""

    tails: Tensor  # (b, 2 (2^n_layers - 1), n_maps)


@dataclass(frozen=True)
class TeCNOState(LaneState):
    stages: tuple[StageState, ...]


class DilatedLayer(nn.Module):
    """x + dropout(conv1x1(relu(conv3(x)))), looking back 2 x dilation frames."""

    def __init__(self, n_maps: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.dilated = nn.Conv1d(n_maps, n_maps, 3, dilation=dilation)
        self.mix = nn.Conv1d(n_maps, n_maps, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """x (b, f, l), tail (b, f, 2 x dilation) -> the same shapes."""
        seen = torch.cat([tail, x], dim=2)
        return x + self.dropout(self.mix(F.relu(self.dilated(seen)))), seen[:, :, x.shape[2] :]


class Stage(nn.Module):
    """One causal convolutional network from its input to phase logits."""

    def __init__(self, d_in: int, config: TeCNOConfig) -> None:
        super().__init__()
        self.spans = [2 * 2**layer for layer in range(config.n_layers)]
        self.enter = nn.Conv1d(d_in, config.n_maps, 1)
        self.layers = nn.ModuleList(
            DilatedLayer(config.n_maps, span // 2, config.dropout) for span in self.spans
        )
        self.leave = nn.Conv1d(config.n_maps, config.n_phases, 1)

    def forward(self, x: Tensor, state: StageState) -> tuple[Tensor, StageState]:
        """x (b, d_in, l) -> logits (b, k, l)."""
        y, tails = self.enter(x), []
        before = state.tails.to(y.dtype).transpose(1, 2).split(self.spans, dim=2)
        for layer, tail in zip(self.layers, before, strict=True):
            y, tail = layer(y, tail)
            tails.append(tail)
        return self.leave(y), StageState(torch.cat(tails, dim=2).transpose(1, 2).to(state.tails.dtype))


class TeCNO(Recognizer[TeCNOState]):
    """Its receptive field is fixed: 1 + 2 (2^L - 1) frames per stage, 17 minutes at one frame per second for
    8 layers and two stages."""

    name = "tecno"
    config_class = TeCNOConfig
    memory = "O(W)"
    config: TeCNOConfig

    def __init__(self, config: TeCNOConfig) -> None:
        super().__init__(config)
        widths = [config.feature_width, *[config.n_phases] * (config.n_stages - 1)]
        self.stages = nn.ModuleList(Stage(width, config) for width in widths)

    @property
    def receptive_field(self) -> int:
        """Frames, the present one included, that an answer depends on."""
        return 1 + self.config.n_stages * 2 * (2**self.config.n_layers - 1)

    def initial_state(self, n_lanes: int) -> TeCNOState:
        span = 2 * (2**self.config.n_layers - 1)
        stages = (StageState(self.zeros(n_lanes, span, self.config.n_maps)) for _ in self.stages)
        return TeCNOState((0,) * n_lanes, tuple(stages))

    def temporal(self, features: Tensor, state: TeCNOState) -> Output[TeCNOState]:
        x, states, logits = features.transpose(1, 2), [], []
        for number, (stage, before) in enumerate(zip(self.stages, state.stages, strict=True)):
            x, after = stage(x if number == 0 else torch.softmax(x, dim=1), before)
            states.append(after)
            logits.append(x.transpose(1, 2))
        earlier = {f"stage{number}": each for number, each in enumerate(logits[:-1])} if self.training else {}
        next_state = replace(state, stages=tuple(states)).advance(features.shape[1])
        return Output(logits[-1], None, next_state, earlier)

    def training_loss(
        self, output: Output[TeCNOState], labels: Tensor, target: Tensor, class_weights: Tensor | None = None
    ) -> Tensor | None:
        """Cross-entropy of the stages before the last."""
        return cross_entropy_of(output.auxiliary.values(), labels, class_weights)


def cross_entropy_of(stages: Iterable[Tensor], labels: Tensor, class_weights: Tensor | None) -> Tensor | None:
    """The summed cross-entropy of several logits (b, l, k); None without any."""
    losses = [masked_cross_entropy(logits.float(), labels, class_weights=class_weights) for logits in stages]
    return torch.stack(losses).sum() if losses else None
