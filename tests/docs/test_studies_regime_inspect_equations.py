"""The page on studies: its commands for regime, inspect and equations are run on small data, and its numbers
are the real ones."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

import surgicalmamba as sm
from command import call
from surgicalmamba.data.manifest import FORMAT, Manifest
from surgicalmamba.data.store import SampleTable, VideoDraft, finish
from surgicalmamba.insight.regime import Assumptions, find_regime, read_annotations

PAGE = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")  # "studies.md"
COMMANDS = re.findall(r"^surgicalmamba ((?:regime|inspect|study equations) ?.*)$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Everything the commands name: annotations of two datasets, a prepared one, two runs and a folder of
    predictions."""
    root = tmp_path_factory.mktemp("page")
    (root / "docs").mkdir()
    (root / "cholec80" / "phase_annotations").mkdir(parents=True)
    names = ["Preparation"] * 50 + ["CalotTriangleDissection"] * 400
    rows = "".join(f"{frame}\t{name}\n" for frame, name in enumerate(names))
    (root / "cholec80" / "phase_annotations" / "video01-phase.txt").write_text("Frame\tPhase\n" + rows)
    (root / "cataract-101").mkdir()
    (root / "cataract-101" / "annotations.csv").write_text("VideoID;FrameNo;Phase\n1;0;1\n1;500;2\n")
    (root / "cataract-101" / "videos.csv").write_text(
        "VideoID;Frames;FPS;Surgeon;Experience\n1;1500;25;1;1\n"
    )
    labels = np.repeat([0, 1, 0], 40)
    draft = VideoDraft(root / "prepared", "video01", "features")
    draft.set_features(np.random.default_rng(0).standard_normal((120, 4)).astype(np.float32))
    frame = np.arange(120)
    entry = draft.commit(
        SampleTable(frame, frame.astype(float), labels), {"sources": {}, "settings_sha256": "0"}
    )
    fields = {
        "format": FORMAT,
        "name": "toy",
        "kind": "features",
        "phases": ["x", "y"],
        "fps": "1",
        "source": "",
        "settings": {},
    }
    finish(
        root / "prepared",
        Manifest(**fields, splits={"own": {"test": ["video01"]}}, videos={"video01": entry}),
    )
    torch.manual_seed(0)
    config = sm.ModelConfig.preset("tiny", backbone=None, d_feature=4, n_phases=2, d_model=32).with_paths(
        chunk_len=16
    )
    sm.SurgicalMamba(config).save(root / "runs" / "tiny" / "best")
    sm.SurgicalMamba(config.variant("without-z")).save(root / "runs" / "without-z" / "best")
    (root / "predictions").mkdir()
    (root / "predictions" / "video01.csv").write_text(
        "frame,phase\n" + "".join(f"{i},0\n" for i in range(120))
    )
    return root


def test_there_are_commands_for_all_three():
    assert {command.removeprefix("study ").split()[0] for command in COMMANDS} == {
        "regime",
        "inspect",
        "equations",
    } and len(COMMANDS) >= 7


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_page_runs(monkeypatch, capsys, command, folder):
    monkeypatch.chdir(folder)
    code, printed, complaint = call(monkeypatch, capsys, *shlex.split(command))
    assert code == 0 and printed, complaint


def cells(row):
    table = PAGE.split("| | Cholec80")[1]
    line = next(line for line in table.splitlines() if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def test_the_two_datasets_are_described_as_the_command_finds_them(real_data):
    places = (("cholec80/labels", "cholec80"), ("cataract101", "cataract101"))
    found = [
        find_regime(read_annotations(real_data(place), name, None), Assumptions()) for place, name in places
    ]
    assert cells("segments") == [str(regime.overall.segments) for regime in found]
    assert cells("L_max / L_q") == [f"{regime.spread:.0f}" for regime in found]
    assert cells("capacity ratio, theta 0.1") == [f"{regime.capacity_ratio:.0f}" for regime in found]
    assert cells("W / mu") == [f"{regime.width_over_mean:.2f}" for regime in found]
    assert cells("stretches shorter than a burst") == [
        f"{100 * regime.overlapping:.0f} %" for regime in found
    ]
    assert cells("verdict") == [regime.verdict for regime in found]
    assert cells("suggested sigma_L, sigma_R") == [
        f"{r.suggested_rise_s:.2g} s, {r.suggested_fall_s:.2g} s" for r in found
    ]
    lengths = [f"{r.overall.low:.2g}, {r.overall.mean:.0f}, {r.overall.longest:.0f}" for r in found]
    assert cells("L_q, mu, L_max in seconds") == lengths
