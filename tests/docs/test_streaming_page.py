"""docs/streaming.md: its snippets run, and its commands have the options they name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import surgicalmamba as sm
from surgicalmamba.stream.policy import Policy

PAGE = (Path(__file__).parents[2] / "docs" / "streaming.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
def test_the_snippets_run(code, tmp_path):
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_options_the_page_names_exist():
    named = {verb: set() for verb in ("stream", "predict")}
    for verb, rest in re.findall(r"surgicalmamba (stream|predict) ([^`\n|]*)", PAGE):
        named[verb] |= set(re.findall(r"--[a-z-]+", rest))
    named["stream"] |= set(re.findall(r"`(--[a-z-]+)", PAGE)) - named["predict"]
    for verb, options in named.items():
        shown = subprocess.run([sys.executable, "-m", "surgicalmamba", verb, "--help"], capture_output=True, text=True, check=True).stdout
        assert options and options <= set(re.findall(r"--[a-z-]+", shown)), (verb, options)


def test_the_table_of_policies_is_that_of_the_code():
    table = dict(re.findall(r"^\| `(\w+)` \|.*\| (\w+) \|$", PAGE, flags=re.MULTILINE))
    assert table == {kind: action for kind, action in Policy().model_dump().items() if kind != "longest_fill_s"}


def test_the_size_of_the_papers_snapshot_is_as_stated():
    with torch.device("meta"):
        n_bytes = sm.SurgicalMamba(sm.ModelConfig()).initial_state(1).nbytes
    stated = re.search(r"([0-9.]+) MB for the paper's model", PAGE)
    assert f"{n_bytes / 1e6:.1f}" == stated[1]
