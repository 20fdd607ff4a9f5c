"""Run a recognizer over prepared videos: probabilities for every sample, the same as live.

In one process (`Predictor`), or on a Ray cluster (`predict_on_ray`), where each free worker takes the next
video; the files are the same, bit for bit. Every worker loads the checkpoint once; only paths and video names
are sent. On several machines the checkpoint, the dataset and the output folder must have the same paths
everywhere (a shared disk), and the package must be installed. Ray's usage reports are switched off."""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surgicalmamba.data.clips import read_frame
from surgicalmamba.data.labels import PhaseVocabulary
from surgicalmamba.data.store import PreparedDataset, PreparedVideo
from surgicalmamba.data.transforms import WholeFrame, normalise
from surgicalmamba.devices import pick_device
from surgicalmamba.errors import ConfigError, DataError, SurgicalMambaError
from surgicalmamba.eval.files import RunInfo, VideoPrediction, write_predictions, write_run
from surgicalmamba.model.checkpoint import WEIGHTS_FILE, best_of, load
from surgicalmamba.model.recognizer import AnyRecognizer, Output


def features_of(
    model: AnyRecognizer, video: PreparedVideo, start: int, stop: int, device: torch.device
) -> Tensor:
    """Features (1, l, d) of samples start to stop: stored ones, or the backbone's."""
    if video.kind == "features":
        return torch.from_numpy(np.array(video.features[start:stop]))[None].to(device)
    backbone = model.config.backbone
    assert backbone is not None
    transform = WholeFrame(backbone.image_size)
    frames = np.empty((stop - start, transform.image_size, transform.image_size, 3), np.uint8)
    draws = transform.draw(np.random.default_rng(0), stop - start)
    for i in range(stop - start):
        transform.apply(read_frame(video, start + i, transform.decode_side), draws[i], frames[i])
    pixels = torch.from_numpy(frames).to(device)
    return model.encode(normalise(pixels, backbone.mean_rgb, backbone.std_rgb))[None]


@torch.inference_mode()
def predict_video(
    model: AnyRecognizer,
    video: PreparedVideo,
    device: torch.device,
    observe: Callable[[Output[Any]], None] | None = None,
) -> VideoPrediction:
    """Predict one video from its first sample to its last, clip by clip; frame by frame would give the same
    numbers more slowly. The callback `observe` gets the output of every clip."""
    state = model.initial_state(1)
    probabilities, intensities = [], []
    for start in range(0, video.n_samples, model.config.clip_len):
        stop = min(start + model.config.clip_len, video.n_samples)
        output = model.forward_features(features_of(model, video, start, stop, device), state)
        state = output.state
        if observe is not None:
            observe(output)
        probabilities.append(torch.softmax(output.logits[0].double(), -1).cpu())
        if output.intensity_logits is not None:
            intensities.append(torch.sigmoid(output.intensity_logits[0].double()).mean(-1).cpu())
    table = torch.cat(probabilities).numpy()
    intensity = torch.cat(intensities).numpy() if intensities else None
    return VideoPrediction(video.table.frame, video.time_s, table.argmax(-1), table, intensity)


@dataclass(frozen=True)
class Predictor:
    """Runs one checkpoint over one part of a prepared dataset and writes a folder of prediction files."""

    model: AnyRecognizer
    dataset: PreparedDataset
    videos: list[PreparedVideo]
    out: Path
    info: RunInfo
    device: torch.device

    @classmethod
    def open(cls, checkpoint: str, data: Path, split: str, out: Path, device: str) -> "Predictor":
        """Load and check everything before the first video: the phases must be those of the training, and
        features must have the model's width."""
        source = best_of(checkpoint)
        model = load(source)
        dataset = PreparedDataset.open(data)
        if model.config.phases is not None and model.config.phases != dataset.phases:
            known, found = ", ".join(model.config.phases), ", ".join(dataset.phases)
            problem = f"{checkpoint} was trained for phases {known}; {data} has {found}"
            raise DataError(f"{problem}. Use a dataset with the same phases.")
        if dataset.kind == "features" and dataset.d_feature != model.feature_width:
            problem = f"{data} has features of width {dataset.d_feature}, {checkpoint} takes "
            raise DataError(f"{problem}{model.feature_width}; prepare them with the same backbone.")
        weights = Path(source) / WEIGHTS_FILE
        digest = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else None
        info = RunInfo(dataset.name, dataset.phases, float(dataset.fps), split, None, digest)
        where = pick_device(device)
        return cls(model.to(where), dataset, videos_of(dataset, split), out, info, where)

    def file_of(self, video: PreparedVideo) -> Path:
        return self.out / f"{video.id}.csv"

    def predict(self, video: PreparedVideo) -> Path:
        """Write a video's file, unless it exists already."""
        file = self.file_of(video)
        if file.is_file():
            return file
        vocabulary = PhaseVocabulary(self.dataset.name, self.dataset.phases)
        return write_predictions(
            self.out, video.id, predict_video(self.model, video, self.device), vocabulary
        )

    def finish(self) -> None:
        """Record in run.json where the files come from."""
        write_run(self.out, self.info)


