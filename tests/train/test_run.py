"""Whole runs: they learn, they stop anywhere and go on, and they end with the same bytes."""

import itertools
import json
import math
import os
import pty
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import surgicalmamba as sm
from surgicalmamba.config import save_config
from surgicalmamba.errors import ConfigError
from surgicalmamba.train import state as runstate
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.distributed import World
from surgicalmamba.train.losses import class_weights_of
from surgicalmamba.train.run import (
    Watcher,
    build_trainer,
    check_network,
    fit_network,
    open_dataset,
    resume,
    train,
)
from toy import LENGTHS, StopAfter


def weights(run, which="last"):
    return load_file(f"{run}/{which}/model.safetensors")


def assert_same_run(a, b):
    for which in ("best", "last"):
        ours, reference = weights(a, which), weights(b, which)
        assert ours.keys() == reference.keys()
        for name in ours:
            assert torch.equal(ours[name], reference[name]), f"{which}: {name}"
    assert (a / "log.jsonl").read_bytes() == (b / "log.jsonl").read_bytes()
    for file in (a / "best" / "val").glob("*.csv"):
        assert file.read_bytes() == (b / "best" / "val" / file.name).read_bytes()


@pytest.fixture
def single_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_run_learns_a_task_that_needs_memory_and_leaves_everything_behind(
    settings, tmp_path, single_thread
):
    result = train(settings(epochs=20))
    assert result.best["accuracy"] > 80
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    updates = [line["loss"] for line in log if line["kind"] == "update"]
    assert updates[-1] < 0.7 * updates[0]
    assert [line["step"] for line in log if line["kind"] == "epoch"] == list(range(20))
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))
    best = sm.load(tmp_path / "run" / "best")
    assert best.config.phases == ("x", "y", "z")
    about = json.loads((tmp_path / "run" / "best" / "config.json").read_text())
    assert about["provenance"]["epoch"] == result.best_epoch and about["provenance"]["split"] == "paper"
    assert {file.name for file in (tmp_path / "run" / "best" / "val").glob("*.csv")} == {"v.csv", "w.csv"}


def test_the_same_seed_gives_the_same_run_and_another_seed_another(settings, tmp_path, single_thread):
    for name, seed in (("first", 0), ("second", 0), ("third", 1)):
        train(settings(run=str(tmp_path / name), seed=seed))
    assert_same_run(tmp_path / "first", tmp_path / "second")
    assert any(
        not torch.equal(v, weights(tmp_path / "third")[k]) for k, v in weights(tmp_path / "first").items()
    )


@pytest.mark.parametrize("updates", [1, 4, 9, 20])
def test_an_interrupted_run_goes_on_and_ends_like_an_uninterrupted_one(
    settings, tmp_path, single_thread, updates
):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(settings(run=str(whole)))
    with pytest.raises(KeyboardInterrupt):
        train(settings(run=str(cut)), watcher=StopAfter(updates))
    resume(cut)
    assert_same_run(cut, whole)


