"""`surgicalmamba doctor`: what is installed, what could be, and what the machine offers."""

import json as json_module
from typing import Annotated

import typer


def doctor(json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of lines.")] = False) -> None:
    """Show versions, devices, threads and optional parts, with what to install for what is missing.

    Example: surgicalmamba doctor
    """
    from surgicalmamba.doctor import examine

    findings = examine()
    if json:
        typer.echo(json_module.dumps([vars(finding) for finding in findings], indent=2))
        return
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        typer.echo(f"{finding.mark} {finding.name:<{width}}  {finding.text}")
