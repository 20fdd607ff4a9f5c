"""From a dataset's source folder to a prepared dataset. Every procedure is prepared by itself, several in
parallel; a killed run is resumed by the same call."""

import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data import manifest as manifests
from surgicalmamba.data import store
from surgicalmamba.data.adapters import base
from surgicalmamba.data.adapters.base import FeatureAdapter, Procedure
from surgicalmamba.data.labels import PAST_THE_END, UNLABELLED, Labels, RowLabels
from surgicalmamba.data.manifest import FORMAT, Manifest, Settings, SourceFile, Split, VideoEntry
from surgicalmamba.data.pictures import JPEG_QUALITY, Preprocess, encode_jpeg
from surgicalmamba.data.records import By, IndexSampling, VideoInfo
from surgicalmamba.data.store import MANIFEST, PARTIAL
from surgicalmamba.data.video import open_recording
from surgicalmamba.data.workers import Progress, run_tasks
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.files import make_folder

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 32
"""Pictures per call of an encoder."""


class Encoder(Protocol):
    """Turns prepared pictures (n, h, w, 3) uint8, red first, into vectors (n, d) float32."""

    @property
    def name(self) -> str:
        """Where the vectors come from, such as a checkpoint's hash; part of the manifest."""

    def __call__(self, rgb: NDArray[np.uint8]) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class BackboneEncoder:
    """A network's frame encoder, and the pictures it expects."""

    name: str
    encode: Callable[["Tensor"], "Tensor"]
    """Frames (n, 3, image_size, image_size), normalised, to features (n, d)."""
    image_size: int
    mean_rgb: tuple[float, float, float]
    std_rgb: tuple[float, float, float]

    def __call__(self, rgb: NDArray[np.uint8]) -> NDArray[np.float32]:
        import torch

        from surgicalmamba.data.transforms import WholeFrame, normalise

        frames = torch.from_numpy(WholeFrame(self.image_size).clip(rgb))
        with torch.inference_mode():
            return np.asarray(self.encode(normalise(frames, self.mean_rgb, self.std_rgb)), np.float32)


@dataclass(frozen=True)
class Request:
    """The arguments of `surgicalmamba prepare`."""

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
    """Delete what is in `out` if it was made with other settings or from other videos."""
    encoder: Encoder | None = None
    """Turns pictures into vectors; the dataset then holds features."""


@dataclass
class Outcome:
    """The result of a run. `failures` maps video ids to messages; with any, no dataset.json is written."""

    n_videos: int
    prepared: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Task:
    """All that a process needs to prepare one video."""

    request: Request
    procedure: Procedure
    sources: dict[str, SourceFile]
    settings: Settings

    @property
    def n_bytes(self) -> int:
        return sum(file.size for file in self.sources.values())

    @property
    def made_from(self) -> dict[str, object]:
        """The fields of VideoEntry that decide whether a prepared video is stale."""
        return {"sources": self.sources, "settings_sha256": manifests.settings_hash(self.settings)}


