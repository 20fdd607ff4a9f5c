"""What the studies' commands share: jobs with a bar over them, and the numbers and lists of their options."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from surgicalmamba.studies.runner import Job

T = TypeVar("T")


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

    from surgicalmamba.studies.runner import run_jobs

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


def command_line() -> str:
    """The command as it was given."""
    import shlex
    import sys

    return "surgicalmamba " + shlex.join(sys.argv[1:])
