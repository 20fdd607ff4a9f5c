"""`surgicalmamba bench WHAT`: measurements, one per subcommand. Each prints a table, or JSON with --json."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

bench = typer.Typer(no_args_is_help=True, help="Measure speed and size on this machine: medians, 95th percentiles, ratios in one run.")


@bench.command("evaluate")
def bench_evaluate(
    rows: Annotated[list[int] | None, typer.Option(help="Sizes to grow through; repeatable. Default: 100 000, 1 and 10 million.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 3,
    labels: Annotated[Path | None, typer.Option(help="Cholec80 labels to time the command on, instead of made-up ones.")] = None,
    predictions: Annotated[Path | None, typer.Option(help="Predictions that belong to --labels.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a table.")] = False,
) -> None:
    """Time scoring: the whole command over a test set of 39 videos, and reading and scoring up to 10 million rows.

    Example: surgicalmamba bench evaluate --rows 100000 --rows 1000000
    """
    if (labels is None) != (predictions is None):
        raise typer.BadParameter("--labels and --predictions go together.")

    from surgicalmamba.bench.evaluate import measure

    result = measure(rows or [100_000, 1_000_000, 10_000_000], runs, labels, predictions)
    typer.echo(json_module.dumps(result.as_dict(), indent=2) if json else "\n".join(result.lines()))
