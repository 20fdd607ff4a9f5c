"""Check a source folder or a prepared dataset before training: what is there, what is unusual, what is
wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data import store
from surgicalmamba.data.adapters import ADAPTERS, base
from surgicalmamba.data.labels import PAST_THE_END, UNLABELLED
from surgicalmamba.data.manifest import Split, VideoEntry, fingerprints
from surgicalmamba.data.prepare import check_length, length_difference
from surgicalmamba.data.records import IndexSampling
from surgicalmamba.data.store import MANIFEST, PARTIAL, PreparedDataset, PreparedVideo
from surgicalmamba.data.video import open_recording
from surgicalmamba.errors import ConfigError, DataError, SurgicalMambaError

Progress = Callable[[int, int], None]
"""Called with the number of videos checked and their number in all."""


@dataclass(frozen=True)
class Problem:
    """An error makes the data unfit; a warning is for a person to judge."""

    level: Literal["error", "warning"]
    video: str | None
    message: str


@dataclass
class VideoCheck:
    """One row of the table. Counts are None where the files could not be read."""

    id: str
    frames: int | None = None
    fps: float | None = None
    samples: int | None = None
    labelled: int | None = None
    mismatch: int | None = None
    """Samples that the recording has beyond its labels."""
    absent_phases: list[str] = field(default_factory=list)
    unlabelled_s: list[tuple[float, float]] = field(default_factory=list)
    """Stretches without a label, start and end in seconds."""

    def describe(self, phases: NDArray[np.int64], time_s: NDArray[np.float64], names: Sequence[str]) -> None:
        """Fill in what the labels of all samples show."""
        self.labelled = int((phases >= 0).sum())
        self.absent_phases = [name for phase, name in enumerate(names) if phase not in phases]
        self.unlabelled_s = stretches(phases == UNLABELLED, time_s)


@dataclass
class CheckReport:
    """What was found in a folder."""

    folder: str
    dataset: str
    state: Literal["source", "prepared", "unfinished"]
    videos: list[VideoCheck] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def has_errors(self) -> bool:
        return any(problem.level == "error" for problem in self.problems)

    def error(self, video: str | None, message: object) -> None:
        self.problems.append(Problem("error", video, str(message)))

    def warn(self, video: str | None, message: object) -> None:
        self.problems.append(Problem("warning", video, str(message)))


def check(
    folder: Path,
    dataset: str | None = None,
    source: Path | None = None,
    tolerance: int = 2,
    progress: Progress = lambda done, total: None,
) -> CheckReport:
    """Check a prepared dataset (against its source, if given) or a source folder of a named or guessed
    dataset."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder.")
    if (folder / MANIFEST).is_file():
        return _check_prepared(folder, source, progress)
    finished = sorted(path.parent.name for path in (folder / "videos").glob("*/video.json"))
    if finished or (folder / PARTIAL).is_dir():
        report = CheckReport(str(folder), dataset or "?", "unfinished", [VideoCheck(key) for key in finished])
        state = f"{folder} is unfinished: {len(finished)} videos and no {MANIFEST}"
        report.error(None, f"{state}. Run the same `surgicalmamba prepare` again.")
        return report
    return _check_source(folder, dataset or guess_dataset(folder), tolerance, progress)


def guess_dataset(folder: Path) -> str:
    """Which dataset a source folder holds, by trying every adapter."""
    if any((folder / name).is_file() for name in ("phases.yaml", "phases.yml")):
        return "features" if any(folder.rglob("*.np[yz]")) else "custom"
    fitting, reasons = [], []
    for name in [name for name in ADAPTERS if name not in ("custom", "features")]:
        try:
            if base.find_procedures(base.get_adapter(name, folder)).procedures:
                fitting.append(name)
        except SurgicalMambaError as error:
            reasons.append(str(error))
    if len(fitting) > 1 and "cholec80-tools" in fitting:
        fitting.remove("cholec80-tools")
    if len(fitting) != 1:
        unknown = "is no known dataset, and has no phases.yaml"
        found = f"could be {' or '.join(fitting)}" if fitting else unknown
        two = next((f" ({reason})" for reason in reasons if reason.startswith("two files")), "")
        raise ConfigError(f"{folder} {found}{two}; name it with --dataset.")
    return fitting[0]


def _check_source(folder: Path, dataset: str, tolerance: int, progress: Progress) -> CheckReport:
    report = CheckReport(str(folder), dataset, "source")
    adapter = base.get_adapter(dataset, folder)
    try:
        found = base.find_procedures(adapter)
        names = adapter.vocabulary.names
        splits = adapter.splits(found.procedures)
    except SurgicalMambaError as error:
        report.error(None, error)
        return report
    for note in found.notes:
        report.warn(None, note)
    seen: dict[str, str] = {}
    for number, procedure in enumerate(found.procedures):
        progress(number, len(found.procedures))
        row = VideoCheck(procedure.id)
        report.videos.append(row)
        try:
            if isinstance(adapter, base.FeatureAdapter):
                sequence = adapter.load(procedure)
                row.samples, row.fps = len(sequence.phases), float(sequence.fps)
                row.describe(sequence.phases, np.arange(len(sequence.phases)) / row.fps, names)
            else:
                _check_recording(adapter, procedure, row, names, tolerance, report)
                if procedure.media.is_file():
                    (content,) = fingerprints([procedure.media], folder).values()
                    _check_duplicate(seen, content.sha256, procedure.id, report)
        except SurgicalMambaError as error:
            report.error(procedure.id, error)
    _check_splits(splits, {p.id for p in found.procedures}, report)
    progress(len(found.procedures), len(found.procedures))
    return report


