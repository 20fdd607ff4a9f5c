"""The published recipes under configs/peers: each loads, and names and builds its network at its published size."""

from pathlib import Path

import pytest

from surgicalmamba.config import load_config
from surgicalmamba.model.registry import BUILT_IN
from surgicalmamba.train.config import TrainConfig

RECIPES = sorted((Path(__file__).parents[2] / "configs" / "peers").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_named_after_its_network_and_changes_none_of_its_sizes(path):
    config = load_config(TrainConfig, path, ["recognizer={name: " + path.stem + ", settings: {d_feature: 768}}"])
    assert path.stem in BUILT_IN and load_config(TrainConfig, path).recognizer.name == path.stem
    assert load_config(TrainConfig, path).recognizer.settings == {} and config.network.feature_width == 768


def test_recipes_with_a_loss_of_their_own_do_not_add_surgicalmambas():
    assert RECIPES and all(load_config(TrainConfig, path).loss.smooth_weight == 0 for path in RECIPES)
