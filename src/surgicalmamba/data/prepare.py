"""From a dataset's source folder to a prepared dataset: every procedure on its own, several at a time, safe to kill and to repeat."""

import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.adapters.base import Adapter, FeatureAdapter, Procedure, VideoAdapter, find_procedures, get_adapter
from surgicalmamba.data.labels import PAST_THE_END, UNLABELLED, Labels, RowLabels
from surgicalmamba.data.manifest import FORMAT, Kind, Manifest, Setting, SourceFile, Split, VideoEntry, fingerprints, settings_hash
from surgicalmamba.data.pictures import JPEG_QUALITY, ImageFolder, Preprocess, encode_jpeg
from surgicalmamba.data.records import IndexSampling, VideoInfo
from surgicalmamba.data.store import MANIFEST, PARTIAL, SampleTable, VideoDraft, finish, finished_video, read_manifest, valid_id
from surgicalmamba.data.video import VideoFile
from surgicalmamba.data.workers import Ended, Tell, run_tasks
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.files import remedy

# One procedure from its source files to its place in a prepared dataset.


BATCH = 32
"""Pictures handed to an encoder at a time."""


class Encoder(Protocol):
    """Turns prepared pictures (n, h, w, 3) uint8, red first, into vectors (n, d) float32."""

    @property
    def name(self) -> str:
        """What the vectors come from, such as a checkpoint's hash; part of the manifest."""

    def __call__(self, rgb: NDArray[np.uint8]) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class Task:
    """All a process needs to prepare one video."""

    dataset: str
    source: Path
    out: Path
    procedure: Procedure
    sources: dict[str, SourceFile]
    settings: dict[str, Setting]
    preprocess: Preprocess
    tolerance: int


def prepare_video(task: Task, tell: Tell, encoder: Encoder | None = None) -> VideoEntry:
    """Prepare one procedure and put it in place, or raise DataError and leave nothing."""
    if multiprocessing.parent_process() is not None:
        import cv2

        cv2.setNumThreads(1)  # one process per core already
    adapter = get_adapter(task.dataset, task.source)
    if isinstance(adapter, FeatureAdapter):
        return _store_features(adapter, task)
    return _store_recording(adapter, task, tell, encoder)


def open_recording(procedure: Procedure) -> VideoFile | ImageFolder:
    """The procedure's video, or its folder of images."""
    if procedure.media.is_dir():
        assert procedure.image_fps is not None
        return ImageFolder(procedure.media, procedure.image_fps)
    return VideoFile(procedure.media)


def length_difference(labels: Labels, info: VideoInfo, fps: Fraction, n_frames: int) -> int:
    """Samples that a recording of n frames has beyond its label rows (negative: fewer); 0 for labels without a length."""
    if not isinstance(labels, RowLabels):
        return 0
    rule = IndexSampling.between(info.fps, fps)
    return rule.n_samples(n_frames) - rule.n_samples(labels.n_frames(info.fps))


def check_length(labels: Labels, info: VideoInfo, fps: Fraction, tolerance: int, where: str) -> list[str]:
    """Compare a recording with its label rows: a warning within the tolerance, an error beyond it.

    A cut-off file is accepted with its warning when the length its header announces fits the labels."""
    difference = length_difference(labels, info, fps, info.n_frames)
    if info.is_truncated and info.announced_s is not None:
        announced = length_difference(labels, info, fps, round(info.announced_s * info.fps))
        if difference < 0 and abs(announced) <= tolerance:
            return []  # reading the file tells how far it goes
    if difference == 0:
        return []
    n_rows = f"{abs(difference)} {'more' if difference > 0 else 'fewer'} samples than {where} labels"
    if abs(difference) > tolerance:
        cut = f" The file is cut off at {info.duration_s:.1f} s of {info.announced_s:.1f} s." if info.is_truncated else ""
        raise DataError(
            f"{info.name}: {info.n_frames} frames at {float(info.fps):g} fps make {n_rows} (tolerance {tolerance}).{cut} "
            "Check that they belong together, or raise --tolerance."
        )
    return [f"{info.name}: {n_rows}; the surplus is left out."]


