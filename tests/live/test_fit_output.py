"""Fitting the output stage: known temperatures are found, transitions are counts, and only what helps is
kept."""

import json
import subprocess
import sys

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

import surgicalmamba as sm
from surgicalmamba.data.manifest import FORMAT, Manifest
from surgicalmamba.data.store import PreparedDataset, SampleTable, VideoDraft, finish
from surgicalmamba.errors import DataError
from surgicalmamba.live.fit_output import (
    Video,
    fit,
    fit_from_folder,
    fit_stage,
    fit_temperature,
    learn_filter,
    measure,
    run_stage,
)
from surgicalmamba.live.output import OutputStage


def sharpened(rng, n, k, factor):
    """Log-probabilities that are too sure of themselves by a factor, and labels drawn from the true ones."""
    logits = rng.normal(size=(n, k)) * 1.5
    labels = np.array([rng.choice(k, p=np.exp(row)) for row in log_softmax(logits, axis=1)])
    return Video(log_softmax(factor * logits, axis=1), labels)


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_the_temperature_that_was_put_in_is_found(factor):
    rng = np.random.default_rng(0)
    videos = [sharpened(rng, 4000, 4, factor) for _ in range(2)]
    assert fit_temperature(videos) == pytest.approx(factor, rel=0.06)


def test_the_temperature_agrees_with_a_peers_optimiser():
    videos = [sharpened(np.random.default_rng(3), 300, 5, 2.2)]

    def loss(log_temperature):
        scaled = log_softmax(videos[0].log_p / np.exp(log_temperature), axis=1)
        return -scaled[np.arange(300), videos[0].labels].mean()

    peer = minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-6})
    assert np.log(fit_temperature(videos)) == pytest.approx(peer.x, abs=2e-3)


def test_transitions_are_counts_with_a_third_of_an_observation_in_every_cell():
    """0 0 1 1 1 | gap | 2: pairs 00, 01, 11, 11. 1 2: pair 12. Cells begin at 1/3."""
    found = learn_filter([np.array([0, 0, 1, 1, 1, -1, 2]), np.array([1, 2])], 3)
    np.testing.assert_allclose(
        found.transitions, [[4 / 9, 4 / 9, 1 / 9], [1 / 12, 7 / 12, 4 / 12], [1 / 3] * 3]
    )
    np.testing.assert_allclose(found.start, [4 / 9, 4 / 9, 1 / 9])
    np.testing.assert_allclose(found.prior, np.array([2, 4, 2]) / 9 + 1 / 27)


def procedure(rng, noise):
    """Three phases in order, and answers that are right on average but independent from frame to frame."""
    labels = np.repeat([0, 1, 2], rng.integers(30, 60, 3))
    logits = rng.normal(size=(len(labels), 3)) * noise
    logits[np.arange(len(labels)), labels] += 1.5
    return Video(log_softmax(logits, axis=1), labels)


def test_independent_mistakes_are_filtered_out_and_the_measurements_say_so():
    rng = np.random.default_rng(1)
    train = [procedure(rng, 1).labels for _ in range(6)]
    videos = [procedure(rng, 1.5) for _ in range(3)]
    stage = fit_stage(videos, train, ("a", "b", "c"), "1", 1.0)
    before, calibrated, after = (stage.measured[key] for key in ("model", "calibrated", "filtered"))
    assert stage.filter is not None and stage.filter.weight > 0.3
    assert after["accuracy"] > before["accuracy"] + 5 and after["jaccard"] > before["jaccard"] + 10
    assert after["nll"] < calibrated["nll"] <= before["nll"]


def test_the_weight_chosen_is_the_one_of_least_loss_frame_by_frame():
    rng = np.random.default_rng(7)
    videos, phase_filter = (
        [procedure(rng, 1.5) for _ in range(2)],
        learn_filter([procedure(rng, 1).labels], 3),
    )
    chosen = fit(videos, phase_filter)

    def loss(weight):
        stage = chosen.with_(filter=phase_filter.with_(weight=weight))
        given = np.concatenate(
            [run_stage(stage, v.log_p)[np.arange(len(v.labels)), v.labels] for v in videos]
        )
        return -np.log(given).mean()

    tried = np.geomspace(0.005, 1.0, 25)
    assert chosen.filter.weight == pytest.approx(min(tried, key=loss))


