"""One procedure from its source files to its place in a prepared dataset."""

import multiprocessing
import os
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.datasets.base import FeatureAdapter, Procedure, VideoAdapter, get_adapter
from surgicalmamba.data.images import ImageFolder, encode_jpeg
from surgicalmamba.data.labels import PAST_THE_END, Labels, RowLabels
from surgicalmamba.data.manifest import Setting, SourceFile, VideoEntry, settings_hash
from surgicalmamba.data.preprocess import Preprocess
from surgicalmamba.data.records import VideoInfo
from surgicalmamba.data.sampling import IndexSampling
from surgicalmamba.data.store import SampleTable, VideoDraft
from surgicalmamba.data.video import VideoFile
from surgicalmamba.data.vocabulary import UNLABELLED
from surgicalmamba.data.workers import Tell
from surgicalmamba.errors import DataError

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
