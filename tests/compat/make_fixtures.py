"""Write the fixtures of this folder. fixtures/v0.1 was written by version 0.1.0.dev0, before the
package was reorganised.

Do not run this with a later version to replace fixtures/v0.1: those files stand for what users have on
their disks. A later version that changes a format adds a folder beside it. Internal modules are imported
by the names they had in that version.

    cd tests && python -m compat.make_fixtures compat/fixtures/v0.1"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import yaml
from surgicalmamba.data.images import encode_jpeg
from surgicalmamba.stream.output import OutputStage

import surgicalmamba as sm
from compat import observed
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.run import Watcher, train

PHASES = ("setup", "work", "close")
D_FEATURE = 5
PATH = {"d_state": 4, "d_head": 8, "rotation": {"rank": 2, "d_hidden": 4, "theta_init": 0.7}}
INTENSITY = {"intensity_init": 0.4, "memory": (3, 20)}
BLOCK = {"slow": {**PATH, "chunk_len": 8, "intensity": INTENSITY}, "fast": {**PATH, "chunk_len": 6}}
SMALL = {
    "d_model": 8,
    "n_blocks": 1,
    "clip_len": 20,
    "block": BLOCK,
    "head": {"path": {**PATH, "chunk_len": 5}},
}
BACKBONE = {
    "depths": (1, 1, 1, 1),
    "widths": (4, 4, 8, 8),
    "image_size": 32,
    "frozen_stages": 0,
    "layer_scale_init": 0.5,
}
TRAINING = {
    "data": {"path": "datasets/features", "n_lanes": 1, "workers": 1},
    "optim": {
        "lr": 1e-3,
        "warmup_epochs": 0.5,
        "eps": 1e-8,
    },  # this eps does not amplify the last digits of a gradient
    "epochs": 1,
}


def run(*arguments: str) -> str:
    """A verb of the command line in a process of its own."""
    command = [sys.executable, "-m", "surgicalmamba", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def plain(value: object) -> object:
    """Tuples as lists, for YAML and JSON."""
    return json.loads(json.dumps(value))


def write_sources() -> None:
    rng = np.random.default_rng(1)
    splits = {"splits": {"train": ["a", "b"], "val": ["c"]}}
    for name in observed.DATASETS:
        folder = Path("sources") / name
        folder.mkdir(parents=True)
        text = yaml.safe_dump({"phases": list(PHASES), **splits, "fps": 1}, sort_keys=False)
        (folder / "phases.yaml").write_text(text, encoding="utf-8")
    for name, length in {"a": 31, "b": 26, "c": 29}.items():
        labels = np.arange(length) * 3 // length
        features = 0.3 * rng.standard_normal((length, D_FEATURE)) + np.eye(3, D_FEATURE)[labels]
        np.savez(Path("sources/features") / f"{name}.npz", x=features.astype(np.float32), y=labels)
    y, x = np.mgrid[:48, :64]
    for number, name in enumerate("abc"):
        folder = Path("sources/pictures") / name
        folder.mkdir()
        for frame in range(8):
            inside = (x - 32) ** 2 + (y - 24) ** 2 < 22**2
            colour = np.array([60 + 20 * frame, 200 - 15 * frame, 80 + 30 * number])
            is_black = (name, frame) == ("b", 3)
            picture = np.where(
                (inside & (not is_black))[..., None], colour + 3 * (x % 8 == frame)[..., None], 0
            )
            (folder / f"{frame:04d}.jpg").write_bytes(encode_jpeg(picture.astype(np.uint8), quality=80))
        rows = "".join(f"{frame},{frame * 3 // 8}\n" for frame in range(8))
        (Path("sources/pictures") / f"{name}.csv").write_text("frame,phase\n" + rows, encoding="utf-8")


def prepare_datasets() -> None:
    for name, adapter in observed.DATASETS.items():
        folders = ("--source", f"sources/{name}", "--out", f"datasets/{name}")
        run("prepare", adapter, *folders, *observed.PREPARED_WITH[name], "--workers", "1")


def save_checkpoints() -> None:
    about = {"n_phases": 3, "phases": PHASES}
    made_with = {"size": 32}
    vectors = {"backbone": None, "d_feature": D_FEATURE}
    networks = {
        "features": lambda: sm.SurgicalMamba(sm.ModelConfig(**SMALL, **about, **vectors)),
        "pictures": lambda: sm.SurgicalMamba(
            sm.ModelConfig(**SMALL, **about, backbone=BACKBONE, preprocess=made_with)
        ),
        "lstm": lambda: sm.build("lstm", D_FEATURE, **about, d_hidden=8, clip_len=20),
    }
    for name, build in networks.items():
        torch.manual_seed(3)
        build().eval().save(Path("checkpoints") / name, provenance={"dataset": name, "seed": 3})


def write_predictions() -> None:
    for name in observed.DATASETS:
        folders = ("--data", f"datasets/{name}", "--out", f"predictions/{name}")
        run("predict", f"checkpoints/{name}", *folders, "--split", "all")
    fit = ("--out", "fitted", "--split", "val", "--fit-output", "output-stage.json")
    run("predict", "checkpoints/pictures", "--data", "datasets/pictures", *fit)
    shutil.rmtree("fitted")


def write_configs() -> None:
    peer = {"d_hidden": 8, "clip_len": 10}
    on_pictures = {**TRAINING["data"], "path": "datasets/pictures"}
    configs = {
        "model": {"preset": "tiny", "model": SMALL},
        "variant": {
            "preset": "release",
            "variant": "without-z",
            "model": SMALL,
            "recognizer": {"name": "surgicalmamba"},
        },
        "peer-name": {"recognizer": "lstm"},
        "peer-settings": {
            "recognizer": {"name": "lstm", "settings": peer},
            "model": {"backbone": None, "d_feature": 9, "standardise": True},
        },
        "peer-pictures": {
            "recognizer": {"name": "lstm", "settings": peer},
            "model": {"backbone": BACKBONE},
            "data": on_pictures,
        },
    }
    Path("configs").mkdir()
    for name, config in configs.items():
        text = yaml.safe_dump(plain({**TRAINING, **config}), sort_keys=False)
        Path(f"configs/{name}.yaml").write_text(text, encoding="utf-8")
    run("train", "--config", "configs/peer-settings.yaml", "run=resolved")
    shutil.move(
        "resolved/config.yaml", "configs/peer-resolved.yaml"
    )  # as `train` writes it, every default included
    shutil.rmtree("resolved")


class StopAfter(Watcher):
    """Interrupts a run."""

    def __init__(self, updates: int) -> None:
        self.left = updates

    def update(self, epoch: int, losses: dict[str, float]) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def write_run() -> None:
    """Two epochs of six updates; the newest state is that of update 8, and the log has a line more."""
    optim = {**TRAINING["optim"], "average_decay": 0.9}
    settings = {
        **TRAINING,
        "preset": "tiny",
        "model": {**SMALL, "clip_len": 10},
        "optim": optim,
        "epochs": 2,
        "save_every": 4,
    }
    try:
        train(TrainConfig(**settings, run="run"), watcher=StopAfter(9))
    except KeyboardInterrupt:
        shutil.rmtree("run/tensorboard", ignore_errors=True)  # names the machine, and is never read
        return
    raise AssertionError("the run was not interrupted")


def write_sessions() -> None:
    times = np.cumsum(np.where(np.isin(np.arange(40), (11, 30)), 3.0, 1.0))
    vectors = np.random.default_rng(2).standard_normal((40, D_FEATURE)).astype(np.float32)
    vectors[15, 2] = np.nan  # unreadable
    Path("sessions").mkdir()
    np.save("sessions/times.npy", times)
    np.save("sessions/vectors.npy", vectors)
    stage = OutputStage.load(Path("output-stage.json"))
    for name in observed.SNAPSHOTS:
        chosen = stage if name == "features" else None
        session = sm.Session(
            sm.load(f"checkpoints/{name}"), "eager", policy=sm.Policy(missing="hold"), output_stage=chosen
        )
        for vector, time_s in zip(vectors, times.tolist(), strict=True):
            if time_s <= observed.session_end(times):
                session.push_features(vector, time_s)
        Path(f"sessions/{name}.snapshot").write_bytes(session.snapshot())


def write_server() -> dict[str, object]:
    """A finished session of all pictures, and one that was live when the server was killed."""
    pictures = observed.pictures()
    with observed.start_server() as server:
        client = sm.Client(server.url)
        remotes = [client.create(f"Room {number}", metadata={"room": str(number)}) for number in (1, 2)]
        estimates = []
        for remote, n_frames in zip(remotes, (len(pictures), observed.LIVE_FRAMES), strict=True):
            for index in range(n_frames):
                estimates += remote.push(pictures[index], float(index))
            estimates += remote.wait()
        remotes[0].finish()
        finished, live = (remote.id for remote in remotes)
        expected = {"finished": finished, "live": live, "record": observed.served(server, finished)}
        expected["live_record"] = observed.served(server, live)
        expected["quality"] = [estimate.quality for estimate in estimates[: len(pictures)]]
        server.kill()
    connection = sqlite3.connect("server/record.sqlite3")
    # one file, with everything that the killed server had committed
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()
    return expected


def observe(server: dict[str, object]) -> dict[str, object]:
    """Everything the tests compare."""
    return {
        "version": sm.__version__,
        "checkpoints": {name: observed.outputs(Path("checkpoints") / name) for name in observed.CHECKPOINTS},
        "sessions": {name: observed.continued_session(name) for name in observed.SNAPSHOTS},
        "run": observed.resumed_run(run),
        "configs": {name: observed.trained(run, name) for name in observed.CONFIGS},
        "datasets": {name: observed.checked(run, name) for name in observed.DATASETS},
        "scores": {name: observed.evaluated(run, name) for name in observed.DATASETS},
        "stream": observed.streamed(run),
        "server": server,
    }


def main(out: Path) -> None:
    out.mkdir(parents=True)
    os.chdir(out)
    write_sources()
    prepare_datasets()
    save_checkpoints()
    write_predictions()
    write_configs()
    write_run()
    write_sessions()
    server = write_server()
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(".", copy, dirs_exist_ok=True)
        os.chdir(copy)
        expected = observe(server)
        os.chdir(out)
    Path("expected.json").write_text(json.dumps(expected) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]).resolve())
