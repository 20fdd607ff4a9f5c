"""Jobs to trained models and prediction files: several processes at once, interrupted and gone on with at any moment.

OUT/runs/JOB/             a training run (see docs/training.md), its settings beside it as JOB.yaml, its output as JOB.log
OUT/runs/JOB/predictions  one file per scored video; a job is done when their run.json is there"""

import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from surgicalmamba.config import load_config, save_config
from surgicalmamba.errors import NonFiniteError, StudyError, SurgicalMambaError
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.run import flatten
from surgicalmamba_lab.studies.processes import end_with_the_study, job_processes

LOG_LINES_TOLD = 3
DIVERGED = "diverged.txt"
"""In the folder of a run that ended because its numbers left the range of floats; says where."""


@dataclass(frozen=True)
class Job:
    """One training run of a study and the videos it is scored on."""

    name: str
    group: str
    """Jobs of a group are one row of the table: its seeds, and its folds where a dataset is cut several ways."""
    config: TrainConfig
    role: str
    """Role of the split that is scored: val, or test where the model was not chosen by it."""
    may_diverge: bool = False
    """A trial, such as of a learning rate: if its loss stops being a number, that is its result."""

    @property
    def split(self) -> str:
        assert self.config.data.split is not None  # named by the study
        return self.config.data.split

    def run(self, out: Path) -> Path:
        return out / "runs" / self.name

    def settings(self, out: Path) -> Path:
        return out / "runs" / f"{self.name}.yaml"

    def log(self, out: Path) -> Path:
        return out / "runs" / f"{self.name}.log"

    def predictions(self, out: Path) -> Path:
        return self.run(out) / "predictions"

    def is_done(self, out: Path) -> bool:
        return (self.predictions(out) / "run.json").is_file() or (self.may_diverge and self.diverged(out))

    def diverged(self, out: Path) -> bool:
        return (self.run(out) / DIVERGED).is_file()


Progress = Callable[[Job, int, int], None]
"""Called with each finished job, the number done and the number of jobs."""


def run_jobs(jobs: Sequence[Job], out: Path, workers: int, progress: Progress | None = None) -> None:
    """Train and predict every job that is not done. After an error the jobs under way are stopped and the error is raised.

    Processes are started and waited for by one thread: the status of a forked one can be read only once."""
    import torch

    _refuse_other_settings(jobs, out)
    waiting = deque(job for job in jobs if not job.is_done(out))
    n_done = len(jobs) - len(waiting)
    threads = max(1, torch.get_num_threads() // workers)  # OMP_NUM_THREADS is respected: threads that wait for a core wait in a busy loop
    running: dict[object, tuple[Job, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.popleft()
                child = _start(job, out, threads)
                running[child.sentinel] = job, child
            for sentinel in wait([child.sentinel for _, child in running.values()]):
                job, child = running.pop(sentinel)
                child.join()
                _raise_if_failed(job, out, child.exitcode)
                n_done += 1
                if progress is not None:
                    progress(job, n_done, len(jobs))
    except BaseException:
        for _, child in running.values():
            child.terminate()
        raise


def _refuse_other_settings(jobs: Sequence[Job], out: Path) -> None:
    """A folder may get more jobs later, but a job begun with one recipe is not gone on with, nor reported, as another."""
    for job in jobs:
        if job.settings(out).is_file():
            before, now = (flatten(config.model_dump()) for config in (load_config(TrainConfig, job.settings(out)), job.config))
            places = ("run", "data.path")  # where things lie may be written in another way
            changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key) and key not in places]
            if changed:
                was, wanted = before.get(changed[0]), now.get(changed[0])
                raise StudyError(f"job {job.name} in {out} was begun with {changed[0]}={was}, not {wanted}; give another --out.")


def _start(job: Job, out: Path, threads: int) -> BaseProcess:
    """One job in a process of its own."""
    job.run(out).parent.mkdir(parents=True, exist_ok=True)
    if not _begun(job, out):
        save_config(job.config.with_(run=str(job.run(out))), job.settings(out))
    job.log(out).touch()
    child = job_processes().Process(target=_child, args=(job, out, threads))
    child.start()
    return child


def _raise_if_failed(job: Job, out: Path, code: int | None) -> None:
    if code:
        log = job.log(out)
        said = " / ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LOG_LINES_TOLD:])
        raise StudyError(f"job {job.name} ended with code {code}: {said} (whole output: {log}).")


def _child(job: Job, out: Path, threads: int) -> None:
    """The life of a job's process: output to its log, an end with that of the study, training, prediction."""
    with job.log(out).open("ab") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    end_with_the_study()
    try:
        train_and_predict(job, out, threads)
    except NonFiniteError as error:
        (job.run(out) / DIVERGED).write_text(f"{error}\n", encoding="utf-8")
        sys.exit(None if job.may_diverge else f"surgicalmamba: {error}")
    except SurgicalMambaError as error:
        sys.exit(f"surgicalmamba: {error}")
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def train_and_predict(job: Job, out: Path, threads: int | None = None) -> None:
    """What `train` or `train --resume`, and then `predict`, do."""
    import torch

    from surgicalmamba.train.predict import Predictor
    from surgicalmamba.train.run import resume, train

    if threads is not None:
        torch.set_num_threads(threads)
    run = job.run(out)
    start = time.monotonic()
    if _begun(job, out):
        resume(run)
    else:
        train(job.config.with_(run=str(run)))
    _add_seconds(run, time.monotonic() - start)
    assert job.config.data.path is not None
    scored = f"{job.split}:{job.role}"
    predictor = Predictor.open(str(run), Path(job.config.data.path), scored, job.predictions(out), job.config.device)
    for video in predictor.videos:
        predictor.predict(video)
    predictor.finish()


def _begun(job: Job, out: Path) -> bool:
    return (job.run(out) / "states").is_dir()


def _add_seconds(run: Path, seconds: float) -> None:
    """Training time so far; a run that was interrupted adds up its parts, except what was lost with a killed process."""
    file = run / "seconds.txt"
    file.write_text(f"{training_seconds(run) + seconds:.1f}\n", encoding="utf-8")


def training_seconds(run: Path) -> float:
    file = run / "seconds.txt"
    return float(file.read_text(encoding="utf-8")) if file.is_file() else 0.0
