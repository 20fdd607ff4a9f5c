"""`surgicalmamba study peers-overview`: finished comparisons of peers on several datasets, in one table and figure."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from surgicalmamba.cli.inspect import Docs, Title


def peers_overview(
    studies: Annotated[
        list[str], typer.Argument(help="Finished folders of `study peers`, or NAME=FOLDER; a later one counts for its networks.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the figure (PNG and SVG).")] = None,
    docs: Docs = None,
    title: Title = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a table.")] = False,
) -> None:
    """Put comparisons on several datasets side by side: score on each, mean rank, and what a live frame costs. Trains nothing.

    Example: surgicalmamba study peers-overview study/peers-tools synthetic=study/peers-synthetic --out study/overview
    """
    from surgicalmamba.report.sections import circumstances
    from surgicalmamba_lab.studies.peers_overview import read_overview, text, write_overview

    overview = read_overview(studies)
    write_overview(overview, out, circumstances(), docs, title)
    typer.echo(json_module.dumps(overview.as_dict(), indent=1) if json else text(overview))
