"""`surgicalmamba study inspect`: a video seen from inside a model."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer


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
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print results.json instead of a summary.")] = False,
) -> None:
    """Show a video as a model sees it: phases beside the annotation, rotation planes, carried state, intensity and effective decay.

    Example: surgicalmamba study inspect runs/tiny --data prepared --video video01 --with without-z=runs/without-z --out inspect-video01
    """
    others: dict[str, str] = {}
    for given in compare or []:
        name, equals, place = given.partition("=")
        if not (name.strip() and equals and place):
            raise typer.BadParameter(f"--with {given!r}: write NAME=CHECKPOINT or NAME=PREDICTIONS.")
        if name in others or name in ("annotated", "this model"):
            raise typer.BadParameter(f"--with {given!r}: the name {name!r} is taken.")
        others[name] = place

    import shlex
    import sys

    from surgicalmamba.studies.inspect_page import summary_text, write_inspection
    from surgicalmamba.studies.inspection import inspect_video
    from surgicalmamba.studies.results import circumstances

    found = inspect_video(checkpoint, data, video, others, block, device)
    results = write_inspection(found, out, circumstances("surgicalmamba " + shlex.join(sys.argv[1:])))
    typer.echo(json_module.dumps(results, indent=1) if json else summary_text(results, out))
