"""`surgicalmamba study ablation`: the model without one part at a time."""

from pathlib import Path
from typing import Annotated

import typer

from surgicalmamba.cli.study_run import command_line, listed, run_with_bar


def ablation(
    config: Annotated[Path, typer.Option(help="The recipe: a file of configs/.")],
    data: Annotated[Path, typer.Option(help="A prepared dataset.")],
    out: Annotated[Path, typer.Option(help="Folder of the study; the same call goes on in it, more seeds or rows are added to it.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key.sub=value, put over the recipe.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ...")] = 5,
    splits: Annotated[str | None, typer.Option(help="Splits by pattern, such as 'louo-*'; the dataset's first without it.")] = None,
    folds: Annotated[int | None, typer.Option(min=2, help="Cut the first split's train and val videos into folds instead.")] = None,
    rows: Annotated[
        str | None, typer.Option(help="Only these rows, comma-separated; the first of the table is the one compared to.")
    ] = None,
    learning_rates: Annotated[
        str | None, typer.Option(help="Rates to try for every row, such as 5e-4,1e-3,2e-3; each row gets the best on validation videos.")
    ] = None,
    rate_seeds: Annotated[int, typer.Option(min=1, help="Seeds by which a rate is chosen.")] = 1,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time; one per core without it.")] = None,
    docs: Annotated[Path | None, typer.Option(metavar="FILE", help="Also refresh the section of this results page.")] = None,
    title: Annotated[str | None, typer.Option(help="Heading of that section; tells studies of one page apart.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One epoch a run: shows that everything works, not how well.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print results.json instead of a summary.")] = False,
) -> None:
    """Train the full model, two controls and the model without each part; compare them video by video.

    Example: surgicalmamba study ablation --config configs/study-tools.yaml --data prepared/cholec80-tools --out study/ablation-tools
    """
    if folds is not None and splits is not None:
        raise typer.BadParameter("--folds cuts its own splits; leave --splits out.")
    rates = listed(learning_rates, float, "--learning-rates")

    from surgicalmamba.config import load_config
    from surgicalmamba.data.store import PreparedDataset
    from surgicalmamba.studies.ablation import ROWS, AblationPlan, run_ablation
    from surgicalmamba.studies.ablation_report import write_ablation
    from surgicalmamba.studies.results import circumstances, summary_text
    from surgicalmamba.train.config import TrainConfig

    recipe = load_config(TrainConfig, config, [*(overrides or []), *(["epochs=1"] if quick else [])])
    wanted = listed(rows, str, "--rows") or list(ROWS)
    plan = AblationPlan(recipe, tuple(wanted), seeds, splits, folds, tuple(rates), rate_seeds)
    study = run_ablation(plan, PreparedDataset.open(data), out, lambda jobs, what: run_with_bar(jobs, out, workers, what))
    file = write_ablation(study, out, circumstances(command_line()), docs, title)
    typer.echo(file.read_text(encoding="utf-8") if json else f"{summary_text(study.rows)}\nevery protocol: {file}")
