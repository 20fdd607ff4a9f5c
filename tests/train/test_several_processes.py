"""Real processes under torchrun: the gradients, weights and scores of one process, and states that any number
of processes resumes.

Four lanes in one process are two lanes in each of two; videos differ in length, so some lanes idle at the
end, and an update has
two clips, so a block is called twice before its gradients are needed."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from surgicalmamba.config import load_config, save_config
from surgicalmamba.errors import ConfigError
from surgicalmamba.train import state as runstate
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.distributed import World
from surgicalmamba.train.run import resume, share_lanes, train
from toy import StopAfter

STOPPING = """
import sys
from pathlib import Path
from surgicalmamba.config import load_config
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.run import Watcher, train

class Stop(Watcher):
    left = 7
    def update(self, epoch, losses):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

train(load_config(TrainConfig, Path(sys.argv[1])), watcher=Stop())
"""


COMMAND = """
import atexit
from surgicalmamba.cli.main import main

atexit.register(print, "taken down")
main()
"""


def torchrun(*arguments):
    """Two processes; a failure of one ends both."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *map(str, arguments),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


def log(run, kind):
    lines = (run / "log.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


def assert_about_the_same(ours, reference):
    """Sums in another order: equal up to rounding, which training amplifies a little."""
    assert len(log(ours, "update")) == len(log(reference, "update")) > 8
    for line, expected in zip(log(ours, "update"), log(reference, "update"), strict=True):
        assert line["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-3)
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-3)
    assert [line["step"] for line in log(ours, "epoch")] == [line["step"] for line in log(reference, "epoch")]
    for which in ("last", "best"):
        found, expected = (load_file(run / which / "model.safetensors") for run in (ours, reference))
        assert found.keys() == expected.keys()
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=2e-4, msg=f"{which}: {name}")


@pytest.fixture
def config(settings, tmp_path):
    torch.set_num_threads(1)
    optim = {"lr": 1e-2, "warmup_epochs": 0.5, "average_decay": 0.9, "clips_per_update": 2}

    def make(name, n_lanes, **changes):
        data = settings().data.with_(n_lanes=n_lanes)
        made = settings(run=str(tmp_path / name), data=data, optim=optim, **changes)
        save_config(made, tmp_path / f"{name}.yaml")
        return made

    return make


@pytest.mark.parametrize("distributed", ["replicate", "shard"])
def test_two_processes_train_as_one_and_one_process_goes_on_where_they_stopped(config, tmp_path, distributed):
    train(config("one", 4))
    config("two", 2, distributed=distributed)
    (tmp_path / "stop.py").write_text(STOPPING)
    result = torchrun(tmp_path / "stop.py", tmp_path / "two.yaml")
    assert "KeyboardInterrupt" in result.stderr, result.stderr
    state = runstate.load_state(tmp_path / "two")
    assert (
        state.values["update"] == 6 and len(state.values["frame_index"]) == 4
    )  # in the middle of an epoch, with everybody's lanes
    resume(tmp_path / "two")
    assert_about_the_same(tmp_path / "two", tmp_path / "one")


def test_two_processes_with_a_split_model_go_on_where_one_stopped_and_leave_whole_files(config, tmp_path):
    train(config("one", 4))
    with pytest.raises(KeyboardInterrupt):
        train(config("cut", 4, distributed="shard"), watcher=StopAfter(4))
    (tmp_path / "command.py").write_text(COMMAND)
    result = torchrun(tmp_path / "command.py", "train", "--resume", tmp_path / "cut", "--json")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count('"best_epoch"') == 2  # both have said their words
    assert "taken down" not in result.stdout  # where a late thread of gloo would abort them
    assert_about_the_same(tmp_path / "cut", tmp_path / "one")
    assert {file.name for file in (tmp_path / "cut" / "best" / "val").glob("*.csv")} == {"v.csv", "w.csv"}


def test_a_split_model_trains_from_pixels_with_frozen_and_recomputed_stages(settings, toy_pictures, tmp_path):
    torch.set_num_threads(1)
    backbone = {
        "depths": [1, 1, 1, 1],
        "widths": [4, 8, 8, 16],
        "image_size": 32,
        "frozen_stages": 1,
        "micro_batch": 8,
    }
    model = json.loads(settings().network.model_dump_json()) | {"backbone": backbone, "d_feature": None}
    for name, n_lanes in (("one", 2), ("two", 1)):
        data = {"path": str(toy_pictures), "n_lanes": n_lanes}
        changes = {"optim": {"lr": 1e-2}, "distributed": "shard", "allow_random_frozen": True}
        made = settings(recognizer=model, data=data, run=str(tmp_path / name), epochs=9, **changes)
        save_config(made, tmp_path / f"{name}.yaml")
    train(load_config(TrainConfig, tmp_path / "one.yaml"))
    result = torchrun("-m", "surgicalmamba", "train", "--config", tmp_path / "two.yaml")
    assert result.returncode == 0, result.stderr
    assert_about_the_same(tmp_path / "two", tmp_path / "one")


def test_lanes_that_cannot_be_shared_evenly_are_refused_in_one_line(config):
    state = runstate.RunState({}, {"n_lanes": 4})
    assert share_lanes(config("x", 1), state, World(0, 2)).data.n_lanes == 2
    with pytest.raises(
        ConfigError, match="has 4 lanes; resume it with a number of processes that divides them, not 3"
    ):
        share_lanes(config("x", 1), state, World(0, 3))
