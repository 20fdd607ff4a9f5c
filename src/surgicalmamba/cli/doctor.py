"""`surgicalmamba doctor`: what is installed, what is missing, and whether the model computes correctly."""

import json as json_module
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

if TYPE_CHECKING:
    from surgicalmamba.doctor import Check


def doctor(
    self_check: Annotated[
        bool, Option("--self-check", help="Also check that all forms of the model agree and that it learns.")
    ] = False,
    json: Annotated[bool, Option("--json", help="Print a JSON object instead of lines.")] = False,
) -> None:
    """Show versions, devices, threads and optional packages, and how to install the missing ones.

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
            mark = "ok" if check.passed else "FAILED"
            typer.echo(f"{mark:<6} {check.name}: {check.measured:.2g} (limit {check.limit:.2g})")
    if failed := [check for check in checks if not check.passed]:
        message = f"{len(failed)} of {len(checks)} checks failed; report this with the output above."
        typer.echo(message, err=True)
        raise typer.Exit(1)


def _run_checks() -> "list[Check]":
    import torch
    from rich.console import Console
    from rich.progress import track

    from surgicalmamba.doctor import self_checks

    torch.set_num_threads(1)  # the tiny model is not faster with more, and other programs stay fast
    console = Console(stderr=True)
    return [check() for check in track(self_checks(), "checking", console=console, transient=True)]
