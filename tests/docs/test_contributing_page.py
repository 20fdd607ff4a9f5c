"""CONTRIBUTING.md: its layers are those of the layer test, and its example adds a verb."""

import os
import re
import subprocess
import sys

import pytest

from docs.blocks import ROOT, blocks
from test_layers import MAY_IMPORT

PAGE = ROOT / "CONTRIBUTING.md"
PREPARED = ROOT / "tests/compat/fixtures/v0.1/datasets/features"


def test_every_part_of_the_layer_test_is_in_the_drawing_and_imports_only_lines_above():
    drawing = next(block.text for block in blocks(PAGE) if block.text.startswith("errors"))
    lines = [re.split(r" {3,}", line)[0].split() for line in drawing.splitlines()]
    line_of = {part: number for number, parts in enumerate(lines) for part in parts}
    assert line_of.keys() == {*MAY_IMPORT, "cli"}
    for part, others in MAY_IMPORT.items():
        assert [other for other in others if line_of[other] >= line_of[part]] == [], part


@pytest.fixture
def installed(tmp_path):
    """A folder with the example as pip installs it: the module, and metadata with its entry point."""
    files = {block.file: block.text for block in blocks(PAGE) if block.file is not None}
    module, project = files["phase-verb/phase_verb.py"], files["phase-verb/pyproject.toml"]
    group, entry = re.search(r'\[project\.entry-points\."(.+)"\]\n(.+)', project).groups()
    (tmp_path / "phase_verb.py").write_text(module, encoding="utf-8")
    about = tmp_path / "phase_verb-1.0.dist-info"
    about.mkdir()
    metadata = "Metadata-Version: 2.1\nName: phase-verb\nVersion: 1.0\n"
    (about / "METADATA").write_text(metadata, encoding="utf-8")
    (about / "entry_points.txt").write_text(f"[{group}]\n{entry.replace(chr(34), '')}\n", encoding="utf-8")
    return tmp_path


def test_the_example_adds_a_verb(installed):
    command = [sys.executable, "-m", "surgicalmamba", "phases", str(PREPARED)]
    paths = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["0 setup", "1 work", "2 close"]
