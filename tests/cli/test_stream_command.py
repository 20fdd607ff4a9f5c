"""`surgicalmamba stream` as a user meets it: real files, real processes, real interruptions."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction

import av
import numpy as np
import pytest
import torch

import surgicalmamba as sm
from surgicalmamba.cli.main import main
from surgicalmamba.model import checkpoint

FRAMES, FPS = 200, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Forty seconds of moving colours as Matroska, which a pipe can carry, and a small model."""
    place = tmp_path_factory.mktemp("stream")
    with av.open(str(place / "video.mkv"), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(FPS))
        stream.height, stream.width, stream.pix_fmt = 96, 128, "yuv420p"
        for number in range(FRAMES):
            rgb = np.full((96, 128, 3), (90, 60, 50), np.uint8)
            rgb[20:60, number % 100 : number % 100 + 28] = (200, 40 + number, 60)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(rgb)))
        container.mux(stream.encode(None))
    backbone = {"depths": (1, 1, 1, 1), "widths": (8, 12, 16, 24), "image_size": 64}
    torch.manual_seed(0)
    config = sm.ModelConfig.preset(
        "tiny", n_phases=3, phases=("setup", "work", "close"), d_model=32, n_blocks=1, backbone=backbone
    )
    sm.SurgicalMamba(config).save(place / "model")
    return place


def command(*arguments):
    return [sys.executable, "-m", "surgicalmamba", "stream", *map(str, arguments)]


def run(folder, *arguments, **more):
    return subprocess.run(
        command(*arguments), cwd=folder, capture_output=True, text=True, check=False, **more
    )


def start(folder, *arguments):
    """A session in real time, once it has said something. What an earlier one left is taken away."""
    file = folder / "live" / "x.jsonl"
    file.unlink(missing_ok=True)
    session = command("video.mkv", "--model", "model", "--realtime", "--out", "live/x.jsonl", *arguments)
    process = subprocess.Popen(session, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        if file.is_file() and file.read_text().count("\n") >= 4:
            return process
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate())


@pytest.fixture(scope="module")
def streamed(folder):
    """The recording streamed from its file, with everything that can be asked for."""
    files = ["--out", "a/x.jsonl", "--out", "a/video.csv", "--overlay", "a/o.mp4"]
    result = run(folder, "video.mkv", "--model", "model", *files, "--engine", "eager", "--json")
    assert result.returncode == 0, result.stderr
    return result


