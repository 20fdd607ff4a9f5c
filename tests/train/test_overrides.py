"""Overrides of `train` stand in what is trained, or are refused in one line."""

import pytest
from typer.testing import CliRunner

from surgicalmamba.cli.main import app
from surgicalmamba.config import load_config, save_config
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.run import flatten, given_names, refuse_unused
from surgicalmamba_lab.studies.runs import benchmark_jobs

LSTM = "recognizer={name: lstm, settings: {d_hidden: 8, clip_len: 16}}"
ON_FEATURES = {
    ("model.n_phases=9",): r"recognizer\.n_phases=9 would not be used: .* decides it \(3\)\. Leave it out\.",
    ("model.n_phases=2", "model.phases=[a, b]"): r"recognizer\.n_phases=2 would not be used",
    (
        "model.backbone=null",
        "model.d_feature=9",
    ): r"recognizer\.d_feature=9 would not be used: .* decides it \(5\)",
    (
        "model.preprocess.size=300",
    ): r"recognizer\.preprocess\.size=300 would not be used: .* decides it \(250\)",
    (
        "model={preprocess: {fps: '5'}}",
    ): r"recognizer\.preprocess\.fps=5 would not be used: .* decides it \(1\)",
    (
        "model.backbone.image_size=96",
    ): r"recognizer\.backbone\.image_size=96 would not be used: .* holds features, so there is no backbone",
    ("data.augment.rotate_deg=5",): r"data\.augment\.rotate_deg=5\.0 would not be used: .* holds features",
    ("optim.backbone_lr=1e-3",): r"optim\.backbone_lr=0\.001 would not be used: .* holds features",
    (
        "variant=without-fast",
        "model.block.fast.d_conv=3",
    ): r"fast\.d_conv=3 would not be used: variant=without-fast has no such part",
    (
        "variant=without-z",
        "model.head.path.rotation.rank=1",
    ): r"rotation\.rank=1 would not be used: variant=without-z has no such part",
    (
        "recognizer=lstm",
        "model.d_model=32",
    ): r"unknown setting 'recognizer\.d_model': known settings: .*d_hidden",
    (
        "recognizer=lstm",
        "model.backbone.image_size=96",
    ): r"backbone\.image_size=96 would not be used: .* so there is no backbone",
    (
        "recognizer={name: lstm, settings: {n_phases: 9}}",
    ): r"recognizer\.n_phases=9 would not be used: .* decides it \(3\)",
}
ON_PICTURES = {
    ("data.feature_dropout=0.1",): r"data\.feature_dropout=0\.1 would not be used: .* holds frames",
    ("model.n_phases=9",): r"recognizer\.n_phases=9 would not be used: .* decides it \(2\)",
}


@pytest.fixture
def recipe(settings, tmp_path):
    file = tmp_path / "recipe.yaml"
    save_config(settings(recognizer={"preset": "tiny"}), file)
    return file


def refused(recipe, overrides, folder):
    config = load_config(TrainConfig, recipe, overrides)
    refuse_unused(overrides, config, PreparedDataset.open(folder))


@pytest.mark.parametrize("overrides", ON_FEATURES, ids=" ".join)
def test_what_a_dataset_of_features_or_the_network_leaves_no_choice_of_is_refused(
    recipe, toy_dataset, overrides
):
    with pytest.raises(ConfigError, match=ON_FEATURES[overrides]) as caught:
        refused(recipe, list(overrides), toy_dataset)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("overrides", ON_PICTURES, ids=" ".join)
def test_what_a_dataset_of_pictures_leaves_no_choice_of_is_refused(recipe, toy_pictures, overrides):
    with pytest.raises(ConfigError, match=ON_PICTURES[overrides]):
        refused(recipe, list(overrides), toy_pictures)


HONOURED = [
    ("model.n_phases=3",),
    ("model.backbone=null", "model.d_feature=5"),
    ("data.split=null", "data.augment=null", "model.d_feature=null"),
    (
        "variant=without-fast",
        "model.block.slow.d_conv=3",
        "optim.lr=1e-3",
        "seed=4",
        "device=cpu",
        "run=elsewhere",
    ),
    ("model.block.fast=null",),
    (LSTM, "model.clip_len=512"),
    (LSTM, "model.backbone=null", "model.d_feature=5", "model.standardise=true", "optim.lr=1e-3"),
    ("recognizer={name: lstm, settings: {n_phases: 3, d_hidden: '8'}}",),
]


@pytest.mark.parametrize("overrides", HONOURED, ids=" ".join)
def test_what_is_trained_as_asked_passes(recipe, toy_dataset, overrides):
    refused(recipe, list(overrides), toy_dataset)


def test_a_peer_on_pictures_takes_the_backbone_of_the_recipe(recipe, toy_pictures):
    refused(
        recipe, ["recognizer=lstm", "model.backbone.image_size=96", "data.augment.rotate_deg=5"], toy_pictures
    )


def test_settings_of_a_file_are_not_overrides(toy_dataset, tmp_path):
    """A recipe serves many datasets and networks; only what is typed for this run has to count."""
    (tmp_path / "any.yaml").write_text("preset: paper\nrecognizer: lstm\nmodel: {d_model: 64, n_phases: 9}\n")
    refused(tmp_path / "any.yaml", ["epochs=1"], toy_dataset)


def test_the_command_refuses_before_it_trains(recipe, toy_dataset, tmp_path):
    run = tmp_path / "never"
    said = CliRunner().invoke(app, ["train", "--config", str(recipe), "model.n_phases=9", f"run={run}"])
    assert isinstance(said.exception, ConfigError) and "recognizer.n_phases=9 would not be used" in str(
        said.exception
    )
    assert not run.exists()


def test_names_of_overrides_are_dotted_however_they_are_written():
    assert given_names(["data.path=x", "optim={lr: 1, eps: {a: 2}}", "model.block.fast=null"]) == [
        "data.path",
        "optim.lr",
        "optim.eps.a",
        "recognizer.block.fast",
    ]
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, "e": [3]}) == {"a.b": 1, "a.c.d": 2, "e": [3]}


def test_a_study_refuses_frozen_stages_at_random_values_before_any_job_runs(toy_pictures):
    recipe = TrainConfig(data={"path": str(toy_pictures)})
    with pytest.raises(ConfigError, match="stem and 2 stages would stay frozen at random values"):
        benchmark_jobs(recipe, PreparedDataset.open(toy_pictures), 1, [], None)
