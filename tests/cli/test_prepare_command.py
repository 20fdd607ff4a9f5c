"""`surgicalmamba prepare` and `check` as commands: names, misuse, features by a checkpoint, and documentation
that is true."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer

import surgicalmamba
from surgicalmamba.cli.main import app, main
from surgicalmamba.cli.prepare import open_encoder, prepare
from surgicalmamba.data.adapters import ADAPTERS
from surgicalmamba.data.labels import load_vocabulary
from surgicalmamba.data.manifest import read_splits
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.model.backbone import BackboneConfig

DOCS = Path(__file__).parents[2] / "docs"


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["surgicalmamba", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    captured = capsys.readouterr()
    return left.value.code or 0, captured.out, captured.err


def test_every_adapter_is_a_subcommand():
    assert set(ADAPTERS) <= {command.name for command in prepare.registered_commands}


@pytest.mark.parametrize(
    "arguments",
    [
        ("prepare", "cholec8", "--source", ".", "--out", "x"),
        ("prepare", "cholec80", "--out", "x"),
        ("prepare", "cholec80", "--source", ".", "--out", "x", "--tolerance", "-1"),
        ("check",),
    ],
)
def test_misuse_exits_2(monkeypatch, capsys, tmp_path, arguments):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, capsys, *arguments)[0] == 2 and not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--fps", "quick"), "fps 'quick' is not a number"),
        (("--box", "round"), "box rule 'round' is unknown"),
        (("--size", "2"), "image size 2 is too small"),
    ],
)
def test_a_setting_out_of_range_is_one_line(monkeypatch, capsys, tmp_path, option, message):
    code, _, stderr = run(
        monkeypatch,
        capsys,
        "prepare",
        "custom",
        "--source",
        str(tmp_path),
        "--out",
        str(tmp_path / "x"),
        *option,
    )
    assert code == 1 and message in stderr and len(stderr.splitlines()) == 1


@pytest.fixture
def own(tmp_path, tmp_path_factory):
    import av

    (tmp_path / "phases.yaml").write_text("phases: [Alpha, Beta]\n")
    (tmp_path / "op1.csv").write_text("start,end,phase\n0,2,Alpha\n2,3,Beta\n")
    with av.open(str(tmp_path / "op1.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
        for i in range(75):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((96, 160, 3), 3 * i, np.uint8))))
        container.mux(stream.encode(None))
    return tmp_path


def test_json_tells_what_was_done(monkeypatch, capsys, own, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "p"
    arguments = ("prepare", "custom", "--source", str(own), "--out", str(out), "--workers", "1", "--json")
    code, stdout, _ = run(monkeypatch, capsys, *arguments)
    assert code == 0 and json.loads(stdout) == {
        "n_videos": 1,
        "prepared": ["op1"],
        "kept": [],
        "failures": {},
        "warnings": [],
    }


class FakeModel:
    """The part of a model that preparing features needs: frames (n, 3, h, w), ImageNet-normalised, to vectors
    (n, 2)."""

    config = SimpleNamespace(backbone=BackboneConfig(image_size=32))

    def encode(self, frames):
        import torch

        assert frames.shape[1:] == (3, 32, 32) and frames.dtype == torch.float32
        return torch.stack([frames[:, 0].mean((1, 2)), frames.std((1, 2, 3))], dim=1)


def test_features_of_a_checkpoint_are_stored_and_other_weights_are_told_stale(
    monkeypatch, capsys, own, tmp_path_factory
):
    monkeypatch.setattr(surgicalmamba, "load", lambda path: FakeModel(), raising=False)
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "model.safetensors").write_bytes(b"weights one")
    out = folder / "prepared"
    arguments = (
        "prepare",
        "custom",
        "--source",
        str(own),
        "--out",
        str(out),
        "--box",
        "none",
        "--features",
        str(folder),
    )
    assert run(monkeypatch, capsys, *arguments)[0] == 0
    video = PreparedDataset.open(out).videos["op1"]
    assert video.features.shape == (3, 2) and video.labels.tolist() == [0, 0, 1]
    red = (np.array([0, 75, 150]) / 255 - 0.485) / 0.229
    assert np.allclose(video.features[:, 0], red, atol=0.05)
    (folder / "model.safetensors").write_bytes(b"weights two")
    code, _, stderr = run(monkeypatch, capsys, *arguments)
    assert code == 1 and "was prepared with encoder" in stderr and "it is stale" in stderr
    assert len(open_encoder(str(folder)).name) == 64


def commands_in(page):
    blocks = re.findall(r"```\w*\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return [
        line.split() for block in blocks for line in block.splitlines() if line.startswith("surgicalmamba ")
    ]


@pytest.mark.parametrize("page", ["datasets.md", "own-data.md"])
def test_every_command_in_the_documentation_exists_with_its_options(page):
    assert commands_in(page)
    for words in commands_in(page):
        command, rest = typer.main.get_command(app), words[1:]
        while hasattr(command, "commands"):
            assert rest[0] in command.commands, " ".join(words)
            command, rest = command.commands[rest[0]], rest[1:]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= known, " ".join(words)


def test_every_dataset_is_documented():
    page = (DOCS / "datasets.md").read_text()
    for name in ADAPTERS:
        assert f"prepare {name} " in page, name


def test_the_example_phases_yaml_of_the_documentation_is_read(tmp_path):
    (block,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "own-data.md").read_text(), re.DOTALL)
    (tmp_path / "phases.yaml").write_text(block)
    assert len(load_vocabulary(tmp_path / "phases.yaml")) == 3
    assert read_splits(block, "docs")["own"].roles["test"] == ("op09", "op10")
