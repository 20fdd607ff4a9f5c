"""CHANGELOG.md: what it gives as the new place of a module exists, and the old place does not."""

import importlib.util
import re

import pytest

from docs.blocks import ROOT

SECTION = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("### What moved")[1].split("\n### ")[0]
ROWS = re.findall(r"^\| (`.+|[a-z].+) \| (.+) \|$", SECTION, re.MULTILINE)
MODULE = re.compile(r"`(surgicalmamba(?:_lab)?(?:\.\w+)+)`")


def exists(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("module", sorted({name for _, now in ROWS for name in MODULE.findall(now)}))
def test_the_new_place_of_a_module_exists(module):
    assert exists(module)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_module_that_moved_is_no_longer_at_its_old_place(row):
    before, _ = row
    moved = set(MODULE.findall(before)) - {"surgicalmamba.config"}  # of which only some classes moved
    assert [module for module in moved if exists(module)] == []
