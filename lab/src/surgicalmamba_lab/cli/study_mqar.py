"""`surgicalmamba study mqar`: does the rotation help a small model to keep many pairs apart?"""

from pathlib import Path
from typing import Annotated

import typer

from surgicalmamba.cli.inspect import Docs, Title
from surgicalmamba_lab.cli.study_run import Seeds, Workers, bar_over, refuse_decided

QUICK = ["cells=[T64-V64-N4-d16]", "rates=[1e-2]", "min_updates=4", "max_updates=4", "batch_tokens=512", "test_examples=16"]


def mqar(
    out: Annotated[Path, typer.Option(help="Folder of the study; the same call resumes it, more cells or seeds are added to it.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, put over the preset, such as cells=[T64-V256-N4-d32] variants=[plain,content].")
    ] = None,
    preset: Annotated[str, typer.Option(help="plateau, for two cores; paper-cell, one cell of the paper; full, its protocol.")] = "plateau",
    seeds: Seeds = 5,
    workers: Workers = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps; one run at a time is best on a GPU (--workers 1).")] = "cpu",
    docs: Docs = None,
    title: Title = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few updates a run: shows that everything works, not how well.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print results.json instead of a table.")] = False,
) -> None:
    """Multi-query associative recall with and without state regramming, trained to the plateau, each at its own learning rate.

    Example: surgicalmamba study mqar --out study/mqar --quick
    """
    import os

    from surgicalmamba.devices import pick_device
    from surgicalmamba.report.sections import circumstances, refresh_page, slug
    from surgicalmamba_lab.studies.figures import figure_on_page, save_figure
    from surgicalmamba_lab.studies.mqar import final_runs, gather_recall, rate_runs, train_all, write_recall
    from surgicalmamba_lab.studies.mqar_config import preset_config
    from surgicalmamba_lab.studies.mqar_report import draw_recall, recall_section, recall_text

    pick_device(device)
    shorter = [*QUICK, "compile=false"] if quick else []
    refuse_decided(overrides or [], {text.partition("=")[0]: "--quick" for text in shorter})
    config = preset_config(preset, [*(overrides or []), *shorter])
    n_workers = workers or os.cpu_count() or 1
    trials = rate_runs(config, seeds)
    with bar_over(len(trials), "runs that choose the rates") as progress:
        train_all(trials, out, n_workers, progress, device)
    others = final_runs(config, seeds, out)
    with bar_over(len(others), "runs at the chosen rates") as progress:
        train_all(others, out, n_workers, progress, device)
    cells = gather_recall(config, seeds, out)
    about = circumstances()
    file = write_recall(out, config, cells, about)
    figure = draw_recall(cells)
    save_figure(figure, out, "mqar")
    if docs is not None:
        title = title or f"MQAR, {preset}"
        picture = figure_on_page(figure, docs, slug(title), "Accuracy of every variant and seed in each cell, with gains")
        refresh_page(docs, slug(title), recall_section(title, cells, seeds, about) + f"\n{picture}\n")
    typer.echo(file.read_text(encoding="utf-8") if json else f"{recall_text(cells)}\neverything: {file}")