def _store_recording(adapter: VideoAdapter, task: Task, tell: Tell, encoder: Encoder | None) -> VideoEntry:
    fps = Fraction(str(task.settings["fps"]))
    labels = adapter.labels(task.procedure)
    recording = open_recording(task.procedure)
    where = str(task.procedure.annotations[0])
    warnings = check_length(labels, recording.info, fps, task.tolerance, where)
    draft = VideoDraft(task.out, task.procedure.id, "frames" if encoder is None else "features")
    try:
        writer = _ImageWriter(draft) if encoder is None else _FeatureWriter(draft, encoder)
        rows: list[tuple[int, float, int]] = []
        expected = max(1, round(recording.info.duration_s * fps))
        for frame in recording.samples(fps, adapter.by):
            phase = int(labels.phase_of(np.array([frame.index]), np.array([frame.time_s]), recording.info.fps)[0])
            if phase == PAST_THE_END:
                continue  # a few at most; reading on completes the report
            rows.append((frame.index, frame.time_s, phase))
            writer.add(task.preprocess(frame.rgb))
            if len(rows) % 8 == 0:
                tell(min(0.99, len(rows) / expected))
        writer.close()
        table = SampleTable(*(np.array(column) for column in zip(*rows, strict=True)))
        if not len(table.phase) or (table.phase == UNLABELLED).all():
            raise DataError(f"{where}: not one sample of {recording.info.name} has a label.")
        entry = {
            "source_fps": str(recording.info.fps),
            "source_frames": recording.report.n_frames,
            "sources": task.sources,
            "settings_sha256": settings_hash(task.settings),
            "warnings": [_below(text, task.source) for text in warnings + recording.report.warnings],
        }
        return draft.commit(table, entry)
    except BaseException:
        draft.discard()
        raise


def _below(text: str, source: Path) -> str:
    """A warning that will be stored names files below the source folder, not on this machine."""
    return text.replace(f"{source}{os.sep}", "")


class _ImageWriter:
    def __init__(self, draft: VideoDraft) -> None:
        self._draft = draft

    def add(self, rgb: NDArray[np.uint8]) -> None:
        self._draft.add_image(encode_jpeg(rgb))

    def close(self) -> None:
        """Images are in place as they come."""


class _FeatureWriter:
    def __init__(self, draft: VideoDraft, encoder: Encoder) -> None:
        self._draft, self._encoder = draft, encoder
        self._waiting: list[NDArray[np.uint8]] = []
        self._parts: list[NDArray[np.float32]] = []

    def add(self, rgb: NDArray[np.uint8]) -> None:
        self._waiting.append(rgb)
        if len(self._waiting) == BATCH:
            self._encode()

    def _encode(self) -> None:
        features = self._encoder(np.stack(self._waiting))
        if features.shape[0] != len(self._waiting) or features.ndim != 2 or not np.isfinite(features).all():
            raise DataError(f"the encoder gave {features.shape} for {len(self._waiting)} pictures, or values that are not finite.")
        self._parts.append(features.astype(np.float32))
        self._waiting = []

    def close(self) -> None:
        if self._waiting:
            self._encode()
        if self._parts:
            self._draft.set_features(np.concatenate(self._parts))


def _store_features(adapter: FeatureAdapter, task: Task) -> VideoEntry:
    sequence = adapter.load(task.procedure)
    if (sequence.phases == UNLABELLED).all():
        raise DataError(f"{task.procedure.media}: not one sample of {task.procedure.id} has a label.")
    draft = VideoDraft(task.out, task.procedure.id, "features")
    try:
        draft.set_features(sequence.features)
        time_s = np.arange(len(sequence.phases)) / float(sequence.fps)
        entry = {"sources": task.sources, "settings_sha256": settings_hash(task.settings)}
        return draft.commit(SampleTable(sequence.frame, time_s, sequence.phases), entry)
    except BaseException:
        draft.discard()
        raise


@dataclass(frozen=True)
class Request:
    """What `surgicalmamba prepare` was asked for."""

    dataset: str
    source: Path
    out: Path
    fps: Fraction | None = None
    """Samples per second; None for the dataset's usual rate."""
    preprocess: Preprocess = field(default_factory=Preprocess)
    tolerance: int = 2
    """Samples by which a recording and its labels may differ in length."""
    exclude: tuple[str, ...] = ()
    workers: int = 1
    rebuild: bool = False
    """Throw away what is in `out` if it was made with other settings or from other videos."""
    encoder: Encoder | None = None
    """Turns pictures into vectors; the dataset then holds features."""


@dataclass
class Outcome:
    """What came of it. `failures` maps video ids to messages; with any, no dataset.json is written."""

    n_videos: int
    prepared: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


Watch = Callable[[float, float], None]
"""Called with the work done so far and the work in all, both in bytes of source files."""


