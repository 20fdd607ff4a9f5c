"""`surgicalmamba study peers`: SurgicalMamba beside the published online recognizers."""

from pathlib import Path
from typing import Annotated

import typer

from surgicalmamba.cli.inspect import Docs, Title
from surgicalmamba_lab.cli.study_run import (
    AsJson,
    Folds,
    Overrides,
    Seeds,
    Splits,
    TrainFolds,
    Workers,
    listed,
    recipe_on,
    refuse_both,
    run_with_bar,
)


def peers(
    data: Annotated[Path, typer.Option(help="A prepared dataset, of features unless you have a cluster.")],
    out: Annotated[Path, typer.Option(help="Folder of the study; the same call goes on in it, more seeds or peers are added to it.")],
    config: Annotated[Path, typer.Option(help="The recipe of every network: a file of configs/.")],
    overrides: Overrides = None,
    seeds: Seeds = 3,
    peers: Annotated[str | None, typer.Option(help="Only these, comma-separated, such as surgicalmamba,tecno; all without it.")] = None,
    splits: Splits = None,
    folds: Folds = None,
    train_folds: TrainFolds = None,
    learning_rates: Annotated[
        str | None, typer.Option(help="Rates tried for every network; each gets its best on validation videos. 'none': the recipe's.")
    ] = None,
    published_sizes: Annotated[bool, typer.Option("--published-sizes", help="Also measure a live frame at published sizes.")] = False,
    workers: Workers = None,
    docs: Docs = None,
    title: Title = None,
    quick: Annotated[bool, typer.Option("--quick", help="One epoch a run, no sweep: shows that everything works, not how well.")] = False,
    json: AsJson = False,
) -> None:
    """Train every network on the same features, split and seeds with the same learning-rate sweep; score them and measure their cost.

    Example: surgicalmamba study peers --config configs/study-tools.yaml --data prepared/cholec80-tools --out study/peers-tools
    """
    refuse_both(folds, splits, train_folds)

    from surgicalmamba.report.sections import circumstances
    from surgicalmamba_lab.studies.ablation import AblationPlan
    from surgicalmamba_lab.studies.peers import RATES, run_peers
    from surgicalmamba_lab.studies.peers_report import summary, write_peers

    none = learning_rates == "none" or (quick and learning_rates is None)
    rates = () if none else tuple(listed(learning_rates, float, "--learning-rates") or RATES)
    decided = {"optim.lr": "--learning-rates ('none' takes the recipe's)"} if rates else {}
    recipe, dataset = recipe_on(config, data, overrides, quick, decided)
    plan = AblationPlan(recipe, tuple(listed(peers, str, "--peers")), seeds, splits, folds, rates, 1, train_folds)
    study = run_peers(plan, dataset, out, lambda jobs, what: run_with_bar(jobs, out, workers, what), published_sizes)
    file = write_peers(study, out, circumstances(), docs, title)
    typer.echo(file.read_text(encoding="utf-8") if json else f"{summary(study, study.scores.rows)}\nevery protocol: {file}")
