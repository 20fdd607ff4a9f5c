import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peers.contract import check_contract, frames, n_parameters
from surgicalmamba.model.recognizer import Output
from surgicalmamba.peers.mttr_net import MTTRNet, MTTRNetConfig, truncated_mean_square

SMALL = MTTRNetConfig(d_feature=6, n_phases=3, d_hidden=5)


def test_mttr_net_keeps_the_contract():
    check_contract(MTTRNet(SMALL))


def test_its_size_is_the_published_one_and_its_lstm_carries_3072_numbers():
    assert [round(n_parameters(MTTRNet, d_feature=width) / 1e6, 2) for width in (2048, 768)] == [9.45, 6.83]
    lstm = MTTRNet(MTTRNetConfig(d_feature=4)).initial_state(1).lstm
    assert sum(tensor.numel() for tensor in lstm.tensors()) == 3072


def heard(model):
    """What reaches the LSTM, call by call."""
    inputs = []
    model.lstm.register_forward_pre_hook(lambda _module, arguments: inputs.append(arguments[0]))
    return inputs


def test_half_of_the_channels_are_lost_for_a_whole_training_video_and_drawn_anew_for_the_next():
    torch.manual_seed(0)
    model = MTTRNet(SMALL.with_(d_feature=40, time_masks=0)).train()
    inputs, ones = heard(model), torch.ones(2, 5, 40)
    first = model.forward_features(ones)
    second = model.forward_features(ones, first.state)
    third = model.forward_features(ones, second.state.reset([1]))
    kept = [x.amax(1) for x in inputs]
    assert all(x.amin(1).equal(x.amax(1)) for x in inputs)  # the same at every frame of a call
    assert (kept[0].sum(1) == 20).all() and kept[0].equal(kept[1])
    assert kept[2][0].equal(kept[0][0]) and not kept[2][1].equal(kept[0][1]) and kept[2][1].sum() == 20
    assert third.state.frame_index == (15, 5) and not kept[0][0].equal(kept[0][1])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 120), min_size=4, max_size=4))
def test_time_masks_are_at_most_three_and_at_most_a_tenth_of_a_lanes_frames_each_and_leave_padding_alone(
    seed, n_frames
):
    torch.manual_seed(seed)
    model = MTTRNet(SMALL.with_(time_mask_probability=1.0))
    kept = model._kept_times(torch.ones(4, 120, 6), torch.tensor(n_frames))[..., 0]
    assert kept.shape == (4, 120) and set(kept.unique().tolist()) <= {0.0, 1.0}
    for lane, length in zip(kept.tolist(), n_frames, strict=True):
        runs = sum(1 for t in range(length) if lane[t] == 0 and (t == 0 or lane[t - 1] == 1))
        assert runs <= 3 and lane.count(0.0) <= 3 * int(0.1 * length) and all(lane[length:])


def test_each_time_mask_is_there_with_its_probability_and_of_every_length_up_to_the_longest():
    torch.manual_seed(1)
    model = MTTRNet(SMALL.with_(time_masks=1))
    lost = (model._kept_times(torch.ones(20_000, 40, 6), torch.full((20_000,), 40)) == 0).sum(1).flatten()
    shares = torch.bincount(lost, minlength=5) / 20_000
    torch.testing.assert_close(
        shares, torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1]), atol=0.01, rtol=0
    )  # half absent, or of length 0


def test_nothing_is_lost_outside_training():
    model = MTTRNet(SMALL).eval()
    inputs, features = heard(model), frames(model, 2, 8)
    state = model.forward_features(features).state
    assert inputs[0].equal(features) and state.lost.abs().sum() == 0


def test_the_smoothing_loss_by_hand():
    """Log-probabilities of two phases: log 1/2 twice, then log 3/4 and log 1/4."""
    logits = torch.tensor([[[0.0, 0.0], [math.log(3.0), 0.0], [0.0, 0.0]]])
    up, down = math.log(1.5) ** 2, math.log(0.5) ** 2
    everything = truncated_mean_square(logits, torch.tensor([[0, 0, 1]]), 16.0)
    assert math.isclose(
        float(everything), (up + down) / 2, rel_tol=1e-6
    )  # both steps have the same two changes
    cut = truncated_mean_square(logits, torch.tensor([[0, 0, -1]]), 0.2)
    assert math.isclose(float(cut), (up + 0.2) / 2, rel_tol=1e-6) and up < 0.2 < down
    assert float(truncated_mean_square(logits, torch.tensor([[0, -1, 0]]), 16.0)) == 0.0


def test_the_smoothing_loss_does_not_rewrite_the_past():
    logits = torch.randn(1, 2, 3, requires_grad=True)
    truncated_mean_square(logits, torch.zeros(1, 2, dtype=torch.long), 16.0).backward()
    assert logits.grad[0, 0].abs().sum() == 0 and logits.grad[0, 1].abs().sum() > 0


def test_its_own_loss_is_the_weighted_smoothing_loss_or_none():
    model = MTTRNet(SMALL)
    logits, labels = torch.randn(1, 4, 3), torch.zeros(1, 4, dtype=torch.long)
    output = Output(logits, None, model.initial_state(1))
    expected = 0.15 * truncated_mean_square(logits, labels, 16.0)
    torch.testing.assert_close(model.training_loss(output, labels, torch.zeros(1, 4)), expected)
    assert MTTRNet(SMALL.with_(smooth_weight=0.0)).training_loss(output, labels, torch.zeros(1, 4)) is None