def test_a_filter_that_does_not_help_is_left_out():
    """Labels that jump at random: what was learned from orderly training videos is wrong for them."""
    rng = np.random.default_rng(2)
    train = [np.repeat([0, 1, 2], 500)]
    logits = rng.normal(size=(300, 3))
    labels = rng.integers(0, 3, 300)
    logits[np.arange(300), labels] += 4
    videos = [
        Video(log_softmax(logits[:150], axis=1), labels[:150]),
        Video(log_softmax(logits[150:], axis=1), labels[150:]),
    ]
    stage = fit_stage(videos, train, ("a", "b", "c"), "1", 1.0)
    assert stage.filter is None and stage.measured["filtered"]["nll"] >= stage.measured["calibrated"]["nll"]


def test_measurements_by_hand():
    """Two frames: right with 0.8, wrong with 0.6 (truth got 0.4). Calibration:
    |1 - 0.8| / 2 + |0 - 0.6| / 2 = 0.4."""
    video = Video(np.log([[0.8, 0.2], [0.6, 0.4]]), np.array([0, 1]))
    found = measure([np.exp(video.log_p)], [video], 1.0)
    assert found["accuracy"] == pytest.approx(50) and found["nll"] == pytest.approx(
        -(np.log(0.8) + np.log(0.4)) / 2
    )
    assert found["ece"] == pytest.approx(40)


def test_scores_come_from_videos_the_fit_has_not_seen():
    rng = np.random.default_rng(5)
    videos = [sharpened(rng, 400, 3, 1.0), sharpened(rng, 400, 3, 4.0)]
    stage = fit_stage(videos, [np.array([0, 1, 2])], ("a", "b", "c"), "1", 1.0)
    swapped = [run_stage(fit([videos[1 - i]], None), videos[i].log_p) for i in range(2)]
    assert stage.measured["calibrated"] == measure(swapped, videos, 1.0)


@pytest.fixture
def folder(tmp_path, feature_model):
    """Five vector videos prepared, and the model saved."""
    rng, entries = np.random.default_rng(0), {}
    for number, name in enumerate("abcde"):
        labels = np.repeat([0, 1, 2], 8 + number)
        draft = VideoDraft(tmp_path / "data", name, "features")
        draft.set_features(rng.standard_normal((len(labels), 5)).astype(np.float32))
        rows = np.arange(len(labels))
        entries[name] = draft.commit(
            SampleTable(rows, rows.astype(float), labels), {"sources": {}, "settings_sha256": "0"}
        )
    fields = {"format": FORMAT, "name": "toy", "kind": "features", "fps": "1", "source": "", "settings": {}}
    fields["phases"] = ["setup", "work", "close"]
    splits = {"own": {"train": ["a", "b"], "val": ["c", "d"], "test": ["e"]}}
    finish(tmp_path / "data", Manifest(**fields, splits=splits, videos=entries))
    feature_model.save(tmp_path / "model")
    return tmp_path


def test_the_command_fits_measures_and_saves_a_stage_that_a_session_takes(folder, feature_model, vectors):
    command = [
        sys.executable,
        "-m",
        "surgicalmamba",
        "predict",
        "model",
        "--data",
        "data",
        "--split",
        "val",
        "--out",
        "p",
    ]
    result = subprocess.run(
        [*command, "--fit-output", "stage.json", "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    stage = OutputStage.load(folder / "stage.json")
    assert json.loads(result.stdout)["output_stage"] == stage.model_dump(mode="json")
    assert stage.fitted_on["videos"] == ["c", "d"] and stage.fitted_on["scored"] == "leave one video out"
    assert set(stage.measured) == {"model", "calibrated", "filtered"}
    assert sm.Session(feature_model, output_stage=stage).push_features(vectors(1)[0]) is not None
    dataset = PreparedDataset.open(folder / "data")
    for split in ("test", "own:train"):
        with pytest.raises(DataError, match="fitted on validation videos"):
            fit_from_folder(dataset, split, folder / "p")
