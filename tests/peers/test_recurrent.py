"""LSTMs inside networks, against torch's."""

import torch
from torch import nn

from surgicalmamba.peers.attention import join_window, seen_in_window
from surgicalmamba.peers.lstm import ClipLSTM, LSTMLayers, LSTMMemory


def test_an_lstm_that_starts_anew_runs_over_the_last_frames_and_over_fewer_where_a_procedure_begins():
    torch.manual_seed(0)
    size, clip = 4, ClipLSTM(3, 5)
    theirs = nn.LSTM(3, 5, batch_first=True)
    theirs.load_state_dict({f"{name}_l0": value for name, value in clip.cell.state_dict().items()})
    x = torch.randn(2, 9, 3)
    line, _ = join_window(torch.zeros(2, size - 1, 3), x)
    ours = clip(line, seen_in_window([0, 0], 9, size))
    for t in range(9):
        expected, _ = theirs(x[:, max(0, t + 1 - size) : t + 1])
        torch.testing.assert_close(ours[:, t], expected[:, -1], atol=1e-6, rtol=1e-5)


def test_lanes_in_the_middle_and_at_the_start_of_a_procedure_share_a_call():
    torch.manual_seed(1)
    clip = ClipLSTM(2, 3)
    tail, x = torch.randn(2, 2, 2), torch.randn(2, 1, 2)
    together = clip(join_window(tail, x)[0], seen_in_window([7, 0], 1, 3))
    alone = clip(join_window(torch.zeros(1, 2, 2), x[1:])[0], seen_in_window([0], 1, 3))
    torch.testing.assert_close(together[1:], alone)
    assert not torch.allclose(clip(join_window(tail[1:], x[1:])[0], seen_in_window([7], 1, 3)), alone)


def test_layers_carry_their_memory_with_the_lane_first():
    torch.manual_seed(2)
    layers = LSTMLayers(3, 4, n_layers=2)
    x, empty = torch.randn(3, 8, 3), LSTMMemory(torch.zeros(3, 2, 4), torch.zeros(3, 2, 4))
    expected, (hidden, cell) = layers.lstm(x)
    first, memory = layers(x[:, :5], empty)
    second, memory = layers(x[:, 5:], memory)
    torch.testing.assert_close(torch.cat([first, second], dim=1), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(memory.hidden, hidden.transpose(0, 1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(memory.cell, cell.transpose(0, 1), atol=1e-6, rtol=1e-5)
