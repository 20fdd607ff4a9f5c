"""Toy datasets and settings for runs of seconds."""

import numpy as np
import pytest

from surgicalmamba.data.manifest import FORMAT, Manifest
from surgicalmamba.data.pictures import encode_jpeg
from surgicalmamba.data.store import SampleTable, VideoDraft, finish
from toy import write_toy_dataset


@pytest.fixture(scope="session")
def toy_dataset(tmp_path_factory):
    splits = {
        "paper": {"train": list("abcdefghij"), "val": ["v", "w"]},
        "overlap": {"train": ["a", "v"], "val": ["v"]},
        "out": {"train": ["a", "b"], "test": ["c"]},
    }
    return write_toy_dataset(tmp_path_factory.mktemp("toy"), splits)


@pytest.fixture(scope="session")
def toy_pictures(tmp_path_factory):
    """Three videos of flat pictures whose colour is the phase."""
    folder = tmp_path_factory.mktemp("pictures")
    entries = {}
    for name in ("a", "b", "v"):
        labels = np.arange(14) // 7
        draft = VideoDraft(folder, name, "frames")
        for label in labels:
            draft.add_image(
                encode_jpeg(np.full((40, 40, 3), (200, 40, 40) if label else (40, 200, 40), dtype=np.uint8))
            )
        rows = np.arange(14)
        entries[name] = draft.commit(
            SampleTable(rows, rows.astype(float), labels), {"sources": {}, "settings_sha256": "0"}
        )
    fields = {
        "format": FORMAT,
        "name": "pictures",
        "kind": "frames",
        "phases": ["green", "red"],
        "fps": "1",
        "source": "",
        "settings": {},
    }
    finish(folder, Manifest(**fields, splits={"own": {"train": ["a", "b"], "val": ["v"]}}, videos=entries))
    return folder


@pytest.fixture
def settings(toy_dataset, tmp_path):
    """settings(epochs=3) -> a small TrainConfig on the toy dataset."""
    from surgicalmamba.train.config import TrainConfig

    def make(**changes):
        path = {"chunk_len": 8, "d_state": 8, "d_head": 8, "rotation": {"rank": 2, "d_hidden": 8}}
        model = {
            "d_model": 16,
            "n_blocks": 1,
            "clip_len": 20,
            "block": {"slow": path, "fast": path},
            "head": {"path": path},
        }
        base = {
            "recognizer": {"preset": "tiny", **model},
            "data": {"path": str(toy_dataset), "n_lanes": 2, "workers": 1},
            "optim": {"lr": 1e-2, "warmup_epochs": 0.5, "average_decay": 0.9},
            "epochs": 3,
            "save_every": 3,
            "run": str(tmp_path / "run"),
        }
        return TrainConfig(**{**base, **changes})

    return make
