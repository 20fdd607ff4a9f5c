"""The drawings of docs/how-it-works.md are those that docs/drawings.py makes, and name what exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from docs.blocks import ROOT

PACKAGE = ROOT / "src/surgicalmamba"
DRAWINGS = ("how-network.svg", "how-frame.svg")


def words(drawing):
    """The texts of a drawing, in order. Matplotlib keeps them as comments where it draws outlines."""
    return [
        found.strip() for found in re.findall(r"<!--(.*?)-->", drawing.read_text(encoding="utf-8"), re.DOTALL)
    ]


def size(drawing):
    """Width and height."""
    return re.search(r'viewBox="([^"]*)"', drawing.read_text(encoding="utf-8"))[1]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawings")
    subprocess.run([sys.executable, ROOT / "docs/drawings.py", str(folder)], check=True)
    return folder


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_committed_drawing_has_the_words_and_size_of_a_new_one(drawn, name):
    committed = ROOT / "docs/images" / name
    assert words(committed) == words(drawn / name), "run: python docs/drawings.py"
    assert size(committed) == size(drawn / name), "run: python docs/drawings.py"


@pytest.mark.parametrize("name", DRAWINGS)
def test_modules_that_a_drawing_names_exist(name):
    named = re.findall(r"\b[a-z]+/(?:\w+\.py|page/)", "\n".join(words(ROOT / "docs/images" / name)))
    assert named
    for module in named:
        assert (PACKAGE / module).exists(), f"{name} names {module}"


@pytest.mark.parametrize("name", DRAWINGS)
def test_classes_that_a_drawing_names_exist(name):
    source = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    classes = set(re.findall(r"^class (\w+)", source, re.MULTILINE)) | set(dir(nn))
    for found in re.findall(r"\b(?:[A-Z]+[a-z]+){2,}\b", "\n".join(words(ROOT / "docs/images" / name))):
        assert found in classes, f"{name} names {found}"


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_on_the_page(name):
    assert f"images/{name}" in Path(ROOT / "docs/how-it-works.md").read_text(encoding="utf-8")
