"""What `check` sees in a source folder and in a prepared dataset."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from surgicalmamba.data.check import check, guess_dataset, stretches
from surgicalmamba.data.prepare import Request, prepare
from surgicalmamba.errors import ConfigError


@pytest.fixture(scope="module")
def clips(tmp_path_factory, numbered):
    source = tmp_path_factory.mktemp("own")
    (source / "phases.yaml").write_text("phases: [Alpha, Beta, Gamma]\n")
    for i in range(2):
        numbered.write(source / f"op{i}.mp4", 250 + i, gop=25)
        (source / f"op{i}.csv").write_text("start,end,phase\n1,4,Alpha\n5,8,Beta\n")
    return source


@pytest.fixture
def source(clips, tmp_path):
    shutil.copytree(clips, tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def prepared(source, tmp_path):
    prepare(Request("custom", source, tmp_path / "out"))
    return tmp_path / "out"


def errors(report):
    return [problem.message for problem in report.problems if problem.level == "error"]


def test_a_source_folder_is_described_video_by_video(source):
    report = check(source)
    assert (report.dataset, report.state, report.has_errors) == ("custom", "source", False)
    row = report.videos[1]
    assert (row.id, row.frames, row.fps, row.samples, row.labelled, row.mismatch) == (
        "op1",
        251,
        25.0,
        11,
        6,
        0,
    )
    assert row.absent_phases == ["Gamma"] and row.unlabelled_s == [(0, 0), (4, 4), (8, 10)]


def test_a_prepared_dataset_is_described_in_the_same_words(prepared, source):
    report = check(prepared, source=source)
    assert (report.dataset, report.state, report.problems) == ("custom", "prepared", [])
    row = report.videos[1]
    assert (row.frames, row.samples, row.labelled, row.absent_phases) == (251, 11, 6, ["Gamma"])
    assert row.unlabelled_s == [(0, 0), (4, 4), (8, 10)]


def test_the_same_recording_under_two_names_is_an_error_in_both(source, tmp_path):
    shutil.copy(source / "op0.mp4", source / "copy.mp4")
    shutil.copy(source / "op0.csv", source / "copy.csv")
    assert errors(check(source)) == ["op0 and copy are the same recording; remove one."]
    prepare(Request("custom", source, tmp_path / "out"))
    assert errors(check(tmp_path / "out")) == ["op0 and copy are the same recording; remove one."]


def test_a_video_in_two_roles_is_an_error(source):
    (source / "phases.yaml").write_text(
        "phases: [Alpha, Beta, Gamma]\nsplits: {train: [op0, op1], test: [op1]}\n"
    )
    assert "split 'own' has 'op1' in train and in test" in errors(check(source))[0]


def test_a_split_overlap_in_a_manifest_is_an_error_unless_it_was_published_so(prepared):
    path = prepared / "dataset.json"
    manifest = json.loads(path.read_text())
    manifest["splits"]["own"] = {"train": ["op0", "op1"], "val": ["op1"]}
    path.write_text(json.dumps(manifest))
    assert errors(check(prepared)) == ["split own: op1 is in train and in val."]
    manifest["overlaps"] = {"own": "val is inside train, as published"}
    path.write_text(json.dumps(manifest))
    assert not check(prepared).has_errors


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda out: (out / "videos/op0/frames/00000003.jpg").unlink(), "00000003.jpg: cannot be read"),
        (
            lambda out: (out / "videos/op0/frames/00000003.jpg").write_bytes(b"x"),
            "an image has changed since it was prepared",
        ),
        (
            lambda out: (out / "videos/op0/frames/00000099.jpg").write_bytes(b"x"),
            "more files than the 10 of dataset.json",
        ),
        (lambda out: (out / "videos/op0/labels.csv").unlink(), "labels.csv: cannot be read"),
        (
            lambda out: swap(out / "videos/op0/labels.csv", ",0\n", ",1\n"),
            "labels.csv has changed since it was prepared",
        ),
        (
            lambda out: swap(out / "videos/op0/video.json", '"n_samples": 10', '"n_samples": 11'),
            "does not agree with dataset.json",
        ),
        (lambda out: shutil.rmtree(out / "videos/op0"), "op0 is missing although dataset.json lists it"),
        (
            lambda out: shutil.copytree(out / "videos/op0", out / "videos/op7"),
            "op7 is not listed in dataset.json",
        ),
        (lambda out: (out / "dataset.json").write_text("{"), "Invalid JSON"),
        (lambda out: (out / "dataset.json").unlink(), "is unfinished: 2 videos and no dataset.json"),
    ],
)
def test_each_kind_of_damage_to_a_prepared_dataset_is_found(prepared, damage, message):
    damage(prepared)
    report = check(prepared)
    assert report.has_errors and any(message in text for text in errors(report)), errors(report)


def swap(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_stale_dataset_is_told_by_its_source(prepared, source):
    (source / "op0.csv").write_text("start,end,phase\n1,4,Beta\n")
    (source / "op1.mp4").unlink()
    told = errors(check(prepared, source=source))
    assert "op0.csv has changed since it was prepared" in told[0] and "op1.mp4 is gone" in told[1]


def test_the_dataset_is_found_out_by_its_files(tmp_path, source, real_data):
    assert guess_dataset(source) == "custom"
    assert guess_dataset(real_data("jigsaws")) == "jigsaws"
    assert guess_dataset(real_data("cholec80")) == "cholec80-tools"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"is no known dataset, and has no phases\.yaml"):
        guess_dataset(tmp_path / "empty")


def test_the_absent_phases_of_cholec80_are_the_known_ones(real_data):
    """Preparation is absent in nine of videos 1-40 and CleaningCoagulation in one, by the facts."""
    absent = {row.id: row.absent_phases for row in check(real_data("cholec80")).videos if row.absent_phases}
    without_preparation = {f"video{n:02d}": ["Preparation"] for n in (10, 13, 19, 22, 23, 29, 32, 33, 38)}
    assert absent == {**without_preparation, "video21": ["CleaningCoagulation"]}


@pytest.mark.parametrize(
    ("mask", "runs"), [([], []), ([1], [(0, 0)]), ([0, 1, 1, 0, 1], [(1, 2), (4, 4)]), ([0, 0], [])]
)
def test_stretches_are_maximal_runs(mask, runs):
    assert stretches(np.array(mask, bool), np.arange(len(mask)).astype(float)) == runs


def test_the_command_prints_a_table_or_json_and_exits_1_on_errors(source):
    def run(*more):
        command = [sys.executable, "-m", "surgicalmamba", "check", str(source), *more]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    good = run()
    assert good.returncode == 0 and "0 errors, 0 warnings" in good.stdout
    assert "op1       251   25       11         6       0  3 x, from 0 s  Gamma" in good.stdout
    (source / "op0.csv").write_text("start,end,phase\n0,2,Delta\n")
    bad = run("--json")
    report = json.loads(bad.stdout)
    assert bad.returncode == 1 and report["ok"] is False
    assert (
        "op0.csv:2: unknown phase 'Delta'" in report["problems"][0]["message"]
        and report["problems"][0]["video"] == "op0"
    )