def _check_recording(
    adapter: base.VideoAdapter,
    procedure: base.Procedure,
    row: VideoCheck,
    names: Sequence[str],
    tolerance: int,
    report: CheckReport,
) -> None:
    fps = Fraction(1)
    info = open_recording(procedure.media, procedure.image_fps).info
    row.frames, row.fps = info.n_frames, float(info.fps)
    labels = adapter.labels(procedure)
    row.mismatch = length_difference(labels, info, fps, info.n_frames)
    rule = IndexSampling.between(info.fps, fps)
    frame = np.array([rule.frame_of(k) for k in range(rule.n_samples(info.n_frames))])
    time_s = frame / float(info.fps)
    phases = labels.phase_of(frame, time_s, info.fps)
    row.samples = int((phases != PAST_THE_END).sum())
    row.describe(phases[: row.samples], time_s[: row.samples], names)
    if info.is_truncated:
        reached = f"readable up to {info.duration_s:.1f} s of {info.announced_s:.1f} s announced"
        report.warn(procedure.id, f"{info.name}: cut off; {reached}.")
    for warning in check_length(labels, info, fps, tolerance, str(procedure.annotations[0])):
        report.warn(procedure.id, warning)


def stretches(mask: NDArray[np.bool_], time_s: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Maximal runs of a mask as (time of the first sample, time of the last sample)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False]))))
    return [(float(time_s[i]), float(time_s[j - 1])) for i, j in zip(edges[::2], edges[1::2], strict=True)]


def _check_duplicate(seen: dict[str, str], content: str, video: str, report: CheckReport) -> None:
    if content in seen:
        report.error(video, f"{video} and {seen[content]} are the same recording; remove one.")
    seen.setdefault(content, video)


def _check_splits(splits: dict[str, Split], present: set[str], report: CheckReport) -> None:
    for split in splits.values():
        for video, role, other in split.shared():
            if split.overlap is None:
                report.error(video, f"split {split.name}: {video} is in {role} and in {other}.")
        if split.overlap is not None:
            report.warn(None, f"split {split.name}: {split.overlap}.")
        missing = [video for video in split.videos if video not in present]
        if missing:
            count = f"{len(missing)} of {len(split.videos)} videos are not here"
            report.warn(None, f"split {split.name}: {count}, {missing[0]} for one.")


def _check_prepared(folder: Path, source: Path | None, progress: Progress) -> CheckReport:
    report = CheckReport(str(folder), "?", "prepared")
    try:
        dataset = PreparedDataset.open(folder)
    except DataError as error:
        report.error(None, error)
        return report
    report.dataset = dataset.name
    manifest = dataset.manifest
    seen: dict[str, str] = {}
    for number, (key, video) in enumerate(dataset.videos.items()):
        progress(number, len(dataset.videos))
        entry = manifest.videos[key]
        source_fps = float(Fraction(entry.source_fps or video.fps))
        row = VideoCheck(key, entry.source_frames, source_fps, video.n_samples)
        report.videos.append(row)
        try:
            row.describe(video.labels, video.time_s, dataset.phases)
            for problem in _content_problems(folder, video, entry):
                report.error(key, problem)
        except DataError as error:
            report.error(key, error)
        for warning in entry.warnings:
            report.warn(key, warning)
        _check_duplicate(seen, entry.content_sha256, key, report)
    for name in sorted({p.name for p in (folder / "videos").iterdir()} - set(dataset.videos)):
        unlisted = f"{folder / 'videos' / name} is not listed in {MANIFEST}"
        report.error(None, f"{unlisted}; remove it or run prepare again.")
    overlaps = manifest.overlaps
    splits = {name: Split(name, roles, overlap=overlaps.get(name)) for name, roles in dataset.splits.items()}
    _check_splits(splits, set(dataset.videos), report)
    if manifest.missing:
        count = f"{len(manifest.missing)} videos of the splits were not in the source"
        report.warn(None, f"{count}, {manifest.missing[0]} for one.")
    if source is not None:
        _check_stale(dataset, source, report)
    progress(len(dataset.videos), len(dataset.videos))
    return report


def _content_problems(folder: Path, video: PreparedVideo, entry: VideoEntry) -> list[str]:
    """Where the files of a prepared video differ from the manifest."""
    problems, place = [], video.folder
    if store.finished_video(folder, video.id) != entry:
        problems.append(f"{place / 'video.json'} does not agree with {MANIFEST}; run prepare again.")
    if store.hash_files(place, ["labels.csv"]) != entry.labels_sha256:
        problems.append(f"{place / 'labels.csv'} has changed since it was prepared; run prepare again.")
    if store.content_hash(place, video.kind, video.n_samples) != entry.content_sha256:
        what = "an image" if video.kind == "frames" else "features.npy"
        changed = f"{what} has changed since it was prepared"
        problems.append(f"{place}: {changed}; delete the folder and run prepare again.")
    if video.kind == "frames" and len(list((place / "frames").iterdir())) != video.n_samples:
        more = f"more files than the {video.n_samples} of {MANIFEST}"
        problems.append(f"{place / 'frames'}: {more}; remove the others.")
    return problems


def _check_stale(dataset: PreparedDataset, source: Path, report: CheckReport) -> None:
    """Compare with the source folder it was made from."""
    if not source.is_dir():
        report.error(None, f"{source} is not a folder; give the --source of the dataset.")
        return
    for key, entry in dataset.manifest.videos.items():
        for name, recorded in entry.sources.items():
            path = source / name
            if not path.exists():
                report.error(key, f"stale: {path} is gone.")
            elif fingerprints([path], source)[name] != recorded:
                report.error(key, f"stale: {path} has changed since it was prepared; run prepare again.")