def test_killed_at_any_moment_the_resumed_run_ends_with_the_same_bytes(settings, tmp_path, single_thread):
    whole = tmp_path / "whole"
    train(settings(run=str(whole), save_every=1))
    run = tmp_path / "killed"
    save_config(settings(run=str(run), save_every=1), tmp_path / "config.yaml")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "surgicalmamba", "train"]
    kills = 0
    for delay in (0.02, 0.11, 0.23, 0.37, 0.5, 0.7):
        first = not runstate.complete_states(run)
        arguments = ["--config", str(tmp_path / "config.yaml")] if first else ["--resume", str(run)]
        process = subprocess.Popen(
            [*command, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        known = runstate.complete_states(run)
        while process.poll() is None and runstate.complete_states(run) == known:
            time.sleep(0.005)  # until it has done something
        time.sleep(delay)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        if (run / "last" / "config.json").exists():
            break
    assert kills >= 3
    resume(run)
    assert_same_run(run, whole)


def test_killed_in_the_middle_of_writing_a_state_the_one_before_counts(settings, tmp_path, single_thread):
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(settings(save_every=1), watcher=StopAfter(5))
    kept = runstate.complete_states(run)[-1]
    torn = run / "states" / f"{int(kept.name) + 1:08d}.part"
    torn.mkdir()
    (torn / "tensors.safetensors").write_bytes(b"half of a file")
    whole = tmp_path / "whole"
    train(settings(run=str(whole), save_every=1))
    resume(run)
    assert_same_run(run, whole)


class Notes(Watcher):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_a_full_disk_keeps_the_last_good_state_and_says_so(settings, tmp_path, single_thread, monkeypatch):
    real, calls = runstate._flush, []

    def full(path):
        calls.append(path)
        if len(calls) > 6:
            raise OSError(28, "No space left on device")
        real(path)

    monkeypatch.setattr(runstate, "_flush", full)
    notes = Notes()
    train(settings(save_every=1), watcher=notes)
    states = runstate.complete_states(tmp_path / "run")
    assert len(states) == 1 and runstate.load_state(tmp_path / "run").values["update"] == int(states[0].name)
    assert notes.notes and "No space left" in notes.notes[0] and str(states[0]) in notes.notes[0]
    assert not list((tmp_path / "run" / "states").glob("*.part"))


def test_a_folder_that_holds_a_run_is_not_overwritten(settings, single_thread):
    train(settings(epochs=1))
    with pytest.raises(ConfigError, match="already holds a run; resume it"):
        train(settings(epochs=1))


def test_videos_in_both_train_and_val_are_refused(settings, toy_dataset):
    with pytest.raises(ConfigError, match="has v in both train and val"):
        train(settings(data={"path": str(toy_dataset), "split": "overlap"}))
    forced = settings(data={"path": str(toy_dataset), "split": "overlap", "allow_overlap": True})
    assert open_dataset(forced)[0].data.split == "overlap"


def test_a_split_without_validation_videos_trains_and_its_last_epoch_is_the_model(
    settings, toy_dataset, tmp_path, single_thread
):
    data = settings().data.with_(split="out")
    result = train(settings(data=data, epochs=2, optim={"average_decay": 0.0}))
    assert result.best == {}
    for name, value in weights(tmp_path / "run", "last").items():
        assert torch.equal(weights(tmp_path / "run", "best")[name], value)


def test_validation_comes_every_so_many_epochs_and_after_the_last(settings, tmp_path, single_thread):
    train(settings(run=str(tmp_path / "every"), epochs=5))
    result = train(settings(run=str(tmp_path / "some"), epochs=5, validate_every=3))
    every, some = (epochs_of(tmp_path / name / "log.jsonl") for name in ("every", "some"))
    assert list(every) == [0, 1, 2, 3, 4] and some == {
        epoch: every[epoch] for epoch in (2, 4)
    }  # the looks change nothing
    assert result.best_epoch in some and result.best["jaccard"] == max(
        scores["jaccard"] for scores in some.values()
    )


def test_without_validation_the_last_epoch_is_the_model_though_the_split_has_validation_videos(
    settings, tmp_path, single_thread
):
    result = train(settings(epochs=2, validate_every=None, optim={"average_decay": 0.0}))
    assert result.best == {} and epochs_of(tmp_path / "run" / "log.jsonl") == {}
    for name, value in weights(tmp_path / "run", "last").items():
        assert torch.equal(weights(tmp_path / "run", "best")[name], value)


def test_the_epoch_kept_is_the_best_by_the_metric_asked_for(settings, tmp_path, single_thread, monkeypatch):
    scripted = [
        {"accuracy": a, "jaccard": j, "precision": 0.0, "recall": 0.0}
        for a, j in ((60, 50), (70, 40), (65, 45))
    ]
    for metric, best in (("jaccard", 0), ("accuracy", 1)):
        coming = iter(scripted)
        monkeypatch.setattr("surgicalmamba.train.run.summary", lambda *_, coming=coming: dict(next(coming)))
        result = train(settings(run=str(tmp_path / metric), select_by=metric))
        about = json.loads((tmp_path / metric / "best" / "config.json").read_text())
        assert result.best_epoch == best == about["provenance"]["epoch"] and result.select_by == metric


@pytest.mark.parametrize("updates", [1, 7])
def test_a_stopped_run_with_dropout_and_rates_by_video_ends_like_an_uninterrupted_one(
    settings, tmp_path, single_thread, updates
):
    optim = {
        "lr": 1e-2,
        "warmup_epochs": 0.5,
        "average_decay": 0.9,
        "lr_step": "video",
        "clips_per_update": 2,
    }
    def make(name):
        return settings(
            run=str(tmp_path / name), recognizer={**TINY, "dropout": 0.2}, optim=optim, epochs=2
        )
    train(make("whole"))
    with pytest.raises(KeyboardInterrupt):
        train(make("cut"), watcher=StopAfter(updates))
    resume(tmp_path / "cut")
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


def test_by_video_the_rate_stays_through_a_video_and_moves_with_the_next(
    settings, toy_dataset, tmp_path, single_thread
):
    optim = {"lr": 1e-3, "warmup_epochs": 1, "final_lr_share": 0.1, "lr_step": "video"}
    train(settings(optim=optim, epochs=2, data={"path": str(toy_dataset), "n_lanes": 1}))
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    shares = [line["lr_share"] for line in log if line["kind"] == "update"]
    steps = [share for share, _ in itertools.groupby(shares)]
    assert len(shares) == 2 * sum(
        -(-LENGTHS[name] // 20) for name in "abcdefghij"
    )  # clips of 20 frames, one update each
    cosine = [0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * i / 9)) for i in range(10)]  # ten videos an epoch
    assert steps == pytest.approx(
        [0.1 * i for i in range(1, 10)] + [1.0] + cosine[1:]
    )  # the last of warm-up and the first after it are 1


def epochs_of(log):
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    return {
        entry["step"]: {name: entry[name] for name in ("accuracy", "jaccard")}
        for entry in entries
        if entry["kind"] == "epoch"
    }


PATH = {"chunk_len": 8, "d_state": 8, "d_head": 8, "rotation": {"rank": 2, "d_hidden": 8}}
TINY = {
    "preset": "tiny",
    "d_model": 16,
    "n_blocks": 1,
    "clip_len": 20,
    "block": {"slow": PATH, "fast": PATH},
    "head": {"path": PATH},
}
CHOICES = {
    "bf16": {"precision": "bf16"},
    "class weights": {"loss": {"class_weights": "inverse-sqrt"}},
    "no smoothness loss": {"loss": {"smooth_weight": 0.0}},
    "target of each clip": {"loss": {"target_scope": "clip"}},
    "another variant": {"recognizer": {**TINY, "variant": "vanilla-mamba2"}},
    "dropout": {"recognizer": {**TINY, "dropout": 0.2}},
    "learning rate moved by videos": {
        "optim": {"lr": 1e-2, "warmup_epochs": 0.5, "average_decay": 0.9, "lr_step": "video"}
    },
    "two clips per update, no average": {"optim": {"clips_per_update": 2, "average_decay": 0.0}},
}


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_of_the_recipe_changes_the_run_and_leaves_a_loadable_model(
    settings, tmp_path, single_thread, choice
):
    train(settings(run=str(tmp_path / "plain"), epochs=1))
    train(settings(run=str(tmp_path / "chosen"), epochs=1, **CHOICES[choice]))
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("plain", "chosen")]
    assert logs[0] != logs[1]
    assert sm.load(tmp_path / "chosen" / "best").n_phases == 3


