"""Files written by earlier versions still load, and give the numbers that the version which wrote them gave.

fixtures/v0.1 is described in make_fixtures.py; observed.py holds what is done with it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

import surgicalmamba as sm
from command import call
from compat import observed

FIXTURES = Path(__file__).parent / "fixtures" / "v0.1"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def old_files(tmp_path, monkeypatch):
    """A copy of the fixtures as the current directory; one thread, as when they were written."""
    place = shutil.copytree(FIXTURES, tmp_path / "v0.1")
    monkeypatch.chdir(place)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield place
    torch.set_num_threads(threads)


@pytest.fixture
def run(monkeypatch, capsys):
    """run("check", "datasets/features") -> standard output of a verb that succeeded."""

    def execute(*arguments):
        code, out, complaint = call(monkeypatch, capsys, *arguments)
        assert code == 0, complaint
        return out

    return execute


def assert_same(found, expected, where="expected"):
    """Everything that was there is there with the same value; a later version may add names to a mapping."""
    if isinstance(expected, dict):
        missing = expected.keys() - found.keys()
        assert not missing, f"{where}: {sorted(missing)} missing"
        for key, value in expected.items():
            assert_same(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for index, value in enumerate(expected):
            assert_same(found[index], value, f"{where}[{index}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE), where
    else:
        assert found == expected, where


@pytest.mark.parametrize("name", observed.CHECKPOINTS)
def test_a_checkpoint_loads_with_its_settings_and_gives_the_same_logits(name):
    assert_same(observed.outputs(Path("checkpoints") / name), EXPECTED["checkpoints"][name])


@pytest.mark.parametrize("name", observed.SNAPSHOTS)
def test_a_session_continues_from_a_snapshot_inside_a_chunk(name):
    assert_same(observed.continued_session(name), EXPECTED["sessions"][name])


def test_an_interrupted_run_resumes_to_the_same_result(run):
    assert_same(observed.resumed_run(run), EXPECTED["run"])


def test_a_resumed_run_has_its_config_in_the_present_form(run):
    old = yaml.safe_load(Path("run/config.yaml").read_text(encoding="utf-8"))
    run("train", "--resume", "run")
    new = yaml.safe_load(Path("run/config.yaml").read_text(encoding="utf-8"))
    assert new["recognizer"] == {
        "name": "surgicalmamba",
        "preset": old["preset"],
        "variant": old["variant"],
        **old["model"],
    }
    assert not {"preset", "variant", "model"} & set(new)


@pytest.mark.parametrize("name", observed.CONFIGS)
def test_a_training_config_builds_and_trains_the_same_network(run, name):
    assert_same(observed.trained(run, name), EXPECTED["configs"][name])


@pytest.mark.parametrize("name", observed.DATASETS)
def test_a_prepared_dataset_is_intact_and_is_not_prepared_again(run, name):
    found = observed.checked(run, name)
    assert found["ok"] and found["kept"] == ["a", "b", "c"] and not found["prepared"]
    assert_same(found, EXPECTED["datasets"][name])


@pytest.mark.parametrize("name", observed.DATASETS)
def test_predicting_a_prepared_dataset_gives_the_stored_predictions(run, name):
    stored = observed.prediction_rows(Path("predictions") / name)
    assert sorted(stored) == ["a", "b", "c"]
    assert_same(observed.predicted(run, name), stored)


@pytest.mark.parametrize("name", observed.DATASETS)
def test_stored_predictions_score_the_same(run, name):
    assert_same(observed.evaluated(run, name), EXPECTED["scores"][name])


def test_stream_applies_a_stored_output_stage(run):
    assert_same(observed.streamed(run), EXPECTED["stream"])


def test_a_server_shows_the_finished_session_and_continues_the_live_one():
    expected, frames = EXPECTED["server"], observed.pictures()
    with observed.start_server() as server:
        assert_same(observed.served(server, expected["finished"]), expected["record"])
        before = observed.served(server, expected["live"])
        assert_same(before["estimates"], expected["live_record"]["estimates"])

        remote = sm.Client(server.url).open(expected["live"], can_resend=True)
        assert remote.next_index == 10  # the frame after the snapshot
        for index in range(remote.next_index, len(frames)):
            remote.push(frames[index], float(index))
        remote.finish()
        after = observed.served(server, expected["live"])

    uninterrupted = {key: value for key, value in expected["record"]["estimates"].items() if key != "session"}
    assert after["session"]["life"] == "finished"
    assert_same(after["estimates"], uninterrupted)
