"""Prediction files: the same numbers as frame by frame, kept when they are there, refused when they cannot
be right."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import surgicalmamba as sm
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.train.predict import predict_video, videos_of
from surgicalmamba.train.run import fit_network


@pytest.fixture
def checkpoint(settings, toy_dataset, tmp_path):
    torch.manual_seed(0)
    model = sm.SurgicalMamba(fit_network(settings(), PreparedDataset.open(toy_dataset)).network)
    model.save(tmp_path / "model")
    return tmp_path / "model"


def run(*arguments):
    command = [sys.executable, "-m", "surgicalmamba", "predict", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_video_is_predicted_as_it_would_be_live(checkpoint, toy_dataset):
    model, video = sm.load(checkpoint), PreparedDataset.open(toy_dataset).videos["c"]
    prediction = predict_video(model, video, torch.device("cpu"))
    state, live = None, []
    with torch.no_grad():
        for row in video.features:
            output = model.forward_features(torch.from_numpy(row.copy())[None, None], state)
            state = output.state
            live.append(torch.softmax(output.logits[0, 0], -1).numpy())
    np.testing.assert_allclose(prediction.probabilities, np.array(live), atol=1e-5)
    assert prediction.phase.tolist() == np.array(live).argmax(-1).tolist()


def test_the_command_writes_scorable_files_and_keeps_those_that_are_there(checkpoint, toy_dataset, tmp_path):
    out = tmp_path / "predictions"
    result = run(checkpoint, "--data", toy_dataset, "--split", "val", "--out", out)
    assert result.returncode == 0, result.stderr
    assert {file.name for file in out.iterdir()} == {"v.csv", "w.csv", "run.json"}
    assert len(json.loads((out / "run.json").read_text())["checkpoint_sha256"]) == 64
    (out / "w.csv").unlink()
    stamp = (out / "v.csv").stat().st_mtime_ns
    assert run(checkpoint, "--data", toy_dataset, "--split", "paper:val", "--out", out).returncode == 0
    assert (out / "v.csv").stat().st_mtime_ns == stamp and (out / "w.csv").is_file()


def test_a_split_is_a_role_a_named_role_or_everything(toy_dataset):
    dataset = PreparedDataset.open(toy_dataset)
    assert [video.id for video in videos_of(dataset, "val")] == ["v", "w"]
    assert [video.id for video in videos_of(dataset, "overlap:train")] == ["a", "v"]
    assert len(videos_of(dataset, "all")) == 12


def test_a_model_of_other_phases_is_refused_in_one_line(toy_dataset, tmp_path):
    config = sm.ModelConfig.preset("tiny", backbone=None, d_feature=5, n_phases=2, phases=("p", "q"))
    sm.SurgicalMamba(config).save(tmp_path / "other")
    result = run(tmp_path / "other", "--data", toy_dataset, "--split", "val", "--out", tmp_path / "out")
    assert (
        result.returncode == 1
        and "was trained for phases p, q" in result.stderr
        and not (tmp_path / "out").exists()
    )


def test_features_of_another_width_are_refused_in_one_line(toy_dataset, tmp_path):
    config = sm.ModelConfig.preset("tiny", backbone=None, d_feature=9, n_phases=3)
    sm.SurgicalMamba(config).save(tmp_path / "wide")
    result = run(tmp_path / "wide", "--data", toy_dataset, "--split", "val", "--out", tmp_path / "out")
    assert result.returncode == 1 and "features of width 5" in result.stderr
