import math

import torch

from peers.contract import check_contract, frames, varied
from surgicalmamba.model.recognizer import Output
from surgicalmamba.peers.lovit import LoViT, LoViTConfig

SMALL = LoViTConfig(
    d_feature=5, n_phases=3, d_model=8, small_window=3, large_window=5, n_layers=1, n_heads=2, d_hidden=16
)


def test_lovit_keeps_the_contract():
    check_contract(LoViT(SMALL.with_(n_layers=2, n_global_layers=2)))


def test_the_global_part_hears_of_frames_that_no_window_reaches():
    model = varied(LoViT(SMALL))
    features = frames(model, 1, 60)
    changed = features.clone()
    changed[:, 0] += 5.0
    before, after = (model.forward_features(x).logits[0, -1] for x in (features, changed))
    assert (before - after).abs().max() > 1e-4
    for layer in model.global_layers:  # without what it adds, frame 0 is too far back
        torch.nn.init.zeros_(layer.attention.out.weight)
    before, after = (model.forward_features(x).logits[0, -1] for x in (features, changed))
    torch.testing.assert_close(before, after, atol=1e-7, rtol=0)


def test_only_the_global_part_grows():
    model = varied(LoViT(SMALL))
    short, long = (model.forward_features(frames(model, 1, n)).state for n in (10, 30))
    assert long.nbytes - short.nbytes == 20 * 2 * 8 * 4  # a key and a value of width 8 per frame
    assert [len(part) for part in (long.small, long.large)] == [2, 2]


def test_the_transition_map_is_regressed_over_labelled_frames_by_hand():
    model = LoViT(SMALL.with_(map_weight=0.5))
    said = torch.tensor([[0.5, 1.0, 7.0]])
    output = Output(torch.zeros(1, 3, 3), None, model.initial_state(1), {"transition_map": said})
    loss = model.training_loss(output, torch.tensor([[0, 1, -1]]), torch.tensor([[0.0, 0.6, 0.0]]))
    assert math.isclose(float(loss), 0.5 * (0.25 + 0.16) / 2, rel_tol=1e-6)


def test_the_map_is_said_in_training_only_and_its_loss_reaches_the_local_parts():
    model = LoViT(SMALL).train()
    output = model.forward_features(frames(model, 2, 6))
    model.training_loss(output, torch.zeros(2, 6, dtype=torch.long), torch.rand(2, 6)).backward()
    assert (
        model.transition.weight.grad.abs().sum() > 0
        and model.small.encoder[0].attention.query.weight.grad.abs().sum() > 0
    )
    assert not model.eval().forward_features(frames(model, 1, 3)).auxiliary
