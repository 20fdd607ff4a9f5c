"""MTTR-Net's temporal encoder: a plain LSTM of three layers, with its training augmentations and loss.

Published (code released): three unidirectional LSTM layers of 512 with dropout 0.3 between them and a linear
layer, on features of width 2048; training on whole videos with half of the channels dropped for the whole
video and up to three time masks, each with probability 0.5 and at most a tenth of the video long;
cross-entropy plus 0.15 times the truncated mean square (MS-TCN's, clamp 16) of the change of
log-probabilities, the earlier frame held constant. The paper's contribution is in the features: five teachers
and a student distilled from a teacher that has not seen the video. Here features are an input, so none of
that is included.
Uncertain: dropped and masked values are set to 0 here, without scaling the others up.
Changed: the state carries the dropped channels of a lane, so that they stay dropped for the whole video when
training runs clip by clip. Time masks are drawn per clip: as published where a clip is a whole video, as in
configs/peers/mttr-net.yaml, else a tenth of the clip each at most. Several clips of a video leave the changes
across their ends out of the truncated mean square."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from surgicalmamba.config import Positive
from surgicalmamba.core.state import LaneState
from surgicalmamba.model.recognizer import Output, Recognizer, RecognizerConfig
from surgicalmamba.peers.lstm import LSTMLayers, LSTMMemory


class MTTRNetConfig(RecognizerConfig):
    """Settings of MTTR-Net's temporal encoder."""

    d_hidden: Positive = Field(512, description="Units per LSTM layer. Release: 512.")
    n_layers: Positive = Field(3, description="LSTM layers. Release: 3.")
    dropout: float = Field(0.3, ge=0, lt=1, description="Between LSTM layers. Release: 0.3.")
    channel_drop: float = Field(
        0.5, ge=0, lt=1, description="Share of channels set to 0 for a whole training video. Release: 0.5."
    )
    time_masks: int = Field(
        3, ge=0, description="Largest number of time masks in a training video. Release: 3."
    )
    time_mask_probability: float = Field(
        0.5, ge=0, le=1, description="Probability of each time mask. Release: 0.5."
    )
    time_mask_share: float = Field(
        0.1, ge=0, le=1, description="Longest time mask, as a share of the frames. Release: 0.1."
    )
    smooth_weight: float = Field(
        0.15, ge=0, description="Weight of the truncated mean square. Release: 0.15; 0 leaves it out."
    )
    largest_jump: float = Field(
        16.0, gt=0, description="Upper limit of the squared change of a log-probability. Release: 16."
    )


@dataclass(frozen=True)
class MTTRNetState(LaneState):
    """The LSTM's state; and the dropped channels of each lane's video (ones), drawn when it begins in
    training."""

    lstm: LSTMMemory
    lost: Tensor  # (b, d_feature)


class MTTRNet(Recognizer[MTTRNetState]):
    """LSTM of three layers -> linear."""

    name = "mttr-net"
    config_class = MTTRNetConfig
    config: MTTRNetConfig
    memory = "O(1)"

    def __init__(self, config: MTTRNetConfig) -> None:
        super().__init__(config)
        dropout = config.dropout if config.n_layers > 1 else 0.0
        self.lstm = LSTMLayers(config.feature_width, config.d_hidden, config.n_layers, dropout)
        self.classifier = nn.Linear(config.d_hidden, config.n_phases)

    def initial_state(self, n_lanes: int) -> MTTRNetState:
        shape = (n_lanes, self.config.n_layers, self.config.d_hidden)
        lstm = LSTMMemory(self.zeros(*shape), self.zeros(*shape))
        return MTTRNetState((0,) * n_lanes, lstm, self.zeros(n_lanes, self.feature_width))

    def temporal_in_training(
        self, features: Tensor, state: MTTRNetState, n_frames: Tensor
    ) -> Output[MTTRNetState]:
        begins = torch.tensor([seen == 0 for seen in state.frame_index], device=features.device)[:, None]
        state = replace(state, lost=torch.where(begins, self._lost_channels(state.lost), state.lost))
        kept = (1 - state.lost.to(features.dtype))[:, None] * self._kept_times(features, n_frames)
        return self.temporal(features * kept, state)

    def temporal(self, features: Tensor, state: MTTRNetState) -> Output[MTTRNetState]:
        y, lstm = self.lstm(features, state.lstm)
        return Output(self.classifier(y), None, replace(state, lstm=lstm).advance(features.shape[1]))

    def _lost_channels(self, like: Tensor) -> Tensor:
        """Draw a share of the channels of each lane: ones in a tensor of like's shape (b, d)."""
        n_lost = int(self.config.channel_drop * like.shape[1])
        chosen = torch.rand_like(like).argsort(dim=1)[:, :n_lost]
        return torch.zeros_like(like).scatter(1, chosen, 1.0)

    def _kept_times(self, features: Tensor, n_frames: Tensor) -> Tensor:
        """Ones (b, l, 1), zero inside time masks, which are among the first n_frames (b,) of a lane."""
        drawn = torch.rand(3, len(features), self.config.time_masks, 1, device=features.device)
        length = n_frames[:, None, None]
        longest = (self.config.time_mask_share * length).floor()
        spans = (drawn[0] * (longest + 1)).floor() * (drawn[1] < self.config.time_mask_probability)
        starts = (drawn[2] * (length - spans + 1)).floor()
        times = torch.arange(features.shape[1], device=features.device)
        masked = ((times >= starts) & (times < starts + spans)).any(1)  # (b, l)
        return (~masked).to(features.dtype)[..., None]

    def training_loss(
        self,
        output: Output[MTTRNetState],
        labels: Tensor,
        target: Tensor,
        class_weights: Tensor | None = None,
    ) -> Tensor | None:
        if self.config.smooth_weight == 0:
            return None
        return self.config.smooth_weight * truncated_mean_square(
            output.logits.float(), labels, self.config.largest_jump
        )


def truncated_mean_square(logits: Tensor, labels: Tensor, largest: float) -> Tensor:
    """Mean over frames and phases of (log p_t - log p_{t-1})^2, at most `largest`, between labelled
    neighbours; no gradient flows into p_{t-1}.

    The loss of MS-TCN's code. SurgicalMamba's own is confidence-weighted (`train.losses.smoothness`)."""
    log_p = F.log_softmax(logits, dim=-1)
    valid = (labels[:, 1:] >= 0) & (labels[:, :-1] >= 0)
    change = (log_p[:, 1:] - log_p[:, :-1].detach()).square().clamp(max=largest)
    return (change.mean(-1) * valid).sum() / valid.sum().clamp(min=1)