def prepare(request: Request, watch: Watch = lambda done, total: None) -> Outcome:
    """Prepare a dataset, continuing what an earlier call began. Raises DataError if the source or `out` cannot be used at all;
    a single video's failure is in the outcome instead, and the others go on."""
    adapter = get_adapter(request.dataset, request.source)
    found = find_procedures(adapter)
    procedures = _without_excluded(found.procedures, request.exclude)
    kind, settings = _kind(adapter, request), _settings(adapter, request)
    _check_place(request)
    outcome = Outcome(len(procedures), warnings=list(found.notes))
    with _lock(request.out):
        _refuse_or_clear(request, settings, procedures)
        entries: dict[str, VideoEntry] = {}
        tasks = []
        for procedure in procedures:
            try:
                sources = fingerprints({procedure.media, *procedure.annotations}, request.source)
            except DataError as error:
                outcome.failures[procedure.id] = str(error)
                continue
            entry = finished_video(request.out, valid_id(procedure.id))
            if entry is not None and entry.sources == sources and entry.settings_sha256 == settings_hash(settings):
                entries[procedure.id] = entry
                outcome.kept.append(procedure.id)
                continue
            if entry is not None:
                outcome.warnings.append(f"{procedure.id}: its source files have changed since it was prepared; prepared again.")
            tasks.append(
                Task(request.dataset, request.source, request.out, procedure, sources, settings, request.preprocess, request.tolerance)
            )
        splits = adapter.splits(procedures)
        if tasks or outcome.failures:
            (request.out / MANIFEST).unlink(missing_ok=True)
        weights = [sum(file.size for file in task.sources.values()) for task in tasks]
        watch(0, sum(weights))
        hear = _weighted(watch, weights)
        for end in _work(tasks, request, hear):
            video = tasks[end.task].procedure.id
            hear(end.task, 1.0)
            if end.result is None:
                outcome.failures[video] = end.error or "failed"
            else:
                entries[video] = end.result
                outcome.prepared.append(video)
        for video in [p.id for p in procedures if p.id in entries]:
            outcome.warnings += entries[video].warnings
        if not outcome.failures:
            ordered = {p.id: entries[p.id] for p in procedures}
            manifest = _manifest(adapter, kind, settings, splits, ordered)
            outcome.warnings += _split_warnings(manifest, splits)
            if tasks or not (request.out / MANIFEST).is_file() or read_manifest(request.out) != manifest:
                finish(request.out, manifest)
    return outcome


def _work(tasks: list[Task], request: Request, watch: Callable[[int, float], None]) -> Iterator[Ended[VideoEntry]]:
    encoder = request.encoder
    if encoder is not None:  # a model is not copied into other processes
        return run_tasks(lambda task, tell: prepare_video(task, tell, encoder), tasks, 1, watch)
    return run_tasks(prepare_video, tasks, min(request.workers, len(tasks)), watch)


def _weighted(watch: Watch, weights: list[int]) -> Callable[[int, float], None]:
    """Progress over all tasks from the progress of each."""
    shares = [0.0] * len(weights)

    def hear(task: int, share: float) -> None:
        shares[task] = share
        watch(sum(s * w for s, w in zip(shares, weights, strict=True)), sum(weights))

    return hear


def _without_excluded(procedures: Sequence[Procedure], exclude: Sequence[str]) -> list[Procedure]:
    unknown = [video for video in exclude if video not in {p.id for p in procedures}]
    if unknown:
        raise ConfigError(f"--exclude {unknown[0]}: no such video; there are {', '.join(p.id for p in procedures[:5])}, ...")
    kept = [p for p in procedures if p.id not in exclude]
    if not kept:
        raise DataError("every video is excluded; nothing is left to prepare.")
    return kept


def _kind(adapter: Adapter, request: Request) -> Kind:
    if isinstance(adapter, VideoAdapter):
        return "frames" if request.encoder is None else "features"
    if request.encoder is not None:
        raise ConfigError(f"--features needs pictures, and {adapter.name} already consists of features.")
    return "features"


def _settings(adapter: VideoAdapter | FeatureAdapter, request: Request) -> dict[str, Setting]:
    """Everything that decides the bytes of a prepared video."""
    if isinstance(adapter, FeatureAdapter):
        if request.fps not in (None, adapter.fps):
            raise ConfigError(f"--fps {request.fps}: {adapter.name} comes at {adapter.fps} samples per second and is not resampled.")
        return {"fps": str(adapter.fps), **adapter.label_settings()}
    return {
        "fps": str(request.fps or Fraction(1)),
        "sampling": adapter.by,
        "box": request.preprocess.box,
        "size": request.preprocess.size,
        "jpeg_quality": None if request.encoder else JPEG_QUALITY,
        "encoder": request.encoder.name if request.encoder else None,
        **adapter.label_settings(),
    }