def prepare(request: Request, progress: Callable[[float, float], None] = lambda done, total: None) -> Outcome:
    """Prepare a dataset, resuming an earlier call. `progress` is called with the bytes of source files done
    and in all. Raises DataError if the source or `out` cannot be used at all; the failure of a single video
    is in the outcome instead, and the other videos are still prepared."""
    adapter = base.get_adapter(request.dataset, request.source)
    found = base.find_procedures(adapter)
    procedures = _without_excluded(found.procedures, request.exclude)
    settings = _settings(adapter, request)
    _check_place(request)
    outcome = Outcome(len(procedures), warnings=list(found.notes))
    with _lock(request.out):
        _refuse_or_clear(request, settings, procedures)
        entries: dict[str, VideoEntry] = {}
        tasks = []
        for procedure in procedures:
            try:
                sources = manifests.fingerprints({procedure.media, *procedure.annotations}, request.source)
            except DataError as error:
                outcome.failures[procedure.id] = str(error)
                continue
            entry = store.finished_video(request.out, store.valid_id(procedure.id))
            task = Task(request, procedure, sources, settings)
            if entry and (entry.sources, entry.settings_sha256) == tuple(task.made_from.values()):
                entries[procedure.id] = entry
                outcome.kept.append(procedure.id)
                continue
            if entry:
                changed = "its source files have changed since it was prepared"
                outcome.warnings.append(f"{procedure.id}: {changed}; prepared again.")
            tasks.append(task)
        splits = adapter.splits(procedures)
        if tasks or outcome.failures:
            (request.out / MANIFEST).unlink(missing_ok=True)
        total, done = sum(task.n_bytes for task in tasks), [0.0] * len(tasks)
        progress(0, total)

        def advance(number: int, share: float) -> None:
            done[number] = share * tasks[number].n_bytes
            progress(sum(done), total)

        # A model is not copied into other processes.
        n_workers = 1 if request.encoder is not None else min(request.workers, len(tasks))
        for end in run_tasks(prepare_video, tasks, n_workers, advance):
            video = tasks[end.task].procedure.id
            advance(end.task, 1.0)
            if end.result is None:
                outcome.failures[video] = end.error or "failed"
            else:
                entries[video] = end.result
                outcome.prepared.append(video)
        entries = {p.id: entries[p.id] for p in procedures if p.id in entries}
        outcome.warnings += [warning for entry in entries.values() for warning in entry.warnings]
        if not outcome.failures:
            manifest = _manifest(adapter, settings, splits, entries)
            outcome.warnings += _split_warnings(manifest, splits)
            is_there = (request.out / MANIFEST).is_file()
            if not is_there or store.read_manifest(request.out) != manifest:
                store.finish(request.out, manifest)
    return outcome


def prepare_video(task: Task, progress: Progress) -> VideoEntry:
    """Prepare one procedure and move it into place, or raise DataError and leave nothing."""
    if multiprocessing.parent_process() is not None:
        import cv2

        cv2.setNumThreads(1)  # one process per core already
    adapter = base.get_adapter(task.request.dataset, task.request.source)
    if isinstance(adapter, FeatureAdapter):
        return _store_features(adapter.load(task.procedure), task)
    return _store_recording(adapter.labels(task.procedure), adapter.by, task, progress)


def _store_features(sequence: base.FeatureSequence, task: Task) -> VideoEntry:
    if (sequence.phases == UNLABELLED).all():
        raise DataError(f"{task.procedure.media}: not one sample of {task.procedure.id} has a label.")
    time_s = np.arange(len(sequence.phases)) / float(sequence.fps)
    with store.VideoDraft(task.request.out, task.procedure.id, "features") as draft:
        draft.set_features(sequence.features)
        return draft.commit(store.SampleTable(sequence.frame, time_s, sequence.phases), task.made_from)


def _store_recording(labels: Labels, by: By, task: Task, progress: Progress) -> VideoEntry:
    request, where = task.request, str(task.procedure.annotations[0])
    fps, encoder = Fraction(str(task.settings["fps"])), request.encoder
    recording = open_recording(task.procedure.media, task.procedure.image_fps)
    info = recording.info
    warnings = check_length(labels, info, fps, request.tolerance, where)
    rows: list[tuple[int, float, int]] = []
    batch: list[NDArray[np.uint8]] = []
    features: list[NDArray[np.float32]] = []
    n_expected = max(1, round(info.duration_s * fps))
    with store.VideoDraft(request.out, task.procedure.id, "features" if encoder else "frames") as draft:
        for frame in recording.samples(fps, by):
            phase = int(labels.phase_of(np.array([frame.index]), np.array([frame.time_s]), info.fps)[0])
            if phase == PAST_THE_END:
                continue  # a few at most; reading on completes the report
            rows.append((frame.index, frame.time_s, phase))
            batch.append(request.preprocess(frame.rgb))
            if encoder is None:
                draft.add_image(encode_jpeg(batch.pop()))
            elif len(batch) == BATCH:
                features.append(_encode(encoder, batch))
                batch = []
            if len(rows) % 8 == 0:
                progress(min(0.99, len(rows) / n_expected))
        if all(phase == UNLABELLED for _, _, phase in rows):
            raise DataError(f"{where}: not one sample of {info.name} has a label.")
        if encoder is not None:
            draft.set_features(np.concatenate(features + ([_encode(encoder, batch)] if batch else [])))
        table = store.SampleTable(*(np.array(column) for column in zip(*rows, strict=True)))
        warnings += recording.report.warnings
        facts = {
            "source_fps": str(info.fps),
            "source_frames": recording.report.n_frames,
            # Stored warnings name files below the source folder, not on this machine.
            "warnings": [text.replace(f"{request.source}{os.sep}", "") for text in warnings],
        }
        return draft.commit(table, task.made_from | facts)


