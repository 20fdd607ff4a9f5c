"""Checkpoints: written whole, read without flags, never executed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import surgicalmamba as sm
from surgicalmamba.errors import CheckpointError
from surgicalmamba.model.checkpoint import load_fitting, looks_like_hub_id
from surgicalmamba.model.registry import build as build_recognizer
from surgicalmamba.model.surgical_mamba import VARIANTS, ModelConfig


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_saved_model_loads_with_its_config_and_gives_the_same_logits(build, features, tmp_path, variant):
    model = build(variant, dtype=torch.float32)
    model.save(tmp_path / "run", provenance={"seed": 3})
    loaded = sm.load(tmp_path / "run")
    assert loaded.config == model.config and not loaded.training
    x = features(60).float()
    with torch.no_grad():
        assert torch.equal(loaded.forward_features(x).logits, model.forward_features(x).logits)
    about = json.loads((tmp_path / "run" / "config.json").read_text())
    assert about["provenance"] == {"seed": 3} and about["surgicalmamba"] == sm.__version__
    assert sorted(os.listdir(tmp_path / "run")) == ["config.json", "model.safetensors"]


def test_a_checkpoint_from_before_newer_settings_gives_the_answers_it_gave(build, features, tmp_path):
    model = build(dtype=torch.float32)
    model.save(tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    del about["model"]["dropout"]
    for path in (
        about["model"]["block"]["slow"],
        about["model"]["block"]["fast"],
        about["model"]["head"]["path"],
    ):
        del path["a_min"], path["a_max"]
    del about["model"]["block"]["slow"]["intensity"]["d_hidden_min"]
    (tmp_path / "config.json").write_text(json.dumps(about))
    x = features(60).float()
    with torch.no_grad():
        assert torch.equal(sm.load(tmp_path).forward_features(x).logits, model.forward_features(x).logits)


def test_phase_names_travel_with_the_model(tmp_path):
    config = ModelConfig.preset("tiny", n_phases=2, phases=("Preparation", "Dissection"))
    sm.SurgicalMamba(config).save(tmp_path)
    assert sm.load(tmp_path).config.phases == ("Preparation", "Dissection")


def test_weights_that_fit_by_name_and_shape_are_taken_and_the_others_are_reported(tmp_path):
    temporal = ModelConfig.preset("tiny", backbone=None, d_feature=5)
    given = sm.SurgicalMamba(temporal.with_(n_phases=2))
    given.save(tmp_path)
    model = sm.SurgicalMamba(temporal.with_(n_phases=3).variant("without-lambda"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mismatch = load_fitting(model, tmp_path)
    classifier = {"head.classifier.weight", "head.classifier.bias"}
    assert {text.split()[0] for text in mismatch.misshapen} == classifier
    assert not mismatch.missing and all(".intensity." in name for name in mismatch.unexpected)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name] if name in classifier else given.state_dict()[name]), name


def test_a_checkpoint_of_which_nothing_fits_is_refused(tmp_path):
    build_recognizer("lstm", 5, 3).save(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"no weight of .*model\.safetensors fits the model: .* missing"
    ):
        load_fitting(sm.SurgicalMamba(ModelConfig.preset("tiny", backbone=None, d_feature=5)), tmp_path)


def test_the_folder_of_a_training_run_stands_for_its_best_model(tmp_path):
    for name in ("best", "last"):
        sm.SurgicalMamba(ModelConfig.preset("tiny", phases=(name, "end"), n_phases=2)).save(
            tmp_path / "run" / name
        )
    assert sm.load(tmp_path / "run").config.phases == ("best", "end")
    assert sm.load(tmp_path / "run" / "last").config.phases == ("last", "end")


@pytest.fixture
def saved(build, tmp_path):
    build(dtype=torch.float32).save(tmp_path / "run")
    return tmp_path / "run"


def break_config(folder):
    (folder / "config.json").write_text("{ not json")


def lose_weights(folder):
    (folder / "model.safetensors").unlink()


def cut_weights(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def change(folder, edit):
    about = json.loads((folder / "config.json").read_text())
    edit(about)
    (folder / "config.json").write_text(json.dumps(about))


BREAKAGES = {
    "is no checkpoint: there is no config.json": lambda f: (f / "config.json").unlink(),
    "config.json cannot be read": break_config,
    "do not exist": lose_weights,
    "truncated or damaged": cut_weights,
    "was not written by surgicalmamba": lambda f: change(f, lambda a: a.pop("model")),
    "upgrade surgicalmamba": lambda f: change(f, lambda a: a.update(format=99)),
    "unknown setting 'n_phasez': did you mean 'n_phases'": lambda f: change(
        f, lambda a: a["model"].update(n_phasez=7)
    ),
    "mis-shaped": lambda f: change(f, lambda a: a["model"].update(n_phases=9)),
    "missing": lambda f: change(f, lambda a: a["model"].update(n_blocks=3)),
    "unexpected": lambda f: change(f, lambda a: a["model"].update(n_blocks=1)),
}


@pytest.mark.parametrize("message", BREAKAGES)
def test_a_broken_checkpoint_gives_one_line_that_names_the_file(saved, message):
    BREAKAGES[message](saved)
    with pytest.raises(CheckpointError, match=message) as caught:
        sm.load(saved)
    assert "\n" not in str(caught.value) and str(saved) in str(caught.value)


def test_a_path_that_does_not_exist_is_no_hub_id():
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        sm.load("./runs/nothing")
    assert (
        looks_like_hub_id("owner/model")
        and not looks_like_hub_id("./owner/model")
        and not looks_like_hub_id("a/b/c")
    )


def test_a_hub_repository_in_the_local_cache_loads_offline(saved, tmp_path, monkeypatch):
    # the cache layout of huggingface_hub: models--owner--name/{refs/main, snapshots/<revision>/files}
    import huggingface_hub.constants

    cache, revision = tmp_path / "hub", "0" * 40
    snapshot = cache / "models--owner--model" / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (cache / "models--owner--model" / "refs").mkdir()
    (cache / "models--owner--model" / "refs" / "main").write_text(revision)
    for file in saved.iterdir():
        (snapshot / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    assert sm.load("owner/model").config == sm.load(saved).config


def test_killed_while_saving_again_the_folder_still_loads(saved, tmp_path):
    # a process that saves over and over is killed at random moments; whatever is there must load
    program = (
        "import sys, torch, surgicalmamba as sm\n"
        "model = sm.load(sys.argv[1])\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    model.save(sys.argv[1])\n"
    )
    for delay in (0.0, 0.007, 0.03):
        process = subprocess.Popen([sys.executable, "-c", program, str(saved)], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        sm.load(saved)


def test_whoever_may_read_the_config_may_read_the_weights(tmp_path):
    model = sm.SurgicalMamba(sm.ModelConfig.preset("tiny", backbone=None, d_feature=3, n_blocks=1))
    model.save(tmp_path)
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]
