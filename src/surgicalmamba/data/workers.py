"""Run tasks in several processes that survive each other: one that dies fails its task only, and none outlives the parent.

Processes are started afresh (not forked), so codec threads and locks of the parent are not copied into them."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

from surgicalmamba.errors import SurgicalMambaError

T = TypeVar("T")
R = TypeVar("R")
Tell = Callable[[float], None]
"""Called by a task with the share of its work that is done, 0 to 1."""


@dataclass(frozen=True)
class Ended(Generic[R]):
    """How task number `task` ended: with a result or with an error text."""

    task: int
    result: R | None
    error: str | None


def run_tasks(
    work: Callable[[T, Tell], R], tasks: Sequence[T], n_workers: int, watch: Callable[[int, float], None] = lambda task, share: None
) -> Iterator[Ended[R]]:
    """Do every task, `n_workers` at a time, and hand out their ends as they come; `watch` hears how far each task is.

    With one worker, everything runs in this process; with several, `work` must be a module-level function. An error ends its own
    task only."""
    if n_workers <= 1:
        for number, task in enumerate(tasks):
            yield Ended(number, *_attempt(work, task, partial(watch, number)))
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
                    yield Ended(number, None, f"its process ended with code {process.exitcode}; the machine may be out of memory.")
                    continue
                if isinstance(message, float):
                    watch(number, message)
                else:
                    idle.append((ready, busy.pop(ready)[1]))
                    yield Ended(number, *message)
    finally:
        for connection, process in [*idle, *((c, p) for c, (_, p) in busy.items())]:
            connection.close()  # an idle worker sees the end and leaves; a busy one fails at its next word
            process.join(timeout=0.5)
            if process.is_alive():
                process.terminate()
                process.join()


def _start(context: multiprocessing.context.SpawnContext, work: Callable[[T, Tell], R]) -> tuple[Connection, BaseProcess]:
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _serve(connection: Connection, work: Callable[[T, Tell], R]) -> None:
    """A worker's life: take a task, report, repeat, until the parent closes the line or is gone."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    try:
        while True:
            task = connection.recv()
            connection.send(_attempt(work, task, connection.send))
    except (EOFError, OSError):
        return


def _attempt(work: Callable[[T, Tell], R], task: T, tell: Tell) -> tuple[R | None, str | None]:
    try:
        return work(task, tell), None
    except SurgicalMambaError as error:
        return None, str(error)
    except (BrokenPipeError, ConnectionResetError):
        raise  # the parent is gone
    except Exception as error:
        return None, f"unexpected {type(error).__name__}: {' '.join(str(error).split())}; this is a defect, please report it."
