"""The carried LSTM of "BN-pitfalls" (ConvNeXt-LSTM): one recurrent layer whose state runs through the whole procedure.

Published (code): features -> one-layer LSTM of 512 units -> linear; the hidden state is carried from clip to clip in training and test,
cut off from its gradients at clip ends and emptied at a video's start; clips of 64 frames (256 as first stage of DACAT), one video at a
time, AdamW at 1e-5 (1e-4 where the bottom three stages of the backbone are frozen), weight decay 0.01, cross-entropy, up to 200 epochs.
Uncertain: nothing of the temporal part.
Changed: it runs on the features it is given; the paper's subject, batch normalisation inside the backbone, does not arise, since our
backbone has none."""

from dataclasses import dataclass, replace

from pydantic import Field
from torch import Tensor, nn

from surgicalmamba.config import Positive, RecognizerConfig
from surgicalmamba.core.state import LaneState
from surgicalmamba.model.recognizer import Output, Recognizer
from surgicalmamba.peers.recurrent import run_lstm


class CarriedLSTMConfig(RecognizerConfig):
    d_hidden: Positive = Field(512, description="Units of the LSTM. Published: 512.")


@dataclass(frozen=True)
class LSTMState(LaneState):
    """Hidden and cell state."""

    hidden: Tensor  # (b, d_hidden)
    cell: Tensor  # (b, d_hidden)


class CarriedLSTM(Recognizer[LSTMState]):
    """The plainest recurrent recognizer: the reference among the peers with a fixed state."""

    name = "lstm"
    config_class = CarriedLSTMConfig
    memory = "O(1)"
    config: CarriedLSTMConfig

    def __init__(self, config: CarriedLSTMConfig) -> None:
        super().__init__(config)
        self.lstm = nn.LSTM(config.feature_width, config.d_hidden, batch_first=True)
        self.classifier = nn.Linear(config.d_hidden, config.n_phases)

    def initial_state(self, n_lanes: int) -> LSTMState:
        width = self.config.d_hidden
        return LSTMState((0,) * n_lanes, self.zeros(n_lanes, width), self.zeros(n_lanes, width))

    def temporal(self, features: Tensor, state: LSTMState) -> Output[LSTMState]:
        y, hidden, cell = run_lstm(self.lstm, features, state.hidden[None], state.cell[None])
        after = replace(state, hidden=hidden[0], cell=cell[0]).advance(features.shape[1])
        return Output(self.classifier(y), None, after)
