"""`surgicalmamba evaluate`: score label files of any system under named protocols."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer
from typer import Option


def evaluate(
    labels: Annotated[Path | None, Option(help="Folder with one label file per video, or one file.")] = None,
    predictions: Annotated[
        list[Path] | None, Option(help="Folder of predictions; repeat the option for several seeds.")
    ] = None,
    phases: Annotated[
        str | None, Option(help="Dataset (cholec80, m2cai16, ...) or a YAML file with a `phases:` list.")
    ] = None,
    protocol: Annotated[
        list[str] | None, Option(help="Protocol, or all; repeatable. Default: the dataset's usual one.")
    ] = None,
    compare: Annotated[
        list[Path] | None, Option(help="Predictions of a second system; repeat it for several seeds.")
    ] = None,
    table: Annotated[
        str | None, Option(help="Print the published rows of a dataset; with --predictions also your row.")
    ] = None,
    report: Annotated[Path | None, Option(help="Write an HTML page and figures into this folder.")] = None,
    fps: Annotated[
        float | None, Option(help="Rows per second of the label files. Default: their time column, else 1.")
    ] = None,
    window: Annotated[float, Option(help="Relaxed boundary in seconds.")] = 10.0,
    rules: Annotated[str | None, Option(help="Relaxed rules: cholec80, m2cai16, neighbours.")] = None,
    tolerance: Annotated[
        int, Option(min=0, help="Rows by which two files of a video may differ in length.")
    ] = 0,
    by_row: Annotated[bool, Option("--by-row", help="Pair rows by order and ignore frame ids.")] = False,
    sample_labels: Annotated[
        bool, Option("--sample-labels", help="Labels are denser: use only the rows of predicted frames.")
    ] = False,
    common_videos: Annotated[
        bool, Option("--common-videos", help="Score only the videos that are in all folders.")
    ] = False,
    label_ids_from: Annotated[
        int | None, Option(help="Number of the first phase in label files with ids.")
    ] = None,
    prediction_ids_from: Annotated[
        int | None, Option(help="Number of the first phase in prediction files with ids.")
    ] = None,
    json: Annotated[bool, Option("--json", help="Print a JSON object instead of tables.")] = False,
) -> None:
    """Score predictions against labels, without model and GPU. Every number is printed with its protocol and
    settings.

    Example: surgicalmamba evaluate --labels labels --predictions predictions --phases cholec80 --protocol all

    Published rows: surgicalmamba evaluate --table cholec80
    """
    if (labels is None) != (not predictions):
        raise typer.BadParameter("--labels and --predictions go together.")
    if labels is None and table is None:
        raise typer.BadParameter("give --labels and --predictions, or --table for published rows.")
    if by_row and sample_labels:
        raise typer.BadParameter("--by-row ignores frame ids and --sample-labels needs them; choose one.")
    if labels is None and (compare or report or protocol):
        raise typer.BadParameter("--protocol, --compare and --report need --labels and --predictions.")

    from surgicalmamba.data.labels import load_vocabulary
    from surgicalmamba.errors import ConfigError
    from surgicalmamba.eval.protocols import resolve_protocols
    from surgicalmamba.eval.published import load_published

    try:  # an unknown name is misuse of the command line, not an error in the data
        resolve_protocols(protocol or [])
        published = load_published(table) if table is not None else None
        if phases is not None:
            load_vocabulary(phases)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    evaluation = None
    if labels is not None and predictions:
        from surgicalmamba.eval.evaluate import evaluate as run
        from surgicalmamba.eval.files import Matching

        ids_from = label_ids_from, prediction_ids_from
        evaluation = run(
            labels,
            predictions,
            phases if phases is not None else table,
            [*(published.protocols if published is not None else []), *(protocol or [])] or None,
            compare or [],
            fps=fps,
            window_s=window,
            rules=rules,
            matching=Matching(tolerance, by_row, sample_labels, common_videos, *ids_from),
        )
        for note in evaluation.notes:
            typer.echo(f"note: {note}", err=True)
    if report is not None and evaluation is not None:
        from rich.console import Console
        from rich.progress import Progress

        from surgicalmamba.report.page import write_report

        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("drawing videos", total=len(evaluation.report.videos))
            page = write_report(evaluation, report, lambda: progress.advance(task))
        typer.echo(f"report: {page}", err=True)
    if json:
        document = evaluation.as_dict() if evaluation is not None else {}
        if published is not None:
            document["table"] = published.as_dict(evaluation.report if evaluation is not None else None)
        typer.echo(json_module.dumps(document, indent=2))
        return

    from surgicalmamba.report.tables import evaluation_text, published_text

    if published is not None:
        typer.echo(published_text(published, evaluation.report if evaluation is not None else None))
    if evaluation is not None and (published is None or protocol or compare):
        typer.echo(evaluation_text(evaluation))
