import math

import torch

from peers.contract import check_contract, frames, n_parameters
from surgicalmamba.model.recognizer import Output
from surgicalmamba.peers.opera import OperA, OperAConfig, attention_received

SMALL = OperAConfig(d_feature=5, n_phases=3, d_model=8, n_layers=3, n_heads=2, d_hidden=16)


def test_opera_keeps_the_contract():
    check_contract(OperA(SMALL))


def test_its_size_is_the_published_one():
    assert [round(n_parameters(OperA, d_feature=width) / 1e6, 2) for width in (2048, 768)] == [0.70, 0.60]


def test_it_keeps_a_key_and_a_value_of_64_per_layer_and_frame():
    model = OperA(OperAConfig(d_feature=4, n_layers=11)).eval()
    assert model.forward_features(frames(model, 1, 10)).state.nbytes == 10 * 1408 * 4


def test_attention_received_is_shared_among_the_labelled_frames_that_may_look():
    attention = torch.tensor([[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]])
    everyone = attention_received(attention, torch.tensor([[True, True, True]]))
    torch.testing.assert_close(everyone, torch.tensor([[1.7 / 3, 0.8 / 2, 0.5]]))
    without_the_last = attention_received(attention, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(without_the_last, torch.tensor([[1.5 / 2, 0.5, 0.0]]))


def test_the_loss_by_hand():
    """Two frames; the frame classifier is certain of neither (log 2) and right about the first with odds
    of 3 (log 4/3)."""
    model = OperA(SMALL.with_(n_phases=2, attention_weight=0.5))
    frame_logits = torch.tensor([[[math.log(3.0), 0.0], [0.0, 0.0]]])
    attention = torch.tensor([[[1.0, 0.0], [0.4, 0.6]]])
    output = Output(
        torch.zeros(1, 2, 2),
        None,
        model.initial_state(1),
        {"attention": attention, "frame_logits": frame_logits},
    )
    loss = model.training_loss(output, torch.tensor([[0, 1]]), torch.zeros(1, 2))
    easy, hard = math.log(4 / 3), math.log(2)
    assert math.isclose(float(loss), (easy + hard) / 2 + 0.5 * (1.4 / 2 * easy + 0.6 * hard), rel_tol=1e-6)


def test_the_regularisation_turns_attention_away_from_frames_that_features_misclassify():
    model = OperA(SMALL.with_(n_phases=2))
    scores = torch.zeros(1, 2, 2, requires_grad=True)
    attention = scores.softmax(-1)
    frame_logits = torch.tensor(
        [[[9.0, 0.0], [9.0, 0.0]]]
    )  # sure of phase 0 twice, wrong about the second frame
    output = Output(
        torch.zeros(1, 2, 2),
        None,
        model.initial_state(1),
        {"attention": attention, "frame_logits": frame_logits},
    )
    model.training_loss(output, torch.tensor([[0, 1]]), torch.zeros(1, 2)).backward()
    assert scores.grad[0, 1, 1] > 0 > scores.grad[0, 1, 0]  # descent lowers attention to frame 1


def test_training_gives_a_loss_that_reaches_both_classifiers_and_evaluation_carries_nothing_extra():
    model = OperA(SMALL).train()
    output = model.forward_features(
        frames(model, 2, 6), model.forward_features(frames(model, 2, 4, seed=1)).state
    )
    assert output.auxiliary["attention"].shape == (2, 6, 6)  # frames of earlier calls have no labels here
    model.training_loss(output, torch.tensor([[0, 1, 2, 0, -1, 1]] * 2), torch.zeros(2, 6)).backward()
    assert (
        model.frame_classifier.weight.grad.abs().sum() > 0
        and model.layers[0].attention.query.weight.grad.abs().sum() > 0
    )
    assert not model.eval().forward_features(frames(model, 1, 3)).auxiliary


def test_without_weight_there_is_no_loss_of_its_own():
    model = OperA(SMALL.with_(attention_weight=0.0)).train()
    output = model.forward_features(frames(model, 1, 3))
    assert model.training_loss(output, torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3)) is None
