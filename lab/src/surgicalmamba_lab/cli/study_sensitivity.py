"""`surgicalmamba study sensitivity`: one setting at a time, the others as in the recipe."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surgicalmamba.cli.inspect import Docs, Title
from surgicalmamba_lab.cli.study_run import (
    AsJson,
    Data,
    Folds,
    Overrides,
    Quick,
    Seeds,
    Splits,
    TrainFolds,
    Workers,
    listed,
    recipe_on,
    refuse_both,
    run_with_bar,
)

if TYPE_CHECKING:
    from surgicalmamba_lab.studies.runner import Job


def sensitivity(
    config: Annotated[Path, typer.Option(help="The recipe, whose values are the defaults: a file of configs/.")],
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder of the study; the same call goes on in it, more seeds or values are added to it.")],
    overrides: Overrides = None,
    rank: Annotated[str | None, typer.Option(help="Values of the rotation rank r, comma-separated.")] = None,
    chunk: Annotated[str | None, typer.Option(help="Values of the chunk length in frames.")] = None,
    state: Annotated[str | None, typer.Option(help="Values of the state width N.")] = None,
    blocks: Annotated[str | None, typer.Option(help="Values of the number of blocks K.")] = None,
    angle: Annotated[str | None, typer.Option(help="Values of the rotation's mean angle at the start, in radians.")] = None,
    only: Annotated[str | None, typer.Option(help="Only these sweeps, such as rank,angle; without it all but angle.")] = None,
    seeds: Seeds = 3,
    splits: Splits = None,
    folds: Folds = None,
    train_folds: TrainFolds = None,
    workers: Workers = None,
    docs: Docs = None,
    title: Title = None,
    quick: Quick = False,
    json: AsJson = False,
) -> None:
    """Sweep rotation rank, chunk, state width and number of blocks, each with the other three as in the recipe.

    Example: surgicalmamba study sensitivity --config configs/study-tools.yaml --data prepared/cholec80-tools --out study/sensitivity-tools
    """
    refuse_both(folds, splits, train_folds)
    given = {"rank": rank, "chunk": chunk, "state": state, "blocks": blocks, "angle": angle}

    from surgicalmamba.report.sections import circumstances
    from surgicalmamba_lab.studies.results import summary_text
    from surgicalmamba_lab.studies.sensitivity import KNOBS, PAPER, run_sensitivity
    from surgicalmamba_lab.studies.sensitivity_report import write_sensitivity

    wanted = listed(only, str, "--only") or [name for name in given if name in PAPER or given[name] is not None]
    unknown = [name for name in wanted if name not in given]
    if unknown:
        raise typer.BadParameter(f"--only {unknown[0]!r} is no sweep; sweeps: {', '.join(given)}.")
    values = {name: listed(given[name], KNOBS[name].kind, f"--{name}") for name in KNOBS if name in wanted}
    recipe, dataset = recipe_on(config, data, overrides, quick, {})

    def run(jobs: "list[Job]", what: str) -> None:
        run_with_bar(jobs, out, workers, what)

    study = run_sensitivity(recipe, values, seeds, splits, folds, train_folds, dataset, out, run)
    file = write_sensitivity(study, out, circumstances(), docs, title)
    typer.echo(file.read_text(encoding="utf-8") if json else f"{summary_text(study.rows)}\nevery protocol: {file}")
