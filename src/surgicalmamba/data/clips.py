"""Clips for training: a batch of procedures advances in parallel, lane by lane, in order, with everything a trainer has to know.

The same seed gives the same batches on any number of workers, and a loader restored from `state_dict` continues with exactly the batch
that would have come: the plan of an epoch is a function of (seed, epoch), the draw of a clip one of (seed, epoch, video, clip)."""

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
from surgicalmamba.data.transforms import Draw, FrameTransform
from surgicalmamba.errors import DataError, InputError

# How stored features are disturbed in training, so that a model does not learn one room's or one surgeon's values by heart.


Features = NDArray[np.float32]  # (n, d)


@dataclass(frozen=True)
class FeatureNoise:
    """`dropout`: share of values set to 0. `jitter`: every feature of a procedure is scaled by 1 + jitter z and moved by jitter z
    deviations, z normal; drawn once per procedure, as another setting up of the same instruments would do it. `grain`: noise on every
    value, in deviations of its feature over the procedure."""

    dropout: float = 0.0
    jitter: float = 0.0
    grain: float = 0.0

    def apply(self, part: Features, whole: Features, of_video: np.random.Generator, of_clip: np.random.Generator) -> Features:
        """`part` of the procedure `whole`, disturbed; one source of random numbers for the procedure, one for the part."""
        values = part
        if self.dropout:
            values = np.where(of_clip.random(part.shape) < self.dropout, np.float32(0), values)
        if self.jitter or self.grain:
            d, deviation = part.shape[1], whole.std(0)
            gain, shift = 1 + self.jitter * of_video.standard_normal(d), self.jitter * deviation * of_video.standard_normal(d)
            values = values * gain + shift + self.grain * deviation * of_clip.standard_normal(part.shape)
        return values.astype(np.float32, copy=False)


# Which clip runs in which lane at which step: numbers only, no images.
#
# A lane walks through one procedure clip by clip, then takes the next procedure that nobody has. All lanes of all processes are planned
# together, so every process of a distributed run has the same number of steps.


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
    """Videos in random order; the last ones, two per lane, start longest first, so that lanes finish together."""
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
                current[lane] = _span(video := waiting.pop(), 0, lengths[video], clip_len) if waiting else None
        if not any(current):
            return steps
        steps.append(tuple(current))


def _span(video: int, start: int, length: int, clip_len: int) -> Span:
    stop = min(start + clip_len, length)
    return Span(video, start, stop, start == 0, stop == length)


def share_used(steps: Sequence[Step]) -> float:
    """Share of lane-steps that hold a clip; the rest is padding at the end of the epoch."""
    return sum(span is not None for step in steps for span in step) / max(sum(len(step) for step in steps), 1)


STATE_VERSION = 1
_BLOCK = 16  # frames a worker takes at a time
_AUGMENTATION = 1  # random stream beside the order of videos


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
    """(b, l) slice of the per-procedure target the loader was given, zero where padded; None without one."""

    @property
    def n_frames(self) -> NDArray[np.int64]:
        """(b,) frames of every lane, before its padding."""
        return self.is_frame.sum(1)

    @property
    def is_labelled(self) -> NDArray[np.bool_]:
        """(b, l) frames that enter a loss."""
        return np.not_equal(self.labels, UNLABELLED)


NO_NOISE = FeatureNoise()


