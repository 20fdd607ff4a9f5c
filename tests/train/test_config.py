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
    assert names >= {"cholec80", "m2cai16", "cataract101", "autolaparo", "heichole", "heico", "grasp", "cholec80-tools", "jigsaws", "tiny"}


@pytest.mark.parametrize("file", CONFIGS, ids=lambda f: f.stem)
def test_a_shipped_config_loads_and_survives_being_saved(file, tmp_path):
    config = load_config(TrainConfig, file)
    save_config(config, tmp_path / "again.yaml")
    assert load_config(TrainConfig, tmp_path / "again.yaml") == config


def test_the_defaults_are_the_papers_where_it_speaks():
    config = TrainConfig()
    assert config.model == PRESETS["paper"]
    assert (config.loss.smooth_weight, config.loss.transition_weight, config.loss.rise_s, config.loss.fall_s) == (0.15, 0.5, 2.0, 12.0)


def test_model_settings_are_put_over_the_preset():
    config = TrainConfig(preset="tiny", model={"clip_len": 128, "block": {"slow": {"chunk_len": 16}}})
    assert (config.model.clip_len, config.model.block.slow.chunk_len, config.model.d_model) == (128, 16, PRESETS["tiny"].d_model)
    assert config.model.block.slow.rotation == PRESETS["tiny"].block.slow.rotation


def test_what_is_given_goes_before_the_release_preset():
    config = TrainConfig(preset="release", loss={"smooth_weight": 0.2}, data={"augment": None}, precision="float32")
    assert (config.loss.smooth_weight, config.loss.transition_weight, config.precision) == (0.2, 1.0, "float32")
    assert config.data.augment is None and config.data.n_lanes == 1
    assert TrainConfig().loss.target_scope == "video"


def test_a_run_config_from_before_these_settings_loads_with_their_defaults(tmp_path):
    """A file of an older version lacks what came later; nothing of what it trained changes."""
    newer = {"dropout", "a_min", "a_max", "d_hidden_min", "rgb_shift", "probability", "lr_step", "select_by"}

    def without(values):
        return {key: without(value) if isinstance(value, dict) else value for key, value in values.items() if key not in newer}

    config = TrainConfig(preset="tiny")
    older = without(json.loads(config.model_dump_json()))
    assert not newer & set(json.dumps(older).replace('"', " ").split())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(older))
    assert load_config(TrainConfig, tmp_path / "config.yaml") == config
    path = config.model.block.slow
    assert (config.model.dropout, path.a_min, path.a_max, path.intensity.d_hidden_min) == (0.0, 1.0, 16.0, 1)
    assert (config.optim.lr_step, config.select_by, config.data.augment.probability) == ("update", "jaccard", 1.0)


MISTAKES = {
    "unknown setting 'optim.lrr': did you mean 'lr'?": {"optim": {"lrr": 1}},
    "unknown preset 'huge'; presets: paper, release, tiny": {"preset": "huge"},
    "unknown setting 'model.clip_length': did you mean 'clip_len'?": {"model": {"clip_length": 3}},
    "epochs=0: Input should be greater than 0": {"epochs": 0},
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_setting(message):
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**MISTAKES[message])
    assert message in str(caught.value) and "\n" not in str(caught.value)
