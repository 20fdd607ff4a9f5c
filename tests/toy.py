"""A toy dataset that can be learned in seconds: three phases that differ only in the last pulse. And an
operator who stops runs."""

import numpy as np

from surgicalmamba.data.manifest import FORMAT, Manifest
from surgicalmamba.data.store import SampleTable, VideoDraft, finish
from surgicalmamba.train.run import Watcher
from surgicalmamba_lab.studies.runs import train_and_predict

LENGTHS = {
    "a": 61,
    "b": 40,
    "c": 75,
    "d": 33,
    "e": 52,
    "f": 66,
    "g": 45,
    "h": 58,
    "i": 37,
    "j": 70,
    "v": 48,
    "w": 57,
}


def toy_video(name, length):
    rng = np.random.default_rng(sum(map(ord, name)))
    cuts = sorted(rng.choice(np.arange(8, length - 5), 2, replace=False))
    labels = np.searchsorted(cuts, np.arange(length), side="right")
    features = 0.2 * rng.standard_normal((length, 5)).astype(np.float32)
    features[[0, *cuts], [0, 1, 2]] += 3  # a pulse where a phase begins, and nothing after it
    return features, labels


def write_toy_dataset(folder, splits):
    entries = {}
    for name, length in LENGTHS.items():
        features, labels = toy_video(name, length)
        draft = VideoDraft(folder, name, "features")
        draft.set_features(features)
        rows = np.arange(length)
        entries[name] = draft.commit(
            SampleTable(rows, rows.astype(float), labels), {"sources": {}, "settings_sha256": "0"}
        )
    fields = {
        "format": FORMAT,
        "name": "toy",
        "kind": "features",
        "phases": ["x", "y", "z"],
        "fps": "1",
        "source": "",
        "settings": {},
    }
    finish(folder, Manifest(**fields, splits=splits, videos=entries))
    return folder


class StopAfter(Watcher):
    """Interrupts a run after some updates, as an operator would."""

    def __init__(self, updates):
        self.left = updates

    def update(self, epoch, losses):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def train_here(jobs, out):
    """Train and predict the jobs of a study that are not done, in this process, as its own processes would.
    Returns their names."""
    waiting = [job for job in jobs if not job.is_done(out)]
    for job in waiting:
        train_and_predict(job, out)
    return [job.name for job in waiting]
