"""`study benchmark`: jobs of one recipe, run as real processes, gathered into one table."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from surgicalmamba.config import load_config
from surgicalmamba.errors import ConfigError, StudyError
from surgicalmamba.eval.protocols import PROTOCOLS
from surgicalmamba.report.sections import circumstances, refresh_page
from surgicalmamba.train.config import TrainConfig
from surgicalmamba_lab.studies import runs as runner
from surgicalmamba_lab.studies.results import comparisons, gather, markdown, write_results
from surgicalmamba_lab.studies.runs import benchmark_jobs, run_jobs


def command(recipe_file, toy, out, *more):
    call = [
        sys.executable,
        "-m",
        "surgicalmamba",
        "study",
        "benchmark",
        "--config",
        str(recipe_file),
        "--data",
        str(toy.folder),
    ]
    return [*call, "--out", str(out), *more]


def until_nobody_works_in(folder, seconds=20):
    """Wait until no process holds a file below the folder open."""
    deadline = time.monotonic() + seconds
    while any(_is_open_below(folder, process) for process in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline, f"a process still works in {folder}"
        time.sleep(0.05)


def _is_open_below(folder, process):
    try:
        return any(Path(os.readlink(handle)).is_relative_to(folder) for handle in (process / "fd").iterdir())
    except OSError:  # it has ended meanwhile
        return False


@pytest.mark.parametrize(
    ("torch_threads", "workers", "threads"), [(8, 2, 4), (2, 2, 1), (1, 1, 1), (1, 4, 1)]
)
def test_jobs_share_the_threads_that_torch_may_use_so_that_omp_num_threads_counts(
    torch_threads, workers, threads, recipe, toy, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch, "get_num_threads", lambda: torch_threads)
    given = []

    def start(_job, _out, n_threads):
        given.append(n_threads)
        raise StudyError("seen enough")

    monkeypatch.setattr(runner, "_start", start)
    with pytest.raises(StudyError, match="seen enough"):
        run_jobs(benchmark_jobs(recipe, toy, 1, ["full"], "usual"), tmp_path, workers)
    assert given == [threads]


def test_a_job_for_every_variant_seed_and_split_scored_where_the_model_was_not_trained(recipe, toy):
    jobs = benchmark_jobs(recipe, toy, 2, ["full", "without-z"], "out-*")
    assert [job.name for job in jobs[:4]] == [
        "full-seed0-out-a",
        "full-seed0-out-b",
        "full-seed1-out-a",
        "full-seed1-out-b",
    ]
    assert len(jobs) == 8 and {job.group for job in jobs} == {"full", "without-z"}
    assert {job.role for job in jobs} == {"test"}  # no validation videos: nothing was chosen by them
    (usual,) = benchmark_jobs(recipe, toy, 1, ["full"], "usual")
    assert usual.role == "val"


def test_a_pattern_that_matches_no_split_is_refused(recipe, toy):
    with pytest.raises(ConfigError, match=r"no split of .* matches 'louo-.'; it has usual, out-a, out-b"):
        benchmark_jobs(recipe, toy, 1, ["full"], "louo-?")


def test_killed_in_the_middle_the_same_call_ends_with_every_protocol_over_all_folds(
    recipe_file, toy, tmp_path
):
    out, page = tmp_path / "study", tmp_path / "results.md"
    page.write_text("# Results\n\nkept\n")
    call = command(
        recipe_file,
        toy,
        out,
        "--seeds",
        "1",
        "--splits",
        "out-*",
        "--workers",
        "1",
        "--docs",
        str(page),
        "--quick",
    )
    first = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (out / "runs" / "full-seed0-out-a" / "predictions" / "run.json").is_file():
        assert first.poll() is None, (out / "runs" / "full-seed0-out-a.log").read_text()
        time.sleep(0.05)
    first.kill()  # the study alone: what it started has to end by itself
    first.wait()
    until_nobody_works_in(out)
    done = (out / "runs" / "full-seed0-out-a" / "best" / "model.safetensors").stat().st_mtime_ns

    said = subprocess.run([*call, "--json"], capture_output=True, text=True, check=True)
    results = json.loads(said.stdout)
    assert (
        out / "runs" / "full-seed0-out-a" / "best" / "model.safetensors"
    ).stat().st_mtime_ns == done  # not trained again
    row = results["rows"]["full"]
    assert load_config(TrainConfig, out / "runs" / "full-seed0-out-b.yaml").epochs == 1
    assert row["videos"] == 3 and row["folds"] == ["out-a", "out-b"] and row["seeds"] == [0]
    assert set(row["protocols"]) | set(row["skipped"]) == set(PROTOCOLS)
    by_video = row["protocols"]["strict"]["per_video"]
    mean_of_a = (by_video["a"]["accuracy"] + by_video["f"]["accuracy"]) / 2
    assert row["strict_accuracy_by_fold"] == pytest.approx(
        {"out-a": mean_of_a, "out-b": by_video["b"]["accuracy"]}
    )
    text = page.read_text()
    assert (
        "kept" in text
        and "study benchmark" in text
        and f"| full | {row['protocols']['strict']['accuracy']['mean']:.2f}" in text
    )


def test_seeds_are_runs_of_one_row_and_rows_are_compared_video_by_video(recipe, toy, tmp_path):
    jobs = benchmark_jobs(recipe, toy, 2, ["full", "without-z"], "usual")
    run_jobs(jobs, tmp_path, workers=2)
    rows = gather(jobs, tmp_path, toy)
    assert [row.name for row in rows] == ["full", "without-z"]
    assert rows[0].report.scores["strict"].settings["runs"] == 2 and rows[0].report.videos == ("v", "w")
    assert rows[0].parameters > rows[1].parameters
    assert all(seconds > 0 for seconds in rows[0].seconds)
    difference = comparisons(rows)["without-z"]["accuracy"]
    first, second = (row.report.scores["strict"].metrics["accuracy"]["mean"] for row in rows)
    assert difference.difference == pytest.approx(first - second)
    assert difference.seeds == (2, 2) and difference.videos == 2
    table = markdown("Toy", rows, circumstances("a command"))
    assert (
        f"| without-z | {difference.difference:+.2f} ({difference.low:+.2f} to {difference.high:+.2f}) |"
        in table
    )
    assert (
        "| fewer than three seeds: no verdict |" in table and "the interval is over seeds and videos" in table
    )
    assert " p |" not in table  # Wilcoxon's test ignores the seeds
    written = json.loads(write_results(tmp_path, "benchmark", toy, rows, {}).read_text())["rows"]["full"][
        "strict_by_seed_and_video"
    ]
    assert written["videos"] == ["v", "w"]
    for metric in ("accuracy", "jaccard"):
        assert np.mean(written[metric], axis=0) == pytest.approx(
            rows[0].report.scores["strict"].by_video[metric]
        )
        assert np.shape(written[metric]) == (2, 2)


def test_a_job_that_fails_stops_the_study_and_names_its_log(recipe_file, toy, tmp_path):
    settings = load_config(TrainConfig, recipe_file, ["device=nowhere"])
    jobs = benchmark_jobs(settings, toy, 1, ["full"], "usual")
    with pytest.raises(StudyError, match=r"job full-seed0 ended with code 1: .*nowhere.*full-seed0\.log"):
        run_jobs(jobs, tmp_path, workers=1)


def test_a_section_of_the_results_page_is_replaced_and_the_rest_is_kept(tmp_path):
    page = tmp_path / "results.md"
    refresh_page(page, "one", "first\n")
    refresh_page(page, "two", "second\n")
    refresh_page(page, "one", "new\n")
    one, two = "<!-- study one -->\nnew\n<!-- end one -->\n", "<!-- study two -->\nsecond\n<!-- end two -->\n"
    assert page.read_text() == f"# Results\n\n{one}\n{two}"
