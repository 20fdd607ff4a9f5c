"""How a study runs: a dataset is divided, systems become jobs, and jobs become trained models and prediction
files.

OUT/data                  the dataset as divided here: its manifest with more splits, a link to its videos
OUT/runs/JOB/             a training run (see docs/training.md); beside it JOB.yaml, its settings, and JOB.log
OUT/runs/JOB/predictions  a file per scored video; a job is done when their run.json exists

A study can be interrupted at any moment; the same call resumes it."""

import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from surgicalmamba.config import load_config, save_config
from surgicalmamba.data.manifest import Manifest
from surgicalmamba.data.store import MANIFEST, PreparedDataset, finish
from surgicalmamba.errors import ConfigError, NonFiniteError, StudyError, SurgicalMambaError
from surgicalmamba.model.surgical_mamba import ModelConfig
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.run import check_network, fit_network, flatten

Splits = dict[str, dict[str, list[str]]]

DIVERGED = "diverged.txt"
"""In the folder of a run whose loss or weights became infinite or NaN; holds the message."""
PRELOADED = ["surgicalmamba.train.run", "torch._dynamo"]
"""Imported once, in the process that jobs are forked from; torch's optimizers import the second."""


# Division: the splits of a dataset, folds cut from it, and splits with videos held out for tuning.


def divide(
    dataset: PreparedDataset,
    out: Path,
    pattern: str | None,
    n_folds: int | None,
    train_folds: int | None = None,
) -> tuple[PreparedDataset, list[str]]:
    """The dataset in OUT/data and the splits of the study: those that match the pattern, or folds cut for
    it."""
    more = {} if n_folds is None else fold_splits(dataset, n_folds, train_folds)
    chosen = list(more) or chosen_splits(dataset, pattern)
    return divided(dataset, out, more), chosen


def divided(
    dataset: PreparedDataset, out: Path, more: Mapping[str, Mapping[str, Sequence[str]]]
) -> PreparedDataset:
    """The dataset with more splits, in OUT/data. A folder that already holds a study of other videos is
    refused."""
    folder = out / "data"
    manifest = Manifest.model_validate(
        {**dataset.manifest.model_dump(), "splits": {**dataset.splits, **more}}
    )
    if (folder / MANIFEST).is_file():
        before = Manifest.read(folder / MANIFEST)
        if before.videos != manifest.videos or before.phases != manifest.phases:
            raise StudyError(
                f"{out} holds a study of other videos ({before.name}) than {dataset.folder}; give another "
                "--out."
            )
    folder.mkdir(parents=True, exist_ok=True)
    link, videos = folder / "videos", (dataset.folder / "videos").resolve()
    try:
        if link.is_symlink() and link.resolve() != videos:
            link.unlink()
        if not link.is_symlink():
            os.symlink(videos, link, target_is_directory=True)
    except OSError as error:
        raise StudyError(
            f"{link} cannot be made a link to {videos}: {error.strerror}; allow links, or use a folder that "
            "can."
        ) from None
    finish(folder, manifest)
    return PreparedDataset.open(folder)


def chosen_splits(dataset: PreparedDataset, pattern: str | None) -> list[str]:
    """The splits whose name matches; without a pattern, the dataset's first."""
    names = list(dataset.splits)
    chosen = [name for name in names if fnmatch(name, pattern)] if pattern else names[:1]
    if not chosen:
        raise ConfigError(f"no split of {dataset.folder} matches {pattern!r}; it has {', '.join(names)}.")
    return chosen


def fold_splits(dataset: PreparedDataset, n_folds: int, train_folds: int | None = None) -> Splits:
    """The training and validation videos of the first split, cut into folds: every n-th id in sorted order
    is the test of one fold. Each video is tested once, by a model that has not seen it, and no epoch is
    chosen by it. Test videos of the dataset stay out. With `train_folds` a model trains on only that many
    folds after the tested one."""
    first = next(iter(dataset.splits.values()), {})
    videos = sorted({video for role in ("train", "val") for video in first.get(role, ())})
    if not 2 <= n_folds <= len(videos):
        raise ConfigError(
            f"--folds {n_folds}: {dataset.folder} has {len(videos)} videos to cut; give 2 to {len(videos)}."
        )
    if train_folds is not None and not 1 <= train_folds < n_folds:
        raise ConfigError(
            f"--train-folds {train_folds}: of {n_folds} folds one is tested; give 1 to {n_folds - 1}."
        )
    folds = [videos[k::n_folds] for k in range(n_folds)]
    splits: Splits = {}
    for k, test in enumerate(folds):
        others = [folds[(k + 1 + step) % n_folds] for step in range(train_folds or n_folds - 1)]
        name = f"fold{k + 1}of{n_folds}" + ("" if train_folds is None else f"-train{train_folds}")
        splits[name] = {"train": sorted(video for fold in others for video in fold), "test": test}
    return splits


