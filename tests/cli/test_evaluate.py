"""`surgicalmamba evaluate` as a user meets it: real processes, stdout for results, exit codes."""

import json
import subprocess
import sys

import pytest


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "surgicalmamba", "evaluate", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for side, cut in (("labels", 20), ("predictions", 24)):
        (root / side).mkdir()
        for video in ("video41", "video42"):
            rows = [
                f"{25 * index}\t{'Preparation' if index < cut else 'CalotTriangleDissection'}"
                for index in range(40)
            ]
            (root / side / f"{video}-phase.txt").write_text(
                "Frame\tPhase\n" + "\n".join(rows) + "\n", encoding="utf-8"
            )
    return root


def test_json_has_the_documented_shape_in_percent(data):
    result = run(
        "--labels",
        data / "labels",
        "--predictions",
        data / "predictions",
        "--phases",
        "cholec80",
        "--protocol",
        "all",
        "--json",
    )
    assert result.returncode == 0
    document = json.loads(result.stdout)
    assert document["videos"] == 2
    assert document["protocols"]["strict"]["accuracy"] == {"mean": 90.0, "std_videos": 0.0, "std_runs": None}
    relaxed = document["protocols"]["relaxed-published"]
    assert relaxed["accuracy"]["mean"] == 100
    assert relaxed["settings"]["window_s"] == 10 and relaxed["settings"]["fps"] == 1
    assert relaxed["per_phase"]["Preparation"]["jaccard"]["mean"] == 100
    assert set(document["skipped"]) == {"map", "calibration"}


def test_the_usual_protocol_of_the_dataset_is_the_default(data):
    result = run("--labels", data / "labels", "--predictions", data / "predictions", "--phases", "cholec80")
    assert result.returncode == 0
    assert (
        "relaxed-published: 2 video(s), 1 run(s), 1 row/s (assumed), window 10 s, rules cholec80"
        in result.stdout
    )
    assert "strict" not in result.stdout.split("relaxed-published")[0]


def test_published_rows_need_no_predictions_and_take_ones_own(data):
    alone = run("--table", "cholec80")
    assert alone.returncode == 0
    assert "SurgicalMamba" in alone.stdout and "yours" not in alone.stdout
    own = run("--table", "cholec80", "--labels", data / "labels", "--predictions", data / "predictions")
    assert "yours, relaxed-published" in own.stdout and "yours, strict-b" in own.stdout
    document = json.loads(run("--table", "grasp", "--json").stdout)
    assert document["table"]["blocks"][0]["rows"][-1]["map"] == {"mean": 77.7, "spread": 12.4}


def test_comparison_with_a_second_system(data):
    result = run(
        "--labels",
        data / "labels",
        "--predictions",
        data / "labels",
        "--compare",
        data / "predictions",
        "--phases",
        "cholec80",
        "--protocol",
        "strict",
    )
    assert "against the other system" in result.stdout
    assert "+10.00" in result.stdout


def test_a_report_is_written_and_named_on_stderr(data, tmp_path):
    result = run(
        "--labels",
        data / "labels",
        "--predictions",
        data / "predictions",
        "--phases",
        "cholec80",
        "--report",
        tmp_path / "out",
        "--json",
    )
    assert result.returncode == 0
    assert str(tmp_path / "out" / "index.html") in result.stderr.replace("\n", "")
    assert (tmp_path / "out" / "figures" / "timeline-video41.svg").is_file()
    json.loads(result.stdout)


def test_a_yaml_file_of_phases_serves_ones_own_procedure(tmp_path):
    (tmp_path / "phases.yaml").write_text("phases: [Open, Close]\n")
    for side in ("labels", "predictions"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "a.csv").write_text("frame,phase\n0,Open\n1,close\n")
    result = run(
        "--labels",
        tmp_path / "labels",
        "--predictions",
        tmp_path / "predictions",
        "--phases",
        tmp_path / "phases.yaml",
        "--json",
    )
    assert json.loads(result.stdout)["protocols"]["strict"]["accuracy"]["mean"] == 100


def test_a_failure_is_one_line_with_file_and_row_and_exit_code_1(data, tmp_path):
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / "video41.txt").write_text("Frame\tPhase\n0\tPreperation\n")
    result = run(
        "--labels",
        data / "labels",
        "--predictions",
        tmp_path / "predictions",
        "--phases",
        "cholec80",
        "--common-videos",
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert (
        "video41.txt row 2: unknown phase 'Preperation' for cholec80; did you mean 'Preparation'?"
        in result.stderr
    )


def test_an_impossible_rate_is_a_failure_in_one_line(data):
    result = run(
        "--labels",
        data / "labels",
        "--predictions",
        data / "predictions",
        "--phases",
        "cholec80",
        "--fps",
        "0",
    )
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "fps=0.0 is not a rate" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--labels"),
        (["--labels", "x"], "go together"),
        (["--table", "cholec80", "--report", "x"], "need --labels"),
        (["--table", "nothing"], "no published rows"),
        (["--labels", "x", "--predictions", "y", "--phases", "cholec8"], "did you mean"),
        (
            ["--labels", "x", "--predictions", "y", "--phases", "cholec80", "--protocol", "relaxd"],
            "unknown protocol",
        ),
        (["--labels", "x", "--predictions", "y", "--tolerance", "-1"], "tolerance"),
    ],
)
def test_misuse_is_told_apart_from_failure_by_exit_code_2(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_real_files_give_the_numbers_of_the_matlab_script(real_data):
    result = run(
        "--labels",
        real_data("cholec80/labels"),
        "--predictions",
        real_data("cholec80/predictions"),
        "--phases",
        "cholec80",
        "--protocol",
        "relaxed-published",
        "--json",
    )
    score = json.loads(result.stdout)["protocols"]["relaxed-published"]
    expected = {"accuracy": 94.157774, "jaccard": 82.996406, "precision": 92.657608, "recall": 89.312579}
    assert {name: score[name]["mean"] for name in expected} == pytest.approx(expected, abs=1e-6)
