"""docs/streaming.md: its table and its figures are those of the code, and the options it names exist."""

import re
from pathlib import Path

import torch
from typer.main import get_command

import surgicalmamba as sm
from surgicalmamba.cli.main import app
from surgicalmamba.live.track import Policy

PAGE = (Path(__file__).parents[2] / "docs" / "streaming.md").read_text(encoding="utf-8")


def test_every_option_of_stream_on_the_page_exists():
    commands = get_command(app).commands
    known = {
        name
        for verb in ("stream", "predict")
        for parameter in commands[verb].params
        for name in parameter.opts
    }
    named = set(re.findall(r"(?<=[ `])--[a-z][a-z-]+", PAGE))
    assert named and named <= known


def test_the_table_of_policies_is_that_of_the_code():
    table = dict(re.findall(r"^\| `(\w+)` \|.*\| (\w+) \|$", PAGE, flags=re.MULTILINE))
    assert table == {
        kind: action for kind, action in Policy().model_dump().items() if kind != "longest_fill_s"
    }


def test_the_size_of_the_papers_snapshot_is_as_stated():
    with torch.device("meta"):
        n_bytes = sm.SurgicalMamba(sm.ModelConfig()).initial_state(1).nbytes
    stated = re.search(r"([0-9.]+) MB for the paper's model", PAGE)
    assert f"{n_bytes / 1e6:.1f}" == stated[1]
