"""The prepared dataset on disk: read it, and write it so that a killed process never leaves something that looks finished.

    dataset.json                     name, kind, phases, fps, splits, settings, and per video: counts and hashes
    videos/<id>/labels.csv           frame,time_s,phase: one row per sample, empty phase = unlabelled
    videos/<id>/frames/%08d.jpg      one image per row, numbered by row from 0 (kind "frames")
    videos/<id>/features.npy         or one vector per row, float32 (kind "features")
    videos/<id>/video.json           what this video was made from; dataset.json repeats it

`frame` is the index of the frame in the source recording and `time_s` its time there. A video is written in `.partial/` and
renamed into place when complete; `dataset.json` comes last, so a folder without it is an unfinished one. Nothing on disk depends
on the clock, the machine or the order of work: the same sources and settings give the same bytes."""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.labels import UNLABELLED
from surgicalmamba.data.manifest import Kind, Manifest, VideoEntry
from surgicalmamba.errors import DataError
from surgicalmamba.files import remedy, write_atomic

MANIFEST = "dataset.json"
PARTIAL = ".partial"
LABELS_HEADER = "frame,time_s,phase"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class SampleTable:
    """One row per sample: source frame index, seconds, phase id (-1 = unlabelled). All of length n_samples."""

    frame: NDArray[np.int64]
    time_s: NDArray[np.float64]
    phase: NDArray[np.int64]


@dataclass(frozen=True)
class PreparedVideo:
    """One procedure of a prepared dataset. Arrays are read on first use and kept; images are read by the caller."""

    id: str
    folder: Path
    kind: Kind
    n_samples: int
    n_phases: int
    fps: Fraction

    @cached_property
    def table(self) -> SampleTable:
        """Frame index, time and phase of every sample."""
        table = read_labels(self.folder / "labels.csv", self.n_phases)
        if len(table.phase) != self.n_samples:
            path = self.folder / "labels.csv"
            raise DataError(f"{path}: {len(table.phase)} rows where {MANIFEST} says {self.n_samples}; run prepare again.")
        return table

    @property
    def labels(self) -> NDArray[np.int64]:
        """(n_samples,) phase ids, -1 where nobody labelled."""
        return self.table.phase

    @property
    def time_s(self) -> NDArray[np.float64]:
        """(n_samples,) seconds since the first frame of the recording."""
        return self.table.time_s

    def frame_path(self, row: int) -> Path:
        """The JPEG of sample `row`."""
        if self.kind != "frames":
            raise DataError(f"{self.folder} holds features, not images; use .features.")
        return self.folder / "frames" / f"{row:08d}.jpg"

    @property
    def frame_paths(self) -> list[Path]:
        """The JPEGs of all samples, in order."""
        return [self.frame_path(row) for row in range(self.n_samples)]

    @cached_property
    def features(self) -> NDArray[np.float32]:
        """(n_samples, d_feature) float32, memory-mapped and read-only."""
        if self.kind != "features":
            raise DataError(f"{self.folder} holds images, not features; use .frame_paths.")
        path = self.folder / "features.npy"
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: not a readable feature array ({' '.join(str(error).split())}); run prepare again.") from None
        if array.ndim != 2 or array.dtype != np.float32 or len(array) != self.n_samples:
            raise DataError(
                f"{path}: expected float32 of shape ({self.n_samples}, d), found {array.dtype} of shape {array.shape}; run prepare again."
            )
        features: NDArray[np.float32] = array
        return features


