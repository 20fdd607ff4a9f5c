"""The phases of a dataset's videos over time, from annotations alone: prepared, as downloaded, or plain label files.

A segment runs from one boundary to the next. A boundary is where training sees one: the first labelled row of a phase other than
the last labelled one. So rows that nobody labelled end no segment; before the first and after the last labelled row there is none."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from surgicalmamba.data.annotations import read_lines, read_segments
from surgicalmamba.data.datasets.base import ADAPTERS, FeatureAdapter, RowAdapter, VideoAdapter, get_adapter, match_files
from surgicalmamba.data.datasets.custom import Custom, phases_file, read_description
from surgicalmamba.data.labels import SegmentLabels
from surgicalmamba.data.store import MANIFEST, PreparedDataset
from surgicalmamba.data.vocabulary import PhaseVocabulary, load_vocabulary
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.eval.folders import find_files, rows_per_second
from surgicalmamba.eval.pairs import FloatArray, IntArray
from surgicalmamba.eval.rows import read_rows
from surgicalmamba.eval.segments import find_segments

_SEGMENT_COLUMNS = ["start", "end", "phase"]


@dataclass(frozen=True, eq=False)
class Timeline:
    """One video as segments in order: phase ids, begin and end in seconds."""

    video: str
    phase: IntArray
    start_s: FloatArray
    stop_s: FloatArray

    @property
    def length_s(self) -> FloatArray:
        return np.round(self.stop_s - self.start_s, 6)

    @property
    def boundaries_s(self) -> FloatArray:
        """Where a phase follows another one."""
        return self.start_s[1:]


@dataclass(frozen=True, eq=False)
class Annotations:
    """All videos of a dataset, and how the seconds were known."""

    dataset: str
    phases: tuple[str, ...]
    videos: list[Timeline]
    clock: str

    @property
    def length_s(self) -> FloatArray:
        """Every segment of every video."""
        return np.concatenate([video.length_s for video in self.videos])


def from_rows(video: str, phases: IntArray, rows_per_s: float) -> Timeline:
    """Segments of one row after the other."""
    labelled = np.flatnonzero(phases >= 0)
    if not len(labelled):
        return Timeline(video, np.empty(0, np.int64), np.empty(0), np.empty(0))
    last = labelled[-1] + 1
    holder = np.maximum.accumulate(np.where(phases[:last] >= 0, np.arange(last), 0))  # the labelled row that speaks for each row
    segments = find_segments(phases[:last][holder])
    return Timeline(video, segments.phase, segments.start / rows_per_s, segments.stop / rows_per_s)


def from_stretches(video: str, labels: SegmentLabels) -> Timeline:
    """Segments of stretches of time; what lies between two of them belongs to the earlier."""
    begins = np.flatnonzero(np.append(True, labels.phases[1:] != labels.phases[:-1]))
    start = labels.start_s[begins]
    return Timeline(video, labels.phases[begins], start, np.append(start[1:], labels.end_s[-1]))


def read_prepared(folder: Path) -> Annotations:
    """Every video of a prepared dataset."""
    dataset = PreparedDataset.open(folder)
    fps = float(dataset.fps)
    videos = [from_rows(video.id, video.labels, fps) for video in dataset.videos.values()]
    return _checked(Annotations(dataset.name, dataset.phases, videos, f"{fps:g} samples per second, as prepared"), folder)


def read_annotations(folder: Path, phases: str | None, fps: float | None) -> Annotations:
    """A folder with annotations: a prepared dataset, a dataset as downloaded (videos need not be there), or a label file per video.

    phases: a dataset's name or a YAML file; without it, the folder's own phases.yaml. fps: rows per second of label files that do not
    tell by themselves."""
    if (folder / MANIFEST).is_file():
        return read_prepared(folder)
    if not folder.is_dir() and (not folder.is_file() or phases in ADAPTERS):
        raise DataError(f"{folder} is not a folder; give one with the annotations of a dataset.")
    if phases is None:
        if not any((folder / name).is_file() for name in ("phases.yaml", "phases.yml")):
            raise ConfigError(f"no phases given and {folder} has no phases.yaml; name a dataset (cholec80) or a YAML file with --phases.")
        phases = "custom"
    adapter = get_adapter(phases, folder) if phases in ADAPTERS else None
    if isinstance(adapter, RowAdapter):
        files = adapter.label_files()
        if files and adapter.counted_per_s is None and fps is None:
            return _of_recordings(adapter, folder)
        return _label_files(files or find_files(folder, "labels"), adapter.vocabulary, adapter.counted_per_s, fps, folder)
    if adapter is not None and adapter.holds_annotations():
        if fps is not None:
            raise ConfigError(f"--fps {fps:g} was given, but what {folder} holds of {adapter.name} tells its own rate; leave --fps out.")
        return _of_adapter(adapter, folder)
    if isinstance(adapter, Custom):
        description = read_description(phases_file(folder))
        counted = Fraction(1) if description.per_second else description.image_fps
        return _label_files(find_files(folder, "labels"), adapter.vocabulary, counted, fps, folder)
    return _label_files(find_files(folder, "labels"), load_vocabulary(phases), None, fps, folder)


def _of_recordings(adapter: RowAdapter, folder: Path) -> Annotations:
    """A dataset whose recordings differ in rate, so that label files alone do not tell the time."""
    if not match_files(folder, adapter.video_pattern, adapter.identify, second_choice=adapter.second_choice):
        differ = f"{adapter.name} counts frames, and its recordings differ in frames per second"
        raise DataError(f"{differ}; give a folder that also has the videos, a prepared one, or --fps if all of yours have one rate.")
    return _of_adapter(adapter, folder)


def _of_adapter(adapter: VideoAdapter | FeatureAdapter, folder: Path) -> Annotations:
    rows = list(adapter.phase_rows())
    rates = sorted({float(video.rows_per_s) for video in rows})
    clock = f"{' or '.join(f'{rate:g}' for rate in rates)} rows per second, as {adapter.name} says"
    videos = [from_rows(video.id, video.phases, float(video.rows_per_s)) for video in rows]
    name = folder.resolve().name if adapter.name in ("custom", "features") else adapter.vocabulary.dataset
    return _checked(Annotations(name, adapter.vocabulary.names, videos, clock), folder)


def _label_files(
    files: dict[str, Path], vocabulary: PhaseVocabulary, counted_per_s: Fraction | None, fps: float | None, folder: Path
) -> Annotations:
    videos, clocks = [], set()
    for name, path in files.items():
        stretches = _stretches(path, vocabulary)
        if stretches is not None:
            videos.append(from_stretches(name, stretches))
            clocks.add("segments in seconds")
            continue
        rows = read_rows(path, vocabulary)
        rate, clock = rows_per_second(rows), "by the time column"
        if fps is not None:
            if rate is not None and abs(rate - fps) > 1e-3 * fps:
                raise DataError(f"--fps {fps:g} was given, but the time column of {path} says {rate:g} rows per second.")
            rate, clock = fps, "as given"
        elif rate is None and counted_per_s is not None:
            rate = float(counted_per_s) / (rows.step or 1)
            clock = f"by row numbers {rows.step or 1} apart at {float(counted_per_s):g} a second"
        elif rate is None:
            rate, clock = 1.0, "assumed; say otherwise with --fps"
        videos.append(from_rows(name, rows.phase, rate))
        clocks.add(f"{rate:g} rows per second, {clock}")
    return _checked(Annotations(vocabulary.dataset, vocabulary.names, videos, "; ".join(sorted(clocks))), folder)


def _stretches(path: Path, vocabulary: PhaseVocabulary) -> SegmentLabels | None:
    """The labels of a file of `start,end,phase` rows; None for a file of another format."""
    first = read_lines(path)[0]
    for separator in (",", "\t", ";"):
        if [part.strip().casefold() for part in first.split(separator)] == _SEGMENT_COLUMNS:
            return read_segments(path, vocabulary, separator)
    return None


def _checked(annotations: Annotations, folder: Path) -> Annotations:
    """Videos without a labelled row tell nothing; without a single boundary there is nothing to study."""
    told: Iterable[Timeline] = (video for video in annotations.videos if len(video.phase))
    annotations = Annotations(annotations.dataset, annotations.phases, list(told), annotations.clock)
    if not any(len(video.boundaries_s) for video in annotations.videos):
        raise DataError(
            f"{folder} has no change of phase in {len(annotations.videos)} labelled video(s); there is no boundary to forget at."
        )
    return annotations
