"""The adapter contract, the registry, and what adapters share: finding files, pairing recordings with label
files, and reading arrays."""

import re
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.adapters import ADAPTERS
from surgicalmamba.data.labels import (
    PAST_THE_END,
    UNLABELLED,
    Labels,
    PhaseVocabulary,
    RowFormat,
    load_vocabulary,
    read_row_labels,
)
from surgicalmamba.data.manifest import Settings, Split, shipped_splits
from surgicalmamba.data.records import By
from surgicalmamba.data.video import open_recording
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.files import natural_key

Identify = Callable[[re.Match[str]], str]
"""The id of a procedure from the match of a file's name."""


@dataclass(frozen=True)
class Procedure:
    """One operation of a source folder: its recording and the files that label it."""

    id: str
    media: Path
    annotations: tuple[Path, ...] = ()
    image_fps: Fraction | None = None
    """Images per second, where the recording is a folder of images."""


@dataclass(frozen=True)
class Found:
    """What a source folder holds. `notes` list what was left out, such as labels whose video is missing."""

    procedures: list[Procedure]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PhaseRows:
    """The phases of one procedure over its whole length: (n,) ids, -1 where unlabelled, and the rows per
    second."""

    id: str
    phases: NDArray[np.int64]
    rows_per_s: Fraction


class Adapter(ABC):
    """One dataset's layout, label format, phases and splits."""

    name: ClassVar[str]

    def __init__(self, source: Path) -> None:
        self.source = source
        if not source.is_dir():
            raise DataError(f"{source} is not a folder; give the folder that holds {self.name} as --source.")

    @property
    def vocabulary(self) -> PhaseVocabulary:
        """Phase names in id order."""
        return load_vocabulary(self.name)

    def label_settings(self) -> Settings:
        """What decides the stored phase ids, besides the label files."""
        words = self.vocabulary
        aliases = [f"{alias}: {name}" for alias, name in words.aliases.items()]
        return {"phases": list(words.names), "aliases": aliases, "first_id": words.first_id}

    @abstractmethod
    def find(self) -> Found:
        """Every procedure of the source folder, in natural order of ids."""

    def splits(self, procedures: Sequence[Procedure]) -> dict[str, Split]:
        """Named splits; ids may be missing from the source."""
        return shipped_splits(self.name)

    @abstractmethod
    def phase_rows(self) -> Iterator[PhaseRows]:
        """The phases of every procedure, as densely as they are annotated. No video is decoded."""

    def holds_annotations(self) -> bool:
        """Whether `phase_rows` can read the folder; it cannot read a folder of plain label files."""
        return True


class VideoAdapter(Adapter):
    """A dataset of recordings with phase labels."""

    by: By = "index"
    """Per-frame label files count frames, so published datasets are sampled by index."""

    @abstractmethod
    def labels(self, procedure: Procedure) -> Labels:
        """Read one procedure's labels."""

    def phase_rows(self) -> Iterator[PhaseRows]:
        """One row per frame of the recordings."""
        for procedure in find_procedures(self).procedures:
            info = open_recording(procedure.media, procedure.image_fps).info
            frame = np.arange(info.n_frames)
            phases = self.labels(procedure).phase_of(frame, frame / float(info.fps), info.fps)
            yield PhaseRows(procedure.id, np.where(phases == PAST_THE_END, UNLABELLED, phases), info.fps)


@dataclass(frozen=True)
class FeatureSequence:
    """One procedure as vectors: features (n, d) float32, phases (n,) with -1 for unlabelled, samples per
    second."""

    features: NDArray[np.float32]
    phases: NDArray[np.int64]
    fps: Fraction
    frame: NDArray[np.int64]
    """Row number in the source, per sample."""


class FeatureAdapter(Adapter):
    """A dataset of vectors instead of pictures."""

    fps: Fraction = Fraction(1)

    @abstractmethod
    def load(self, procedure: Procedure) -> FeatureSequence:
        """Read one procedure."""

    def phase_rows(self) -> Iterator[PhaseRows]:
        for procedure in find_procedures(self).procedures:
            sequence = self.load(procedure)
            yield PhaseRows(procedure.id, sequence.phases, sequence.fps)


class RowAdapter(VideoAdapter):
    """A dataset with one file of numbered rows per video. Subclasses give patterns; ids come from
    `identify`."""

    video_pattern: ClassVar[str]
    label_pattern: ClassVar[str]
    expected_video: ClassVar[str]
    expected_label: ClassVar[str]
    """Examples of the two names, for messages; `{id}` is replaced."""
    row_format: ClassVar[RowFormat]
    second_choice: ClassVar[str] = ""
    counted_per_s: ClassVar[Fraction | None] = None
    """Growth of a label file's row numbers per second; None where recordings differ in that."""

    @staticmethod
    @abstractmethod
    def identify(match: re.Match[str]) -> str:
        """The id of a video or label file."""

    def label_files(self) -> dict[str, Path]:
        """Label files by id, also those without a recording."""
        return match_files(self.source, self.label_pattern, self.identify)

    def find(self) -> Found:
        videos = match_files(self.source, self.video_pattern, self.identify, second_choice=self.second_choice)
        return pair(self, videos, self.label_files(), f"video named like {self.expected_video}")

    def labels(self, procedure: Procedure) -> Labels:
        path = only_annotation(procedure, self.expected_label.format(id=procedure.id))
        return read_row_labels(path, self.row_format, self.vocabulary)