def test_a_model_is_trained_from_pixels_to_the_end(settings, toy_pictures, tmp_path, single_thread):
    backbone = {"depths": [1, 1, 1, 1], "widths": [4, 8, 8, 16], "image_size": 32, "frozen_stages": 0}
    model = json.loads(settings().network.model_dump_json()) | {"backbone": backbone, "d_feature": None}
    config = settings(
        recognizer=model,
        data={"path": str(toy_pictures), "n_lanes": 2},
        epochs=8,
        optim={"lr": 1e-2, "backbone_lr": 1e-2},
    )
    result = train(config)
    assert result.best["accuracy"] > 90  # the colour is the phase
    assert sm.load(tmp_path / "run" / "best").config.backbone.image_size == 32


def pixels(settings, toy_pictures, frozen_stages, **changes):
    backbone = {
        "depths": [1, 1, 1, 1],
        "widths": [4, 8, 8, 16],
        "image_size": 32,
        "frozen_stages": frozen_stages,
    }
    model = json.loads(settings().network.model_dump_json()) | {"backbone": backbone, "d_feature": None}
    return settings(
        **{"recognizer": model, "data": {"path": str(toy_pictures), "n_lanes": 2}, "epochs": 1, **changes}
    )


@pytest.mark.parametrize(("frozen", "words"), [(1, "stem and 1 stage would"), (2, "stem and 2 stages would")])
def test_frozen_stages_without_weights_are_refused_before_anything_is_written(
    settings, toy_pictures, tmp_path, frozen, words
):
    with pytest.raises(ConfigError, match=words) as caught:
        train(pixels(settings, toy_pictures, frozen))
    assert not (tmp_path / "run").exists() and "\n" not in str(caught.value)
    for remedy in (
        "backbone_weights=FILE_OR_HUB_ID",
        "recognizer.backbone.frozen_stages=0",
        "allow_random_frozen=true",
    ):
        assert remedy in str(caught.value)
    with pytest.raises(ConfigError, match=words):
        train(
            pixels(
                settings, toy_pictures, 0, recognizer={"name": "lstm", "backbone": {"frozen_stages": frozen}}
            )
        )


