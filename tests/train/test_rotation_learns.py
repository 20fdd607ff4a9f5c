"""The rotation can learn: at the paper's size its weights move in training like any others."""

import torch

from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba
from surgicalmamba.train.config import OptimSettings
from surgicalmamba.train.loop import adamw
from surgicalmamba.train.losses import masked_cross_entropy

UPDATES = 10


def test_at_the_papers_size_rotators_move_at_least_a_quarter_as_far_as_in_proj():
    """With AdamW's usual eps of 1e-8 angles and planes move less than a fiftieth as far: their gradients
    lie far below it."""
    torch.manual_seed(0)
    model = SurgicalMamba(
        ModelConfig(backbone=None, d_feature=64)
    )  # the paper's temporal part, 170 M weights
    optimizer = adamw(model, OptimSettings(weight_decay=0.0))
    features, labels = (
        torch.randn(1, 128, 64),
        torch.arange(4).repeat_interleave(32)[None],
    )  # one chunk closes in the slow path
    watched = {name: p for name, p in model.named_parameters() if name.endswith((".w2", "in_proj.weight"))}
    before = {name: p.detach().clone() for name, p in watched.items()}
    for _ in range(UPDATES):
        loss = masked_cross_entropy(model.forward_features(features).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    moved = {name: float((p.detach() - before[name]).abs().median()) for name, p in watched.items()}
    for name, distance in moved.items():
        if "rotator" in name:
            path = name.split(".rotator.")[0]
            assert distance >= 0.25 * moved[f"{path}.in_proj.weight"], f"{name}: {distance:.1e}"
