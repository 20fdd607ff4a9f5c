"""`surgicalmamba demo`: the main job, for somebody with no data."""

import typer


def demo() -> None:
    """Check that the model on this machine computes the same function in every form, and that it learns.

    No trained demo model ships with this version yet, so this runs a self-check of the model instead.

    Example: surgicalmamba demo
    """
    import torch
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from surgicalmamba.selfcheck import checks

    torch.set_num_threads(1)  # the tiny model gains nothing from more, and stays fast beside other work
    console = Console(stderr=True)
    console.print("No trained demo model ships with this version yet: running a self-check of the model on random features.")
    results = [run() for run in track(checks(), description="Checking", console=console)]
    table = Table(title="SurgicalMamba self-check (tiny preset, CPU)")
    for column, justify in (("property", "left"), ("measured", "right"), ("limit", "right"), ("", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for check in results:
        verdict = "[green]pass[/green]" if check.passed else "[red]FAIL[/red]"
        table.add_row(check.name, f"{check.measured:.2g}", f"{check.limit:.2g}", verdict)
    Console().print(table)
    failed = [check for check in results if not check.passed]
    if failed:
        typer.echo(f"{len(failed)} of {len(results)} checks failed; report this with the output of 'surgicalmamba doctor'.", err=True)
        raise typer.Exit(1)
    typer.echo(f"{len(results)} of {len(results)} checks passed. Next: surgicalmamba bench model --preset tiny")
