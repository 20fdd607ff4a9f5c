"""`surgicalmamba train`: train a recognizer on a prepared dataset."""

import json as json_module
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

if TYPE_CHECKING:
    from surgicalmamba.train.run import Result, Watcher


def train(
    overrides: Annotated[
        list[str] | None, Argument(help="key.sub=value, such as data.path=prepared epochs=20.")
    ] = None,
    config: Annotated[
        Path | None, Option(help="A YAML file of settings; configs/ has one per dataset.")
    ] = None,
    resume: Annotated[Path | None, Option(help="Resume the run in this folder.")] = None,
    settings: Annotated[
        bool, Option("--settings", help="Print every setting with its default as a table, and exit.")
    ] = False,
    json: Annotated[bool, Option("--json", help="Print a JSON object instead of text.")] = False,
) -> None:
    """Train a recognizer. A run may be stopped at any moment, even by kill -9; --resume continues it and
    gives the same weights.

    Example: surgicalmamba train recognizer.preset=tiny data.path=synthetic-prepared epochs=5 run=runs/first
    """
    from surgicalmamba.config import load_config
    from surgicalmamba.train.config import TrainConfig

    if settings:
        typer.echo(settings_table())
        return

    from surgicalmamba.train.distributed import leave_process
    from surgicalmamba.train.run import open_dataset, refuse_unused
    from surgicalmamba.train.run import resume as resume_run
    from surgicalmamba.train.run import train as train_run

    if resume is not None and (config is not None or overrides):
        raise typer.BadParameter("--resume uses the settings of the run; give no --config and no overrides.")
    with _watcher() as watcher:
        if resume is not None:
            result = resume_run(resume, watcher)
        else:
            changes = overrides or []
            if config is None:
                chosen = TrainConfig(**TrainConfig.overridden({}, changes))
            else:
                chosen = load_config(TrainConfig, config, changes)
            refuse_unused(changes, *open_dataset(chosen))
            result = train_run(chosen, watcher=watcher)
    _report(result, json)
    leave_process()


def _report(result: "Result", json: bool) -> None:
    if json:
        typer.echo(json_module.dumps({**vars(result), "run": str(result.run)}, indent=2))
        return
    scores = "  ".join(f"{name} {value:.2f}" for name, value in result.best.items())
    if not result.best:
        typer.echo("the split has no validation videos: best is the last epoch, without scores")
    else:
        metric = {"jaccard": "Jaccard"}.get(result.select_by, result.select_by)
        selection = f"{result.protocol} {metric} on the validation videos"
        typer.echo(f"best epoch {result.best_epoch + 1} by {selection}: {scores}")
    typer.echo(f"model: {result.run / 'best'}   log: {result.run / 'log.jsonl'}")


@contextmanager
def _watcher() -> "Iterator[Watcher]":
    """A progress bar on stderr with the time left, removed at the end, and a line per epoch."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from surgicalmamba.train.run import Watcher

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True)

    class Terminal(Watcher):
        def begin(self, epochs: int, updates: int, done: int) -> None:
            progress.start()
            self.task = progress.add_task("training", total=updates, completed=done)
            self.epochs = epochs

        def update(self, epoch: int, losses: dict[str, float]) -> None:
            description = f"epoch {epoch + 1}/{self.epochs}  loss {losses['loss']:.3f}"
            progress.update(self.task, advance=1, description=description)

        def epoch(self, epoch: int, text: str) -> None:
            console.print(f"epoch {epoch + 1}/{self.epochs}  {text}", soft_wrap=True)

        def inside(self, epoch: int, text: str) -> None:
            console.print(f"  inside {epoch + 1}/{self.epochs}  {text}", soft_wrap=True)

        def note(self, text: str) -> None:
            console.print(f"note: {text}", soft_wrap=True)

    try:
        yield Terminal()
    finally:
        if progress.live.is_started:
            progress.stop()


def settings_table() -> str:
    """Every setting with its default, as a Markdown table."""
    from surgicalmamba.report.tables import markdown_table
    from surgicalmamba.train.config import TrainConfig, setting_rows

    rows = [[f"`{row.name}`", row.default, row.description] for row in setting_rows(TrainConfig())]
    return "\n".join(markdown_table([["Setting", "Default", "What it is"], *rows]))
