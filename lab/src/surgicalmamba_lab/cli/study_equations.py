"""`surgicalmamba study equations`: the paper's identities, computed."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer


def equations(
    docs: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page here, its pictures into images/ beside it.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of lines.")] = False,
) -> None:
    """Check the appendix's identities with the package's own functions, and build the page that shows them.

    Example: surgicalmamba study equations
    """
    from surgicalmamba_lab.studies.equations import sections, write_page

    parts = sections()
    if docs is not None:
        write_page(docs, parts)
    if json:
        document = {
            part.title: {
                "table": [list(part.head), *map(list, part.rows)],
                "checks": [{"claim": c.claim, "deviation": c.deviation, "identity": c.is_identity, "holds": c.holds} for c in part.checks],
            }
            for part in parts
        }
        typer.echo(json_module.dumps({"study": "equations", "sections": document}, indent=1))
    else:
        for part in parts:
            typer.echo(part.title)
            for check in part.checks:
                typer.echo(f"  {check.claim}: {check.told.replace('*', '')}")
    if not all(check.holds for part in parts for check in part.checks):
        raise typer.Exit(1)
