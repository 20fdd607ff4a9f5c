"""`study sensitivity`: what each sweep turns, each setting trained once, figure and page."""

import json
import subprocess
import sys

import pytest

from surgicalmamba.errors import ConfigError
from surgicalmamba.model.surgical_mamba import ModelConfig
from surgicalmamba.report.sections import circumstances
from surgicalmamba.train.config import TrainConfig
from surgicalmamba_lab.studies.sensitivity import (
    KNOBS,
    draw_sensitivity,
    ranges,
    run_sensitivity,
    sweep_systems,
    write_sensitivity,
)
from toy import train_here


def test_around_the_papers_defaults_each_sweep_turns_one_thing():
    paper = TrainConfig()
    systems = sweep_systems(paper, {"rank": [], "chunk": [], "state": [], "blocks": [], "angle": []})
    assert {name: list(by_value) for name, by_value in systems.items()} == {
        "rank": [4, 8, 16, 32],
        "chunk": [16, 32, 64, 128],
        "state": [32, 64, 128, 256],
        "blocks": [1, 2, 3, 4, 5, 6],
        "angle": [0.005, 0.05, 0.3, 1.0],
    }
    assert all(
        by_value[KNOBS[name].value(paper.network)].config == paper for name, by_value in systems.items()
    )
    turned = systems["rank"][8].config.network
    assert {path.rotation.rank for path in turned.paths().values()} == {8}
    turned = systems["chunk"][32].config.network
    assert (turned.block.slow.chunk_len, turned.block.fast.chunk_len, turned.head.path.chunk_len) == (
        32,
        32,
        32,
    )
    turned = systems["chunk"][16].config.network
    assert turned.head.path.chunk_len == 32  # the head's chunk is a setting of its own
    assert {path.d_state for path in systems["state"][128].config.network.paths().values()} == {128}
    assert {path.rotation.theta_init for path in systems["angle"][0.3].config.network.paths().values()} == {
        0.3
    }
    assert systems["angle"][0.3].name == "theta0.3"
    assert systems["blocks"][3].config.network.with_(n_blocks=4) == paper.network


def test_a_value_that_contradicts_the_recipe_is_refused_by_the_name_of_its_option(recipe):
    with pytest.raises(ConfigError, match=r"--rank 16 does not fit the recipe: .*rank=16 exceeds d_state=8"):
        sweep_systems(recipe, {"rank": [16]})
    with pytest.raises(ConfigError, match=r"--chunk 64 does not fit the recipe"):
        sweep_systems(recipe, {"chunk": [64]})
    plain = TrainConfig(recognizer=dict(ModelConfig().with_paths(rotation=None)))
    with pytest.raises(ConfigError, match="no rotation to sweep"):
        sweep_systems(plain, {"rank": [4]})


@pytest.fixture(scope="module")
def study(recipe, toy, tmp_path_factory):
    out = tmp_path_factory.mktemp("sensitivity")
    trained = []
    run = lambda jobs, _what: trained.extend(train_here(jobs, out))  # noqa: E731
    result = run_sensitivity(recipe, {"rank": [1], "state": [4, 8]}, 2, "usual", None, None, toy, out, run)
    assert sorted(trained) == sorted(
        f"{name}-seed{seed}-usual" for name in ("default", "r1", "N4") for seed in (0, 1)
    )
    return result


def test_each_setting_is_trained_once_and_the_default_is_a_point_of_every_sweep(study):
    assert [row.name for row in study.rows] == ["default", "r1", "N4"]
    assert {
        name: {value: row.name for value, row in sweep.rows.items()} for name, sweep in study.sweeps.items()
    } == {
        "rank": {1: "r1", 2: "default"},
        "state": {4: "N4", 8: "default"},
    }
    assert study.sweeps["state"].rows[4].parameters < study.sweeps["state"].rows[8].parameters


def test_results_page_and_figure_tell_the_sweeps(study, tmp_path):
    page = tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    results = json.loads(
        write_sensitivity(study, tmp_path, circumstances("a command"), page, "Toy sweeps").read_text()
    )
    assert results["sweeps"]["rank"] == {"default": 2, "rows": {"1": "r1", "2": "default"}}
    default, other = (
        results["rows"][name]["protocols"]["strict"]["accuracy"]["mean"] for name in ("default", "r1")
    )
    assert ranges(study.sweeps["rank"]).startswith(
        f"r in 1, 2: strict accuracy {other - default:+.2f} to {other - default:+.2f} points"
    )
    text = page.read_text()
    assert (
        ranges(study.sweeps["state"]) in text
        and "](images/toy-sweeps.png)" in text
        and (page.parent / "images/toy-sweeps.png").is_file()
    )
    assert (tmp_path / "sensitivity.png").is_file() and (tmp_path / "sensitivity.svg").is_file()


def test_the_figure_draws_the_mean_and_a_band_of_one_deviation_over_videos(study):
    axes = draw_sensitivity(list(study.sweeps.values()), "title").axes[0]
    rows = list(study.sweeps["rank"].rows.values())
    means = [row.report.scores["strict"].metrics["accuracy"]["mean"] for row in rows]
    spreads = [row.report.scores["strict"].metrics["accuracy"]["std_videos"] for row in rows]
    (line,) = (line for line in axes.lines if line.get_label() == "strict")
    assert list(line.get_ydata()) == pytest.approx(means)
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(min(m - s for m, s in zip(means, spreads, strict=True)))
    assert band.max() == pytest.approx(max(m + s for m, s in zip(means, spreads, strict=True)))


def test_an_unknown_sweep_and_values_that_are_no_numbers_are_misuse(toy, tmp_path, recipe_file):
    call = [
        sys.executable,
        "-m",
        "surgicalmamba",
        "study",
        "sensitivity",
        "--config",
        str(recipe_file),
        "--data",
        str(toy.folder),
    ]
    for wrong, message in ((["--only", "ranks"], "is no sweep"), (["--rank", "four"], "comma-separated")):
        said = subprocess.run(
            [*call, "--out", str(tmp_path), *wrong], capture_output=True, text=True, check=False
        )
        assert said.returncode == 2 and message in said.stderr
