"""Groups, schedule and average, by hand."""

import itertools

import pytest
import torch

from surgicalmamba.train.config import OptimSettings
from surgicalmamba.train.loop import WeightAverage, learning_rate_share, parameter_groups


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


class Stages(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = torch.nn.Module()
        self.backbone.stem = torch.nn.Linear(2, 2, bias=False)
        self.backbone.stages = torch.nn.ModuleList(torch.nn.Linear(2, 2, bias=False) for _ in range(4))
        self.mixer = torch.nn.Linear(2, 2, bias=False)


def test_each_backbone_stage_below_the_last_learns_slower_by_the_factor():
    model = Stages()
    groups = parameter_groups(model, OptimSettings(lr=1.0, backbone_lr=0.8, backbone_lr_decay=0.5))
    rate = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    assert [rate[id(stage.weight)] for stage in model.backbone.stages] == [0.1, 0.2, 0.4, 0.8]
    assert rate[id(model.backbone.stem.weight)] == 0.05 and rate[id(model.mixer.weight)] == 1.0


def test_the_releases_decay_leaves_out_decay_rates_and_skips_alone():
    model = Small()
    groups = parameter_groups(model, OptimSettings(weight_decay=0.1, decay_on="all"))
    decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    assert decay[id(model.A_log)] == 0.0
    assert (
        decay[id(model.mixer.bias)] == decay[id(model.mixer.weight)] == decay[id(model.backbone.bias)] == 0.1
    )


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
