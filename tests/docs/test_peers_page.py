"""The page on peers, "peers.md": its table is the registry's, its example is the file, its commands and
recipes exist."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from surgicalmamba.cli.main import app
from surgicalmamba.config import load_config
from surgicalmamba.model.registry import BUILT_IN, DEFAULT, network_of
from surgicalmamba.train.config import TrainConfig
from surgicalmamba_lab.studies.peers import LENGTHS, RATES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
RECIPES = sorted((ROOT / "configs" / "peers").glob("*.yaml"))
WITHOUT_RECIPE = {DEFAULT, "mamba2-upstream", "sr-mamba-forward"}
"""Ours, and two controls whose recipe is that of the network they belong to."""


def test_the_table_has_every_recognizer_with_the_memory_it_declares():
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (O\(\w\)) \|", PAGE, re.MULTILINE))
    assert list(rows) == list(BUILT_IN)
    assert {name: network_of(name).memory for name in rows} == rows


def test_every_peer_has_its_published_recipe_and_every_recipe_names_its_network():
    assert {file.stem for file in RECIPES} == set(BUILT_IN) - WITHOUT_RECIPE


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_loads_and_its_settings_are_the_networks(file):
    config = load_config(TrainConfig, file, ["recognizer.backbone=null", "recognizer.d_feature=8"])
    assert config.recognizer.name == file.stem and config.network.feature_width == 8


def test_the_example_on_the_page_is_the_file_that_is_tested():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code == (ROOT / "examples" / "own_recognizer.py").read_text(encoding="utf-8")


def test_every_option_on_the_page_exists():
    commands = get_command(app).commands
    parts = [commands[name] for name in ("train", "predict", "check")] + [commands["study"].commands["peers"]]
    known = {name for command in parts for parameter in command.params for name in parameter.opts}
    assert set(re.findall(r"(?<=[ `])--[a-z][\w-]+", PAGE)) <= known


def test_the_numbers_on_the_page_are_the_codes():
    text = " ".join(PAGE.split())
    assert "2.5e-4, 1e-3, 4e-3, 1.6e-2 and 6.4e-2" in text and RATES == (2.5e-4, 1e-3, 4e-3, 1.6e-2, 6.4e-2)
    assert "100, 2,000, 6,000 and 20,000 frames" in text and LENGTHS == (100, 2_000, 6_000, 20_000)
