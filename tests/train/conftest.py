"""A toy dataset that can be learned in seconds: three phases told apart only by which pulse came last."""

import numpy as np
import pytest

from surgicalmamba.data.images import encode_jpeg
from surgicalmamba.data.manifest import FORMAT, Manifest
from surgicalmamba.data.store import SampleTable, VideoDraft, finish

LENGTHS = {"a": 61, "b": 40, "c": 75, "d": 33, "e": 52, "f": 66, "g": 45, "h": 58, "i": 37, "j": 70, "v": 48, "w": 57}


def toy_video(name, length):
    rng = np.random.default_rng(sum(map(ord, name)))
    cuts = sorted(rng.choice(np.arange(8, length - 5), 2, replace=False))
    labels = np.searchsorted(cuts, np.arange(length), side="right")
    features = 0.2 * rng.standard_normal((length, 5)).astype(np.float32)
    features[[0, *cuts], [0, 1, 2]] += 3  # a pulse where a phase begins, and nothing after it
    return features, labels


@pytest.fixture(scope="session")
def toy_dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    entries = {}
    for name, length in LENGTHS.items():
        features, labels = toy_video(name, length)
        draft = VideoDraft(folder, name, "features")
        draft.set_features(features)
        rows = np.arange(length)
        entries[name] = draft.commit(SampleTable(rows, rows.astype(float), labels), {"sources": {}, "settings_sha256": "0"})
    fields = {"format": FORMAT, "name": "toy", "kind": "features", "phases": ["x", "y", "z"], "fps": "1", "source": "", "settings": {}}
    splits = {
        "paper": {"train": list("abcdefghij"), "val": ["v", "w"]},
        "overlap": {"train": ["a", "v"], "val": ["v"]},
        "out": {"train": ["a", "b"], "test": ["c"]},
    }
    finish(folder, Manifest(**fields, splits=splits, videos=entries))
    return folder


@pytest.fixture(scope="session")
def toy_pictures(tmp_path_factory):
    """Three videos of flat pictures whose colour is the phase."""
    folder = tmp_path_factory.mktemp("pictures")
    entries = {}
    for name in ("a", "b", "v"):
        labels = np.arange(14) // 7
        draft = VideoDraft(folder, name, "frames")
        for label in labels:
            draft.add_image(encode_jpeg(np.full((40, 40, 3), (200, 40, 40) if label else (40, 200, 40), dtype=np.uint8)))
        rows = np.arange(14)
        entries[name] = draft.commit(SampleTable(rows, rows.astype(float), labels), {"sources": {}, "settings_sha256": "0"})
    fields = {"format": FORMAT, "name": "pictures", "kind": "frames", "phases": ["green", "red"], "fps": "1", "source": "", "settings": {}}
    finish(folder, Manifest(**fields, splits={"own": {"train": ["a", "b"], "val": ["v"]}}, videos=entries))
    return folder


@pytest.fixture
def settings(toy_dataset, tmp_path):
    """settings(epochs=3) -> a small TrainConfig on the toy dataset."""
    from surgicalmamba.train.config import TrainConfig

    def make(**changes):
        path = {"chunk_len": 8, "d_state": 8, "d_head": 8, "rotation": {"rank": 2, "d_hidden": 8}}
        model = {"d_model": 16, "n_blocks": 1, "clip_len": 20, "block": {"slow": path, "fast": path}, "head": {"path": path}}
        base = {
            "preset": "tiny",
            "model": model,
            "data": {"path": str(toy_dataset), "n_lanes": 2, "workers": 1},
            "optim": {"lr": 1e-2, "warmup_epochs": 0.5, "average_decay": 0.9},
            "epochs": 3,
            "save_every": 3,
            "run": str(tmp_path / "run"),
        }
        return TrainConfig(**{**base, **changes})

    return make
