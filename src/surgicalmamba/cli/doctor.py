"""`surgicalmamba doctor`: what is installed, what could be, what the machine offers, and whether the model computes what it should."""

import json as json_module
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from surgicalmamba.model.self_check import Check


def doctor(
    self_check: Annotated[
        bool, typer.Option("--self-check", help="Also check that every form of the model agrees, and that it learns.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of lines.")] = False,
) -> None:
    """Show versions, devices, threads and optional parts, with what to install for what is missing.

    Example: surgicalmamba doctor --self-check
    """
    from surgicalmamba.doctor import examine

    findings = examine()
    checks = _run_checks() if self_check else []
    if json:
        found: dict[str, object] = {"findings": [vars(finding) for finding in findings]}
        if self_check:
            found["self_check"] = [{**vars(check), "passed": check.passed} for check in checks]
        typer.echo(json_module.dumps(found, indent=2))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            typer.echo(f"{finding.mark} {finding.name:<{width}}  {finding.text}")
        for check in checks:
            typer.echo(f"{'ok' if check.passed else 'FAILED':<6} {check.name}: {check.measured:.2g} (limit {check.limit:.2g})")
    if failed := [check for check in checks if not check.passed]:
        typer.echo(f"{len(failed)} of {len(checks)} checks failed; report this with the output above.", err=True)
        raise typer.Exit(1)


def _run_checks() -> "list[Check]":
    import torch
    from rich.console import Console
    from rich.progress import track

    from surgicalmamba.model.self_check import checks

    torch.set_num_threads(1)  # the tiny model gains nothing from more, and stays fast beside other work
    return [run() for run in track(checks(), description="checking", console=Console(stderr=True), transient=True)]
