"""The adapter contract, the registry, and what adapters of one-label-file-per-video datasets share."""

import re
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.labels import PAST_THE_END, UNLABELLED, Labels, PhaseVocabulary, RowFormat, load_vocabulary, read_row_labels
from surgicalmamba.data.manifest import Setting, Split, shipped_splits
from surgicalmamba.data.pictures import image_files
from surgicalmamba.data.records import By
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.files import natural_key

# Numeric arrays from .npy and .npz files of others: never unpickled, checked for shape, type and finite values.


def load_npy(path: Path) -> NDArray[np.generic]:
    """One array of a .npy file."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: {_reason(error)}") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError(f"{path}: an .npz archive under the name .npy; rename it.")
    return array


def npz_names(path: Path) -> list[str]:
    """The array names of a .npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    except zipfile.BadZipFile:
        raise DataError(f"{path}: not an .npz archive, or a damaged one.") from None


def load_npz(path: Path, name: str) -> NDArray[np.generic]:
    """One array of a .npz file."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            array: NDArray[np.generic] = archive[name]
            return array
    except KeyError:
        raise DataError(f"{path}: no array {name!r} in it.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: array {name!r}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "pickle" in text.lower():
        return "holds Python objects, which are never loaded; save plain numbers."
    return f"not a readable array ({text})."


def as_features(array: NDArray[np.generic], where: str) -> NDArray[np.float32]:
    """(n, d) float32 from any real numbers; wrong shapes, text and non-finite values are refused with their place."""
    if array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{where}: features have shape {array.shape}, expected (samples, features).")
    if array.dtype.kind not in "fiub":
        raise DataError(f"{where}: features are of type {array.dtype}, expected numbers.")
    features = np.ascontiguousarray(array, dtype=np.float32)
    bad = np.argwhere(~np.isfinite(features))
    if len(bad):
        raise DataError(f"{where}: row {bad[0][0]}, column {bad[0][1]} is {features[tuple(bad[0])]}; features must be finite.")
    return features


def as_phases(array: NDArray[np.generic], n_phases: int, where: str) -> NDArray[np.int64]:
    """(n,) phase ids, -1 for unlabelled."""
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(f"{where}: labels are {array.dtype} of shape {array.shape}, expected whole numbers of shape (samples,).")
    phases = array.astype(np.int64)
    bad = np.flatnonzero((phases < -1) | (phases >= n_phases))
    if len(bad):
        raise DataError(f"{where}: row {bad[0]} has phase {phases[bad[0]]}, outside 0 to {n_phases - 1} (-1 for unlabelled).")
    return phases


def same_length(n_features: int, n_labels: int, where: str) -> None:
    """Refuse features and labels of different length."""
    if n_features != n_labels:
        raise DataError(f"{where}: {n_features} feature rows and {n_labels} labels; they must be the same number.")


ADAPTERS = {
    "cholec80": "cholec80:Cholec80",
    "m2cai16": "m2cai16:M2cai16",
    "cataract101": "cataract101:Cataract101",
    "autolaparo": "autolaparo:AutoLaparo",
    "heichole": "heichole:HeiChole",
    "heico": "heico:HeiCo",
    "grasp": "grasp:Grasp",
    "custom": "custom:Custom",
    "cholec80-tools": "cholec80_tools:Cholec80Tools",
    "jigsaws": "jigsaws:Jigsaws",
    "features": "features:Features",
}
"""Dataset name → module and class below this package."""


@dataclass(frozen=True)
class Procedure:
    """One operation of a source folder: its recording and the files that label it."""

    id: str
    media: Path
    annotations: tuple[Path, ...]
    image_fps: Fraction | None = None
    """Images per second, where the recording is a folder of images."""


@dataclass(frozen=True)
class Found:
    """What a source folder holds. `notes` tell what was left aside, such as labels whose video is not there."""

    procedures: list[Procedure]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PhaseRows:
    """The phases of one procedure over its whole length: (n,) ids, -1 where nobody labelled, and how many rows make a second."""

    id: str
    phases: NDArray[np.int64]
    rows_per_s: Fraction


class Adapter(ABC):
    """Knows one dataset's layout, label format, phases and splits."""

    name: ClassVar[str]

    def __init__(self, source: Path) -> None:
        self.source = source
        if not source.is_dir():
            raise DataError(f"{source} is not a folder; give the folder that holds {self.name} as --source.")

    @property
    def vocabulary(self) -> PhaseVocabulary:
        """Phase names in id order."""
        return load_vocabulary(self.name)

    def label_settings(self) -> dict[str, Setting]:
        """What, besides the label files, decides the phase ids that are stored."""
        words = self.vocabulary
        return {"phases": list(words.names), "aliases": [f"{a}: {b}" for a, b in words.aliases.items()], "first_id": words.first_id}

    @abstractmethod
    def find(self) -> Found:
        """Every procedure of the source folder, in natural order of ids."""

    def splits(self, procedures: Sequence[Procedure]) -> dict[str, Split]:
        """Named splits; ids may be missing from the source."""
        return shipped_splits(self.name)

    @abstractmethod
    def phase_rows(self) -> Iterator[PhaseRows]:
        """The phases of every procedure, as densely as they are annotated. No picture is decoded."""

    def holds_annotations(self) -> bool:
        """Whether the folder is one that `phase_rows` can read; a folder of plain label files is not."""
        return True