def get_adapter(name: str, source: Path) -> VideoAdapter | FeatureAdapter:
    """The adapter of a dataset by name; the error for an unknown name suggests the nearest known one."""
    if name not in ADAPTERS:
        near = get_close_matches(name.lower(), ADAPTERS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(ADAPTERS)}."
        raise ConfigError(f"unknown dataset {name!r}: {hint}")
    module, _, class_name = ADAPTERS[name][0].partition(":")
    adapter = getattr(import_module(f"surgicalmamba.data.adapters.{module}"), class_name)(source)
    assert isinstance(adapter, VideoAdapter | FeatureAdapter)
    return adapter


def find_procedures(adapter: Adapter) -> Found:
    """What the source folder holds; a folder that may not be listed raises DataError."""
    try:
        return adapter.find()
    except OSError as error:
        raise DataError(f"{error.filename or adapter.source}: cannot be read ({error.strerror}).") from None


def match_files(
    source: Path, pattern: str, identify: Identify, within: str = "", second_choice: str = ""
) -> dict[str, Path]:
    """Files below `source` whose whole name matches, in any case, by the id that `identify` makes of the
    match. `within` must be found in the path. Two files for one id are an error, unless exactly one of them
    does not match `second_choice`."""
    expression = re.compile(pattern, re.IGNORECASE)
    found: dict[str, list[Path]] = {}
    for path in sorted(walk(source)):
        if (match := expression.fullmatch(path.name)) and _is_in(path, source, within):
            found.setdefault(identify(match), []).append(path)
    chosen = {}
    for key in sorted(found, key=natural_key):
        better = [p for p in found[key] if not second_choice or not _is_in(p, source, second_choice)]
        candidates = better or found[key]
        if len(candidates) > 1:
            raise DataError(f"two files for {key}: {candidates[0]} and {candidates[1]}; keep one.")
        chosen[key] = candidates[0]
    return chosen


def _is_in(path: Path, source: Path, pattern: str) -> bool:
    return re.search(pattern, path.relative_to(source).as_posix(), re.IGNORECASE) is not None


def walk(source: Path) -> list[Path]:
    """Files below a folder; hidden ones are left out."""
    files: list[Path] = []
    for path in sorted(source.iterdir()):
        if not path.name.startswith("."):
            files.extend(walk(path) if path.is_dir() else [path])
    return files


def pair(adapter: Adapter, videos: dict[str, Path], labels: dict[str, Path], expected: str) -> Found:
    """Join recordings and label files by id. A recording without labels is kept, and fails when it is
    prepared. Labels without a recording are only noted, since annotations often come for all videos at
    once."""
    if not videos:
        raise DataError(f"{adapter.source} does not look like {adapter.name}: no {expected} in it.")
    alone = [key for key in labels if key not in videos]
    names = ", ".join(alone[:5]) + (f" and {len(alone) - 5} more" if len(alone) > 5 else "")
    return Found(join(videos, labels), [f"labels without a video: {names}"] if alone else [])


def join(media: dict[str, Path], labels: dict[str, Path]) -> list[Procedure]:
    """Procedures by id, each with its label file if there is one."""
    return [Procedure(key, path, (labels[key],) if key in labels else ()) for key, path in media.items()]


def archived(source: Path, array: str) -> list[Procedure]:
    """Procedures that .npz files hold as arrays `<id>/<array>`, in order of id."""
    archives = match_files(source, r".*\.npz", lambda match: match[0]).values()
    names = sorted((name, path) for path in archives for name in npz_names(path))
    return [Procedure(name.partition("/")[0], path) for name, path in names if name.endswith(f"/{array}")]


def only_annotation(procedure: Procedure, expected: str) -> Path:
    """The procedure's one label file."""
    if not procedure.annotations:
        raise DataError(f"{procedure.media}: no label file for it; expected {expected}.")
    return procedure.annotations[0]


def load_npy(path: Path) -> NDArray[np.generic]:
    """The array of a .npy file; nothing is unpickled."""
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
    """One array of a .npz file; nothing is unpickled."""
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
    """(n, d) float32 from any real numbers; wrong shapes, text and non-finite values raise DataError."""
    if array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{where}: features have shape {array.shape}, expected (samples, features).")
    if array.dtype.kind not in "fiub":
        raise DataError(f"{where}: features are of type {array.dtype}, expected numbers.")
    features = np.ascontiguousarray(array, dtype=np.float32)
    for row, column in np.argwhere(~np.isfinite(features))[:1]:
        value = f"row {row}, column {column} is {features[row, column]}"
        raise DataError(f"{where}: {value}; features must be finite.")
    return features


def as_phases(array: NDArray[np.generic], n_phases: int, where: str) -> NDArray[np.int64]:
    """(n,) phase ids, -1 for unlabelled."""
    if array.ndim != 1 or array.dtype.kind not in "iu":
        found = f"labels are {array.dtype} of shape {array.shape}"
        raise DataError(f"{where}: {found}, expected whole numbers of shape (samples,).")
    phases = array.astype(np.int64)
    for row in np.flatnonzero((phases < -1) | (phases >= n_phases))[:1]:
        outside = f"outside 0 to {n_phases - 1} (-1 for unlabelled)"
        raise DataError(f"{where}: row {row} has phase {phases[row]}, {outside}.")
    return phases


def same_length(features: NDArray[np.float32], labels: NDArray[np.int64], where: str) -> None:
    """Features and labels of different length raise DataError."""
    if len(features) != len(labels):
        counts = f"{len(features)} feature rows and {len(labels)} labels"
        raise DataError(f"{where}: {counts}; they must be the same number.")