def test_frozen_stages_train_with_weights_or_when_they_are_asked_for_and_a_begun_run_is_resumed(
    settings, toy_pictures, tmp_path
):
    train(pixels(settings, toy_pictures, 0, run=str(tmp_path / "start")))
    train(
        pixels(
            settings,
            toy_pictures,
            2,
            run=str(tmp_path / "weights"),
            backbone_weights=str(tmp_path / "start" / "best"),
        )
    )
    begun = tmp_path / "begun"
    with pytest.raises(KeyboardInterrupt):
        train(
            pixels(settings, toy_pictures, 2, run=str(begun), allow_random_frozen=True, epochs=2),
            watcher=StopAfter(2),
        )
    text = (begun / "config.yaml").read_text()
    assert "allow_random_frozen: true\n" in text
    (begun / "config.yaml").write_text(
        text.replace("allow_random_frozen: true\n", "")
    )  # as a run of before this setting
    resume(begun)
    assert (begun / "last" / "config.json").is_file()


def test_fine_tuning_starts_from_every_weight_of_a_checkpoint(settings, tmp_path):
    train(settings(run=str(tmp_path / "first"), epochs=1))
    notes = Notes()
    config = settings(init=str(tmp_path / "first"), seed=1)
    config, dataset = open_dataset(config)
    model = build_trainer(
        fit_network(config, dataset), dataset, torch.device("cpu"), World(0, 1), notes
    ).model
    started = weights(tmp_path / "first", "best")
    assert (
        all(torch.equal(value, started[name]) for name, value in model.state_dict().items())
        and not notes.notes
    )


