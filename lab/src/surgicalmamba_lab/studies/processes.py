"""Processes for the jobs of a study: started in a moment, and ended when the study ends, however it ends."""

import multiprocessing
import os
import threading
from multiprocessing.context import ForkServerContext, SpawnContext

PRELOADED = ["surgicalmamba.train.run", "torch._dynamo"]
"""Imported once, in the process that jobs are forked from; torch's optimizers import the second."""


def job_processes() -> ForkServerContext | SpawnContext:
    """Forked from a process with torch loaded; where there is no such thing, each starts from nothing."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(PRELOADED)
    return processes


def end_with_the_study() -> None:
    """Called in a job's process: a study that was killed leaves nothing behind that goes on writing into its folder."""
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    study = multiprocessing.parent_process()
    assert study is not None
    study.join()
    os._exit(1)