class VideoAdapter(Adapter):
    """A dataset of recordings with phase labels."""

    by: By | Literal["auto"] = "index"
    """Per-frame label files go by frame index, so published datasets are sampled by index."""

    @abstractmethod
    def labels(self, procedure: Procedure) -> Labels:
        """Read one procedure's labels."""

    def phase_rows(self) -> Iterator[PhaseRows]:
        """By the recordings' own rates and lengths, which their packets tell."""
        from surgicalmamba.data.video import VideoFile

        for procedure in find_procedures(self).procedures:
            if procedure.image_fps is not None:
                fps, n_frames = procedure.image_fps, len(image_files(procedure.media))
            else:
                info = VideoFile(procedure.media).info
                fps, n_frames = info.fps, info.n_frames
            frame = np.arange(n_frames)
            phases = self.labels(procedure).phase_of(frame, frame / float(fps), fps)
            yield PhaseRows(procedure.id, np.where(phases == PAST_THE_END, UNLABELLED, phases), fps)


@dataclass(frozen=True)
class FeatureSequence:
    """One procedure as vectors: features (n, d) float32, phases (n,) with -1 for unlabelled, samples per second."""

    features: NDArray[np.float32]
    phases: NDArray[np.int64]
    fps: Fraction
    frame: NDArray[np.int64]
    """Row number in the source, per sample."""


class FeatureAdapter(Adapter):
    """A dataset that comes as vectors rather than pictures."""

    fps: Fraction = Fraction(1)

    @abstractmethod
    def load(self, procedure: Procedure) -> FeatureSequence:
        """Read one procedure."""

    def phase_rows(self) -> Iterator[PhaseRows]:
        for procedure in find_procedures(self).procedures:
            sequence = self.load(procedure)
            yield PhaseRows(procedure.id, sequence.phases, sequence.fps)


def get_adapter(name: str, source: Path) -> VideoAdapter | FeatureAdapter:
    """The adapter of a dataset by name; an unknown name is answered with the nearest known one."""
    if name not in ADAPTERS:
        near = get_close_matches(name.lower(), ADAPTERS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(ADAPTERS)}."
        raise ConfigError(f"unknown dataset {name!r}: {hint}")
    module, _, class_name = ADAPTERS[name].partition(":")
    adapter: VideoAdapter | FeatureAdapter = getattr(import_module(f"surgicalmamba.data.adapters.{module}"), class_name)(source)
    return adapter


