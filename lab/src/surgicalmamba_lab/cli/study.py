"""`surgicalmamba study`: runs over seeds and variants, to tables that say how they came about."""

from pathlib import Path
from typing import Annotated

import typer

from surgicalmamba.cli.inspect import Docs, inspect
from surgicalmamba.cli.regime import regime
from surgicalmamba_lab.cli.study_ablation import ablation
from surgicalmamba_lab.cli.study_equations import equations
from surgicalmamba_lab.cli.study_intensity import intensity
from surgicalmamba_lab.cli.study_mqar import mqar
from surgicalmamba_lab.cli.study_peers import peers
from surgicalmamba_lab.cli.study_peers_overview import peers_overview
from surgicalmamba_lab.cli.study_run import AsJson, Data, Overrides, Quick, Recipe, Seeds, Splits, Workers, listed, recipe_on, run_with_bar
from surgicalmamba_lab.cli.study_sensitivity import sensitivity

study = typer.Typer(no_args_is_help=True, help="Train and score over seeds, splits and variants; interrupted, the same call goes on.")


@study.callback()
def options() -> None:
    """Studies by name."""


@study.command()
def benchmark(
    config: Recipe,
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder for runs, predictions and results.json; the same call goes on in it.")],
    overrides: Overrides = None,
    seeds: Seeds = 3,
    variants: Annotated[
        str | None, typer.Option(help="Rows of the table, comma-separated: full, vanilla-mamba2, without-z, ...; the recipe's without it.")
    ] = None,
    splits: Splits = None,
    workers: Workers = None,
    docs: Docs = None,
    quick: Quick = False,
    json: AsJson = False,
) -> None:
    """Train a recipe with several seeds and score it with every protocol.

    Example: surgicalmamba study benchmark --config configs/cholec80-tools.yaml --data prepared/cholec80-tools --out study/tools
    """
    from surgicalmamba.report.sections import circumstances, refresh_page
    from surgicalmamba_lab.studies.benchmark import benchmark_jobs
    from surgicalmamba_lab.studies.results import gather, markdown, summary_text, write_results

    recipe, dataset = recipe_on(config, data, overrides, quick, {"variant": "--variants"} if variants else {})
    jobs = benchmark_jobs(recipe, dataset, seeds, listed(variants, str, "--variants"), splits)
    run_with_bar(jobs, out, workers)
    rows = gather(jobs, out, dataset)
    about = circumstances()
    file = write_results(out, "benchmark", dataset, rows, about)
    if docs is not None:
        refresh_page(docs, f"benchmark {dataset.name}", markdown(f"{dataset.name}", rows, about))
    typer.echo(file.read_text(encoding="utf-8") if json else f"{summary_text(rows)}\nevery protocol: {file}")


study.command()(regime)
study.command()(equations)
study.command()(inspect)
study.command()(ablation)
study.command()(mqar)
study.command()(intensity)
study.command()(peers)
study.command()(peers_overview)
study.command()(sensitivity)
