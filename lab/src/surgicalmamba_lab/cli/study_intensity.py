"""`surgicalmamba study intensity`: what could an intensity network know of boundaries?"""

import json as json_module
from typing import Annotated

import typer

from surgicalmamba.cli.inspect import Docs, Title
from surgicalmamba_lab.cli.study_run import Data, Seeds, bar_over, listed


def intensity(
    data: Data,
    rise: Annotated[float, typer.Option(help="sigma_L of the bursts, seconds (loss.rise_s).")] = 2.0,
    fall: Annotated[float, typer.Option(help="sigma_R of the bursts, seconds (loss.fall_s).")] = 12.0,
    memory: Annotated[str, typer.Option(help="Running means to try, in frames (intensity.memory).")] = "8,32,128",
    folds: Annotated[int, typer.Option(min=2, help="Every video is scored by a classifier that has not seen it.")] = 5,
    seeds: Seeds = 3,
    docs: Docs = None,
    title: Title = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a table.")] = False,
) -> None:
    """Bound what the intensity can learn: classifiers of boundaries on what its network sees, on that with memory, on longer windows.

    Example: surgicalmamba study intensity --data prepared/cholec80-tools
    """
    from dataclasses import asdict

    from surgicalmamba.data.store import PreparedDataset
    from surgicalmamba.report.sections import circumstances, provenance_line, refresh_page, slug
    from surgicalmamba.report.tables import align
    from surgicalmamba_lab.studies.intensity import boundary_bounds, bounds_table, usual_views

    views = usual_views(4, listed(memory, int, "--memory"))
    dataset = PreparedDataset.open(data)
    with bar_over(len(views) * folds * seeds, "classifiers") as progress:
        bounds = boundary_bounds(dataset, views, rise, fall, folds, seeds, lambda done: progress(done, 0))
    table = bounds_table(bounds)
    about = circumstances()
    if docs is not None:
        title = title or f"What an intensity could know, {dataset.name}"
        rows = ["| " + " | ".join(row) + " |" for row in table]
        lines = [f"## {title}", "", f"{provenance_line(about)} Seeds {', '.join(map(str, range(seeds)))}; {folds} folds, "]
        lines[-1] += f"{len(dataset.videos)} videos."
        lines += ["", f"```\n{about['command']}\n```", "", rows[0], "|---" * len(table[0]) + "|", *rows[1:], ""]
        lines.append("Classifiers on raw features; mean ± deviation over seeds. Measures as in the `inside` lines of a training log.")
        refresh_page(docs, slug(title), "\n".join(lines) + "\n")
    found = {bound.view: [asdict(measures) for measures in bound.by_seed] for bound in bounds}
    typer.echo(json_module.dumps({"study": "intensity", **about, "views": found}, indent=1) if json else "\n".join(align(table)))
