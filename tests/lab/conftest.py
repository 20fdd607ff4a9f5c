"""A toy dataset, a recipe that fits it, and jobs trained in this process instead of a study's."""

import pytest
import yaml

from surgicalmamba.config import load_config
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.train.config import TrainConfig
from toy import train_here, write_toy_dataset

PATH = {"d_state": 8, "d_head": 8, "chunk_len": 8, "rotation": {"rank": 2, "d_hidden": 4}}
RECIPE = {
    "recognizer": {
        "d_model": 16,
        "n_blocks": 1,
        "clip_len": 32,
        "block": {"slow": PATH, "fast": PATH},
        "head": {"path": PATH},
    },
    "optim": {"lr": 3e-3},
    "epochs": 1,
    "device": "cpu",
}
SPLITS = {
    "usual": {"train": ["c", "d", "e", "f"], "val": ["v", "w"], "test": ["a"]},
    "out-a": {"train": ["c", "d", "e", "b"], "test": ["a", "f"]},
    "out-b": {"train": ["c", "d", "e", "a", "f"], "test": ["b"]},
}


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    return PreparedDataset.open(write_toy_dataset(tmp_path_factory.mktemp("toy"), SPLITS))


@pytest.fixture(scope="session")
def recipe_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    file.write_text(yaml.safe_dump(RECIPE))
    return file


@pytest.fixture(scope="session")
def recipe(recipe_file):
    return load_config(TrainConfig, recipe_file)


@pytest.fixture
def here(tmp_path):
    """`here(jobs, label)` trains and predicts jobs that are not done; `here.trained` lists them."""

    def run(jobs, _what):
        run.trained.extend(train_here(jobs, tmp_path))

    run.trained = []
    return run
