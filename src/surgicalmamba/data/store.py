"""The prepared dataset on disk: read it, and write it so that a killed process never leaves a dataset that
looks finished.

    dataset.json                  name, kind, phases, fps, splits, settings, and per video: counts and hashes
    videos/<id>/labels.csv        frame,time_s,phase: one row per sample, empty phase = unlabelled
    videos/<id>/frames/%08d.jpg   one image per row, numbered by row from 0 (kind "frames")
    videos/<id>/features.npy      or one vector per row, float32 (kind "features")
    videos/<id>/video.json        what this video was made from; dataset.json repeats it

`frame` is the index of the frame in the source recording and `time_s` its time there. A video is written in
`.partial/` and renamed into place when complete; `dataset.json` comes last, so a folder without it is
unfinished. Nothing on disk depends on the clock, the machine or the order of work: the same sources and
settings give the same bytes."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    """One row per sample: source frame index, seconds, phase id (-1 = unlabelled). All of length
    n_samples."""

    frame: NDArray[np.int64]
    time_s: NDArray[np.float64]
    phase: NDArray[np.int64]


@dataclass(frozen=True)
class PreparedVideo:
    """One procedure of a prepared dataset. Arrays are loaded on first use and cached; images are not
    cached."""

    id: str
    folder: Path
    kind: Kind
    n_samples: int
    n_phases: int
    fps: Fraction

    @cached_property
    def table(self) -> SampleTable:
        """Frame index, time and phase of every sample."""
        path = self.folder / "labels.csv"
        table = read_labels(path, self.n_phases)
        if len(table.phase) != self.n_samples:
            raise _broken(path, f"{len(table.phase)} rows where {MANIFEST} has {self.n_samples}")
        return table

    @property
    def labels(self) -> NDArray[np.int64]:
        """(n_samples,) phase ids, -1 where unlabelled."""
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
            features: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise _broken(path, f"not a readable feature array ({' '.join(str(error).split())})") from None
        if features.ndim != 2 or features.dtype != np.float32 or len(features) != self.n_samples:
            found = f"found {features.dtype} of shape {features.shape}"
            raise _broken(path, f"expected float32 of shape ({self.n_samples}, d), {found}")
        return features


@dataclass(frozen=True)
class PreparedDataset:
    """A finished prepared dataset. `splits["paper"]["train"]` is a tuple of ids; `videos[id]` is a
    PreparedVideo."""

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
        """Read `dataset.json`; images, features and labels are loaded on use.

        Raises DataError for a folder that is no prepared dataset, is unfinished, or has another format
        version."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        fps = Fraction(manifest.fps)
        videos = {}
        for key, entry in manifest.videos.items():
            place = folder / "videos" / valid_id(key)
            if not place.is_dir():
                raise DataError(f"{place} is missing although {MANIFEST} lists it; run prepare again.")
            videos[key] = PreparedVideo(key, place, manifest.kind, entry.n_samples, len(manifest.phases), fps)
        splits = {key: {r: tuple(ids) for r, ids in roles.items()} for key, roles in manifest.splits.items()}
        phases = tuple(manifest.phases)
        return cls(folder, manifest.name, manifest.kind, phases, fps, videos, splits, manifest)

    @property
    def d_feature(self) -> int:
        """Width of the feature vectors (kind "features")."""
        return int(next(iter(self.videos.values())).features.shape[1])

    def split(self, name: str, role: str) -> list[PreparedVideo]:
        """The videos of one role, in the order of the split; the error for an unknown name lists the known
        ones."""
        if name not in self.splits:
            known = ", ".join(self.splits) or "none"
            raise DataError(f"{self.folder} has no split {name!r}; it has: {known}.")
        if role not in self.splits[name]:
            known = ", ".join(self.splits[name])
            raise DataError(f"split {name!r} of {self.folder} has no role {role!r}; it has: {known}.")
        return [self.videos[video] for video in self.splits[name][role]]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished dataset; a missing, unfinished or other folder has its own message."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the --out of a finished `surgicalmamba prepare`.")
    if not (folder / MANIFEST).is_file():
        if (folder / PARTIAL).exists() or (folder / "videos").is_dir():
            state, todo = "is unfinished", "Run the same `surgicalmamba prepare` again; it continues."
        else:
            state, todo = "is no prepared dataset", "Make one with `surgicalmamba prepare`."
        raise DataError(f"{folder} {state}: it has no {MANIFEST}. {todo}")
    return Manifest.read(folder / MANIFEST)


def _broken(where: Path | str, problem: str) -> DataError:
    return DataError(f"{where}: {problem}; run prepare again.")


def valid_id(video: str) -> str:
    """A video id that is safe as a folder name on every system; any other is an error."""
    if not _ID.fullmatch(video) or video.endswith(".") or len(video) > 120:
        allowed = "use letters, digits, '.', '_', '+' and '-', at most 120 of them"
        raise DataError(f"video id {video!r} cannot be a folder name: {allowed}.")
    return video


