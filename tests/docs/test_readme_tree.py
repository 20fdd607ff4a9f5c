"""The tree in the README names every folder of the repository."""

import re
import subprocess
from pathlib import PurePosixPath

import pytest

from docs.blocks import ROOT

LISTED = ("src/surgicalmamba", "lab/src/surgicalmamba_lab", "tests", "docs", "configs", "examples", "tools")
"""Folders whose subfolders must be in the tree, too."""


def folders_in_tree():
    """Paths of the tree's lines: an indented line is a folder inside the last line with less indentation."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## What is where")[1]
    open_folders = []
    for indent, name, text in re.findall(r"^( *)([\w/-]+)/ +(\S.*)$", section.split("```")[1], re.MULTILINE):
        assert text, f"{name} has no description"
        open_folders = [(depth, path) for depth, path in open_folders if depth < len(indent)]
        path = f"{open_folders[-1][1]}/{name}" if open_folders else name
        open_folders.append((len(indent), path))
        yield path


def tracked_folders():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git clone")
    files = map(PurePosixPath, listed.stdout.splitlines())
    return {str(folder) for file in files for folder in file.parents} - {"."}


def test_every_folder_is_in_the_tree():
    tree = set(folders_in_tree())
    tops = tuple(f"{top}/" for top in LISTED)
    expected = {folder for folder in tracked_folders() if f"{folder}/".startswith(tops)}
    assert {folder for folder in expected - tree if "/fixtures/" not in folder} == set()


def test_every_top_level_folder_is_in_the_tree():
    tops = {folder.split("/")[0] for folder in tracked_folders() if not folder.startswith(".")}
    assert tops - {path.split("/")[0] for path in folders_in_tree()} == set()


def test_every_folder_in_the_tree_exists():
    assert [path for path in folders_in_tree() if not (ROOT / path).is_dir()] == []
