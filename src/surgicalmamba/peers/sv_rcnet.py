"""SV-RCNet: an LSTM that runs over the last few frames for every prediction, from zeros.

Published (code): features -> LSTM of 512 units -> dropout 0.5 -> linear, trained end to end on clips of 3
frames (Caffe; SGD 5e-4, momentum 0.9, LSTM rate ten times the backbone's) or 4 frames (PyTorch; Adam 1e-3,
backbone 1e-4, batch of 100 clips).
Uncertain: which of the two the published scores belong to; the clip's length is a setting.
Changed: a frame's answer is the LSTM's last step on the frames there are, also for the first frames of a
procedure, where the authors copy the first full clip's answer back, which looks ahead. Ten-crop averaging,
the mean over the clip's steps and the phase-order filter after the network are left out. Clips of all frames
are trained, not sampled ones."""

from dataclasses import dataclass, replace

from pydantic import Field
from torch import Tensor, nn

from surgicalmamba.config import Positive
from surgicalmamba.core.state import LaneState
from surgicalmamba.model.recognizer import Output, Recognizer, RecognizerConfig
from surgicalmamba.peers.attention import join_window, seen_in_window
from surgicalmamba.peers.lstm import ClipLSTM


class SVRCNetConfig(RecognizerConfig):
    n_frames: Positive = Field(
        4, description="Frames the LSTM sees. Published: 3 (Caffe) and 4 (PyTorch); 10 in TMRNet's copy."
    )
    d_hidden: Positive = Field(512, description="Units of the LSTM. Published: 512.")
    dropout: float = Field(0.5, ge=0, lt=1, description="Before the classifier. Published: 0.5.")


@dataclass(frozen=True)
class WindowState(LaneState):
    """The last features."""

    tail: Tensor  # (b, n_frames - 1, d_feature)


class SVRCNet(Recognizer[WindowState]):
    """A recurrent network with a memory of a few seconds, because its state is not carried."""

    name = "sv-rcnet"
    config_class = SVRCNetConfig
    memory = "O(W)"
    config: SVRCNetConfig

    def __init__(self, config: SVRCNetConfig) -> None:
        super().__init__(config)
        self.lstm = ClipLSTM(config.feature_width, config.d_hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_hidden, config.n_phases)

    def initial_state(self, n_lanes: int) -> WindowState:
        return WindowState((0,) * n_lanes, self.zeros(n_lanes, self.config.n_frames - 1, self.feature_width))

    def temporal(self, features: Tensor, state: WindowState) -> Output[WindowState]:
        length = features.shape[1]
        line, tail = join_window(state.tail, features)
        y = self.lstm(line, seen_in_window(state.frame_index, length, self.config.n_frames, features.device))
        logits = self.classifier(self.dropout(y))
        return Output(logits, None, replace(state, tail=tail).advance(length))
