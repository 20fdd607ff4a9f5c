"""The page on studies: its options and presets exist, its rows are the code's."""

import re
from pathlib import Path

from typer.main import get_command

from surgicalmamba.cli.main import app
from surgicalmamba_lab.studies.ablation import ROWS
from surgicalmamba_lab.studies.mqar_task import PRESETS

PAGE = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")


def test_every_command_of_the_page_is_a_study_with_the_options_it_is_given():
    studies = get_command(app).commands["study"].commands
    commands = re.findall(r"^surgicalmamba study (\w+) (.*)$", PAGE, re.MULTILINE)
    assert {name for name, _ in commands} >= {"ablation", "sensitivity", "mqar"}
    for name, rest in commands:
        known = {option for parameter in studies[name].params for option in parameter.opts}
        assert set(re.findall(r"(?<!\S)--[a-z][\w-]+", rest)) <= known, name


def test_the_rows_of_the_ablation_are_those_of_the_code():
    section = PAGE.split("## Ablation")[1].split("## ")[0]
    assert tuple(re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE)) == ROWS


def test_the_recipes_and_presets_it_names_exist():
    for recipe in set(re.findall(r"configs/[\w-]+\.yaml", PAGE)):
        assert (Path(__file__).parents[2] / recipe).is_file(), recipe
    assert set(re.findall(r"--preset ([\w-]+)", PAGE)) | {"plateau"} == set(
        PRESETS
    )  # the default needs no option
