"""`study ablation`: rows, learning rates, more of it later, interruption, and what it writes."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from surgicalmamba.config import save_config
from surgicalmamba.errors import ConfigError, StudyError
from surgicalmamba.eval.compare import compare_spread
from surgicalmamba.report.sections import circumstances
from surgicalmamba.train.run import fit_network
from surgicalmamba_lab.studies.ablation import (
    AblationPlan,
    ablation_systems,
    at_rate,
    beside_paper,
    best_rates,
    draw_ablation,
    run_ablation,
    summary,
    write_ablation,
)
from surgicalmamba_lab.studies.runs import run_jobs, system_jobs
from toy import train_here


def plan(
    recipe, rows=("full", "without-smooth"), seeds=1, splits="usual", folds=None, rates=(), rate_seeds=1
):
    return AblationPlan(recipe, tuple(rows), seeds, splits, folds, tuple(rates), rate_seeds)


def test_each_row_leaves_out_what_its_name_says(recipe, toy):
    parts = {}
    for system in ablation_systems(recipe):
        model = fit_network(system.config, toy).network
        slow = model.block.slow
        parts[system.name] = (
            model.block.fast is not None,
            slow.rotation is not None and model.head.path.rotation is not None,
            slow.intensity is not None,
            system.config.loss.smooth_weight,
        )
    usual = recipe.loss.smooth_weight
    assert usual > 0
    assert parts == {  # fast path, rotation, intensity, weight of the smoothness loss
        "full": (True, True, True, usual),
        "vanilla-mamba2": (False, False, False, usual),
        "z-only": (False, True, False, usual),
        "without-z": (True, False, True, usual),
        "without-lambda": (True, True, False, usual),
        "without-fast": (False, True, True, usual),
        "constant-z": (True, True, True, usual),
        "pairs-z": (True, True, True, usual),
        "rotary": (True, False, True, usual),
        "without-smooth": (True, True, True, 0.0),
    }


def test_the_controls_of_the_rotation_differ_in_what_turns_the_state(recipe, toy):
    fitted = {
        system.name: fit_network(system.config, toy).network
        for system in ablation_systems(recipe, ["constant-z", "pairs-z", "rotary"])
    }
    kinds = {
        name: {path.rotation and path.rotation.kind for path in model.paths().values()}
        for name, model in fitted.items()
    }
    assert kinds == {"constant-z": {"constant"}, "pairs-z": {"pairs"}, "rotary": {None}}
    assert all(path.rotary for path in fitted["rotary"].paths().values())


def test_rows_keep_the_order_of_the_table_and_unknown_ones_are_refused(recipe):
    assert [system.name for system in ablation_systems(recipe, ["without-z", "full"])] == [
        "full",
        "without-z",
    ]
    with pytest.raises(
        ConfigError, match="unknown row 'without-y' of the ablation; rows: full, vanilla-mamba2"
    ):
        ablation_systems(recipe, ["without-y"])


def test_folds_score_every_video_once_and_more_seeds_are_added_to_what_is_there(recipe, toy, tmp_path, here):
    first = run_ablation(plan(recipe, ["full"], splits=None, folds=2), toy, tmp_path, here)
    assert here.trained == ["full-seed0-fold1of2", "full-seed0-fold2of2"]
    assert sorted(first.rows[0].report.videos) == ["c", "d", "e", "f", "v", "w"] and first.rows[0].seeds == (
        0,
    )
    (more,) = run_ablation(plan(recipe, ["full"], splits=None, folds=2, seeds=2), toy, tmp_path, here).rows
    assert here.trained[2:] == ["full-seed1-fold1of2", "full-seed1-fold2of2"]
    assert more.seeds == (0, 1) and more.accuracy_by_run.shape == (2, 6)
    assert more.accuracy_by_run[0] == pytest.approx(
        first.rows[0].report.scores["strict"].by_video["accuracy"]
    )


@pytest.fixture(scope="module")
def swept(recipe, toy, tmp_path_factory):
    """Two rows, two rates chosen by the first of two seeds: the study, its folder, and its trained jobs."""
    out = tmp_path_factory.mktemp("swept")
    trained = []
    study = run_ablation(
        plan(recipe, rates=(1e-5, 1e-2), seeds=2),
        toy,
        out,
        lambda jobs, _what: trained.extend(train_here(jobs, out)),
    )
    return study, out, trained


def test_each_row_gets_the_rate_that_was_best_on_validation_and_the_sweep_is_not_repeated(swept):
    study, _, trained = swept
    assert study.rate_split == "usual"
    assert sorted(name for name in trained if name.endswith("seed0-usual")) == sorted(
        f"{row}-lr{rate}-seed0-usual" for row in ("full", "without-smooth") for rate in ("1e-05", "0.01")
    )
    assert len(trained) == 6  # four of the sweep; the second seed only at the chosen rate
    for row in study.rows:
        by_rate = study.rate_scores[row.name]
        chosen = best_rates(study.rate_scores)[row.name]
        assert by_rate[chosen] == max(by_rate.values())
        assert f"{row.name}-lr{chosen:g}-seed1-usual" in trained


def test_rates_for_folds_are_chosen_on_videos_that_the_fold_does_not_test(recipe, toy, tmp_path, here):
    study = run_ablation(plan(recipe, ["full"], splits="out-*", rates=(1e-3,)), toy, tmp_path, here)
    assert here.trained == [
        "full-lr0.001-seed0-tune-out-a",
        "full-lr0.001-seed0-out-a",
        "full-lr0.001-seed0-out-b",
    ]
    tuned = study.dataset.splits["tune-out-a"]
    assert not set(study.dataset.splits["out-a"]["test"]) & {video for ids in tuned.values() for video in ids}


def test_of_equal_rates_the_first_is_taken():
    assert best_rates({"full": {1e-3: 70.0, 2e-3: 71.0, 4e-3: 71.0}}) == {"full": 2e-3}


def test_results_hold_weights_and_rates_and_the_page_shows_them(swept, tmp_path):
    study, _, _ = swept
    page = tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    results = json.loads(
        write_ablation(study, tmp_path, circumstances("a command"), page, "Toy ablation").read_text()
    )
    rows = results["rows"]
    assert rows["full"]["parameters"] == rows["without-smooth"]["parameters"] > 0
    spread = np.mean([np.std(run, ddof=1) for run in study.rows[1].accuracy_by_run])
    assert rows["without-smooth"]["spread_over_videos"] == pytest.approx(spread)
    assert results["spread_compared_with_first"] == {}  # two videos: too few
    text = page.read_text()
    assert f"| {results['learning_rates']['chosen']['full']:g} |" in text
    for file in (tmp_path / "ablation.png", page.parent / "images" / "toy-ablation.png"):
        assert file.read_bytes().startswith(b"\x89PNG")
    assert "](images/toy-ablation.png)" in text and (tmp_path / "ablation.svg").read_text().startswith(
        "<?xml"
    )


def test_rows_stand_beside_the_papers_with_intervals_over_seeds_and_videos(recipe, toy, tmp_path, here):
    study = run_ablation(
        plan(recipe, ["full", "without-lambda"], seeds=3, splits="out-*"), toy, tmp_path, here
    )
    header, full, without = beside_paper(study)
    assert header[:5] == ["", "accuracy", "difference", "paper", "difference, paper"] and header[5::4] == [
        "jaccard",
        "deviation",
    ]
    assert full[3::4] == ["94.61", "82.73", "3.71"] and full[2::4] == full[4::4] == ["", "", ""]
    assert without[3::4] == ["93.69", "81.12", "6.05"] and without[4::4] == ["-0.92", "-1.61", "+2.34"]
    means = [row.report.scores["strict"].metrics["accuracy"]["mean"] for row in study.rows]
    assert without[2].startswith(f"{means[1] - means[0]:+.2f} (")
    spread = compare_spread(study.rows[0].accuracy_by_run, study.rows[1].accuracy_by_run)
    assert without[9:11] == [
        f"{study.rows[1].spread:.2f}",
        f"{spread.difference:+.2f} ({spread.low:+.2f} to {spread.high:+.2f})",
    ]
    assert "interval over seeds and videos" in summary(study) and without[2] in summary(study)
    labels = [axes.get_xlabel() for axes in draw_ablation(study.rows, "Toy").axes]
    assert (
        "(95 % interval over seeds and videos)" in labels[0]
        and "of the difference, over seeds and videos)" in labels[-1]
    )
    results = json.loads(
        write_ablation(study, tmp_path, circumstances("a command"), tmp_path / "page.md", "Toy").read_text()
    )
    assert results["spread_compared_with_first"]["without-lambda"]["seeds"] == [3, 3]
    assert results["paper"]["blocks"][1]["rows"][0]["jaccard"] == {"mean": 82.73, "spread": 11.5}
    assert "| " + " | ".join(without) + " |" in (tmp_path / "page.md").read_text()


def test_a_row_that_the_paper_does_not_have_stands_beside_dashes(swept):
    study, _, _ = swept
    ours = replace(study, rows=[study.rows[0], replace(study.rows[1], name="control")])
    assert beside_paper(ours)[2][3:5] == ["-", "-"]


def test_a_folder_begun_with_another_recipe_is_not_gone_on_with(recipe, toy, tmp_path):
    systems = ablation_systems(recipe, ["full"])
    (job,) = system_jobs(systems, toy, [0], ["usual"], name_splits=True)
    (tmp_path / "runs").mkdir()
    save_config(job.config.with_(run="elsewhere"), job.settings(tmp_path))
    job.predictions(tmp_path).mkdir(parents=True)
    (job.predictions(tmp_path) / "run.json").write_text("{}")
    run_jobs([job], tmp_path, workers=1)  # the same recipe, and nothing left to do
    changed = system_jobs(
        [type(s)(s.name, s.config.with_(epochs=9)) for s in systems], toy, [0], ["usual"], name_splits=True
    )
    with pytest.raises(
        StudyError, match=r"job full-seed0-usual in .* was begun with epochs=1, not 9; give another --out"
    ):
        run_jobs(changed, tmp_path, workers=1)


def test_a_rate_at_which_training_diverges_is_a_trial_that_scores_nothing_but_no_row_of_the_table(
    recipe, toy, tmp_path
):
    def processes(jobs, _what):
        run_jobs(jobs, tmp_path, workers=2)

    plan = AblationPlan(recipe, ("full",), 1, "usual", None, (1e30, 3e-3), 1)
    study = run_ablation(plan, toy, tmp_path, processes)
    assert study.rate_scores["full"][1e30] == 0 < study.rate_scores["full"][3e-3]
    assert "NaN or infinity" in (tmp_path / "runs" / "full-lr1e+30-seed0-usual" / "diverged.txt").read_text()
    (job,) = system_jobs(
        [at_rate(*ablation_systems(recipe, ["full"]), 1e30)], toy, [0], ["usual"], name_splits=True
    )
    with pytest.raises(
        StudyError, match=r"job full-lr1e\+30-seed0-usual ended with code 1: .*NaN or infinity"
    ):
        run_jobs([job], tmp_path, workers=1)


def test_folds_and_splits_together_are_misuse(toy, tmp_path, recipe_file):
    call = [
        sys.executable,
        "-m",
        "surgicalmamba",
        "study",
        "ablation",
        "--config",
        str(recipe_file),
        "--data",
        str(toy.folder),
    ]
    said = subprocess.run(
        [*call, "--out", str(tmp_path), "--folds", "2", "--splits", "out-*"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2 and "--folds cuts its own splits" in said.stderr