def _encode(encoder: Encoder, batch: list[NDArray[np.uint8]]) -> NDArray[np.float32]:
    features = encoder(np.stack(batch))
    if features.ndim != 2 or len(features) != len(batch) or not np.isfinite(features).all():
        problem = f"gave {features.shape} for {len(batch)} pictures, or values that are not finite"
        raise DataError(f"the encoder {problem}.")
    return features.astype(np.float32)


def length_difference(labels: Labels, info: VideoInfo, fps: Fraction, n_frames: int) -> int:
    """Samples that a recording of n frames has beyond its label rows (negative: fewer); 0 for labels without
    a length."""
    if not isinstance(labels, RowLabels):
        return 0
    rule = IndexSampling.between(info.fps, fps)
    return rule.n_samples(n_frames) - rule.n_samples(labels.n_frames(info.fps))


def check_length(labels: Labels, info: VideoInfo, fps: Fraction, tolerance: int, where: str) -> list[str]:
    """Compare a recording with its label rows: a warning within the tolerance, an error beyond it.

    A cut-off file is accepted when the length in its header fits the labels; reading it gives its own
    warning."""
    difference = length_difference(labels, info, fps, info.n_frames)
    if difference < 0 and info.is_truncated and info.announced_s is not None:
        announced = length_difference(labels, info, fps, round(info.announced_s * info.fps))
        if abs(announced) <= tolerance:
            return []
    if difference == 0:
        return []
    n_rows = f"{abs(difference)} {'more' if difference > 0 else 'fewer'} samples than {where} labels"
    if abs(difference) <= tolerance:
        return [f"{info.name}: {n_rows}; the surplus is left out."]
    cut = ""
    if info.is_truncated:
        cut = f" The file is cut off at {info.duration_s:.1f} s of {info.announced_s:.1f} s."
    made = f"{info.n_frames} frames at {float(info.fps):g} fps make {n_rows} (tolerance {tolerance})"
    remedy = "Check that they belong together, or raise --tolerance."
    raise DataError(f"{info.name}: {made}.{cut} {remedy}")


def _without_excluded(procedures: Sequence[Procedure], exclude: Sequence[str]) -> list[Procedure]:
    unknown = [video for video in exclude if video not in {p.id for p in procedures}]
    if unknown:
        some = ", ".join(p.id for p in procedures[:5])
        raise ConfigError(f"--exclude {unknown[0]}: no such video; there are {some}, ...")
    kept = [p for p in procedures if p.id not in exclude]
    if not kept:
        raise DataError("every video is excluded; nothing is left to prepare.")
    return kept


def _settings(adapter: base.VideoAdapter | FeatureAdapter, request: Request) -> Settings:
    """Everything that decides the bytes of a prepared video."""
    encoder = request.encoder
    if isinstance(adapter, FeatureAdapter):
        if encoder is not None:
            raise ConfigError(f"--features needs pictures, and {adapter.name} already consists of features.")
        if request.fps not in (None, adapter.fps):
            rate = f"{adapter.name} comes at {adapter.fps} samples per second"
            raise ConfigError(f"--fps {request.fps}: {rate} and is not resampled.")
        return {"fps": str(adapter.fps), **adapter.label_settings()}
    return {
        "fps": str(request.fps or Fraction(1)),
        "sampling": adapter.by,
        "box": request.preprocess.box,
        "size": request.preprocess.size,
        "jpeg_quality": None if encoder else JPEG_QUALITY,
        "encoder": encoder.name if encoder else None,
        **adapter.label_settings(),
    }


