import pytest
import torch
from torch import nn

from peers.contract import check_contract, frames, n_parameters, varied
from surgicalmamba.errors import ConfigError
from surgicalmamba.peers.tmrnet import TMRNet, TMRNetConfig

SMALL = TMRNetConfig(d_feature=5, n_phases=3, d_hidden=6, clip_frames=4, bank_len=9)


@pytest.mark.parametrize(
    "config",
    [SMALL, SMALL.with_(clip_frames=2, bank_len=2)],
    ids=["longer than its kernels", "shorter than its kernels"],
)
def test_tmrnet_keeps_the_contract(config):
    check_contract(TMRNet(config))


def test_its_size_is_the_published_one():
    assert [round(n_parameters(TMRNet, d_feature=width) / 1e6, 2) for width in (2048, 768)] == [10.76, 8.14]


def slow_outputs(model, features):
    """The LSTM's last output on the last frames there are, for every frame of one lane (t, d)."""
    lstm = nn.LSTM(model.feature_width, model.config.d_hidden, batch_first=True)
    lstm.load_state_dict({f"{name}_l0": value for name, value in model.lstm.cell.state_dict().items()})
    size = model.config.clip_frames
    return torch.stack(
        [lstm(features[None, max(0, t + 1 - size) : t + 1])[0][0, -1] for t in range(len(features))]
    )


def slow_answer(model, short, bank):
    """The published layers on the bank (n, d), newest first, that exists: convolutions, pooling, attention
    with keys and values."""
    width = short.shape[0]
    if len(bank) == 0:
        return model.answer(torch.zeros(width))
    channels = bank.T[None]  # (1, d, n)
    pooled = nn.functional.max_pool1d(nn.functional.pad(channels, (1, 0)), 2, stride=1)
    views = [channels, pooled, *(convolution(channels) for convolution in model.variation.convolutions)]
    varied_bank = torch.stack(views).amax(0)[0].T
    keys, values = model.key(varied_bank), model.value(varied_bank)
    weights = torch.softmax(keys @ model.query(short) / width**0.5, dim=0)
    return model.answer(weights @ values)


@pytest.mark.parametrize("bank_len", [1, 4, 9])
def test_every_frame_asks_the_outputs_before_it_and_at_the_start_a_shorter_bank(bank_len):
    model = varied(TMRNet(SMALL.with_(bank_len=bank_len)))
    features = frames(model, 1, 16)
    short = slow_outputs(model, features[0])
    logits = model.forward_features(features).logits[0]
    for t in range(16):
        bank = short[max(0, t - bank_len) : t].flip(0)
        expected = model.head(torch.cat([short[t], short[t] + slow_answer(model, short[t], bank)]))
        torch.testing.assert_close(logits[t], expected, atol=1e-5, rtol=1e-5)


def test_a_new_procedure_reads_nothing_of_the_one_before_it():
    model = varied(TMRNet(SMALL))
    fresh = model.forward_features(frames(model, 1, 12)).logits
    used = model.forward_features(frames(model, 1, 40, seed=3)).state
    torch.testing.assert_close(model.forward_features(frames(model, 1, 12), used.reset([0])).logits, fresh)


def test_no_gradient_flows_into_the_bank():
    model = TMRNet(SMALL).eval()
    features = frames(model, 1, 8).requires_grad_()
    model.forward_features(features).logits[0, -1].sum().backward()
    reached = features.grad[0].abs().sum(-1) > 0
    assert (
        reached.tolist() == [False] * 4 + [True] * 4
    )  # the last clip of 4 frames, though the bank holds all 7 before


def test_a_kernel_without_a_middle_is_refused():
    with pytest.raises(ConfigError, match="4 is even"):
        SMALL.with_(kernels=(3, 4))
