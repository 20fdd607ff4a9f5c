"""The page on training: its table of settings is the code's, and the options it names exist."""

import re
from pathlib import Path

from typer.main import get_command

from surgicalmamba.cli.main import app
from surgicalmamba.cli.train import settings_table
from surgicalmamba.train.config import RELEASE_DIFFERENCES, TrainConfig, setting_rows
from surgicalmamba.train.run import flatten

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")


def test_the_table_of_settings_is_the_one_the_code_prints():
    assert PAGE.split("## Every setting")[1].split("\n\n", 2)[2].strip() == settings_table()


def test_every_setting_has_a_row_and_every_row_a_description():
    rows = {row.name: row for row in setting_rows(TrainConfig())}
    assert set(flatten(TrainConfig().model_dump())) <= set(rows)
    assert all(len(row.description) > 8 for row in rows.values())
    assert (rows["loss.rise_s"].default, rows["optim.lr"].default, rows["data.split"].default) == (
        "2.0",
        "0.0001",
        "null",
    )


def test_every_option_on_the_page_exists():
    commands = get_command(app).commands
    parts = (commands["train"], commands["predict"], commands["bench"].commands["train"])
    known = {name for command in parts for parameter in command.params for name in parameter.opts}
    text = PAGE.replace("--nproc-per-node", "")
    assert set(re.findall(r"(?<=[ `])--[a-z][\w-]+", text)) <= known


def test_the_page_names_every_choice_of_distribution():
    assert "`distributed=shard`" in PAGE and "`replicate`" in PAGE


def test_the_page_lists_every_difference_from_the_release_and_no_other():
    section = PAGE.split("## Preset `release`")[1].split("\n## ")[0]
    listed = [line for line in section.splitlines() if line.startswith("- ")]
    assert listed == [f"- {topic}: {text}" for topic, text in RELEASE_DIFFERENCES.items()]
