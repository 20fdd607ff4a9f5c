"""Run tasks in several processes: one that dies fails its own task only, and none outlives the parent.

Processes are spawned, not forked, so codec threads and locks of the parent are not copied into them. A pool
of the standard library would fail all tasks when one process is killed, for example by a lack of memory."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

from surgicalmamba.errors import SurgicalMambaError

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[float], None]
"""Called by a task with the share of its work that is done, 0 to 1."""
Work = Callable[[T, Progress], R]


@dataclass(frozen=True)
class Ended(Generic[R]):
    """How task number `task` ended: with a result or with an error text."""

    task: int
    result: R | None
    error: str | None


def run_tasks(
    work: Work[T, R],
    tasks: Sequence[T],
    n_workers: int,
    progress: Callable[[int, float], None] = lambda task, share: None,
) -> Iterator[Ended[R]]:
    """Run every task, `n_workers` at a time, and yield their ends as they come; `progress` is called with the
    task and its share.

    With one worker everything runs in this process; with several, `work` must be a module-level function."""
    if n_workers <= 1:
        for number, task in enumerate(tasks):
            yield Ended(number, *_attempt(work, task, partial(progress, number)))
        return
    context = multiprocessing.get_context("spawn")
    waiting = list(enumerate(tasks))
    busy: dict[Connection, tuple[int, BaseProcess]] = {}
    idle: list[tuple[Connection, BaseProcess]] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < n_workers:
                connection, process = idle.pop() if idle else _start(context, work)
                number, task = waiting.pop(0)
                connection.send(task)
                busy[connection] = (number, process)
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                number, process = busy[ready]
                try:
                    message: float | tuple[R | None, str | None] = ready.recv()
                except (EOFError, ConnectionResetError):
                    process.join()
                    del busy[ready]
                    died = f"its process ended with code {process.exitcode}"
                    yield Ended(number, None, f"{died}; the machine may be out of memory.")
                    continue
                if isinstance(message, float):
                    progress(number, message)
                else:
                    idle.append((ready, busy.pop(ready)[1]))
                    yield Ended(number, *message)
    finally:
        for connection, process in [*idle, *((c, p) for c, (_, p) in busy.items())]:
            connection.close()  # an idle worker reads the end and exits; a busy one fails at its next message
            process.join(timeout=0.5)
            if process.is_alive():
                process.terminate()
                process.join()


def _start(context: SpawnContext, work: Work[T, R]) -> tuple[Connection, BaseProcess]:
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _serve(connection: Connection, work: Work[T, R]) -> None:
    """The loop of a worker process, until the parent closes the connection or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    try:
        while True:
            task = connection.recv()
            connection.send(_attempt(work, task, connection.send))
    except (EOFError, OSError):
        return


def _attempt(work: Work[T, R], task: T, progress: Progress) -> tuple[R | None, str | None]:
    try:
        return work(task, progress), None
    except SurgicalMambaError as error:
        return None, str(error)
    except (BrokenPipeError, ConnectionResetError):
        raise  # the parent is gone
    except Exception as error:
        message = " ".join(str(error).split())
        return None, f"unexpected {type(error).__name__}: {message}; this is a defect, please report it."
