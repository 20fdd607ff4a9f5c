"""The carried LSTM of "BN-pitfalls" (ConvNeXt-LSTM): one recurrent layer whose state is carried through the
procedure; and before it the LSTM layers that other networks use.

Published (code): features -> one-layer LSTM of 512 units -> linear; the hidden state is carried from clip to
clip in training and test, detached at clip ends and reset at a video's start; clips of 64 frames (256 as
first stage of DACAT), one video at a time, AdamW at 1e-5 (1e-4 where the bottom three stages of the backbone
are frozen), weight decay 0.01, cross-entropy, up to 200 epochs.
Uncertain: nothing of the temporal part.
Changed: it runs on any features; the paper's subject, batch normalisation inside the backbone, does not
arise, since our backbone has none."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from surgicalmamba.config import Positive
from surgicalmamba.core.ssd import in_full_precision
from surgicalmamba.core.state import LaneState, TensorRecord
from surgicalmamba.model.recognizer import Output, Recognizer, RecognizerConfig


@dataclass(frozen=True)
class LSTMMemory(TensorRecord):
    """The carried state of LSTM layers, lanes first."""

    hidden: Tensor  # (b, n_layers, d)
    cell: Tensor  # (b, n_layers, d)


@in_full_precision
def run_lstm(lstm: nn.LSTM, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x (b, l, d_in), hidden and cell (n_layers, b, d) -> outputs (b, l, d) and both states.

    In full precision, like every carried state; and not every device has an LSTM in half precision."""
    y, (hidden, cell) = lstm(x, (hidden.contiguous(), cell.contiguous()))
    return y, hidden, cell


class LSTMLayers(nn.Module):
    """Unidirectional LSTM layers for any number of frames per call."""

    def __init__(self, d_in: int, width: int, n_layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.lstm = nn.LSTM(d_in, width, n_layers, batch_first=True, dropout=dropout)

    def forward(self, x: Tensor, memory: LSTMMemory) -> tuple[Tensor, LSTMMemory]:
        """x (b, l, d_in) -> (b, l, d) and the state after it."""
        y, hidden, cell = run_lstm(self.lstm, x, memory.hidden.transpose(0, 1), memory.cell.transpose(0, 1))
        return y, LSTMMemory(hidden.transpose(0, 1), cell.transpose(0, 1))


class ClipLSTM(nn.Module):
    """An LSTM that starts from zeros some frames before every frame and returns its last output.

    The input's part of the gates is computed once per frame, not once per window that contains it; only the
    recurrence runs in each window."""

    def __init__(self, d_in: int, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(d_in, width)

    def forward(self, line: Tensor, is_frame: Tensor) -> Tensor:
        """line (b, W - 1 + l, d_in), tail first; is_frame (b, l, W), oldest first: places before the
        procedure leave the LSTM empty. Returns (b, l, d)."""
        n_lanes, length, size = is_frame.shape
        bias = self.cell.bias_ih + self.cell.bias_hh
        driven = F.linear(line, self.cell.weight_ih, bias)  # (b, W - 1 + l, 4 d)
        hidden = cell = driven.new_zeros(n_lanes, length, self.cell.hidden_size)
        for step in range(size):
            gates = driven[:, step : step + length] + F.linear(hidden, self.cell.weight_hh)
            enter, forget, candidate, leave = gates.chunk(4, dim=-1)
            written = torch.sigmoid(enter) * torch.tanh(candidate) + torch.sigmoid(forget) * cell
            cell = written * is_frame[..., step, None]
            hidden = torch.sigmoid(leave) * torch.tanh(cell)
        return hidden


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