class ClipLoader:
    """Iterating gives the batches of one epoch; iterating again gives the next epoch.

    `target` computes a value per sample from a whole procedure (such as the transition target), once per video. `rank` of `world_size`
    processes receives its share of the lanes. Features are given as stored unless `disturb` says otherwise. Threads read ahead
    `prefetch` batches; they live while an epoch is being iterated."""

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
        _check(videos, transform, n_lanes=n_lanes, clip_len=clip_len, workers=workers, prefetch=prefetch, world_size=world_size)
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
        mine = slice(self._rank * self.n_lanes, (self._rank + 1) * self.n_lanes)
        return [step[mine] for step in self._plan_of_all()]

    def _plan_of_all(self) -> list[Step]:
        """The steps of the current epoch, the lanes of all processes."""
        lengths = [video.n_samples for video in self._videos]
        n_lanes = self.n_lanes * self._world_size
        order = epoch_order(lengths, n_lanes, self._seed, self.epoch) if self._shuffle else list(range(len(lengths)))
        return plan_lanes(lengths, order, n_lanes, self._clip_len)

    def videos_ended(self, step: int) -> int:
        """Videos of the current epoch, in all processes, whose last clip comes before this step."""
        return sum(span is not None and span.is_last for lanes in self._plan_of_all()[:step] for span in lanes)

    def __iter__(self) -> Iterator[ClipBatch]:
        """The rest of the current epoch. `step` counts delivered batches, so `state_dict` can be taken between any two."""
        plan = self.plan()
        coming = iter(plan[self.step :])
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
        """Where the loader is: plain values that any checkpoint can hold."""
        return {"version": STATE_VERSION, "epoch": self.epoch, "step": self.step, "settings": self._fingerprint()}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Continue where `state_dict` was taken. A loader with other videos or settings is refused: its batches would differ."""
        if state.get("version") != STATE_VERSION:
            raise DataError(f"loader state has version {state.get('version')!r}, this one reads {STATE_VERSION}; start the epoch anew.")
        if state["settings"] != self._fingerprint():
            raise DataError(
                "loader state was taken with other videos, lanes, clip length, seed or augmentation; "
                "use the same ones, or start the epoch anew."
            )
        self.epoch, self.step = int(state["epoch"]), int(state["step"])

    def _fingerprint(self) -> str:
        """What decides the batches of all processes together, in one hash. Workers, prefetch and how lanes are shared out do not."""
        videos = [(video.id, video.n_samples) for video in self._videos]
        facts = (videos, self.n_lanes * self._world_size, self._clip_len, self._seed, self._shuffle, self._transform, self._disturb)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def _begin(self, step: Step, pool: ThreadPoolExecutor) -> tuple[ClipBatch, list[Future[None]]]:
        """Allocate a batch, fill in what is cheap, and hand the frames to the workers."""
        shape = (len(step), self._clip_len)
        batch = ClipBatch(
            frames=self._empty_frames(shape),
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

    def _empty_frames(self, shape: tuple[int, int]) -> NDArray[np.uint8] | NDArray[np.float32]:
        if self._transform is None:
            return np.zeros((*shape, self._videos[0].features.shape[1]), dtype=np.float32)
        return np.zeros((*shape, self._transform.image_size, self._transform.image_size, 3), dtype=np.uint8)

    def _read(self, span: Span, out: NDArray[np.generic], pool: ThreadPoolExecutor) -> list[Future[None]]:
        video, n = self._videos[span.video], span.stop - span.start
        rng = self._rng(span.video, span.start)
        if self._transform is None:
            return [pool.submit(_copy_features, video, span, self._disturb, self._rng(span.video), rng, out)]
        draws = self._transform.draw(rng, n)
        blocks = [(first, min(first + _BLOCK, n)) for first in range(0, n, _BLOCK)]
        return [pool.submit(_read_frames, video, span.start, self._transform, draws, out, *block) for block in blocks]

    def _rng(self, *place: int) -> np.random.Generator:
        """Random numbers of this epoch for a procedure, or for one clip of it."""
        key = (self.epoch, _AUGMENTATION, *place)
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=self._seed, spawn_key=key)))

    def _whole_target(self, number: int) -> NDArray[np.float32]:
        assert self._target is not None
        if number not in self._targets:
            video = self._videos[number]
            values = np.asarray(self._target(video), dtype=np.float32)
            if values.shape != (video.n_samples,):
                raise InputError(f"target of {video.id} has shape {values.shape}; expected one value per sample, ({video.n_samples},).")
            self._targets[number] = values
        return self._targets[number]


def _copy_features(
    video: PreparedVideo,
    span: Span,
    disturb: FeatureNoise,
    of_video: np.random.Generator,
    of_clip: np.random.Generator,
    out: NDArray[np.generic],
) -> None:
    features = video.features[span.start : span.stop]
    out[: len(features)] = disturb.apply(features, video.features, of_video, of_clip)


def _read_frames(
    video: PreparedVideo, start: int, transform: FrameTransform, draws: list[Draw], out: NDArray[np.generic], first: int, stop: int
) -> None:
    """Frames `first` to `stop` of a clip that begins at sample `start`. Reading, decoding and warping leave the interpreter free."""
    for i in range(first, stop):
        transform.apply(read_frame(video, start + i, transform.decode_side), draws[i], out[i])


def read_frame(video: PreparedVideo, row: int, least_side: int = 0) -> NDArray[np.uint8]:
    """The stored frame of sample `row` as RGB bytes, at full size or reduced to sides of at least `least_side`."""
    try:
        return read_image(video.frame_path(row), least_side)
    except DataError as error:
        raise DataError(f"{error} Run prepare again, or surgicalmamba check on the folder.") from None


def _check(videos: Sequence[PreparedVideo], transform: FrameTransform | None, **counts: int) -> None:
    for name, value in counts.items():
        if value < (0 if name == "prefetch" else 1):
            raise InputError(f"{name}={value} makes no batch; use {0 if name == 'prefetch' else 1} or more.")
    if not videos:
        raise InputError("no videos to load; choose a split and role that has some.")
    kinds = {video.kind for video in videos}
    if len(kinds) > 1:
        raise InputError("image and feature videos cannot share a batch; load them apart.")
    if (transform is None) != (kinds == {"features"}):
        need = "an image dataset needs a transform" if transform is None else "a feature dataset takes no transform"
        raise InputError(f"{need}: pass Augment or WholeFrame for images and None for features.")