def _check_place(request: Request) -> None:
    """`out` must be a separate folder that holds nothing but a prepared dataset."""
    out, source = request.out.resolve(), request.source.resolve()
    if out == source or source in out.parents or out in source.parents:
        both = f"--out {request.out} and --source {request.source}"
        raise ConfigError(f"{both} lie inside each other; choose a separate folder.")
    make_folder(request.out)
    others = sorted({path.name for path in request.out.iterdir()} - {MANIFEST, PARTIAL, "videos"})
    if others:
        raise DataError(f"{request.out} holds other files ({others[0]}); give a new or empty --out.")
    make_folder(request.out / PARTIAL)


@contextmanager
def _lock(out: Path) -> Iterator[None]:
    """Keep a second `prepare` out of the same folder. The system releases the lock when the process ends."""
    with (out / PARTIAL / "lock").open("w") as stream:
        try:
            import fcntl
        except ImportError:  # Windows has no such locks; the user must not run two at once there
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
            if (out / PARTIAL).is_dir() and not any((out / PARTIAL).iterdir()):
                (out / PARTIAL).rmdir()


def _refuse_or_clear(request: Request, settings: Settings, procedures: Sequence[Procedure]) -> None:
    """Delete leftovers of killed runs. Videos made with other settings, or that the source does not have, are
    an error, or are deleted with `rebuild`."""
    for leftover in (request.out / PARTIAL).glob("*.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    videos = request.out / "videos"
    reason = ""
    if (request.out / MANIFEST).is_file():
        manifest = store.read_manifest(request.out)
        before = {"dataset": manifest.name, **manifest.settings}
        now = {"dataset": request.dataset, **settings}
        keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        changes = ", ".join(f"{key} {before.get(key)} (now {now.get(key)})" for key in keys)
        reason = f"was prepared with {changes}" if changes else ""
    for video in sorted(path.name for path in videos.iterdir()) if videos.is_dir() else []:
        entry = store.finished_video(request.out, video)
        if video not in {p.id for p in procedures}:
            absent = f"which {request.source} does not have or which is excluded now"
            reason = reason or f"holds video {video}, {absent}"
        elif entry is not None and entry.settings_sha256 != manifests.settings_hash(settings):
            reason = reason or "was prepared with other settings"
    if reason and not request.rebuild:
        remedy = "Add --rebuild to delete it, or choose another --out."
        raise DataError(f"{request.out} {reason}: it is stale. {remedy}")
    if reason:
        (request.out / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(videos, ignore_errors=True)


def _manifest(
    adapter: base.Adapter, settings: Settings, splits: dict[str, Split], entries: dict[str, VideoEntry]
) -> Manifest:
    def present(split: Split) -> dict[str, list[str]]:
        return {role: [video for video in ids if video in entries] for role, ids in split.roles.items()}

    missing = [video for split in splits.values() for video in split.videos if video not in entries]
    return Manifest(
        format=FORMAT,
        name=adapter.name,
        kind="frames" if settings.get("jpeg_quality") else "features",
        phases=list(adapter.vocabulary.names),
        fps=str(settings["fps"]),
        source=adapter.vocabulary.source,
        settings=settings,
        splits={name: present(split) for name, split in splits.items()},
        split_notes={name: split.note for name, split in splits.items()},
        overlaps={name: split.overlap for name, split in splits.items() if split.overlap is not None},
        missing=list(dict.fromkeys(missing)),
        videos=entries,
    )


def _split_warnings(manifest: Manifest, splits: dict[str, Split]) -> list[str]:
    warnings, n = [], len(manifest.missing)
    if n:
        names = ", ".join(manifest.missing[:5]) + (f" and {n - 5} more" if n > 5 else "")
        absent = f"the splits name {n} videos that are not here ({names})"
        warnings.append(f"{absent}: scores will not be comparable.")
    unverified = [name for name, split in splits.items() if not split.is_verified]
    if unverified:
        source = splits[unverified[0]].source
        warnings.append(f"the id list of split {', '.join(unverified)} is unverified: {source}")
    return warnings
