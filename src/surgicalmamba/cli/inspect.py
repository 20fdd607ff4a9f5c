"""`surgicalmamba inspect`: the internal values of a model over one video."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

Docs = Annotated[
    Path | None, Option(metavar="FILE", help="Also update the generated section of this results page.")
]
Title = Annotated[str | None, Option(help="Heading of that section; needed when a page has several.")]


def inspect(
    checkpoint: Annotated[
        str, Argument(help="A run folder (its best model), a checkpoint folder, or a Hub id.")
    ],
    data: Annotated[Path, Option(help="A prepared dataset.")],
    video: Annotated[str, Option(help="Id of a video in it.")],
    out: Annotated[Path, Option(help="Folder for index.html, figures/ (PNG and SVG) and results.json.")],
    compare: Annotated[
        list[str] | None,
        Option(
            "--with",
            metavar="NAME=PLACE",
            help="Another checkpoint, run or folder of predictions to compare; repeatable.",
        ),
    ] = None,
    block: Annotated[
        int | None, Option(min=0, help="Block whose carried state is shown. Default: the last.")
    ] = None,
    draws: Annotated[
        int, Option(min=1, help="Untrained networks to compare rotation and intensity with.")
    ] = 19,
    device: Annotated[str, Option(help="auto, cpu, cuda or mps.")] = "auto",
    docs: Docs = None,
    title: Title = None,
    json: Annotated[bool, Option("--json", help="Print results.json instead of a summary.")] = False,
) -> None:
    """Show what a model computes over a video: phases beside the annotation, rotation planes, carried state,
    intensity and effective decay.

    Example: surgicalmamba inspect runs/tiny --data prepared --video video01 --out inspect-video01
    """
    others: dict[str, str] = {}
    for argument in compare or []:
        name, equals, place = argument.partition("=")
        if not (name.strip() and equals and place):
            raise typer.BadParameter(f"--with {argument!r}: write NAME=CHECKPOINT or NAME=PREDICTIONS.")
        if name in others or name in ("annotated", "this model"):
            raise typer.BadParameter(f"--with {argument!r}: the name {name!r} is taken.")
        others[name] = place

    from surgicalmamba.insight.inspection import inspect_video
    from surgicalmamba.insight.inspection_page import (
        pictures_on_page,
        section,
        summary_text,
        views_of,
        write_inspection,
    )
    from surgicalmamba.report.sections import circumstances, refresh_page, slug

    found = inspect_video(checkpoint, data, video, others, block, device, draws)
    views = views_of(found)
    results = write_inspection(found, views, out, circumstances())
    if docs is not None:
        title = title or f"{video} of {found.dataset.name} from inside"
        pictures = pictures_on_page(views, out / "figures", docs, slug(title))
        refresh_page(docs, slug(title), section(results, views, title, pictures))
    typer.echo(json_module.dumps(results, indent=1) if json else summary_text(found, views, out))
