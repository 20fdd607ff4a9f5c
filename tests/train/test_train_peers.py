"""Any recognizer is trained, resumed, saved, loaded and predicted with by the same code as
SurgicalMamba."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import surgicalmamba as sm
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import CheckpointError, ConfigError
from surgicalmamba.model.registry import OWN_RECOGNIZERS
from surgicalmamba.peers.lstm import CarriedLSTM
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.predict import Predictor
from surgicalmamba.train.run import fit_network, resume, train
from toy import LENGTHS, StopAfter

TECNO = {"name": "tecno", "n_layers": 3, "n_maps": 8, "clip_len": 16}
OPERA = {"name": "opera", "d_model": 8, "n_layers": 1, "d_hidden": 8, "clip_len": 16}


def test_a_name_alone_or_a_block_with_settings_chooses_the_network(settings, toy_dataset):
    dataset = PreparedDataset.open(toy_dataset)
    assert fit_network(settings(recognizer="lstm"), dataset).network.d_hidden == 512
    fitted = fit_network(settings(recognizer=TECNO), dataset).network
    assert (fitted.n_maps, fitted.n_phases, fitted.feature_width, fitted.phases) == (8, 3, 5, ("x", "y", "z"))
    assert fit_network(settings(recognizer="tecno-9-64"), dataset).network.n_layers == 9
    with pytest.raises(ConfigError, match="unknown recognizer 'tekno': did you mean 'tecno'"):
        fit_network(settings(recognizer="tekno"), dataset)


def test_a_preset_gives_any_network_its_backbone(toy_pictures):
    config = TrainConfig(recognizer={"name": "lstm", "preset": "tiny"}, data={"path": str(toy_pictures)})
    fitted = fit_network(config, PreparedDataset.open(toy_pictures)).network
    assert fitted.backbone == sm.ModelConfig.preset("tiny").backbone and fitted.feature_width == 192


@pytest.mark.parametrize(
    "recognizer", [TECNO, OPERA], ids=["window with dropout and a loss of its own", "memory that grows"]
)
def test_a_run_that_was_stopped_ends_with_the_weights_of_one_that_was_not(settings, tmp_path, recognizer):
    config = settings(recognizer=recognizer, save_every=1, epochs=2)
    train(config.with_(run=str(tmp_path / "whole")))
    with pytest.raises(KeyboardInterrupt):
        train(config.with_(run=str(tmp_path / "parts")), watcher=StopAfter(7))
    resume(tmp_path / "parts")
    whole, parts = (sm.load(tmp_path / run / "last") for run in ("whole", "parts"))
    assert all(
        torch.equal(a, b)
        for a, b in zip(whole.state_dict().values(), parts.state_dict().values(), strict=True)
    )
    first = json.loads((tmp_path / "whole" / "log.jsonl").read_text().splitlines()[0])
    assert first["own"] > 0 and first["transition"] == 0.0


def test_a_network_in_training_gets_the_frames_of_each_lane_and_no_clip_is_longer_than_the_longest_lane(
    settings, monkeypatch
):
    seen = []

    def spy(self, features, state, n_frames):
        seen.append((features.shape[1], n_frames.tolist()))
        return self.temporal(features, state)

    monkeypatch.setattr(CarriedLSTM, "temporal_in_training", spy)
    train(settings(recognizer={"name": "lstm", "d_hidden": 4, "clip_len": 16}, epochs=1))
    assert all(length == max(n_frames) <= 16 for length, n_frames in seen)
    assert sum(sum(n_frames) for _, n_frames in seen) == sum(LENGTHS[name] for name in "abcdefghij")
    assert any(length < 16 for length, _ in seen)


def test_a_recurrent_peer_learns_what_only_the_past_tells(settings, toy_dataset, tmp_path):
    result = train(settings(recognizer={"name": "lstm", "d_hidden": 16, "clip_len": 40}, epochs=12))
    assert result.best["accuracy"] > 85  # always saying the longest phase gives about half
    model = sm.load(result.run / "best")
    assert (
        model.name == "lstm"
        and json.loads((result.run / "best" / "config.json").read_text())["recognizer"] == "lstm"
    )
    predictor = Predictor.open(str(result.run), toy_dataset, "val", tmp_path / "predictions", "cpu")
    written = predictor.predict(predictor.videos[0]).read_text().splitlines()
    video = predictor.videos[0]
    session = sm.Session(model)
    assert session.engine.name == "eager"
    live = [session.push_features(row) for row in video.features]
    assert [int(line.split(",")[2]) for line in written[1:]] == [estimate.phase for estimate in live]


def test_a_checkpoint_of_a_network_that_is_not_known_here_is_refused_and_imports_nothing(tmp_path):
    sm.build("lstm", 4, 3, d_hidden=4).save(tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**about, "recognizer": "antigravity:Flight"}))
    with pytest.raises(
        CheckpointError,
        match=r"unknown recognizer 'antigravity:Flight'.*SURGICALMAMBA_RECOGNIZERS=module:Class",
    ):
        sm.load(tmp_path)
    assert "antigravity" not in sys.modules


def test_a_checkpoint_from_before_there_were_peers_is_surgicalmamba(tmp_path):
    config = sm.ModelConfig.preset("tiny", backbone=None, d_feature=4, n_phases=3, n_blocks=1)
    sm.SurgicalMamba(config).save(tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    del about["recognizer"]
    (tmp_path / "config.json").write_text(json.dumps(about))
    assert isinstance(sm.load(tmp_path), sm.SurgicalMamba)


def test_a_network_of_ones_own_is_trained_and_predicts_by_naming_it_in_the_environment(toy_dataset, tmp_path):
    source = Path(__file__).parents[2] / "examples" / "own_recognizer.py"
    (tmp_path / "own_recognizer.py").write_text(source.read_text())
    environment = {**os.environ, OWN_RECOGNIZERS: "own_recognizer:MovingAverage"}

    def run(*arguments):
        call = [sys.executable, "-m", "surgicalmamba", *arguments]
        return subprocess.run(
            call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    said = run(
        "train", "recognizer=moving-average", f"data.path={toy_dataset}", "epochs=1", "run=run", "device=cpu"
    )
    assert said.returncode == 0, said.stderr
    said = run("predict", "run", "--data", str(toy_dataset), "--split", "val", "--out", "predictions")
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "predictions" / "v.csv").is_file()