def with_tuning(view: PreparedDataset, out: Path, chosen: Sequence[str]) -> tuple[PreparedDataset, str]:
    """A divided dataset with a split to tune on, and the name of that split."""
    name, roles = tuning_split(view.splits, chosen)
    return divided(view, out, {name: roles}), name


def tuning_split(
    splits: Mapping[str, Mapping[str, Sequence[str]]], chosen: Sequence[str]
) -> tuple[str, dict[str, list[str]]]:
    """A split to tune on: the first of the chosen ones, with validation videos. If it has none, the test
    videos of the next chosen split are held out of its training, so that videos of one user or patient
    stay together."""
    name = chosen[0]
    roles = splits[name]
    if roles.get("val"):
        return name, {role: list(ids) for role, ids in roles.items()}
    held = sorted(set(roles["train"]) & set(splits[chosen[1]].get("test", ()))) if len(chosen) > 1 else []
    if not held:
        raise ConfigError(
            f"split {name!r} has no validation videos to choose a learning rate by, and no second split "
            "lends any."
        )
    return f"tune-{name}", {"train": [video for video in roles["train"] if video not in held], "val": held}


# Jobs: systems, each with several seeds, over several splits.


@dataclass(frozen=True)
class System:
    """A row of a study before it runs: its name and its recipe without seed and split."""

    name: str
    config: TrainConfig


@dataclass(frozen=True)
class Job:
    """One training run of a study and the videos it is scored on."""

    name: str
    group: str
    """Jobs of a group are one row of the table: all its seeds and folds."""
    config: TrainConfig
    role: str
    """Role of the split that is scored: val, or test if the model was not chosen by it."""
    may_diverge: bool = False
    """A trial, such as of a learning rate: if its loss becomes infinite or NaN, that is its result."""

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

    def is_started(self, out: Path) -> bool:
        return (self.run(out) / "states").is_dir()

    def is_done(self, out: Path) -> bool:
        return (self.predictions(out) / "run.json").is_file() or (self.may_diverge and self.diverged(out))

    def diverged(self, out: Path) -> bool:
        return (self.run(out) / DIVERGED).is_file()


RunJobs = Callable[[list[Job], str], None]
"""Runs jobs to their end; the text is the label of the progress bar."""


def system_jobs(
    systems: Sequence[System],
    dataset: PreparedDataset,
    seeds: Sequence[int],
    splits: Sequence[str],
    name_splits: bool,
) -> list[Job]:
    """A job for each system, seed and split. The validation videos of a split, by which the epoch was
    chosen, are scored. A split without any keeps the last epoch, and its test videos are scored. What
    cannot be trained is refused here."""
    jobs = []
    for system in systems:
        check_network(fit_network(system.config, dataset))
        for seed in seeds:
            for split in splits:
                role = "val" if dataset.splits[split].get("val") else "test"
                data = system.config.data.with_(path=str(dataset.folder), split=split)
                name = "-".join([system.name, f"seed{seed}", *([split] if name_splits else [])])
                jobs.append(Job(name, system.name, system.config.with_(data=data, seed=seed), role))
    return jobs


def benchmark_jobs(
    config: TrainConfig, dataset: PreparedDataset, seeds: int, variants: Sequence[str], splits: str | None
) -> list[Job]:
    """`study benchmark`: a job for each variant, seed and split."""
    chosen = chosen_splits(dataset, splits)
    systems = benchmark_systems(config, variants)
    return system_jobs(systems, dataset, range(seeds), chosen, name_splits=len(chosen) > 1)


def benchmark_systems(config: TrainConfig, variants: Sequence[str]) -> list[System]:
    """A row for each variant; without variants, the recipe itself, named by its variant or its network."""
    network = config.recognizer.name
    if not isinstance(config.network, ModelConfig):
        if variants:
            raise ConfigError(
                f"the recipe trains {network}, and variants are SurgicalMamba's; leave --variants out."
            )
        return [System(network, config)]
    chosen = variants or [config.recognizer.variant]
    return [System(variant, config.with_variant(variant)) for variant in chosen]


