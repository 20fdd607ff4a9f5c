"""Groups, schedule and average, by hand."""

import itertools

import pytest
import torch

from surgicalmamba.train.config import OptimSettings
from surgicalmamba.train.optim import WeightAverage, learning_rate_share, parameter_groups


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = torch.nn.Linear(2, 2)
        self.mixer = torch.nn.Linear(2, 2)
        self.frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        self.A_log = torch.nn.Parameter(torch.zeros(3))


def test_backbone_and_vectors_have_their_own_rates_and_decays():
    model = Small()
    settings = OptimSettings(lr=1e-3, backbone_lr=1e-4, weight_decay=0.1)
    groups = {(g["lr"], g["weight_decay"]): g["params"] for g in parameter_groups(model, settings)}
    assert set(groups) == {(1e-3, 0.1), (1e-3, 0.0), (1e-4, 0.1), (1e-4, 0.0)}
    assert groups[1e-3, 0.1] == [model.mixer.weight] and groups[1e-4, 0.0] == [model.backbone.bias]
    assert {id(p) for p in groups[1e-3, 0.0]} == {id(model.A_log), id(model.mixer.bias)}


def test_the_rate_rises_linearly_then_falls_as_a_cosine_to_its_final_share():
    shares = [learning_rate_share(update, 21, 5, 0.1) for update in range(21)]
    assert shares[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert shares[5] == pytest.approx(1.0)
    assert shares[-1] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(shares[5:]))
    halfway = learning_rate_share(12, 20, 5, 0.0)  # progress 7 of 14
    assert halfway == pytest.approx(0.5)


def test_the_average_follows_the_weights_and_swaps_in_and_out():
    model = Small()
    with torch.no_grad():
        model.mixer.weight.fill_(0.0)
    average = WeightAverage(model, decay=0.5)
    with torch.no_grad():
        model.mixer.weight.fill_(1.0)
    average.update(model, n_updates=1000)
    average.swap(model)
    assert (model.mixer.weight == 0.5).all()
    average.swap(model)
    assert (model.mixer.weight == 1.0).all()