def videos_of(dataset: PreparedDataset, split: str) -> list[PreparedVideo]:
    """`test` is a role in the dataset's first split, `release:test` in a named one, `all` is every video."""
    if split == "all":
        return list(dataset.videos.values())
    name, colon, role = split.rpartition(":")
    return dataset.split(name if colon else next(iter(dataset.splits), "paper"), role)


LOCAL = "local"
_OBJECT_STORE_BYTES = 100_000_000  # for a local Ray, which would reserve a third of the memory


@dataclass(frozen=True)
class RaySettings:
    """Where to run: `local` starts Ray on this machine, `auto` uses the cluster that runs here, anything else
    is the address of a cluster."""

    address: str = LOCAL
    workers: int | None = None
    """None: as many as the cluster has room for."""
    threads: int = 1
    """Torch threads of each worker, and CPUs reserved for it. Results are bit-exact for the same number."""


class Worker:
    """One process of the cluster with a loaded checkpoint. Errors are returned as text; the caller adds the
    video's name."""

    def __init__(self, checkpoint: str, data: str, split: str, out: str, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._predictor = Predictor.open(checkpoint, Path(data), split, Path(out), device)
        self._videos = {video.id: video for video in self._predictor.videos}

    def predict(self, video: str, weights_sha256: str | None) -> str | None:
        """Write a video's file. Returns an error message, or None."""
        if self._predictor.info.checkpoint_sha256 != weights_sha256:
            return "the worker has another checkpoint at this path; put the same one on every machine."
        try:
            self._predictor.predict(self._videos[video])
        except SurgicalMambaError as error:
            return str(error)
        except Exception as error:
            return f"unexpected {type(error).__name__}: {' '.join(str(error).split())}"
        return None


def predict_on_ray(
    predictor: Predictor, checkpoint: str, split: str, device: str, settings: RaySettings
) -> Iterator[Path]:
    """Predict the videos that have no file yet, and yield each file when it is written. Failures are reported
    at the end, by video."""
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
        workers = _start(ray, settings, device, paths, len(waiting))
        for name, problem in _share_out(ray, workers, waiting, predictor.info.checkpoint_sha256):
            if problem is None:
                yield predictor.out / f"{name}.csv"
            else:
                failures.append(f"{name}: {problem}")
    finally:
        ray.shutdown()
    if failures:
        more = f" ({len(failures) - 1} more failed)" if len(failures) > 1 else ""
        raise DataError(f"video {failures[0]}{more} Run the same command again to predict what is missing.")


def _connect(settings: RaySettings, n_videos: int) -> Any:
    """Start or join a cluster. Returns the module ray, with its log output switched off."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning
    try:
        import ray
    except ImportError:
        problem = "--ray needs Ray, which is not installed"
        raise ConfigError(f"{problem}: pip install 'surgicalmamba[ray]'.") from None
    try:
        if settings.address == LOCAL:
            os.environ.setdefault("RAY_worker_niceness", "0")  # the default priority of workers is low
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
        problem = f"no Ray cluster answers at {settings.address!r} ({reason})"
        raise ConfigError(f"{problem}; check the address, or use --ray alone.") from None
    return ray


def _start(
    ray: Any, settings: RaySettings, device: str, paths: tuple[str, str, str, str], n_videos: int
) -> list[Any]:
    """Start `settings.workers` workers, or as many as the cluster has GPUs or CPUs for. Ray restarts one that
    dies."""
    resources = ray.cluster_resources()
    n_gpus = int(resources.get("GPU", 0)) if device in ("auto", "cuda") else 0
    room = n_gpus or int(resources.get("CPU", 1)) // settings.threads
    n_workers = max(1, min(settings.workers or room, n_videos))
    needs = {"num_cpus": settings.threads, "num_gpus": 1 if n_gpus else 0}
    remote = ray.remote(Worker).options(**needs, max_restarts=-1)
    return [remote.remote(*paths, device, settings.threads) for _ in range(n_workers)]


def _share_out(
    ray: Any, workers: list[Any], videos: list[str], sha256: str | None
) -> Iterator[tuple[str, str | None]]:
    """Give each free worker the next video; yield each video's name with its error message, or None."""
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
                last_line = str(error).strip().splitlines()[-1].strip()
                yield name, f"its worker could not start: {last_line}"
            else:
                yield name, "its worker died; the machine may be out of memory."
