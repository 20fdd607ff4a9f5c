"""`surgicalmamba train`: a prepared dataset to a trained recognizer."""

import json as json_module
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from surgicalmamba.train.run import Result, Watcher


def train(
    overrides: Annotated[list[str] | None, typer.Argument(help="key.sub=value, such as data.path=prepared epochs=20.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings; configs/ has one per dataset.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    settings: Annotated[bool, typer.Option("--settings", help="Print every setting with its default as a table, and exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of text.")] = False,
) -> None:
    """Train a recognizer. Stop it at any moment, even by kill -9; --resume goes on and ends with the same weights.

    Example: surgicalmamba train recognizer.preset=tiny data.path=synthetic-prepared epochs=5 run=runs/first
    """
    from surgicalmamba.config import load_config
    from surgicalmamba.train.config import TrainConfig

    if settings:
        from surgicalmamba.train.config import markdown_table, setting_rows

        typer.echo(markdown_table(setting_rows(TrainConfig())))
        return

    from surgicalmamba.train.distributed import leave_process
    from surgicalmamba.train.run import open_dataset, refuse_unused
    from surgicalmamba.train.run import resume as resume_run
    from surgicalmamba.train.run import train as train_run

    if resume is not None and (config is not None or overrides):
        raise typer.BadParameter("--resume takes its settings from the run; give no config and no overrides.")
    with _watcher() as watcher:
        if resume is not None:
            result = resume_run(resume, watcher)
        else:
            given = overrides or []
            chosen = TrainConfig(**TrainConfig.overridden({}, given)) if config is None else load_config(TrainConfig, config, given)
            refuse_unused(given, *open_dataset(chosen))
            result = train_run(chosen, watcher=watcher)
    _report(result, json)
    leave_process()


def _report(result: "Result", json: bool) -> None:
    if json:
        typer.echo(json_module.dumps({**vars(result), "run": str(result.run)}, indent=2))
        return
    scores = "  ".join(f"{name} {value:.2f}" for name, value in result.best.items())
    if not result.best:
        typer.echo("the split has no validation videos: best is the last epoch, and nothing was scored")
    else:
        metric = {"jaccard": "Jaccard"}.get(result.select_by, result.select_by)
        typer.echo(f"best epoch {result.best_epoch + 1} by {result.protocol} {metric} on the validation videos: {scores}")
    typer.echo(f"model: {result.run / 'best'}   log: {result.run / 'log.jsonl'}")


@contextmanager
def _watcher() -> "Iterator[Watcher]":
    """A bar with time left on stderr, gone at the end, and a line per epoch."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from surgicalmamba.train.run import Watcher

    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True
    )

    class Terminal(Watcher):
        def begin(self, epochs: int, updates: int, done: int) -> None:
            progress.start()
            self.task = progress.add_task("training", total=updates, completed=done)
            self.epochs = epochs

        def update(self, epoch: int, losses: dict[str, float]) -> None:
            progress.update(self.task, advance=1, description=f"epoch {epoch + 1}/{self.epochs}  loss {losses['loss']:.3f}")

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
