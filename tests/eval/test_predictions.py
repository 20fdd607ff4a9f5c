"""The prediction file: what is written is read back, and a reader never meets half a file."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from surgicalmamba.data.labels import PhaseVocabulary, load_vocabulary
from surgicalmamba.errors import DataError, InputError
from surgicalmamba.eval.files import (
    RunInfo,
    VideoPrediction,
    read_rows,
    read_run,
    write_predictions,
    write_run,
)

CHOLEC80 = load_vocabulary("cholec80")


def prediction(rows=5, seed=0, n_phases=7):
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet(np.ones(n_phases), size=rows)
    return VideoPrediction(
        25 * np.arange(rows),
        np.arange(rows) / 1.0,
        probabilities.argmax(axis=1),
        probabilities,
        generator.uniform(size=rows),
    )


def test_what_is_written_is_read_back(tmp_path):
    made = prediction(50)
    path = write_predictions(tmp_path / "out", "video41", made, CHOLEC80)
    assert path == tmp_path / "out" / "video41.csv"
    assert path.read_text().splitlines()[0] == "frame,time_s,phase,name,p_0,p_1,p_2,p_3,p_4,p_5,p_6,intensity"
    rows = read_rows(path, CHOLEC80, allow_unlabelled=False)
    np.testing.assert_array_equal(rows.frame, made.frame)
    np.testing.assert_array_equal(rows.phase, made.phase)
    np.testing.assert_array_equal(rows.time_s, made.time_s)
    np.testing.assert_allclose(rows.probabilities, made.probabilities, rtol=1e-8)


def test_without_probabilities_the_columns_are_left_out_and_a_comma_in_a_name_survives(tmp_path):
    vocabulary = PhaseVocabulary("mine", ("Cut, then clip", "Close"))
    bare = VideoPrediction(np.arange(2), np.arange(2) * 0.04, np.array([0, 1]))
    path = write_predictions(tmp_path, "v", bare, vocabulary)
    assert path.read_text() == 'frame,time_s,phase,name,intensity\n0,0,0,"Cut, then clip",\n1,0.04,1,Close,\n'
    assert read_rows(path, vocabulary).phase.tolist() == [0, 1]


def test_a_long_procedure_keeps_its_time_to_the_millisecond(tmp_path):
    hours = VideoPrediction(np.arange(2), np.array([86399.961, 86400.001]), np.array([0, 0]))
    rows = read_rows(write_predictions(tmp_path, "v", hours, CHOLEC80), CHOLEC80)
    np.testing.assert_allclose(rows.time_s, hours.time_s, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time_s": np.arange(4.0)}, "time_s of v has shape"),
        ({"probabilities": np.ones((5, 3))}, "probabilities of v has shape"),
        ({"phase": np.full(5, 7)}, "from 0 to 6"),
        ({"intensity": np.array([0, 1, np.nan, 0, 0])}, "not finite at row 2"),
    ],
)
def test_wrong_arrays_are_refused_and_nothing_is_written(tmp_path, change, message):
    made = prediction()
    broken = VideoPrediction(**{**vars(made), **change})
    with pytest.raises(InputError, match=message):
        write_predictions(tmp_path, "v", broken, CHOLEC80)
    assert list(tmp_path.iterdir()) == []


def test_a_video_name_cannot_leave_the_folder(tmp_path):
    with pytest.raises(InputError, match="cannot be a file name"):
        write_predictions(tmp_path, "../v", prediction(), CHOLEC80)


def test_run_json_round_trip(tmp_path):
    info = RunInfo(
        "cholec80",
        CHOLEC80.names,
        1.0,
        split="test",
        seed=3,
        checkpoint_sha256="ab" * 32,
        config={"clip_len": 256},
    )
    write_run(tmp_path, info)
    assert read_run(tmp_path) == info
    assert json.loads((tmp_path / "run.json").read_text())["format"] == "surgicalmamba-predictions"
    assert read_run(tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot read"),
        ("[]", "no description of predictions"),
        ('{"format": "surgicalmamba-predictions", "version": 9}', "version 9; this program reads 1"),
        ('{"format": "surgicalmamba-predictions", "version": 1, "phases": []}', "list of phase names"),
        ('{"format": "surgicalmamba-predictions", "version": 1, "phases": ["a"], "fps": 0}', "`fps` is 0"),
    ],
)
def test_a_broken_run_json_is_named(tmp_path, content, message):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(DataError, match=message):
        read_run(tmp_path)


WRITER = """
import sys, numpy as np
from pathlib import Path
from surgicalmamba.data.labels import load_vocabulary
from surgicalmamba.eval.files import VideoPrediction, write_predictions
rows = 3000
phases, probabilities = np.zeros(rows, dtype=int), np.tile([1.0] + [0.0] * 6, (rows, 1))
made = VideoPrediction(np.arange(rows), np.arange(rows) / 1.0, phases, probabilities)
print("ready", flush=True)
while True:
    write_predictions(Path(sys.argv[1]), "v", made, load_vocabulary("cholec80"))
"""


@pytest.mark.parametrize("delay_s", [0.005, 0.03, 0.11])
def test_a_writer_killed_at_any_moment_leaves_a_whole_file_or_none(tmp_path, delay_s):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(delay_s)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    if (tmp_path / "v.csv").exists():
        assert len(read_rows(tmp_path / "v.csv", CHOLEC80).frame) == 3000
    leftovers = [path.name for path in tmp_path.iterdir() if path.name != "v.csv"]
    assert all(
        name.startswith(".") for name in leftovers
    )  # what a killed writer leaves is hidden from readers