def find_procedures(adapter: Adapter) -> Found:
    """What the source folder holds; a folder that may not be listed is told like any other mistake."""
    try:
        return adapter.find()
    except OSError as error:
        raise DataError(f"{error.filename or adapter.source}: cannot be read ({error.strerror}).") from None


def match_files(
    source: Path, pattern: str, identify: Callable[[re.Match[str]], str], within: str = "", second_choice: str = ""
) -> dict[str, Path]:
    """Files below `source` whose whole name matches, whatever its case, by the id that `identify` makes of the match.

    `within` must be found in the path. Two files for one id are an error, unless one alone does not match `second_choice`."""
    expression = re.compile(pattern, re.IGNORECASE)
    found: dict[str, list[Path]] = {}
    for path in sorted(walk(source)):
        below = path.relative_to(source).as_posix()
        if (match := expression.fullmatch(path.name)) and re.search(within, below, re.IGNORECASE):
            found.setdefault(identify(match), []).append(path)
    chosen = {}
    for key, paths in found.items():
        better = [p for p in paths if not (second_choice and re.search(second_choice, p.relative_to(source).as_posix(), re.IGNORECASE))]
        candidates = better or paths
        if len(candidates) > 1:
            raise DataError(f"two files for {key}: {candidates[0]} and {candidates[1]}; keep one.")
        chosen[key] = candidates[0]
    return dict(sorted(chosen.items(), key=lambda item: natural_key(item[0])))


def walk(source: Path) -> list[Path]:
    """Files below a folder, hidden ones left out."""
    files: list[Path] = []
    for path in sorted(source.iterdir()):
        if not path.name.startswith("."):
            files.extend(walk(path) if path.is_dir() else [path])
    return files


def pair(adapter: Adapter, videos: dict[str, Path], labels: dict[str, Path], expected: str) -> Found:
    """Join recordings and label files by id. A recording without labels stays (and fails when its turn comes); labels without a
    recording are told and left aside, since annotations often come for all videos at once."""
    if not videos:
        raise DataError(f"{adapter.source} does not look like {adapter.name}: no {expected} in it.")
    procedures = [Procedure(key, path, (labels[key],) if key in labels else ()) for key, path in videos.items()]
    alone = [key for key in labels if key not in videos]
    note = f"labels without a video: {', '.join(alone[:5])}{f' and {len(alone) - 5} more' if len(alone) > 5 else ''}"
    return Found(procedures, [note] if alone else [])


def only_annotation(procedure: Procedure, expected: str) -> Path:
    """The procedure's one label file."""
    if not procedure.annotations:
        raise DataError(f"{procedure.media}: no label file for it; expected {expected}.")
    return procedure.annotations[0]


class RowAdapter(VideoAdapter):
    """A dataset with one file of numbered rows per video. Subclasses give patterns; ids come from `identify`."""

    video_pattern: ClassVar[str]
    label_pattern: ClassVar[str]
    expected_video: ClassVar[str]
    expected_label: ClassVar[str]
    """How the two are called for a given id, for messages: `{id}` is filled in."""
    row_format: ClassVar[RowFormat]
    second_choice: ClassVar[str] = ""
    counted_per_s: ClassVar[Fraction | None] = None
    """By how much the row numbers of a label file grow in a second; None where recordings differ in that."""

    @staticmethod
    @abstractmethod
    def identify(match: re.Match[str]) -> str:
        """The id of a video or label file from the match of its name."""

    def label_files(self) -> dict[str, Path]:
        """Label files by id, whether their recordings are there or not."""
        return match_files(self.source, self.label_pattern, self.identify)

    def find(self) -> Found:
        videos = match_files(self.source, self.video_pattern, self.identify, second_choice=self.second_choice)
        return pair(self, videos, self.label_files(), f"video named like {self.expected_video}")

    def labels(self, procedure: Procedure) -> Labels:
        return read_row_labels(only_annotation(procedure, self.expected_label.format(id=procedure.id)), self.row_format, self.vocabulary)

