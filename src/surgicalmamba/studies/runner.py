"""Jobs to trained models and prediction files: several processes at once, interrupted and gone on with at any moment.

OUT/runs/JOB/             a training run (see docs/training.md), its settings beside it as JOB.yaml, its output as JOB.log
OUT/runs/JOB/predictions  one file per scored video; a job is done when their run.json is there"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from surgicalmamba.config import load_config, save_config
from surgicalmamba.errors import StudyError
from surgicalmamba.train.config import TrainConfig

LOG_LINES_TOLD = 3


@dataclass(frozen=True)
class Job:
    """One training run of a study and the videos it is scored on."""

    name: str
    group: str
    """Jobs of a group are one row of the table: its seeds, and its folds where a dataset is cut several ways."""
    config: TrainConfig
    role: str
    """Role of the split that is scored: val, or test where the model was not chosen by it."""

    @property
    def split(self) -> str:
        assert self.config.data.split is not None  # named by the study
        return self.config.data.split

    def run(self, out: Path) -> Path:
        return out / "runs" / self.name

    def settings(self, out: Path) -> Path:
        return out / "runs" / f"{self.name}.yaml"

    def predictions(self, out: Path) -> Path:
        return self.run(out) / "predictions"

    def is_done(self, out: Path) -> bool:
        return (self.predictions(out) / "run.json").is_file()


Progress = Callable[[Job, int, int], None]
"""Called with each finished job, the number done and the number of jobs."""


def run_jobs(jobs: Sequence[Job], out: Path, workers: int, progress: Progress | None = None) -> None:
    """Train and predict every job that is not done. After an error the jobs under way are stopped and the first error is raised."""
    _refuse_other_settings(jobs, out)
    waiting = [job for job in jobs if not job.is_done(out)]
    n_done = len(jobs) - len(waiting)
    children: dict[str, subprocess.Popen[bytes]] = {}
    threads = max(1, (os.cpu_count() or 1) // workers)
    with ThreadPoolExecutor(workers) as pool:
        pending: dict[Future[None], Job] = {pool.submit(_run_job, job, out, threads, children): job for job in waiting}
        try:
            while pending:
                finished, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    job = pending.pop(future)
                    future.result()
                    n_done += 1
                    if progress is not None:
                        progress(job, n_done, len(jobs))
        except BaseException:
            for future in pending:
                future.cancel()
            for child in list(children.values()):
                child.terminate()
            raise


def _refuse_other_settings(jobs: Sequence[Job], out: Path) -> None:
    """A folder may get more jobs later, but a job begun with one recipe is not gone on with, nor reported, as another."""
    for job in jobs:
        if job.settings(out).is_file():
            before, now = (_leaves(config.model_dump()) for config in (load_config(TrainConfig, job.settings(out)), job.config))
            places = ("run", "data.path")  # where things lie may be written in another way
            changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key) and key not in places]
            if changed:
                was, wanted = before.get(changed[0]), now.get(changed[0])
                raise StudyError(f"job {job.name} in {out} was begun with {changed[0]}={was}, not {wanted}; give another --out.")


def _leaves(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested settings by their dotted names."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= _leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _run_job(job: Job, out: Path, threads: int, children: dict[str, subprocess.Popen[bytes]]) -> None:
    """The commands a person would give, one after the other."""
    run = job.run(out)
    run.parent.mkdir(parents=True, exist_ok=True)
    settings = job.settings(out)
    begun = (run / "states").is_dir()
    if not begun:
        save_config(job.config.with_(run=str(run)), settings)
    assert job.config.data.path is not None
    train = ["train", "--resume", str(run)] if begun else ["train", "--config", str(settings)]
    scored = ["--data", job.config.data.path, "--split", f"{job.split}:{job.role}"]
    predict = ["predict", str(run), *scored, "--out", str(job.predictions(out))]
    start = time.monotonic()
    _command(job, train, run, threads, children)
    _add_seconds(run, time.monotonic() - start)
    _command(job, predict, run, threads, children)


def _command(job: Job, arguments: list[str], run: Path, threads: int, children: dict[str, subprocess.Popen[bytes]]) -> None:
    log = run.parent / f"{job.name}.log"
    environment: Mapping[str, str] = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with log.open("ab") as stream:
        child = subprocess.Popen(
            [sys.executable, "-m", "surgicalmamba", *arguments], stdout=stream, stderr=subprocess.STDOUT, env=environment
        )
        children[job.name] = child
        status = child.wait()
        del children[job.name]
    if status:
        said = " / ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LOG_LINES_TOLD:])
        raise StudyError(f"job {job.name}: '{arguments[0]}' ended with code {status}: {said} (whole output: {log}).")


def _add_seconds(run: Path, seconds: float) -> None:
    """Training time so far; a run that was interrupted adds up its parts, except what was lost with a killed process."""
    file = run / "seconds.txt"
    file.write_text(f"{training_seconds(run) + seconds:.1f}\n", encoding="utf-8")


def training_seconds(run: Path) -> float:
    file = run / "seconds.txt"
    return float(file.read_text(encoding="utf-8")) if file.is_file() else 0.0