def read_labels(path: Path, n_phases: int) -> SampleTable:
    """Read a prepared labels.csv. The error for a malformed row names its line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _broken(path, f"cannot be read ({error})") from None
    if not lines or lines[0] != LABELS_HEADER:
        raise _broken(f"{path}:1", f"expected the header {LABELS_HEADER!r}")
    frames, times, phases = [], [], []
    for number, line in enumerate(lines[1:], start=2):
        try:
            frame, time_s, phase = line.split(",")
            frames.append(int(frame))
            times.append(float(time_s))
            phases.append(int(phase) if phase else UNLABELLED)
        except ValueError:
            raise _broken(f"{path}:{number}", f"{line!r} is not frame,time_s,phase") from None
        if phase and not 0 <= phases[-1] < n_phases:
            raise _broken(f"{path}:{number}", f"phase {phase} is outside 0 to {n_phases - 1}")
    return SampleTable(np.array(frames, np.int64), np.array(times, np.float64), np.array(phases, np.int64))


def labels_text(table: SampleTable) -> str:
    """The table as labels.csv; times in microseconds, so that the text is the same everywhere."""
    rows = [LABELS_HEADER]
    for frame, time_s, phase in zip(table.frame, table.time_s, table.phase, strict=True):
        rows.append(f"{frame},{time_s:.6f},{'' if phase == UNLABELLED else phase}")
    return "\n".join(rows) + "\n"


class VideoDraft:
    """One video while it is written, hidden in `.partial/`. `commit` renames it into place; until then
    nothing is in `videos/`. As a context manager it discards the draft when the block raises."""

    def __init__(self, dataset: Path, video: str, kind: Kind) -> None:
        self._dataset = dataset
        self._target = dataset / "videos" / valid_id(video)
        self._draft = dataset / PARTIAL / f"{video}.{os.getpid()}"
        self._kind = kind
        self._digest = hashlib.sha256()
        self._n_images = 0
        self.content_bytes = 0
        with self._writing():
            shutil.rmtree(self._draft, ignore_errors=True)
            (self._draft / "frames" if kind == "frames" else self._draft).mkdir(parents=True)
            self._target.parent.mkdir(exist_ok=True)

    def __enter__(self) -> "VideoDraft":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()

    def add_image(self, jpeg: bytes) -> None:
        """Store the next sample's image."""
        assert self._kind == "frames"
        with self._writing():
            (self._draft / "frames" / f"{self._n_images:08d}.jpg").write_bytes(jpeg)
        self._digest.update(jpeg)
        self.content_bytes += len(jpeg)
        self._n_images += 1

    def set_features(self, features: NDArray[np.float32]) -> None:
        """Store all samples' vectors (n_samples, d)."""
        assert self._kind == "features" and features.dtype == np.float32 and features.ndim == 2
        path = self._draft / "features.npy"
        with self._writing():
            np.save(path, np.ascontiguousarray(features), allow_pickle=False)
        self._digest.update(path.read_bytes())
        self.content_bytes = path.stat().st_size

    def commit(self, table: SampleTable, entry: Mapping[str, object]) -> VideoEntry:
        """Write labels and video.json and move the folder into place. `entry` holds the remaining VideoEntry
        fields."""
        assert self._kind == "features" or self._n_images == len(table.phase)
        labels = labels_text(table)
        fields = {
            **entry,
            "n_samples": len(table.phase),
            "n_labelled": int((table.phase != UNLABELLED).sum()),
            "labels_sha256": hashlib.sha256(labels.encode()).hexdigest(),
            "content_sha256": self._digest.hexdigest(),
            "content_bytes": self.content_bytes,
        }
        record = VideoEntry.model_validate(fields)
        write_atomic(self._draft / "labels.csv", labels)
        write_atomic(self._draft / "video.json", record.text())
        with self._writing():
            if self._target.exists():
                shutil.rmtree(self._target)
            self._draft.rename(self._target)
        return record

    def discard(self) -> None:
        """Delete what was written so far."""
        shutil.rmtree(self._draft, ignore_errors=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.discard()
            reason = error.strerror or error
            raise DataError(f"cannot write {self._dataset}: {reason}. {remedy(error)}") from None


def finish(dataset: Path, manifest: Manifest) -> None:
    """Declare the dataset complete: delete leftovers of killed runs, then write dataset.json."""
    shutil.rmtree(dataset / PARTIAL, ignore_errors=True)
    write_atomic(dataset / MANIFEST, manifest.text())


def finished_video(dataset: Path, video: str) -> VideoEntry | None:
    """The record of a video that is already in place, or None; a folder that cannot be read counts as
    absent."""
    try:
        return VideoEntry.read(dataset / "videos" / valid_id(video) / "video.json")
    except DataError:
        return None


def content_hash(folder: Path, kind: Kind, n_samples: int) -> str:
    """The hash that VideoEntry.content_sha256 must equal, computed from the files."""
    images = [f"frames/{row:08d}.jpg" for row in range(n_samples)]
    return hash_files(folder, images if kind == "frames" else ["features.npy"])


def hash_files(folder: Path, names: Sequence[str]) -> str:
    """SHA-256 over the content of files, one after the other."""
    digest = hashlib.sha256()
    for name in names:
        try:
            digest.update((folder / name).read_bytes())
        except OSError as error:
            raise _broken(folder / name, f"cannot be read ({error.strerror})") from None
    return digest.hexdigest()
