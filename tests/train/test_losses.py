"""The training objectives, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import surgicalmamba as sm
from surgicalmamba.train.config import LossSettings
from surgicalmamba.train.losses import (
    confidence,
    masked_cross_entropy,
    phase_boundaries,
    release_target,
    smoothness,
    target_of,
    transition_loss,
    transition_target,
)


def test_losses_are_a_public_module():
    assert sm.losses.transition_target is transition_target


def test_cross_entropy_ignores_unlabelled_frames():
    logits = torch.tensor([[[2.0, 0.0], [0.0, 5.0], [9.0, -9.0]]])
    labels = torch.tensor([[0, 1, -1]])
    expected = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-5))) / 2
    assert float(masked_cross_entropy(logits, labels)) == pytest.approx(expected, rel=1e-5)


def test_label_smoothing_spreads_a_share_over_all_phases():
    logits, labels = torch.tensor([[[2.0, 0.0]]]), torch.tensor([[0]])
    right, wrong = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    assert float(masked_cross_entropy(logits, labels, label_smoothing=0.1)) == pytest.approx(
        0.95 * right + 0.05 * wrong, rel=1e-5
    )


def test_a_clip_without_labels_costs_nothing_and_has_a_gradient_of_zero():
    logits = torch.randn(1, 4, 3, requires_grad=True)
    labels = torch.full((1, 4), -1)
    total = (
        masked_cross_entropy(logits, labels)
        + smoothness(logits, labels)
        + transition_loss(logits, torch.zeros(1, 4), labels)
    )
    total.backward()
    assert total.item() == 0 and (logits.grad == 0).all()


def test_confidence_is_one_when_certain_and_zero_when_uniform():
    log_p = torch.log_softmax(torch.tensor([[0.0, 0.0, 0.0], [80.0, 0.0, 0.0]]), -1)
    torch.testing.assert_close(confidence(log_p), torch.tensor([0.0, 1.0]), atol=1e-6, rtol=0)


def test_smoothness_is_zero_for_a_steady_prediction_and_for_an_uncertain_one():
    steady = torch.tensor([3.0, 0.0, -1.0]).expand(1, 6, 3)
    assert float(smoothness(steady, torch.zeros(1, 6, dtype=torch.long))) == pytest.approx(0, abs=1e-10)
    flicker = torch.tensor([[[6.0, 0.0], [0.0, 6.0], [6.0, 0.0]]])
    labels = torch.zeros(1, 3, dtype=torch.long)
    assert (
        float(smoothness(flicker, labels)) > 1.0
    )  # each change has a divergence of 5.97 and confidences of 0.975
    assert float(smoothness(flicker * 0.01, labels)) < 1e-6


def test_smoothness_by_hand_on_two_frames():
    # p = (0.9, 0.1) then (0.6, 0.4), whose divergence is 0.9 log(0.9 / 0.6) + 0.1 log(0.1 / 0.4); c = 1 - H /
    # log 2 of each
    p = torch.tensor([[[0.9, 0.1], [0.6, 0.4]]])
    divergence = 0.9 * math.log(1.5) + 0.1 * math.log(0.25)
    first = 1 + (0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / math.log(2)
    second = 1 + (0.6 * math.log(0.6) + 0.4 * math.log(0.4)) / math.log(2)
    labels = torch.zeros(1, 2, dtype=torch.long)
    assert float(smoothness(p.log(), labels)) == pytest.approx(first * second * divergence, rel=1e-5)
    back = 0.6 * math.log(0.6 / 0.9) + 0.4 * math.log(0.4 / 0.1)  # the divergence has a direction
    assert float(smoothness(p.flip(1).log(), labels)) == pytest.approx(first * second * back, rel=1e-5)


def test_smoothness_is_a_mean_over_pairs_of_which_both_frames_are_labelled():
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    def pair(lane, t):
        return float(
            smoothness(logits[lane : lane + 1, t : t + 2], torch.zeros(1, 2, dtype=torch.long))
        )
    labels = torch.tensor([[0, 0, -1, 0], [1, 1, 1, -1]])
    assert float(smoothness(logits, labels)) == pytest.approx(
        (pair(0, 0) + pair(1, 0) + pair(1, 1)) / 3, rel=1e-5
    )


def test_smoothness_sends_gradients_into_both_frames_and_through_both_confidences():
    logits = torch.randn(
        1, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True
    )
    labels = torch.zeros(1, 2, dtype=torch.long)
    assert torch.autograd.gradcheck(lambda x: smoothness(x, labels), logits)  # nothing is held constant
    smoothness(logits, labels).backward()
    assert (logits.grad != 0).all()


def test_smoothness_on_confident_jittering_logits_is_a_twelfth_of_the_truncated_mean_square_it_replaced(
    capsys,
):
    """Deviation 1 on all logits, one phase ahead by 4. MS-TCN's measure: squared change of the
    log-probabilities, cut at 4."""
    logits = torch.randn(8, 256, 7, generator=torch.Generator().manual_seed(0))
    logits[..., 2] += 4
    log_p = torch.log_softmax(logits, -1)
    change = (log_p[:, 1:] - log_p[:, :-1]).abs().clamp(max=4).square().mean(-1)
    before = float((confidence(log_p[:, 1:]) * confidence(log_p[:, :-1]) * change).mean())
    now = float(smoothness(logits, torch.zeros(8, 256, dtype=torch.long)))
    with capsys.disabled():
        print(
            f"\nsmoothness of confident, jittering logits: {now:.4f}, "
            f"before {before:.4f}, ratio {before / now:.1f}"
        )
    assert 11 < before / now < 16


def test_boundaries_are_the_first_frames_of_new_phases():
    assert phase_boundaries(torch.tensor([0, 0, 1, 1, -1, -1, 1, 2])).tolist() == [2, 7]
    assert phase_boundaries(torch.tensor([0, -1, -1, 2])).tolist() == [3]
    assert phase_boundaries(torch.tensor([-1, 3, 3])).tolist() == []


def test_the_target_peaks_at_one_on_the_boundary_and_falls_more_slowly_than_it_rises():
    target = transition_target(torch.tensor([0] * 20 + [1] * 40))
    assert float(target[20]) == 1.0
    assert float(target[18]) == pytest.approx(math.exp(-0.5), rel=1e-5)  # sigma 2 before
    assert float(target[32]) == pytest.approx(math.exp(-0.5), rel=1e-5)  # sigma 12 after
    assert float(target[0]) < 1e-20


def test_the_target_is_in_seconds_whatever_the_frame_rate():
    slow = transition_target(torch.tensor([0] * 10 + [1] * 20))
    fast = transition_target(torch.tensor([0] * 50 + [1] * 100), fps=5.0)
    torch.testing.assert_close(fast[::5], slow, rtol=1e-4, atol=1e-6)


@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_the_target_lies_between_zero_and_one_and_is_one_exactly_on_boundaries(labels):
    labels = torch.tensor(labels)
    target = transition_target(labels)
    assert ((target >= 0) & (target <= 1)).all()
    assert (target == 1).nonzero()[:, 0].tolist() == phase_boundaries(labels).tolist()


def test_a_boundary_at_a_clips_edge_is_not_lost_when_the_target_is_made_for_the_whole_video():
    labels = torch.tensor([0] * 16 + [1] * 16)
    per_clip = torch.cat([transition_target(part) for part in labels.split(16)])
    assert float(per_clip.max()) == 0.0
    assert float(transition_target(labels).max()) == 1.0


def test_the_transition_loss_is_the_mean_binary_cross_entropy_of_all_blocks():
    logits = torch.tensor([[[0.0, 2.0], [1.0, -1.0]]])
    target, labels = torch.tensor([[1.0, 0.25]]), torch.tensor([[0, -1]])
    expected = (math.log(2) + math.log(1 + math.exp(-2))) / 2  # the second frame is unlabelled
    assert float(transition_loss(logits, target, labels)) == pytest.approx(expected, rel=1e-5)


def test_the_releases_target_peaks_on_the_old_phases_last_frame_and_ends_at_three_sigma():
    target = release_target(torch.tensor([0] * 20 + [1] * 60))
    assert float(target[19]) == 1.0
    assert float(target[17]) == pytest.approx(math.exp(-0.5), rel=1e-5)  # one sigma of 2 before
    assert float(target[31]) == pytest.approx(math.exp(-0.5), rel=1e-5)  # one sigma of 12 after
    assert float(target[13]) == pytest.approx(math.exp(-4.5), rel=1e-5) and float(target[12]) == 0.0
    assert float(target[55]) == pytest.approx(math.exp(-4.5), rel=1e-5) and float(target[56]) == 0.0


def test_the_releases_target_skips_unlabelled_stretches():
    target = release_target(torch.tensor([0, 0, -1, -1, 1, 1]))
    assert (target == 1).nonzero()[:, 0].tolist() == [1]


def test_computed_per_clip_the_target_loses_what_crosses_an_edge():
    settings = LossSettings(target_scope="clip")
    labels = torch.tensor([0] * 8 + [1] * 4 + [2] * 4)
    found = target_of(labels, settings, fps=1.0, clip_len=8)
    assert found[:8].tolist() == [0.0] * 8  # the boundary between the clips has vanished
    by_hand = [math.exp(-0.5 * (t / 2) ** 2) for t in (-3, -2, -1)] + [
        math.exp(-0.5 * (t / 12) ** 2) for t in range(5)
    ]
    torch.testing.assert_close(found[8:], torch.tensor(by_hand))
    whole = target_of(labels, LossSettings(), fps=1.0, clip_len=8)
    torch.testing.assert_close(whole, transition_target(labels))


def test_clips_of_128_lose_the_share_of_the_targets_mass_that_was_measured_in_the_release():
    """6.7 percent, over every place a boundary can have in a clip."""
    settings, length = LossSettings(target_scope="clip"), 128
    kept = []
    for boundary in range(3 * length, 4 * length):
        labels = (torch.arange(8 * length) >= boundary).long()
        kept.append(float(target_of(labels, settings, 1.0, length).sum()))
    everything = float(release_target(labels).sum())
    assert 1 - sum(kept) / len(kept) / everything == pytest.approx(0.067, abs=0.0005)
