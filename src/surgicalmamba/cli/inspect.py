"""`surgicalmamba inspect`: a video seen from inside a model."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

Docs = Annotated[Path | None, typer.Option(metavar="FILE", help="Also refresh the section of this results page.")]
Title = Annotated[str | None, typer.Option(help="Heading of that section; tells studies of one page apart.")]


def inspect(
    checkpoint: Annotated[str, typer.Argument(help="A run folder (its best model), a checkpoint folder, or a Hub id.")],
    data: Annotated[Path, typer.Option(help="A prepared dataset.")],
    video: Annotated[str, typer.Option(help="Id of a video in it.")],
    out: Annotated[Path, typer.Option(help="Folder for index.html, figures/ (PNG and SVG) and results.json.")],
    compare: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME=PLACE", help="Another checkpoint, run or folder of predictions to show beside; repeatable."),
    ] = None,
    block: Annotated[int | None, typer.Option(min=0, help="Block whose carried state is shown; the last without it.")] = None,
    draws: Annotated[int, typer.Option(min=1, help="Untrained networks that the rotation and the intensity are compared with.")] = 19,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    docs: Docs = None,
    title: Title = None,
    json: Annotated[bool, typer.Option("--json", help="Print results.json instead of a summary.")] = False,
) -> None:
    """Show a video as a model sees it: phases beside the annotation, rotation planes, carried state, intensity and effective decay.

    Example: surgicalmamba inspect runs/tiny --data prepared --video video01 --with without-z=runs/without-z --out inspect-video01
    """
    others: dict[str, str] = {}
    for given in compare or []:
        name, equals, place = given.partition("=")
        if not (name.strip() and equals and place):
            raise typer.BadParameter(f"--with {given!r}: write NAME=CHECKPOINT or NAME=PREDICTIONS.")
        if name in others or name in ("annotated", "this model"):
            raise typer.BadParameter(f"--with {given!r}: the name {name!r} is taken.")
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
