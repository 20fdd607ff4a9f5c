"""`surgicalmamba study ablation`: the model without one part at a time."""

from pathlib import Path
from typing import Annotated

import typer

from surgicalmamba.cli.inspect import Docs, Title
from surgicalmamba_lab.cli.study_run import (
    AsJson,
    Data,
    Folds,
    Overrides,
    Quick,
    Recipe,
    Seeds,
    Splits,
    TrainFolds,
    Workers,
    listed,
    recipe_on,
    refuse_both,
    run_with_bar,
)


def ablation(
    config: Recipe,
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder of the study; the same call goes on in it, more seeds or rows are added to it.")],
    overrides: Overrides = None,
    seeds: Seeds = 5,
    splits: Splits = None,
    folds: Folds = None,
    train_folds: TrainFolds = None,
    rows: Annotated[
        str | None, typer.Option(help="Only these rows, comma-separated; the first of the table is the one compared to.")
    ] = None,
    learning_rates: Annotated[
        str | None, typer.Option(help="Rates to try for every row, such as 5e-4,1e-3,2e-3; each row gets the best on validation videos.")
    ] = None,
    rate_seeds: Annotated[int, typer.Option(min=1, help="Seeds by which a rate is chosen.")] = 1,
    workers: Workers = None,
    docs: Docs = None,
    title: Title = None,
    quick: Quick = False,
    json: AsJson = False,
) -> None:
    """Train the full model, two controls and the model without each part; compare them video by video.

    Example: surgicalmamba study ablation --config configs/study-tools.yaml --data prepared/cholec80-tools --out study/ablation-tools
    """
    refuse_both(folds, splits, train_folds)
    rates = listed(learning_rates, float, "--learning-rates")

    from surgicalmamba.report.sections import circumstances
    from surgicalmamba_lab.studies.ablation import ROWS, AblationPlan, run_ablation
    from surgicalmamba_lab.studies.ablation_report import summary, write_ablation

    recipe, dataset = recipe_on(config, data, overrides, quick, {"optim.lr": "--learning-rates"} if rates else {})
    wanted = listed(rows, str, "--rows") or list(ROWS)
    plan = AblationPlan(recipe, tuple(wanted), seeds, splits, folds, tuple(rates), rate_seeds, train_folds)
    study = run_ablation(plan, dataset, out, lambda jobs, what: run_with_bar(jobs, out, workers, what))
    file = write_ablation(study, out, circumstances(), docs, title)
    typer.echo(file.read_text(encoding="utf-8") if json else f"{summary(study)}\nevery protocol: {file}")
