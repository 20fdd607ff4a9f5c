"""What the studies' commands share: options, jobs with a bar over them, and the numbers and lists of options."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from surgicalmamba.data.store import PreparedDataset
    from surgicalmamba.train.config import TrainConfig
    from surgicalmamba_lab.studies.runner import Job

T = TypeVar("T")

Recipe = Annotated[Path, typer.Option(help="The recipe: a file of configs/.")]
Data = Annotated[Path, typer.Option(help="A prepared dataset.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key.sub=value, put over the recipe.")]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ...")]
Splits = Annotated[str | None, typer.Option(help="Splits by pattern, such as 'louo-*'; the dataset's first without it.")]
Folds = Annotated[int | None, typer.Option(min=2, help="Cut the first split's train and val videos into folds instead.")]
TrainFolds = Annotated[int | None, typer.Option(min=1, help="With --folds: train on so many of the other folds only.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Runs at a time; one per core without it.")]
Quick = Annotated[bool, typer.Option("--quick", help="One epoch a run: shows that everything works, not how well.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print results.json instead of a summary.")]


def refuse_both(folds: int | None, splits: str | None, train_folds: int | None = None) -> None:
    """Folds are splits of their own."""
    if train_folds is not None and folds is None:
        raise typer.BadParameter("--train-folds goes with --folds.")
    if folds is not None and splits is not None:
        raise typer.BadParameter("--folds cuts its own splits; leave --splits out.")


def recipe_on(
    config: Path, data: Path, overrides: Sequence[str] | None, quick: bool, decided: Mapping[str, str]
) -> "tuple[TrainConfig, PreparedDataset]":
    """The recipe of a study with its overrides, and the dataset. An override that would not be used is refused: what options of the
    study decide (`decided`, setting to option), and what the dataset or the network leaves no choice of."""
    from surgicalmamba.config import load_config
    from surgicalmamba.data.store import PreparedDataset
    from surgicalmamba.train.config import TrainConfig
    from surgicalmamba.train.run import refuse_unused

    given = list(overrides or [])
    refuse_decided(given, {"seed": "--seeds", "data.path": "--data", "data.split": "--splits", "run": "--out", **decided})
    refuse_decided(given, {"epochs": "--quick"} if quick else {})
    recipe, dataset = load_config(TrainConfig, config, [*given, *(["epochs=1"] if quick else [])]), PreparedDataset.open(data)
    refuse_unused(given, recipe, dataset)
    return recipe, dataset


def refuse_decided(overrides: Sequence[str], decided: Mapping[str, str]) -> None:
    """An override of what an option decides is misuse: only one of the two could be honoured."""
    from surgicalmamba.train.run import given_names, is_below

    for name in given_names(overrides):
        for setting, option in decided.items():
            if is_below(name, setting):
                raise typer.BadParameter(f"{name} would not be used: {option} decides it. Leave the override out.")


@contextmanager
def bar_over(total: int, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr while the block runs; the function it gives takes how many are done, and of how many."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(what, total=total)
        yield lambda done, _of: progress.update(bar, completed=done)


def run_with_bar(jobs: "list[Job]", out: Path, workers: int | None, what: str = "runs") -> None:
    """All jobs, one per core unless told otherwise, with a bar over them."""
    import os

    from surgicalmamba_lab.studies.runner import run_jobs

    with bar_over(len(jobs), what) as progress:
        progress(sum(job.is_done(out) for job in jobs), len(jobs))
        run_jobs(jobs, out, workers or os.cpu_count() or 1, lambda _job, done, total: progress(done, total))


def listed(text: str | None, kind: Callable[[str], T], option: str) -> list[T]:
    """The values of a comma-separated option, without repeats; what cannot be read is misuse."""
    try:
        values = [kind(part.strip()) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter(f"{option} {text!r} is no comma-separated list of such values.") from None
    return list(dict.fromkeys(values))