def surgical_mamba_of(config: TrainConfig, study: str) -> ModelConfig:
    """The settings of the network, for a study of SurgicalMamba's parts."""
    if not isinstance(config.network, ModelConfig):
        raise ConfigError(
            f"study {study} changes parts of SurgicalMamba, and the recipe trains {config.recognizer.name}; "
            "use study benchmark."
        )
    return config.network


# Running jobs in processes.


def job_processes() -> ForkServerContext | SpawnContext:
    """Processes forked from one that has torch loaded, where the system can fork."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(PRELOADED)
    return processes


def end_with_the_study() -> None:
    """Called in a job's process: end it when the study is killed, so that nothing writes into its folder
    any more."""

    def follow() -> None:
        study = multiprocessing.parent_process()
        assert study is not None
        study.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def run_jobs(
    jobs: Sequence[Job], out: Path, workers: int, progress: Callable[[int], None] = lambda n_done: None
) -> None:
    """Train and predict every job that is not done; `progress` is called with the number of finished jobs.
    After an error the running jobs are stopped and the error is raised.

    One thread starts the processes and waits for them: the status of a forked process can be read only
    once."""
    import torch

    _refuse_other_settings(jobs, out)
    queue = deque(job for job in jobs if not job.is_done(out))
    n_done = len(jobs) - len(queue)
    threads = max(1, torch.get_num_threads() // workers)  # more threads than cores would wait in busy loops
    running: dict[object, tuple[Job, BaseProcess]] = {}
    try:
        while queue or running:
            while queue and len(running) < workers:
                job = queue.popleft()
                child = _start(job, out, threads)
                running[child.sentinel] = job, child
            for sentinel in wait([child.sentinel for _, child in running.values()]):
                job, child = running.pop(sentinel)
                child.join()
                if child.exitcode:
                    log = job.log(out).read_text(encoding="utf-8", errors="replace").strip().splitlines()
                    raise StudyError(
                        f"job {job.name} ended with code {child.exitcode}: {' / '.join(log[-3:])} "
                        f"(whole output: {job.log(out)})."
                    )
                n_done += 1
                progress(n_done)
    except BaseException:
        for _, child in running.values():
            child.terminate()
        raise


def _refuse_other_settings(jobs: Sequence[Job], out: Path) -> None:
    """A folder may get more jobs later, but a job that was started with one recipe is not resumed with
    another."""
    places = ("run", "data.path")  # the same folder may be written in another way
    for job in jobs:
        if job.settings(out).is_file():
            old = flatten(load_config(TrainConfig, job.settings(out)).model_dump())
            new = flatten(job.config.model_dump())
            for key in sorted({*old, *new} - {*places}):
                if old.get(key) != new.get(key):
                    raise StudyError(
                        f"job {job.name} in {out} was begun with {key}={old.get(key)}, not {new.get(key)}; "
                        "give another --out."
                    )


def _start(job: Job, out: Path, threads: int) -> BaseProcess:
    """Start the process of a job."""
    job.run(out).parent.mkdir(parents=True, exist_ok=True)
    if not job.is_started(out):
        save_config(job.config.with_(run=str(job.run(out))), job.settings(out))
    job.log(out).touch()
    child = job_processes().Process(target=_child, args=(job, out, threads))
    child.start()
    return child


def _child(job: Job, out: Path, threads: int) -> None:
    """A job's process: output to its log, then training and prediction."""
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
    if job.is_started(out):
        resume(run)
    else:
        train(job.config.with_(run=str(run)))
    seconds = training_seconds(run) + time.monotonic() - start  # without what a killed process had trained
    (run / "seconds.txt").write_text(f"{seconds:.1f}\n", encoding="utf-8")
    assert job.config.data.path is not None
    scored, device = f"{job.split}:{job.role}", job.config.device
    predictor = Predictor.open(str(run), Path(job.config.data.path), scored, job.predictions(out), device)
    for video in predictor.videos:
        predictor.predict(video)
    predictor.finish()


def training_seconds(run: Path) -> float:
    """Training time of a run so far, over all its interruptions."""
    file = run / "seconds.txt"
    return float(file.read_text(encoding="utf-8")) if file.is_file() else 0.0
