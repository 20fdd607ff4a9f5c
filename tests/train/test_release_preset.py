"""Preset `release` against what is known of the authors' released code, line by line."""

import re
from pathlib import Path

import pytest
import torch

from surgicalmamba.config import load_config
from surgicalmamba.data.transforms import Augment, WholeFrame
from surgicalmamba.model.surgical_mamba import IntensityNet, ModelConfig, Rotator, SSMPath, SurgicalMamba
from surgicalmamba.train.config import RELEASE_DIFFERENCES, TrainConfig
from surgicalmamba.train.loop import adamw, parameter_groups
from surgicalmamba.train.losses import smoothness, target_of

FILE = Path(__file__).parents[2] / "configs" / "release.yaml"


@pytest.fixture(scope="module", params=["preset=release", "configs/release.yaml"])
def config(request):
    return (
        TrainConfig(recognizer={"preset": "release"})
        if request.param == "preset=release"
        else load_config(TrainConfig, FILE)
    )


def paths(config):
    return list(config.network.paths().values())


def clip_length(config):
    assert config.network.clip_len == 128


def chunks(config):
    assert [path.chunk_len for path in paths(config)] == [64, 64, 32]
    assert "chunks of 32 in the blocks" in RELEASE_DIFFERENCES["datasets"]


def loss_weights(config):
    assert (config.loss.smooth_weight, config.loss.transition_weight) == (1.0, 1.0)


def label_smoothing(config):
    assert config.loss.label_smoothing == 0.1


def transition_target(config):
    assert (config.loss.target_scope, config.loss.rise_s, config.loss.fall_s) == ("clip", 2.0, 12.0)
    target = target_of(
        torch.tensor([0] * 100 + [1] * 156), config.loss, fps=1.0, clip_len=config.network.clip_len
    )
    assert (
        float(target[99]) == 1.0 and float(target[92]) == 0.0 and float(target[128:].max()) == 0.0
    )  # old phase, 3 sigma, clip's end


def rotation_start(config):
    assert {(path.rotation.init, path.rotation.theta_init) for path in paths(config)} == {("release", None)}
    torch.manual_seed(0)
    settings = config.network.block.slow
    rotator = Rotator(24, settings.d_head, settings.d_state, settings.rotation)
    first, second = torch.randn(2, 64, 24, settings.d_head)
    with torch.no_grad():
        (U, _, theta), (other_U, _, _) = (rotator.factors(summary) for summary in (first, second))
    assert float(theta.mean()) == pytest.approx(1.0, abs=0.1) and float(theta.std()) == pytest.approx(
        0.7, abs=0.1
    )
    assert float((U * other_U).sum(-2).mean()) == pytest.approx(0.74, abs=0.03)  # columns have length 1


def slow_step(config):
    assert [path.dt_shift for path in paths(config)] == [-2.0, 0.0, 0.0]
    slow, fast, _ = paths(config)
    medians = {}
    for name, path in {"slow": slow, "fast": fast}.items():
        torch.manual_seed(0)
        wide = SSMPath(
            2048,
            path.with_(d_head=2, d_state=1, rotation=None, intensity=None),
            None,
            conditioned=False,
            emits_gate=False,
        )
        medians[name] = float(torch.nn.functional.softplus(wide.dt_proj.bias.detach()).median())
    assert medians["slow"] == pytest.approx(0.0013, abs=3e-4) and medians["fast"] == pytest.approx(
        0.0094, abs=2e-3
    )


def first_intensity(config):
    intensity = IntensityNet(256, config.network.block.slow.intensity)
    assert (
        config.network.block.slow.intensity.intensity_init == 0.5
        and float(intensity.out.bias.detach()) == 0.0
    )


def intensity_width(config):
    settings = config.network.block.slow.intensity
    assert [IntensityNet(inner, settings).up.out_features for inner in (1536, 256, 128, 64)] == [96, 16, 8, 8]


def windows(config):
    assert config.optim.clips_per_update == 6 and config.data.n_lanes == 1
    assert "windows of 12 clips" in RELEASE_DIFFERENCES["datasets"] and "windows" in RELEASE_DIFFERENCES