@dataclass(frozen=True)
class PreparedDataset:
    """A finished prepared dataset. `splits["paper"]["train"]` is a tuple of ids; `videos[id]` is a PreparedVideo."""

    folder: Path
    name: str
    kind: Kind
    phases: tuple[str, ...]
    fps: Fraction
    videos: Mapping[str, PreparedVideo]
    splits: Mapping[str, Mapping[str, tuple[str, ...]]]
    manifest: Manifest

    @classmethod
    def open(cls, folder: Path | str) -> "PreparedDataset":
        """Read `dataset.json`; images, features and labels are read when asked for.

        Raises DataError for a folder that is no prepared dataset, an unfinished one, or one of another format version."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        fps = Fraction(manifest.fps)
        videos = {}
        for key, entry in manifest.videos.items():
            place = folder / "videos" / valid_id(key)
            if not place.is_dir():
                raise DataError(f"{place} is missing although {MANIFEST} lists it; run prepare again.")
            videos[key] = PreparedVideo(key, place, manifest.kind, entry.n_samples, len(manifest.phases), fps)
        splits = {name: {role: tuple(ids) for role, ids in roles.items()} for name, roles in manifest.splits.items()}
        return cls(folder, manifest.name, manifest.kind, tuple(manifest.phases), fps, videos, splits, manifest)

    @property
    def d_feature(self) -> int:
        """Width of the feature vectors (kind "features")."""
        return int(next(iter(self.videos.values())).features.shape[1])

    def split(self, name: str, role: str) -> list[PreparedVideo]:
        """The videos of one role, in the order of the split; an unknown name is answered with the known ones."""
        if name not in self.splits:
            raise DataError(f"{self.folder} has no split {name!r}; it has: {', '.join(self.splits) or 'none'}.")
        if role not in self.splits[name]:
            raise DataError(f"split {name!r} of {self.folder} has no role {role!r}; it has: {', '.join(self.splits[name])}.")
        return [self.videos[video] for video in self.splits[name][role]]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished dataset; says so when the folder is missing, unfinished, or something else."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the --out of a finished `surgicalmamba prepare`.")
    if not (folder / MANIFEST).is_file():
        if (folder / PARTIAL).exists() or (folder / "videos").is_dir():
            raise DataError(f"{folder} is unfinished: it has no {MANIFEST}. Run the same `surgicalmamba prepare` again; it continues.")
        raise DataError(f"{folder} is no prepared dataset: it has no {MANIFEST}. Make one with `surgicalmamba prepare`.")
    return Manifest.read(folder / MANIFEST)


def valid_id(video: str) -> str:
    """A video id that is safe as a folder name on every system; anything else is refused."""
    if not _ID.fullmatch(video) or video.endswith(".") or len(video) > 120:
        raise DataError(f"video id {video!r} cannot be a folder name: use letters, digits, '.', '_', '+' and '-', at most 120 of them.")
    return video


def read_labels(path: Path, n_phases: int) -> SampleTable:
    """Read a prepared labels.csv. Every malformed row is named by its line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); run prepare again.") from None
    if not lines or lines[0] != LABELS_HEADER:
        raise DataError(f"{path}:1: expected the header {LABELS_HEADER!r}; run prepare again.")
    frames, times, phases = [], [], []
    for number, line in enumerate(lines[1:], start=2):
        try:
            frame, time_s, phase = line.split(",")
            frames.append(int(frame))
            times.append(float(time_s))
            phases.append(int(phase) if phase else UNLABELLED)
        except ValueError:
            raise DataError(f"{path}:{number}: {line!r} is not frame,time_s,phase; run prepare again.") from None
        if phase and not 0 <= phases[-1] < n_phases:
            raise DataError(f"{path}:{number}: phase {phase} is outside 0 to {n_phases - 1}; run prepare again.")
    return SampleTable(np.array(frames, np.int64), np.array(times, np.float64), np.array(phases, np.int64))


def labels_text(table: SampleTable) -> str:
    """The table as labels.csv; times in microseconds, so that the text is the same everywhere."""
    rows = zip(table.frame.tolist(), table.time_s.tolist(), table.phase.tolist(), strict=True)
    body = "".join(f"{frame},{time_s:.6f},{'' if phase == UNLABELLED else phase}\n" for frame, time_s, phase in rows)
    return f"{LABELS_HEADER}\n{body}"


