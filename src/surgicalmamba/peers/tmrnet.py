"""TMRNet (Jin et al., TMI 2021): an LSTM over a short clip that attends to a bank of its own past outputs.

Published (code released): an LSTM of 512 over the last 10 frames, from zeros for every frame, gives S. A bank
holds the outputs of a pretrained, frozen copy of that model for the 30 frames before, newest first. A
temporal variation layer takes the element-wise maximum of five views of the bank: convolutions of kernel 3, 5
and 7, a maximum of neighbours, and the bank itself. S attends to the result by a non-local operator: scaled
dot product, LayerNorm, ReLU, linear, dropout 0.2, added to S. S and the answer are joined, linear 512,
dropout 0.5, ReLU, linear.
Uncertain: nothing of the temporal part.
Changed: one LSTM is used for both and no gradient flows into the bank, so one training is enough. The first 9
frames have no published answer and the released bank of a new video continues into the previous video; here
the clip and the bank are shorter at a procedure's start, and an empty bank gives zeros before the LayerNorm.
Each frame's part in the convolutions is computed once, not once per window that contains it, and the key and
value projections act on the query and the answer instead of on 30 entries; the numbers are the same. The key
has no bias, which would change no attention weight."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from surgicalmamba.config import Positive
from surgicalmamba.core.ssd import full
from surgicalmamba.core.state import LaneState
from surgicalmamba.model.recognizer import Output, Recognizer, RecognizerConfig
from surgicalmamba.peers.attention import join_window, seen_in_window
from surgicalmamba.peers.lstm import ClipLSTM


class TMRNetConfig(RecognizerConfig):
    """Settings of TMRNet."""

    clip_frames: Positive = Field(10, description="Frames the LSTM runs over for every answer. Release: 10.")
    bank_len: Positive = Field(30, description="Past outputs in the memory bank. Release: 30.")
    d_hidden: Positive = Field(
        512, description="Units of the LSTM, and width of all that follows. Release: 512."
    )
    kernels: tuple[Positive, ...] = Field(
        (3, 5, 7), min_length=1, description="Taps of each convolution over the bank. Release: 3, 5, 7."
    )
    attention_dropout: float = Field(
        0.2, ge=0, lt=1, description="After the non-local operator. Release: 0.2."
    )
    dropout: float = Field(0.5, ge=0, lt=1, description="Before the last layer. Release: 0.5.")

    @model_validator(mode="after")
    def _check(self) -> "TMRNetConfig":
        even = [kernel for kernel in self.kernels if kernel % 2 == 0]
        if even:
            problem = f"kernels={self.kernels}: {even[0]} is even, so it has no middle"
            raise ValueError(f"{problem}; use odd kernels, such as {even[0] + 1}.")
        return self


@dataclass(frozen=True)
class TMRNetState(LaneState):
    """The last features, and the last outputs of the LSTM, newest last."""

    features: Tensor  # (b, clip_frames - 1, d_feature)
    bank: Tensor  # (b, bank_len, d_hidden)


class TMRNet(Recognizer[TMRNetState]):
    """S = LSTM(last frames); S and S + non-local(S, variation(bank)) -> linear -> linear."""

    name = "tmrnet"
    config_class = TMRNetConfig
    config: TMRNetConfig
    memory = "O(W)"

    def __init__(self, config: TMRNetConfig) -> None:
        super().__init__(config)
        width = config.d_hidden
        self.lstm = ClipLSTM(config.feature_width, width)
        self.variation = TemporalVariation(width, config.kernels, config.bank_len)
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.answer = nn.Sequential(
            nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width), nn.Dropout(config.attention_dropout)
        )
        self.head = nn.Sequential(
            nn.Linear(2 * width, width),
            nn.Dropout(config.dropout),
            nn.ReLU(),
            nn.Linear(width, config.n_phases),
        )

    def initial_state(self, n_lanes: int) -> TMRNetState:
        config = self.config
        features = self.zeros(n_lanes, config.clip_frames - 1, self.feature_width)
        return TMRNetState((0,) * n_lanes, features, self.zeros(n_lanes, config.bank_len, config.d_hidden))

    def temporal(self, features: Tensor, state: TMRNetState) -> Output[TMRNetState]:
        length, config = features.shape[1], self.config
        line, tail = join_window(state.features, features)
        is_frame = seen_in_window(state.frame_index, length, config.clip_frames, features.device)
        short = self.lstm(line, is_frame)
        bank, bank_tail = join_window(state.bank, short.detach())
        exists = seen_in_window(state.frame_index, length, config.bank_len + 1, features.device)[..., :-1]
        answer = self._ask(short, self.variation(bank[:, :-1], length), exists.flip(-1))  # newest first
        logits = self.head(torch.cat([short, short + answer], dim=-1))
        return Output(logits, None, replace(state, features=tail, bank=full(bank_tail)).advance(length))

    def _ask(self, short: Tensor, bank: Tensor, exists: Tensor) -> Tensor:
        """The non-local operator: short (b, l, d) attends to the entries of bank (b, l, n, d) that exist."""
        query = self.query(short) @ self.key.weight
        scores = torch.einsum("bld,blnd->bln", query, bank) / bank.shape[-1] ** 0.5
        scores = scores.masked_fill(~exists, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1) * exists  # an empty bank has no weight
        found = torch.einsum("bln,blnd->bld", weights, bank)
        return self.answer(F.linear(found, self.value.weight) + self.value.bias * exists[..., :1])


class TemporalVariation(nn.Module):
    """Element-wise maximum over the bank, its convolutions (zeros beyond its ends) and the larger of each
    entry and its newer neighbour.

    Entry i of a bank that ends before frame t belongs to frame t - 1 - i. Its value depends on that frame,
    its neighbours, and on the distance to an end of the bank within the reach of a kernel. So it is computed
    once per frame and distance, and then copied into the banks."""

    def __init__(self, width: int, kernels: tuple[int, ...], bank_len: int) -> None:
        super().__init__()
        self.bank_len, self.reach = bank_len, max(kernels) // 2
        self.convolutions = nn.ModuleList(
            nn.Conv1d(width, width, kernel, padding=kernel // 2) for kernel in kernels
        )

    def forward(self, line: Tensor, length: int) -> Tensor:
        """line (b, bank_len + l - 1, d), oldest first -> the banks of l frames (b, l, n, d), newest first."""
        kernels = [convolution.weight.unbind(-1) for convolution in self._convolutions()]
        taps = [[line @ tap.T for tap in kernel] for kernel in kernels]  # (b, t, d) per tap
        places = [(min(i, self.reach), min(self.bank_len - 1 - i, self.reach)) for i in range(self.bank_len)]
        values = {place: self._value(line, taps, *place) for place in set(places)}
        last = self.bank_len - 1
        banks = [values[place][:, last - i : last - i + length] for i, place in enumerate(places)]
        return torch.stack(banks, dim=2)

    def _convolutions(self) -> list[nn.Conv1d]:
        return [convolution for convolution in self.convolutions if isinstance(convolution, nn.Conv1d)]

    def _value(self, line: Tensor, taps: list[list[Tensor]], n_newer: int, n_older: int) -> Tensor:
        """The layer's value at every frame (b, t, d) for a bank with this many newer and older entries, up to
        the reach of a kernel."""
        newer = shifted(line, -1) if n_newer else torch.zeros_like(line)
        value = torch.maximum(line, newer)
        for convolution, products in zip(self._convolutions(), taps, strict=True):
            middle = len(products) // 2
            inside = range(-min(middle, n_newer), min(middle, n_older) + 1)
            total = torch.stack([shifted(products[middle + by], by) for by in inside]).sum(0)
            assert convolution.bias is not None
            value = torch.maximum(value, total + convolution.bias)
        return value


def shifted(line: Tensor, by: int) -> Tensor:
    """The line (b, t, d) moved `by` frames later, or earlier if negative; zeros beyond its ends."""
    return F.pad(line, (0, 0, by, -by))
