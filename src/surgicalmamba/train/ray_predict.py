"""Prediction of an archive on a Ray cluster: the files that one process writes, bit for bit, by workers that take a video when free.

Every worker loads the checkpoint once, by its path; only paths and names travel. On several machines the checkpoint, the dataset and the
output folder must be the same paths everywhere (a shared disk), and the package must be installed. Nothing is reported to Ray's makers."""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surgicalmamba.errors import ConfigError, DataError, SurgicalMambaError
from surgicalmamba.train.predict import Predictor

LOCAL = "local"
_OBJECT_STORE_BYTES = 100_000_000  # on a local Ray, which would reserve a third of the memory; we ship names


@dataclass(frozen=True)
class RaySettings:
    """Where to run: `local` starts a Ray on this machine; anything else is the address of a cluster, or `auto` for the one found here."""

    address: str = LOCAL
    workers: int | None = None
    """None is as many as the cluster has room for."""
    threads: int = 1
    """Torch threads, and CPUs reserved, of each worker. Results are the same bits for the same number."""


class Worker:
    """One process of the cluster with a loaded checkpoint. Errors come back as text, with the video's name put to them by the caller."""

    def __init__(self, checkpoint: str, data: str, split: str, out: str, device: str, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._predictor = Predictor.open(checkpoint, Path(data), split, Path(out), device)
        self._videos = {video.id: video for video in self._predictor.videos}

    def predict(self, video: str, weights_sha256: str | None) -> str | None:
        """Write a video's file; what went wrong, or None."""
        if self._predictor.info.checkpoint_sha256 != weights_sha256:
            return "the checkpoint read on this worker is another one; put it at the same path on every machine."
        try:
            self._predictor.predict(self._videos[video])
        except SurgicalMambaError as error:
            return str(error)
        except Exception as error:
            return f"unexpected {type(error).__name__}: {' '.join(str(error).split())}"
        return None


def predict_on_ray(predictor: Predictor, checkpoint: str, split: str, device: str, settings: RaySettings) -> Iterator[Path]:
    """Predict the videos that have no file yet; files are handed out as they come. Failures are told at the end, by video."""
    waiting = []
    for video in predictor.videos:
        file = predictor.file_of(video)
        if file.is_file():
            yield file
        else:
            waiting.append(video.id)
    if not waiting:
        return
    ray = _connect(settings, len(waiting))
    try:
        folder = Path(checkpoint)
        source = str(folder.resolve()) if folder.exists() else checkpoint
        paths = (source, str(predictor.dataset.folder.resolve()), split, str(predictor.out.resolve()))
        failures: list[str] = []
        for name, problem in _share_out(ray, _start(ray, settings, device, paths, len(waiting)), waiting, predictor.info.checkpoint_sha256):
            if problem is None:
                yield predictor.out / f"{name}.csv"
            else:
                failures.append(f"{name}: {problem}")
    finally:
        ray.shutdown()
    if failures:
        more = f" ({len(failures) - 1} more failed)" if len(failures) > 1 else ""
        raise DataError(f"video {failures[0]}{more} The same command goes on with what is missing.")


def _connect(settings: RaySettings, n_videos: int) -> Any:
    """Ray, connected and quiet."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of a change of its own
    try:
        import ray
    except ImportError:
        raise ConfigError("--ray needs Ray, which is not installed: pip install 'surgicalmamba[ray]'.") from None
    try:
        if settings.address == LOCAL:
            os.environ.setdefault("RAY_worker_niceness", "0")  # by default its workers give way to everything else on the machine
            n_workers = min(settings.workers or max(1, (os.cpu_count() or 1) // settings.threads), n_videos)
            ray.init(
                address=LOCAL,
                num_cpus=n_workers * settings.threads,
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        else:
            ray.init(address=settings.address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"no Ray cluster answers at {settings.address!r} ({reason}); check the address, or use --ray alone.") from None
    return ray


def _start(ray: Any, settings: RaySettings, device: str, paths: tuple[str, str, str, str], n_videos: int) -> list[Any]:
    """As many workers as were asked for, or as the cluster has CPUs (or GPUs) for; one that dies is started again for the next video."""
    resources = ray.cluster_resources()
    n_gpus = int(resources.get("GPU", 0)) if device in ("auto", "cuda") else 0
    room = n_gpus or int(resources.get("CPU", 1)) // settings.threads
    n_workers = max(1, min(settings.workers or room, n_videos))
    remote = ray.remote(Worker).options(num_cpus=settings.threads, num_gpus=1 if n_gpus else 0, max_restarts=-1)
    return [remote.remote(*paths, device, settings.threads) for _ in range(n_workers)]


def _share_out(ray: Any, workers: list[Any], videos: list[str], sha256: str | None) -> Iterator[tuple[str, str | None]]:
    """Give each free worker the next video; yield each video's name with its problem, or None."""
    waiting, free = list(reversed(videos)), list(workers)
    busy: dict[Any, tuple[Any, str]] = {}
    while waiting or busy:
        while waiting and free:
            worker, name = free.pop(), waiting.pop()
            busy[worker.predict.remote(name, sha256)] = (worker, name)
        (done,), _ = ray.wait(list(busy))
        worker, name = busy.pop(done)
        free.append(worker)
        try:
            yield name, ray.get(done)
        except ray.exceptions.RayActorError as error:
            if isinstance(error, ray.exceptions.ActorDiedError) and error.actor_init_failed:
                yield name, f"its worker could not start: {_last_line(error)}"
            else:
                yield name, "its worker ended before it was done; the machine may be out of memory."


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()