def augmentation(config):
    augment = config.data.augment
    assert (augment.resize, augment.rotate_deg, augment.draw) == (264, 15.0, "frame")
    assert (augment.shift, augment.scale, augment.rgb_shift, augment.probability) == (0.05, 0.05, 15.0, 0.5)
    assert (augment.brightness, augment.contrast, augment.saturation, augment.hue_deg) == (0.2, 0.2, 0.0, 0.0)
    assert (
        Augment(augment, 224).resize == 264
        and WholeFrame(224).image_size == 224
        and config.network.backbone.image_size == 224
    )
    assert "brightness and contrast" in RELEASE_DIFFERENCES


def optimizer(config):
    optim = config.optim
    assert (optim.lr, optim.backbone_lr, optim.weight_decay, optim.clip_norm) == (1e-4, 5e-5, 0.01, 1.0)
    assert (config.precision, config.epochs) == ("bf16", 50)
    model = SurgicalMamba(config.network.with_(backbone=None, d_feature=4, d_model=64, n_blocks=1))
    groups = parameter_groups(model, optim)
    plain = [parameter for group in groups if group["weight_decay"] == 0.0 for parameter in group["params"]]
    assert {id(p) for p in plain} == {
        id(p) for name, p in model.named_parameters() if name.endswith((".A_log", ".D"))
    }
    assert {group["eps"] for group in adamw(model, optim).param_groups} == {1e-8}


def schedule(config):
    assert (config.optim.lr_step, config.optim.warmup_epochs, config.optim.final_lr_share) == (
        "video",
        10,
        0.1,
    )
    assert "first video" in RELEASE_DIFFERENCES


def split(config):
    asks = (config.data.split, config.data.allow_overlap)
    assert asks == ("release", True) or (
        asks == (None, False) and "data.split=release" in RELEASE_DIFFERENCES["split"]
    )


def decay_rates(config):
    assert {(path.a_min, path.a_max) for path in paths(config)} == {(1.0, 64.0)} and {
        path.d_state for path in paths(config)
    } == {64}


def dropout(config):
    small = SurgicalMamba(config.network.with_(backbone=None, d_feature=4, d_model=64, n_blocks=2))
    drops = {name: module.p for name, module in small.named_modules() if isinstance(module, torch.nn.Dropout)}
    assert drops == dict.fromkeys(
        ["blocks.0.dropout", "blocks.1.dropout", "head.block.dropout", "head.dropout"], 0.1
    )


def smoothness_form(config):
    p = torch.tensor([[[0.9, 0.1], [0.1, 0.9]]])
    confidence = 0.5310044  # 1 - H / log 2
    expected = confidence**2 * 0.8 * torch.log(torch.tensor(9.0))
    torch.testing.assert_close(smoothness(p.log(), torch.zeros(1, 2, dtype=torch.long)), expected)


def checkpoint_choice(config):
    assert config.select_by == "accuracy" and config.validate_every == 1


def no_setting(config):
    """Facts about the release's scoring and counting; `evaluate` and `bench model` answer them, no preset
    does."""


ROWS = {
    "clip length": clip_length,
    "chunk in blocks / head": chunks,
    "loss weights smooth, transition": loss_weights,
    "label smoothing": label_smoothing,
    "transition target": transition_target,
    "rotation at start of training": rotation_start,
    "slow step at start": slow_step,
    "intensity at start": first_intensity,
    "gradient truncation": windows,
    "augmentation": augmentation,
    "optimizer": optimizer,
    "splits": split,
    "relaxed metric": no_setting,
    '"4.55 GFLOPs"': no_setting,
    "rotation networks at start": rotation_start,
    "consequence": rotation_start,
    "A at start": decay_rates,
    "dropout": dropout,
    "smoothness": smoothness_form,
    "schedule": schedule,
    "checkpoint choice": checkpoint_choice,
    "intensity network": intensity_width,
}
"""Topics of the two tables of facts; those that stand in both have one check."""


@pytest.mark.parametrize("topic", ROWS)
def test_the_preset_has_the_releases_value_or_the_difference_is_named(config, topic):
    ROWS[topic](config)


def test_every_line_of_the_tables_of_facts_is_checked(release_facts):
    topics = set()
    for heading in ("## Where paper and release differ", "## What the table above leaves out"):
        table = release_facts.split(heading)[1].split("\n## ")[0]
        rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")]
        assert rows[0] == "topic" and re.fullmatch("-+", rows[1])
        topics |= set(rows[2:])
    assert topics == set(ROWS)


def test_the_release_is_the_authors_model_and_not_the_papers():
    assert (
        ModelConfig.preset("release")
        == TrainConfig(recognizer={"preset": "release"}).network
        != ModelConfig()
    )
