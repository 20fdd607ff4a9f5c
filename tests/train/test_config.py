"""Training settings: shipped configs load, presets are filled in, mistakes are named."""

import json
from pathlib import Path

import pytest
import yaml

from surgicalmamba.config import load_config, save_config
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.surgical_mamba import PRESETS
from surgicalmamba.train.config import TrainConfig

CONFIGS = sorted((Path(__file__).parents[2] / "configs").rglob("*.yaml"))


def test_there_is_a_config_for_every_benchmark():
    names = {file.stem for file in CONFIGS}
    assert names >= {
        "cholec80",
        "m2cai16",
        "cataract101",
        "autolaparo",
        "heichole",
        "heico",
        "grasp",
        "cholec80-tools",
        "jigsaws",
        "tiny",
    }


@pytest.mark.parametrize("file", CONFIGS, ids=lambda f: f.stem)
def test_a_shipped_config_loads_and_survives_being_saved(file, tmp_path):
    config = load_config(TrainConfig, file)
    save_config(config, tmp_path / "again.yaml")
    assert load_config(TrainConfig, tmp_path / "again.yaml") == config


def test_the_defaults_are_the_papers_where_it_speaks():
    config = TrainConfig()
    assert config.network == PRESETS["paper"]
    assert (
        config.loss.smooth_weight,
        config.loss.transition_weight,
        config.loss.rise_s,
        config.loss.fall_s,
    ) == (0.15, 0.5, 2.0, 12.0)


def test_settings_of_the_network_are_put_over_the_preset():
    config = TrainConfig(recognizer={"preset": "tiny", "clip_len": 128, "block": {"slow": {"chunk_len": 16}}})
    network = config.network
    assert (network.clip_len, network.block.slow.chunk_len, network.d_model) == (
        128,
        16,
        PRESETS["tiny"].d_model,
    )
    assert network.block.slow.rotation == PRESETS["tiny"].block.slow.rotation


OLD_FORMS = {
    "preset, variant and model": (
        {"preset": "tiny", "variant": "without-z", "model": {"d_model": 32}},
        {"name": "surgicalmamba", "preset": "tiny", "variant": "without-z", "d_model": 32},
    ),
    "a name alone": ({"recognizer": "lstm"}, {"name": "lstm"}),
    "settings of a peer": (
        {"recognizer": {"name": "lstm", "settings": {"d_hidden": 8}}},
        {"name": "lstm", "d_hidden": 8},
    ),
    "a peer with the backbone of model": (
        {"preset": "tiny", "recognizer": "lstm", "model": {"backbone": {"image_size": 64}, "d_model": 64}},
        {"name": "lstm", "preset": "tiny", "backbone": {"image_size": 64}},
    ),
    "a peer on features": (
        {
            "recognizer": {"name": "lstm", "settings": {"clip_len": 9}},
            "model": {"backbone": None, "d_feature": 5, "standardise": True},
        },
        {"name": "lstm", "clip_len": 9, "backbone": None, "d_feature": 5, "standardise": True},
    ),
    "the recipe of the release": ({"preset": "release"}, {"preset": "release"}),
}


@pytest.mark.parametrize("form", OLD_FORMS)
def test_a_config_of_version_0_1_means_the_same_as_one_with_a_recognizer_section(form, tmp_path):
    old, new = OLD_FORMS[form]
    config = TrainConfig(recognizer=new)
    assert TrainConfig(**old) == config
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(old))
    assert load_config(TrainConfig, tmp_path / "old.yaml") == config
    save_config(config, tmp_path / "config.yaml")
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert not {"preset", "variant", "model"} & set(saved) and "settings" not in saved["recognizer"]


OVERRIDES = {
    ("model.d_model=32", "preset=tiny"): {"preset": "tiny", "d_model": 32, "n_blocks": 3},
    ("recognizer.d_model=32", "variant=z-only"): {"variant": "z-only", "d_model": 32, "n_blocks": 3},
    ("model={block: {fast: null}}",): {"block": {"fast": None}, "n_blocks": 3},
    ("recognizer=lstm",): {"name": "lstm"},
    ("model.standardise=true", "model.backbone=null", "model.d_feature=5", "recognizer=lstm"): {
        "name": "lstm", "standardise": True, "backbone": None, "d_feature": 5,
    },
    ("recognizer.name=tecno", "recognizer.settings.n_maps=8"): {"name": "tecno", "n_maps": 8},
    ("recognizer={name: lstm, settings: {d_hidden: 8}}", "recognizer.clip_len=9"): {
        "name": "lstm",
        "d_hidden": 8,
        "clip_len": 9,
    },
}  # fmt: skip
"""Of a file with n_blocks=3, which is SurgicalMamba's: it goes when another network is named, and stays
otherwise."""


@pytest.mark.parametrize("overrides", OVERRIDES, ids=" ".join)
@pytest.mark.parametrize(
    "file", [{"model": {"n_blocks": 3}}, {"recognizer": {"n_blocks": 3}}], ids=["old", "new"]
)
def test_overrides_in_either_form_change_files_in_either_form(file, overrides, tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(file))
    assert load_config(TrainConfig, tmp_path / "config.yaml", overrides) == TrainConfig(
        recognizer=OVERRIDES[overrides]
    )


def test_what_is_given_goes_before_the_release_preset():
    config = TrainConfig(
        recognizer={"preset": "release"},
        loss={"smooth_weight": 0.2},
        data={"augment": None},
        precision="float32",
    )
    assert (config.loss.smooth_weight, config.loss.transition_weight, config.precision) == (
        0.2,
        1.0,
        "float32",
    )
    assert config.data.augment is None and config.data.n_lanes == 1
    assert TrainConfig().loss.target_scope == "video"


def test_a_run_config_from_before_these_settings_loads_with_their_defaults(tmp_path):
    """A file of an older version lacks what came later; nothing of what it trained changes."""
    newer = {"dropout", "a_min", "a_max", "d_hidden_min", "rgb_shift", "probability", "lr_step", "select_by"}

    def without(values):
        return {
            key: without(value) if isinstance(value, dict) else value
            for key, value in values.items()
            if key not in newer
        }

    config = TrainConfig(recognizer={"preset": "tiny"})
    older = without(json.loads(config.model_dump_json()))
    assert not newer & set(json.dumps(older).replace('"', " ").split())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(older))
    assert load_config(TrainConfig, tmp_path / "config.yaml") == config
    path = config.network.block.slow
    assert (config.network.dropout, path.a_min, path.a_max, path.intensity.d_hidden_min) == (
        0.0,
        1.0,
        16.0,
        1,
    )
    assert (config.optim.lr_step, config.select_by, config.data.augment.probability) == (
        "update",
        "jaccard",
        1.0,
    )


MISTAKES = {
    "unknown setting 'optim.lrr': did you mean 'lr'?": {"optim": {"lrr": 1}},
    "unknown preset 'huge'; presets: paper, release, tiny": {"recognizer": {"preset": "huge"}},
    "unknown setting 'recognizer.clip_length': did you mean 'clip_len'?": {"recognizer": {"clip_length": 3}},
    "unknown setting 'recognizer.d_hiden': did you mean 'd_hidden'?": {
        "recognizer": {"name": "lstm", "d_hiden": 3}
    },
    "recognizer.block.slow: dt_min=3.0 is larger": {"recognizer": {"block": {"slow": {"dt_min": 3}}}},
    "recognizer must be the name of a network or a mapping of settings": {"recognizer": [3]},
    "epochs=0: Input should be greater than 0": {"epochs": 0},
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_setting(message):
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**MISTAKES[message])
    assert message in str(caught.value) and "\n" not in str(caught.value)