def test_a_temporal_model_of_one_run_and_a_backbone_of_another_meet_in_one_network(
    settings, toy_pictures, tmp_path
):
    train(pixels(settings, toy_pictures, 0, run=str(tmp_path / "pictures")))
    features = sm.SurgicalMamba(
        sm.load(tmp_path / "pictures" / "best").config.with_(backbone=None, d_feature=16)
    )
    features.save(tmp_path / "temporal")
    both = {"init": str(tmp_path / "temporal"), "backbone_weights": str(tmp_path / "pictures" / "best")}
    config, dataset = open_dataset(pixels(settings, toy_pictures, 0, **both))
    notes = Notes()
    model = build_trainer(
        fit_network(config, dataset), dataset, torch.device("cpu"), World(0, 1), notes
    ).model
    pictures = weights(tmp_path / "pictures", "best")
    for name, value in model.state_dict().items():
        assert torch.equal(
            value, pictures[name] if name.startswith("backbone.") else features.state_dict()[name]
        ), name
    assert (
        len(notes.notes) == 1
        and "fits the network only in part" in notes.notes[0]
        and "missing (backbone." in notes.notes[0]
    )


def test_a_resumed_run_does_without_the_checkpoints_it_started_from(
    settings, toy_pictures, tmp_path, single_thread
):
    train(pixels(settings, toy_pictures, 0, run=str(tmp_path / "start")))
    started = {
        "init": str(tmp_path / "start"),
        "backbone_weights": str(tmp_path / "start" / "best"),
        "epochs": 2,
    }
    train(pixels(settings, toy_pictures, 0, run=str(tmp_path / "whole"), **started))
    with pytest.raises(KeyboardInterrupt):
        train(pixels(settings, toy_pictures, 0, **started, save_every=1), watcher=StopAfter(2))
    shutil.rmtree(tmp_path / "start")
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_dataset_of_features_has_no_stages_to_freeze(settings, toy_dataset):
    config = TrainConfig(data={"path": str(toy_dataset)})  # the paper's preset, two stages frozen
    assert config.network.backbone.frozen_stages == 2
    check_network(fit_network(*open_dataset(config)))


def test_a_variant_of_surgicalmamba_is_refused_for_another_network(settings):
    with pytest.raises(
        ConfigError, match="variant=without-z is a variant of SurgicalMamba, and this network has none"
    ):
        train(settings(recognizer={"name": "lstm", "variant": "without-z"}))


def test_class_weights_are_inverse_roots_with_mean_one_over_the_phases_that_occur():
    found = class_weights_of([np.array([0, 0, 0, 0, 1, -1])], 3, "inverse-sqrt")
    torch.testing.assert_close(found, torch.tensor([0.5, 1.0, 0.0]) / 0.75)
    assert class_weights_of([np.array([0])], 1, "none") is None


def test_raw_signals_are_standardised_by_the_training_videos_alone(settings, toy_dataset):
    model_settings = {
        **settings().network.model_dump(),
        "backbone": None,
        "d_feature": 5,
        "standardise": True,
    }
    config, dataset = open_dataset(settings(recognizer=model_settings))
    config = fit_network(config, dataset)
    model = build_trainer(config, dataset, torch.device("cpu"), World(0, 1)).model
    seen = np.concatenate([video.features for video in dataset.split("paper", "train")])
    np.testing.assert_allclose(model.standardise.mean, seen.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.standardise.scale, seen.std(0), rtol=1e-4)


def test_the_command_takes_its_bar_away_and_gives_the_cursor_back_before_it_prints_the_result(
    settings, tmp_path
):
    save_config(settings(epochs=1), tmp_path / "config.yaml")
    terminal, stderr = pty.openpty()
    command = [sys.executable, "-m", "surgicalmamba", "train", "--config", str(tmp_path / "config.yaml")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, env={**os.environ, "TERM": "xterm"}, text=True
    ) as process:
        os.close(stderr)
        said = b"".join(iter(lambda: _read(terminal), b"")).decode()
        assert process.stdout is not None and "best epoch 1 by strict Jaccard" in process.stdout.read()
    os.close(terminal)
    assert process.returncode == 0 and "epoch 1/1" in said
    assert said.rstrip().endswith("\x1b[2K")  # the line of the bar is wiped
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l")  # shown after it was hidden


def _read(terminal):
    try:
        return os.read(terminal, 1024)
    except OSError:  # how Linux says that the other side has closed
        return b""
