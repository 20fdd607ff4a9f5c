"""`surgicalmamba study mqar`: does the rotation help a small model to keep many pairs apart?"""

from pathlib import Path
from typing import Annotated

import typer

from surgicalmamba.cli.study_run import Docs, Seeds, Title, Workers, bar_over, command_line


def mqar(
    out: Annotated[Path, typer.Option(help="Folder of the study; the same call goes on in it, more cells or seeds are added to it.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, put over the preset, such as lengths=[256] widths=[64] cycles=1.")
    ] = None,
    preset: Annotated[str, typer.Option(help="scaled, for two cores; or full, the paper's protocol.")] = "scaled",
    seeds: Seeds = 3,
    workers: Workers = None,
    docs: Docs = None,
    title: Title = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few updates a run: shows that everything works, not how well.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print results.json instead of a table.")] = False,
) -> None:
    """Multi-query associative recall with and without state regramming, each at its own learning rate.

    Example: surgicalmamba study mqar --out study/mqar --quick
    """
    import os

    from surgicalmamba.studies.figures import figure_on_page, save_figure
    from surgicalmamba.studies.mqar import gather_recall, recall_runs, train_all, write_recall
    from surgicalmamba.studies.mqar_config import preset_config
    from surgicalmamba.studies.mqar_report import draw_recall, recall_section, recall_text
    from surgicalmamba.studies.results import circumstances, refresh_page, slug

    config = preset_config(
        preset, [*(overrides or []), *(["cycles=1", "examples=64", "batch_tokens=1024", "test_examples=16"] if quick else [])]
    )
    runs = recall_runs(config, seeds)
    with bar_over(len(runs), "runs") as progress:
        train_all(runs, out, workers or os.cpu_count() or 1, progress)
    pairs = gather_recall(config, seeds, out)
    about = circumstances(command_line())
    file = write_recall(out, config, pairs, about)
    figure = draw_recall(pairs)
    save_figure(figure, out, "mqar")
    if docs is not None:
        title = title or f"MQAR, {preset}"
        picture = figure_on_page(figure, docs, slug(title), "Accuracy over model width, with and without rotation")
        refresh_page(docs, slug(title), recall_section(title, pairs, seeds, about) + f"\n{picture}\n")
    typer.echo(file.read_text(encoding="utf-8") if json else f"{recall_text(pairs)}\neverything: {file}")
