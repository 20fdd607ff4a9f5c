"""`surgicalmamba export` and `bench stream` as a user meets them: exit codes, one-line errors, files."""

import json

import pytest
from typer.testing import CliRunner

from engines.conftest import live_model
from surgicalmamba.cli.main import app
from surgicalmamba.errors import CheckpointError, InputError

runner = CliRunner()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """One export through the command, of a model small enough to trace quickly."""
    place = tmp_path_factory.mktemp("command")
    model = live_model(backbone=None, d_feature=10)
    model = type(model)(model.config.variant("vanilla-mamba2")).eval()
    model.save(place / "run" / "best", provenance={"dataset": "made up", "seed": 7})
    result = runner.invoke(
        app, ["export", str(place / "run"), "--to", "onnx", "--out", str(place / "out"), "--json"]
    )
    assert result.exit_code == 0, result.output
    return place, json.loads(result.stdout)


def test_the_best_model_of_a_run_is_exported_with_its_provenance(written):
    place, report = written
    assert report["holds"] and report["engine"] == "onnx" and report["features"] is None
    card = (place / "out" / "README.md").read_text(encoding="utf-8")
    assert "- dataset: made up" in card and "- seed: 7" in card and "feature vectors of width 10" in card
    assert sorted(file.name for file in (place / "out").glob("*.onnx")) == [
        "step.onnx"
    ]  # no backbone, and nothing rotates


def test_a_folder_that_is_taken_is_refused_and_left_as_it_is(written):
    place, _ = written
    before = sorted((file.name, file.stat().st_mtime_ns) for file in (place / "out").iterdir())
    result = runner.invoke(app, ["export", str(place / "run"), "--out", str(place / "out")])
    assert isinstance(result.exception, InputError) and "not empty" in str(result.exception)
    assert sorted((file.name, file.stat().st_mtime_ns) for file in (place / "out").iterdir()) == before


def test_misuse_exits_2(tmp_path):
    assert (
        runner.invoke(app, ["export", "somewhere", "--to", "tflite", "--out", str(tmp_path / "x")]).exit_code
        == 2
    )
    assert (
        runner.invoke(
            app, ["export", "somewhere", "--int8-step", "dynamic", "--out", str(tmp_path / "x")]
        ).exit_code
        == 2
    )
    assert runner.invoke(app, ["bench", "stream", "--checkpoint", "somewhere"]).exit_code == 2
    assert runner.invoke(app, ["bench", "stream", "--long", "--plot", "x.png"]).exit_code == 2


def test_a_checkpoint_that_is_none_is_an_expected_error(tmp_path):
    result = runner.invoke(app, ["export", str(tmp_path), "--out", str(tmp_path / "x")])
    assert isinstance(result.exception, CheckpointError)


def test_bench_stream_prints_json_for_one_engine(tmp_path):
    arguments = [
        "bench",
        "stream",
        "--preset",
        "tiny",
        "--engines",
        "eager",
        "--quick",
        "--threads",
        "1",
        "--json",
    ]
    result = runner.invoke(app, arguments)
    report = json.loads(result.stdout)
    assert (
        report["runs"] == 3
        and report["engines"][0]["engine"] == "eager"
        and report["engines"][0]["boundary"]["p99_ms"] > 0
    )
