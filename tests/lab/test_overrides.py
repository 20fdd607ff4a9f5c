"""Every study trains what its overrides set, and refuses those it would not use before anything runs."""

import pytest
import yaml
from typer.testing import CliRunner

from surgicalmamba.cli.main import app
from surgicalmamba.config import load_config
from surgicalmamba.errors import ConfigError
from surgicalmamba.train.config import TrainConfig
from surgicalmamba_lab.studies.ablation import ablation_systems
from surgicalmamba_lab.studies.peers import peer_systems
from surgicalmamba_lab.studies.runs import benchmark_jobs, benchmark_systems
from surgicalmamba_lab.studies.sensitivity import sweep_systems


@pytest.fixture
def call(toy, recipe_file, tmp_path):
    """call("ablation", "seed=3") -> what the command answers; nothing may have been trained."""

    def run(study, *more):
        out = tmp_path / "study"
        said = CliRunner().invoke(
            app,
            [
                "study",
                study,
                "--config",
                str(recipe_file),
                "--data",
                str(toy.folder),
                "--out",
                str(out),
                *more,
            ],
        )
        assert said.exit_code != 0 and not (out / "runs").exists()
        return said

    return run


STUDIES = ("benchmark", "ablation", "sensitivity", "peers")
DECIDED = {
    "seed=3": "--seeds",
    "data.path=elsewhere": "--data",
    "data.split=usual": "--splits",
    "run=here": "--out",
}


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("given", DECIDED)
def test_what_an_option_of_every_study_decides_is_misuse(call, study, given):
    said = call(study, given)
    words = " ".join(said.output.replace("│", " ").split())
    assert (
        said.exit_code == 2
        and f"{given.partition('=')[0]} would not be used: {DECIDED[given]} decides it" in words
    )


@pytest.mark.parametrize(
    ("study", "arguments", "option"),
    [
        *((study, ("epochs=9", "--quick"), "--quick") for study in STUDIES),
        ("benchmark", ("variant=without-z", "--variants", "full,z-only"), "--variants"),
        ("ablation", ("optim.lr=1e-3", "--learning-rates", "1e-2,1e-3"), "--learning-rates"),
        ("peers", ("optim.lr=1e-3",), "--learning-rates"),
        ("peers", ("optim={lr: 1e-3}", "--learning-rates", "1e-2"), "--learning-rates"),
    ],
)
def test_what_an_option_given_decides_is_misuse(call, study, arguments, option):
    said = call(study, *arguments)
    assert (
        said.exit_code == 2 and "would not be used" in " ".join(said.output.split()) and option in said.output
    )


@pytest.mark.parametrize("study", STUDIES)
def test_what_the_dataset_decides_is_refused(call, study):
    said = call(study, "model.n_phases=9")
    assert isinstance(said.exception, ConfigError) and "recognizer.n_phases=9 would not be used" in str(
        said.exception
    )


NOT_TAKEN = {
    (
        "ablation",
        "variant=without-z",
    ): "variant=without-z would not be used: the rows of an ablation are variants",
    (
        "ablation",
        "recognizer=lstm",
    ): "study ablation changes parts of SurgicalMamba, and the recipe trains lstm",
    ("ablation", "loss.smooth_weight=0"): "rows full and without-smooth would be the same",
    ("ablation", "model.block.fast=null"): "rows z-only and without-lambda would be the same",
    (
        "sensitivity",
        "recognizer=lstm",
    ): "study sensitivity changes parts of SurgicalMamba, and the recipe trains lstm",
    ("sensitivity", "variant=without-z"): "the recipe has no rotation to sweep",
    (
        "peers",
        "variant=without-z",
    ): "variant=without-z would not be used: a comparison trains every network as it is",
    (
        "peers",
        "recognizer=lstm",
    ): "recognizer=lstm would not be used: a comparison trains every network as it is",
    ("benchmark", "variant=without-y"): "unknown variant 'without-y'",
}


@pytest.mark.parametrize(("study", "given"), NOT_TAKEN)
def test_what_contradicts_the_question_of_a_study_is_refused(call, study, given):
    said = call(study, given)
    assert isinstance(said.exception, ConfigError), said.output
    assert NOT_TAKEN[study, given] in str(said.exception) and "\n" not in str(said.exception)


def test_without_variants_a_benchmark_trains_and_names_the_recipes_own(recipe_file, toy):
    """Before, `variant=vanilla-mamba2` trained `full`, and said so nowhere."""
    recipe = load_config(TrainConfig, recipe_file, ["variant=vanilla-mamba2"])
    (job,) = benchmark_jobs(recipe, toy, 1, [], "usual")
    assert (job.name, job.group, job.config.recognizer.variant) == (
        "vanilla-mamba2-seed0",
        "vanilla-mamba2",
        "vanilla-mamba2",
    )
    plain = load_config(TrainConfig, recipe_file)
    assert [system.name for system in benchmark_systems(plain, [])] == ["full"]
    assert [system.name for system in benchmark_systems(recipe, ["full", "z-only"])] == ["full", "z-only"]


def test_a_benchmark_of_another_network_has_its_name_and_no_variants(recipe_file, toy):
    peer = load_config(TrainConfig, recipe_file, ["recognizer=lstm"])
    (job,) = benchmark_jobs(peer, toy, 1, [], "usual")
    assert (job.name, job.group) == ("lstm-seed0", "lstm")
    with pytest.raises(ConfigError, match="the recipe trains lstm, and variants are SurgicalMamba's"):
        benchmark_systems(peer, ["full"])


def test_overrides_reach_every_job(recipe_file, toy):
    given = ["device=cpu", "optim.lr=0.005", "precision=bf16", "recognizer.clip_len=64", "select_by=accuracy"]
    recipe = load_config(TrainConfig, recipe_file, given)
    systems = [*ablation_systems(recipe), *peer_systems(recipe, ["lstm", "hmm"])]
    systems += [
        system for by_value in sweep_systems(recipe, {"blocks": []}).values() for system in by_value.values()
    ]
    systems += benchmark_systems(recipe, ["full", "z-only"])
    for config in (system.config for system in systems):
        asked = (config.device, config.optim.lr, config.precision, config.network.clip_len, config.select_by)
        assert asked == ("cpu", 0.005, "bf16", 64, "accuracy")


def test_quick_recall_refuses_what_it_shortens_itself(tmp_path):
    said = CliRunner().invoke(
        app, ["study", "mqar", "--out", str(tmp_path / "out"), "--quick", "max_updates=9"]
    )
    assert said.exit_code == 2 and "max_updates would not be used: --quick decides it" in " ".join(
        said.output.replace("│", " ").split()
    )
    assert not (tmp_path / "out").exists()


def test_a_server_setting_given_twice_is_misuse(tmp_path):
    (tmp_path / "server.yaml").write_text(yaml.safe_dump({"port": 1}))
    said = CliRunner().invoke(
        app, ["serve", "--config", str(tmp_path / "server.yaml"), "--port", "0", "port=8571"]
    )
    assert said.exit_code == 2 and "port=8571 and --port set the same value" in " ".join(
        said.output.replace("│", " ").split()
    )
