"""Prediction on a Ray cluster of two local workers: the files of one process, and failures that name their
video."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

import surgicalmamba as sm
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.train.predict import Worker
from surgicalmamba.train.run import fit_network


@pytest.fixture
def archive(settings, toy_dataset, tmp_path):
    """A checkpoint, and a dataset in which one video's features are damaged; `repair` mends it."""
    torch.manual_seed(0)
    sm.SurgicalMamba(fit_network(settings(), PreparedDataset.open(toy_dataset)).network).save(
        tmp_path / "model"
    )
    data = tmp_path / "archive"
    shutil.copytree(toy_dataset, data)
    file = data / "videos" / "w" / "features.npy"
    good = np.load(file)
    bad = good.copy()
    bad[7, 2] = np.nan
    np.save(file, bad)
    return tmp_path / "model", data, lambda: np.save(file, good)


def predict(*arguments):
    command = [sys.executable, "-m", "surgicalmamba", "predict", *map(str, arguments)]
    return subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )


def test_two_ray_workers_write_the_files_of_one_process_and_a_failure_names_its_video(
    archive, toy_dataset, tmp_path
):
    pytest.importorskip("ray", reason="Ray is not installed; pip install 'surgicalmamba[ray]'")
    model, data, repair = archive
    common = ("--split", "all", "--device", "cpu", "--threads", "1")
    assert predict(model, "--data", toy_dataset, "--out", tmp_path / "one", *common).returncode == 0
    out = tmp_path / "spread"
    out.mkdir()
    kept = out / "c.csv"
    shutil.copy(tmp_path / "one" / "c.csv", kept)
    stamp = kept.stat().st_mtime_ns

    failed = predict(model, "--data", data, "--out", out, *common, "--ray", "--workers", "2")
    assert failed.returncode == 1 and failed.stdout == ""
    assert "video w: features hold a NaN or infinity at lane 0, frame 7" in failed.stderr
    assert {file.name for file in out.iterdir()} == {
        f"{name}.csv" for name in "abcdefghijv"
    }  # all the others, and no run.json

    repair()
    done = predict(model, "--data", data, "--out", out, *common, "--json")
    assert done.returncode == 0 and len(json.loads(done.stdout)["videos"]) == 12
    assert kept.stat().st_mtime_ns == stamp
    for file in (tmp_path / "one").iterdir():
        assert (out / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_worker_refuses_weights_that_are_not_the_callers_and_tells_errors_as_text(archive, tmp_path):
    model, data, _ = archive
    worker = Worker(str(model), str(data), "val", str(tmp_path / "out"), "cpu", threads=1)
    assert "another checkpoint" in worker.predict("v", "0" * 64)
    assert not (tmp_path / "out").exists()
    sha256 = worker._predictor.info.checkpoint_sha256
    assert "NaN or infinity at lane 0, frame 7" in worker.predict("w", sha256)
    assert worker.predict("v", sha256) is None and (tmp_path / "out" / "v.csv").is_file()


def test_workers_without_ray_are_misuse(tmp_path):
    result = predict("model", "--data", tmp_path, "--out", tmp_path / "out", "--workers", "2")
    assert result.returncode == 2 and "--workers goes with --ray" in result.stderr