def test_a_file_becomes_json_lines_a_prediction_file_and_a_video(folder, streamed):
    report = json.loads(streamed.stdout)
    assert report["estimates"] == 40 and report["engine"] == "eager" and report["was_interrupted"] is False
    assert sum(report["phases"].values()) == 40 and report["latency_ms"]["median"] > 0
    lines = [json.loads(line) for line in (folder / "a/x.jsonl").read_text().splitlines()]
    estimates = [line for line in lines if line["type"] == "estimate"]
    assert [line["type"] for line in lines[:1] + lines[-1:]] == ["session", "end"] and lines[-1][
        "estimates"
    ] == 40
    assert [e["source_frame"] for e in estimates] == [5 * i for i in range(40)]
    with (folder / "a/video.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [float(r["time_s"]) for r in rows] == list(range(40))
    np.testing.assert_allclose(
        [[float(r[f"p_{k}"]) for k in range(3)] for r in rows],
        [e["probabilities"] for e in estimates],
        rtol=1e-6,
    )
    with av.open(str(folder / "a/o.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == 40
    assert (
        "0:00  " in streamed.stderr and "\x1b" not in streamed.stderr
    )  # plain lines where there is no terminal


@pytest.mark.usefixtures("streamed")
def test_evaluate_reads_the_prediction_file(folder):
    (folder / "labels").mkdir()
    rows = "".join(f"{5 * i},{i},{i // 14}\n" for i in range(40))
    (folder / "labels" / "video.csv").write_text("frame,time_s,phase\n" + rows)
    scored = [
        sys.executable,
        "-m",
        "surgicalmamba",
        "evaluate",
        "--labels",
        "labels",
        "--predictions",
        "a",
        "--protocol",
        "strict",
    ]
    result = subprocess.run(scored, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.usefixtures("streamed")
def test_a_pipe_gives_what_the_file_gives(folder):
    with (folder / "video.mkv").open("rb") as stream:
        piped = run(folder, "-", "--model", "model", "--out", "c/pipe.jsonl", stdin=stream)
    assert piped.returncode == 0, piped.stderr
    both = [
        [json.loads(line) for line in (folder / name).read_text().splitlines()[1:-1]]
        for name in ("a/x.jsonl", "c/pipe.jsonl")
    ]
    assert len(both[0]) == len(both[1]) == 40
    assert [e["probabilities"] for e in both[0]] == [e["probabilities"] for e in both[1]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_completes_every_file(folder, number):
    process = start(folder, "--out", f"live/{number}.csv", "--overlay", f"live/{number}.mp4", "--json")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    report = json.loads(out)
    lines = [json.loads(line) for line in (folder / "live/x.jsonl").read_text().splitlines()]
    n = report["estimates"]
    assert report["was_interrupted"] and 3 <= n < 40 and lines[-1] == {"type": "end", "estimates": n}
    assert len((folder / f"live/{number}.csv").read_text().splitlines()) == n + 1
    with av.open(str(folder / f"live/{number}.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == n


def test_a_killed_session_leaves_every_line_it_wrote_and_no_half_files(folder):
    process = start(folder, "--out", "live/k.csv", "--overlay", "live/k.mp4")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    text = (folder / "live/x.jsonl").read_text()
    whole = [json.loads(line) for line in text[: text.rindex("\n")].split("\n")]
    assert [line["frame_index"] for line in whole[1:]] == list(range(len(whole) - 1)) and len(whole) >= 4
    assert not (folder / "live/k.csv").exists() and not (folder / "live/k.mp4").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["video.mkv"], 1, "no demo model ships"),
        (["nothing.mp4", "--model", "model"], 1, "no such file or folder"),
        (["video.mkv", "--model", "model", "--engine", "warp"], 1, "unknown engine 'warp'"),
        (
            ["video.mkv", "--model", "model", "--out", "video.mkv/x.jsonl"],
            1,
            "cannot write video.mkv/x.jsonl",
        ),
        (["video.mkv", "--model", "model", "--out", "x.txt"], 2, ".jsonl or a .csv"),
        (["video.mkv", "--model", "model", "--overlay", "x.gif"], 2, ".mp4, .mkv or .mov"),
        (["video.mkv", "--model", "model", "--policy", "wait"], 2, "hold, skip, advance"),
        (["video.mkv", "--model", "model", "--fps", "fast"], 2, "is not a number"),
        (
            ["video.mkv", "--server", "http://127.0.0.1:9", "--engine", "eager"],
            2,
            "--server runs the model there",
        ),
        (
            ["video.mkv", "--server", "http://127.0.0.1:9", "--device", "cpu"],
            2,
            "--server runs the model there",
        ),
        (
            ["video.mkv", "--server", "http://127.0.0.1:9", "--out", "x.jsonl"],
            2,
            "--server runs the model there",
        ),
    ],
)
def test_mistakes_are_one_line_and_the_right_exit_code(
    folder, monkeypatch, capsys, tmp_path, arguments, code, reason
):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(
        checkpoint, "__file__", str(tmp_path / "model" / "checkpoint.py")
    )  # an installation without a demo model
    monkeypatch.setattr(sys, "argv", ["surgicalmamba", "stream", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    text = capsys.readouterr().err
    assert exit_info.value.code == code and reason in " ".join(text.replace("│", " ").split())
    assert code == 2 or len(text.strip().splitlines()) == 1
