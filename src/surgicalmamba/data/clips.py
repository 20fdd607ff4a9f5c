"""Clips for training: the procedures of a batch advance in parallel, one per lane, clip by clip.

A lane walks through one procedure, then takes the next procedure that is free. All lanes of all processes are
planned together, so every process of a distributed run has the same number of steps.

The same seed gives the same batches on any number of workers, and a loader restored from `state_dict`
continues with exactly the next batch: the plan of an epoch is a function of (seed, epoch), the draw of a clip
one of (seed, epoch, video, clip)."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.labels import UNLABELLED
from surgicalmamba.data.pictures import read_image
from surgicalmamba.data.store import PreparedVideo
from surgicalmamba.data.transforms import FrameTransform
from surgicalmamba.errors import DataError, InputError

Features = NDArray[np.float32]  # (n, d)
STATE_VERSION = 1
_BLOCK = 16  # frames per task of a worker thread
_AUGMENTATION = 1  # random stream beside the order of videos


@dataclass(frozen=True)
class FeatureNoise:
    """How stored features are changed in training, so that a model does not memorize one room's or surgeon's
    values.

    `dropout`: share of values set to 0. `jitter`: every feature of a procedure is scaled by 1 + jitter z and
    shifted by jitter z deviations, z normal; drawn once per procedure, like a different setup of the same
    instruments. `grain`: noise on every value, in deviations of its feature over the procedure."""

    dropout: float = 0.0
    jitter: float = 0.0
    grain: float = 0.0

    def apply(
        self, part: Features, whole: Features, of_video: np.random.Generator, of_clip: np.random.Generator
    ) -> Features:
        """`part` of the procedure `whole` with noise; one random generator for the procedure, one for the
        part."""
        values = part
        if self.dropout:
            values = np.where(of_clip.random(part.shape) < self.dropout, np.float32(0), values)
        if self.jitter or self.grain:
            d, deviation = part.shape[1], whole.std(0)
            gain = 1 + self.jitter * of_video.standard_normal(d)
            shift = self.jitter * deviation * of_video.standard_normal(d)
            values = values * gain + shift + self.grain * deviation * of_clip.standard_normal(part.shape)
        return values.astype(np.float32, copy=False)


@dataclass(frozen=True)
class Span:
    """Samples `start` to `stop` (exclusive) of video number `video`, as one clip."""

    video: int
    start: int
    stop: int
    is_first: bool
    is_last: bool


Step = tuple[Span | None, ...]
"""What each lane does at a step; None for a lane that has nothing left."""


def epoch_order(lengths: Sequence[int], n_lanes: int, seed: int, epoch: int) -> list[int]:
    """Videos in random order; the last ones, two per lane, start longest first, so that lanes finish
    together."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=(epoch,))))
    order: list[int] = rng.permutation(len(lengths)).tolist()
    cut = max(len(order) - 2 * n_lanes, 0)
    return order[:cut] + sorted(order[cut:], key=lambda video: -lengths[video])


def plan_lanes(lengths: Sequence[int], order: Sequence[int], n_lanes: int, clip_len: int) -> list[Step]:
    """All steps of an epoch: a free lane takes the next video of `order`; every sample occurs once."""
    waiting = list(reversed(order))
    current: list[Span | None] = [None] * n_lanes
    steps: list[Step] = []
    while True:
        for lane, span in enumerate(current):
            if span is not None and not span.is_last:
                current[lane] = _span(span.video, span.stop, lengths[span.video], clip_len)
            else:
                video = waiting.pop() if waiting else None
                current[lane] = None if video is None else _span(video, 0, lengths[video], clip_len)
        if not any(current):
            return steps
        steps.append(tuple(current))


def _span(video: int, start: int, length: int, clip_len: int) -> Span:
    stop = min(start + clip_len, length)
    return Span(video, start, stop, start == 0, stop == length)


@dataclass(frozen=True)
class ClipBatch:
    """One step of all lanes: b lanes, l frames. A lane with nothing left has no frame."""

    frames: NDArray[np.uint8] | NDArray[np.float32]
    """(b, l, h, w, 3) RGB bytes of an image dataset, or (b, l, d) features; zero where padded."""
    labels: NDArray[np.int64]
    """(b, l) phase ids; -1 where unlabelled or padded."""
    is_frame: NDArray[np.bool_]
    """(b, l) False where padded: after the end of a procedure, or in an idle lane."""
    starts: NDArray[np.bool_]
    """(b,) a new procedure starts here: reset this lane's state before the clip."""
    ends: NDArray[np.bool_]
    """(b,) the procedure's last clip."""
    first_sample: NDArray[np.int64]
    """(b,) index of the clip's first sample in its procedure."""
    videos: tuple[str | None, ...]
    """Ids of the procedures; None for an idle lane."""
    target: NDArray[np.float32] | None
    """(b, l) slice of the loader's per-procedure target, zero where padded; None without one."""

    @property
    def n_frames(self) -> NDArray[np.int64]:
        """(b,) frames of every lane, before its padding."""
        return self.is_frame.sum(1)