def _check_place(request: Request) -> None:
    out, source = request.out.resolve(), request.source.resolve()
    if out == source or source in out.parents or out in source.parents:
        raise ConfigError(f"--out {request.out} and --source {request.source} lie inside each other; choose a separate folder.")
    try:
        request.out.mkdir(parents=True, exist_ok=True)
        strangers = sorted({path.name for path in request.out.iterdir()} - {MANIFEST, PARTIAL, "videos"})
        if strangers:
            raise DataError(f"{request.out} holds other files ({strangers[0]}); give a new or empty folder as --out.")
        (request.out / PARTIAL).mkdir(exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write {request.out}: {error.strerror}. {remedy(error)}") from None


@contextmanager
def _lock(out: Path) -> Iterator[None]:
    """Keep a second `prepare` out of the same folder. The system drops the lock when the process ends, however it ends."""
    with (out / PARTIAL / "lock").open("w") as stream:
        try:
            import fcntl
        except ImportError:  # no such locks on Windows; two runs at once are then the user's care
            yield
            return
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"another prepare is writing {out}; wait for it to end.") from None
        try:
            yield
        finally:
            (out / PARTIAL / "lock").unlink(missing_ok=True)
            if not any((out / PARTIAL).glob("*")) and (out / PARTIAL).is_dir():
                (out / PARTIAL).rmdir()


def _refuse_or_clear(request: Request, settings: dict[str, Setting], procedures: Sequence[Procedure]) -> None:
    """Leftovers of killed runs go. Videos made with other settings, or that the source does not have, are refused or cleared."""
    for leftover in (request.out / PARTIAL).glob("*.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    videos = request.out / "videos"
    present = sorted(path.name for path in videos.iterdir()) if videos.is_dir() else []
    reason = ""
    if (request.out / MANIFEST).is_file():
        manifest = read_manifest(request.out)
        changes = {k: (manifest.settings.get(k), settings.get(k)) for k in {**manifest.settings, **settings}}
        told = [f"{key} {old} (now {new})" for key, (old, new) in changes.items() if old != new]
        if manifest.name != request.dataset:
            told.insert(0, f"dataset {manifest.name} (now {request.dataset})")
        reason = f"was prepared with {', '.join(told)}" if told else ""
    for video in present:
        entry = finished_video(request.out, video)
        if video not in {p.id for p in procedures}:
            reason = reason or f"holds video {video}, which {request.source} does not have or which is excluded now"
        elif entry is not None and entry.settings_sha256 != settings_hash(settings):
            reason = reason or "was prepared with other settings"
    if not reason:
        return
    if not request.rebuild:
        raise DataError(f"{request.out} {reason}: it is stale. Add --rebuild to throw it away, or choose another --out.")
    (request.out / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(videos, ignore_errors=True)


def _manifest(
    adapter: Adapter, kind: Kind, settings: dict[str, Setting], splits: dict[str, Split], entries: dict[str, VideoEntry]
) -> Manifest:
    here = {
        name: {role: [video for video in ids if video in entries] for role, ids in split.roles.items()} for name, split in splits.items()
    }
    missing = [video for split in splits.values() for video in split.videos if video not in entries]
    return Manifest(
        format=FORMAT,
        name=adapter.name,
        kind=kind,
        phases=list(adapter.vocabulary.names),
        fps=str(settings["fps"]),
        source=adapter.vocabulary.source,
        settings=settings,
        splits=here,
        split_notes={name: split.note for name, split in splits.items()},
        overlaps={name: split.overlap for name, split in splits.items() if split.overlap is not None},
        missing=list(dict.fromkeys(missing)),
        videos=entries,
    )


def _split_warnings(manifest: Manifest, splits: dict[str, Split]) -> list[str]:
    warnings = []
    if manifest.missing:
        shown = ", ".join(manifest.missing[:5]) + (f" and {len(manifest.missing) - 5} more" if len(manifest.missing) > 5 else "")
        warnings.append(f"the splits name {len(manifest.missing)} videos that are not here ({shown}): scores will not be comparable.")
    unverified = [name for name, split in splits.items() if not split.is_verified]
    if unverified:
        warnings.append(f"the id list of split {', '.join(unverified)} is unverified: {splits[unverified[0]].source}")
    return warnings

