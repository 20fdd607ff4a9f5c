"""docs/synthetic.md: its commands in real processes, and what they say."""

import json
import subprocess
import sys

import numpy as np
import pytest

from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.data.synthetic import operation


def surgicalmamba(folder, *arguments):
    command = [sys.executable, "-m", "surgicalmamba", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the page's commands were run, at one frame per second to save time."""
    place = tmp_path_factory.mktemp("pages")
    made = surgicalmamba(
        place,
        "prepare",
        "synthetic",
        "--out",
        "synthetic",
        "--videos",
        "3",
        "--short",
        "--fps",
        "1",
        "--json",
    )
    assert made.returncode == 0, made.stderr
    report = json.loads(made.stdout)
    assert (
        report["videos"] == ["video01.mp4", "video02.mp4", "video03.mp4"]
        and sum(report["frames"]) == report["seconds"]
    )
    ready = surgicalmamba(
        place, "prepare", "custom", "--source", "synthetic", "--out", "synthetic-prepared", "--workers", "1"
    )
    assert ready.returncode == 0, ready.stderr
    return place


def test_a_rendered_operation_prepares_to_the_answers_it_was_made_with(folder):
    dataset = PreparedDataset.open(folder / "synthetic-prepared")
    for number, name in enumerate(("video01", "video02", "video03")):
        expected = operation(0, number, short=True, fps=1).procedure.phase_per_frame()
        np.testing.assert_array_equal(dataset.videos[name].labels, expected)


def test_misuse_exits_2_and_a_taken_folder_exits_1_with_one_line(folder):
    nothing = surgicalmamba(folder, "prepare", "synthetic")
    assert nothing.returncode == 2 and "--out" in nothing.stderr
    taken = surgicalmamba(folder, "prepare", "synthetic", "--out", "synthetic", "--seed", "9")
    assert (
        taken.returncode == 1
        and taken.stderr.count("\n") == 1
        and "already holds something else" in taken.stderr
    )
    assert taken.stdout == ""


def test_the_lines_for_people_name_the_next_command(folder):
    """The folder is complete, so this call only reports."""
    again = surgicalmamba(
        folder, "prepare", "synthetic", "--out", "synthetic", "--videos", "3", "--short", "--fps", "1"
    )
    assert again.returncode == 0
    assert "next: surgicalmamba prepare custom --source synthetic --out synthetic-prepared" in again.stdout