NO_NOISE = FeatureNoise()


class ClipLoader:
    """Iterating gives the batches of one epoch; iterating again gives the next epoch.

    `target` computes a value per sample from a whole procedure (such as the transition target), once per
    video. `rank` of `world_size` processes receives its share of the lanes. `disturb` adds noise to stored
    features. Threads read `prefetch` batches ahead; they live while an epoch is iterated."""

    def __init__(
        self,
        videos: Sequence[PreparedVideo],
        *,
        n_lanes: int,
        clip_len: int,
        transform: FrameTransform | None = None,
        disturb: FeatureNoise = NO_NOISE,
        seed: int = 0,
        shuffle: bool = True,
        workers: int = 2,
        prefetch: int = 2,
        rank: int = 0,
        world_size: int = 1,
        target: Callable[[PreparedVideo], NDArray[np.float32]] | None = None,
    ) -> None:
        counts = {"n_lanes": n_lanes, "clip_len": clip_len, "workers": workers, "world_size": world_size}
        _check(videos, transform, {**counts, "prefetch": prefetch})
        if not 0 <= rank < world_size:
            raise InputError(f"rank={rank} is outside 0 to {world_size - 1}.")
        self._videos = tuple(videos)
        self.n_lanes = n_lanes
        self._clip_len = clip_len
        self._transform = transform
        self._disturb = disturb
        self._seed = seed
        self._shuffle = shuffle
        self._workers = workers
        self._prefetch = prefetch
        self._rank = rank
        self._world_size = world_size
        self._target = target
        self._targets: dict[int, NDArray[np.float32]] = {}
        self.epoch = 0
        self.step = 0

    @property
    def n_videos(self) -> int:
        """Videos of an epoch, in all processes together."""
        return len(self._videos)

    def __len__(self) -> int:
        """Batches of the current epoch, those already delivered included."""
        return len(self.plan())

    def plan(self) -> list[Step]:
        """The steps of the current epoch, this process's lanes only."""
        first = self._rank * self.n_lanes
        return [step[first : first + self.n_lanes] for step in self._plan_of_all()]

    def _plan_of_all(self) -> list[Step]:
        """The steps of the current epoch, the lanes of all processes."""
        lengths = [video.n_samples for video in self._videos]
        n_lanes, order = self.n_lanes * self._world_size, list(range(len(lengths)))
        if self._shuffle:
            order = epoch_order(lengths, n_lanes, self._seed, self.epoch)
        return plan_lanes(lengths, order, n_lanes, self._clip_len)

    def videos_ended(self, step: int) -> int:
        """Videos of the current epoch, in all processes, whose last clip comes before this step."""
        lanes = (span for plan in self._plan_of_all()[:step] for span in plan)
        return sum(span is not None and span.is_last for span in lanes)

    def __iter__(self) -> Iterator[ClipBatch]:
        """The rest of the current epoch. `step` counts delivered batches; `state_dict` is valid after
        each."""
        coming = iter(self.plan()[self.step :])
        pending: deque[tuple[ClipBatch, list[Future[None]]]] = deque()
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="clips")
        try:
            while True:
                while len(pending) <= self._prefetch and (step := next(coming, None)) is not None:
                    pending.append(self._begin(step, pool))
                if not pending:
                    break
                batch, parts = pending.popleft()
                for part in parts:
                    part.result()
                self.step += 1
                yield batch
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        self.epoch += 1
        self.step = 0

    def state_dict(self) -> dict[str, int | str]:
        """The loader's position, as plain values that any checkpoint can hold."""
        settings = self._fingerprint()
        return {"version": STATE_VERSION, "epoch": self.epoch, "step": self.step, "settings": settings}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Resume where `state_dict` was taken. A loader with other videos or settings raises DataError."""
        if state.get("version") != STATE_VERSION:
            version = f"loader state has version {state.get('version')!r}, this one reads {STATE_VERSION}"
            raise DataError(f"{version}; restart the epoch.")
        if state["settings"] != self._fingerprint():
            what = "other videos, lanes, clip length, seed or augmentation"
            raise DataError(f"loader state was taken with {what}; use the same ones, or restart the epoch.")
        self.epoch, self.step = int(state["epoch"]), int(state["step"])

    def _fingerprint(self) -> str:
        """A hash of what decides the batches of all processes; workers, prefetch and sharing of lanes do
        not."""
        videos = [(video.id, video.n_samples) for video in self._videos]
        n_lanes, transform = self.n_lanes * self._world_size, self._transform
        facts = (videos, n_lanes, self._clip_len, self._seed, self._shuffle, transform, self._disturb)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def _begin(self, step: Step, pool: ThreadPoolExecutor) -> tuple[ClipBatch, list[Future[None]]]:
        """Allocate a batch, fill in what is cheap, and queue the frames for the workers."""
        shape, size = (len(step), self._clip_len), self._transform and self._transform.image_size
        frame_shape = (size, size, 3) if size else self._videos[0].features.shape[1:]
        batch = ClipBatch(
            frames=np.zeros((*shape, *frame_shape), np.float32 if self._transform is None else np.uint8),
            labels=np.full(shape, UNLABELLED, dtype=np.int64),
            is_frame=np.zeros(shape, dtype=np.bool_),
            starts=np.array([span is not None and span.is_first for span in step]),
            ends=np.array([span is not None and span.is_last for span in step]),
            first_sample=np.array([0 if span is None else span.start for span in step], dtype=np.int64),
            videos=tuple(None if span is None else self._videos[span.video].id for span in step),
            target=None if self._target is None else np.zeros(shape, dtype=np.float32),
        )
        parts: list[Future[None]] = []
        for lane, span in enumerate(step):
            if span is None:
                continue
            n = span.stop - span.start
            batch.is_frame[lane, :n] = True
            batch.labels[lane, :n] = self._videos[span.video].labels[span.start : span.stop]
            if batch.target is not None:
                batch.target[lane, :n] = self._whole_target(span.video)[span.start : span.stop]
            parts += self._read(span, batch.frames[lane], pool)
        return batch, parts

    def _read(self, span: Span, out: NDArray[np.generic], pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Queue the reading of a clip into `out`. Reading, decoding and warping release the interpreter
        lock."""
        video, transform, n = self._videos[span.video], self._transform, span.stop - span.start
        of_clip = self._rng(span.video, span.start)
        if transform is None:
            of_video = self._rng(span.video)

            def copy_features() -> None:
                part = video.features[span.start : span.stop]
                out[:n] = self._disturb.apply(part, video.features, of_video, of_clip)

            return [pool.submit(copy_features)]
        draws = transform.draw(of_clip, n)

        def read_block(first: int) -> None:
            for i in range(first, min(first + _BLOCK, n)):
                frame = read_frame(video, span.start + i, transform.decode_side)
                transform.apply(frame, draws[i], out[i])

        return [pool.submit(read_block, first) for first in range(0, n, _BLOCK)]

    def _rng(self, *place: int) -> np.random.Generator:
        """The random generator of this epoch for a procedure, or for one clip of it."""
        key = (self.epoch, _AUGMENTATION, *place)
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=self._seed, spawn_key=key)))

    def _whole_target(self, number: int) -> NDArray[np.float32]:
        assert self._target is not None
        if number not in self._targets:
            video = self._videos[number]
            values = np.asarray(self._target(video), dtype=np.float32)
            if values.shape != (video.n_samples,):
                expected = f"one value per sample, ({video.n_samples},)"
                raise InputError(f"target of {video.id} has shape {values.shape}; expected {expected}.")
            self._targets[number] = values
        return self._targets[number]


def read_frame(video: PreparedVideo, row: int, least_side: int = 0) -> NDArray[np.uint8]:
    """The stored frame of sample `row` as RGB bytes, at full size or reduced to sides of at least
    `least_side`."""
    try:
        return read_image(video.frame_path(row), least_side)
    except DataError as error:
        raise DataError(f"{error} Run prepare again, or surgicalmamba check on the folder.") from None


def _check(videos: Sequence[PreparedVideo], transform: FrameTransform | None, counts: dict[str, int]) -> None:
    for name, value in counts.items():
        least = 0 if name == "prefetch" else 1
        if value < least:
            raise InputError(f"{name}={value} makes no batch; use {least} or more.")
    if not videos:
        raise InputError("no videos to load; choose a split and role that has some.")
    kinds = {video.kind for video in videos}
    if len(kinds) > 1:
        raise InputError("image and feature videos cannot share a batch; load them separately.")
    if (transform is None) != (kinds == {"features"}):
        need = "an image dataset needs a transform"
        need = need if transform is None else "a feature dataset takes no transform"
        raise InputError(f"{need}: pass Augment or WholeFrame for images and None for features.")