class VideoDraft:
    """One video being written, out of sight in `.partial/`. `commit` renames it into place; anything else leaves no trace in `videos/`."""

    def __init__(self, dataset: Path, video: str, kind: Kind) -> None:
        self._target = dataset / "videos" / valid_id(video)
        self._draft = dataset / PARTIAL / f"{video}.{os.getpid()}"
        self._kind = kind
        self._digest = hashlib.sha256()
        self._n_images = 0
        self.content_bytes = 0
        self._guard(self._begin)

    def _begin(self) -> None:
        shutil.rmtree(self._draft, ignore_errors=True)
        (self._draft / "frames" if self._kind == "frames" else self._draft).mkdir(parents=True)
        self._target.parent.mkdir(exist_ok=True)

    def add_image(self, jpeg: bytes) -> None:
        """Store the next sample's image."""
        assert self._kind == "frames"
        path = self._draft / "frames" / f"{self._n_images:08d}.jpg"
        self._guard(lambda: path.write_bytes(jpeg))
        self._digest.update(jpeg)
        self.content_bytes += len(jpeg)
        self._n_images += 1

    def set_features(self, features: NDArray[np.float32]) -> None:
        """Store all samples' vectors (n_samples, d)."""
        assert self._kind == "features" and features.dtype == np.float32 and features.ndim == 2
        path = self._draft / "features.npy"
        self._guard(lambda: np.save(path, np.ascontiguousarray(features), allow_pickle=False))
        self._digest.update(path.read_bytes())
        self.content_bytes = path.stat().st_size

    def commit(self, table: SampleTable, entry: Mapping[str, object]) -> VideoEntry:
        """Write labels and video.json and move the folder into place. `entry` holds the VideoEntry fields known to the caller."""
        if self._kind == "frames":
            assert self._n_images == len(table.phase)
        labels = labels_text(table).encode()
        record = VideoEntry.model_validate(
            {
                **entry,
                "n_samples": len(table.phase),
                "n_labelled": int((table.phase != UNLABELLED).sum()),
                "labels_sha256": hashlib.sha256(labels).hexdigest(),
                "content_sha256": self._digest.hexdigest(),
                "content_bytes": self.content_bytes,
            }
        )
        write_atomic(self._draft / "labels.csv", labels)
        write_atomic(self._draft / "video.json", record.text().encode())
        self._guard(self._move)
        return record

    def _move(self) -> None:
        if self._target.exists():
            shutil.rmtree(self._target)
        self._draft.rename(self._target)

    def discard(self) -> None:
        """Drop what was written so far."""
        shutil.rmtree(self._draft, ignore_errors=True)

    def _guard(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            self.discard()
            raise DataError(f"cannot write {self._draft.parent.parent}: {error.strerror or error}. {remedy(error)}") from None


def finish(dataset: Path, manifest: Manifest) -> None:
    """Declare the dataset complete: drop leftovers of killed runs, then write dataset.json."""
    shutil.rmtree(dataset / PARTIAL, ignore_errors=True)
    write_atomic(dataset / MANIFEST, manifest.text().encode())


def finished_video(dataset: Path, video: str) -> VideoEntry | None:
    """The record of a video that is already in place, or None; a folder that cannot be read counts as absent."""
    try:
        return VideoEntry.read(dataset / "videos" / valid_id(video) / "video.json")
    except DataError:
        return None


def file_hash(path: Path) -> str:
    """SHA-256 of a file of the dataset."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); run prepare again.") from None


def content_hash(folder: Path, kind: Kind, n_samples: int) -> str:
    """The hash that VideoEntry.content_sha256 must equal, computed from the files that are there."""
    digest = hashlib.sha256()
    names: Sequence[str] = [f"frames/{row:08d}.jpg" for row in range(n_samples)] if kind == "frames" else ["features.npy"]
    for name in names:
        try:
            digest.update((folder / name).read_bytes())
        except OSError as error:
            raise DataError(f"{folder / name}: cannot be read ({error.strerror}); run prepare again.") from None
    return digest.hexdigest()
