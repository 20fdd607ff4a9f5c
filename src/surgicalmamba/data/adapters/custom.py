"""A user's own folder: recordings, a `phases.yaml`, and one label file per recording in any known format (see docs/own-data.md)."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from surgicalmamba.data.adapters.base import Found, Procedure, VideoAdapter, only_annotation, pair, walk
from surgicalmamba.data.adapters.grasp import check_numbering, read_coco_phases
from surgicalmamba.data.labels import Labels, PhaseVocabulary, load_vocabulary, read_any, start_labels
from surgicalmamba.data.manifest import Setting, Split, automatic_split, file_splits
from surgicalmamba.data.pictures import SUFFIXES
from surgicalmamba.data.records import parse_fps
from surgicalmamba.errors import DataError
from surgicalmamba.files import natural_key

VIDEO_SUFFIXES = frozenset({".mp4", ".avi", ".mkv", ".mov", ".m4v", ".mpg", ".mpeg", ".ts", ".mts", ".webm", ".wmv"})
LABEL_SUFFIXES = frozenset({".txt", ".csv", ".tsv"})
SHARED_STARTS = "annotations.csv"
SHARED_COCO = "annotations.json"
_AROUND = re.compile(r"^(?:labels?[-_])?(.+?)(?:[-_](?:phases?|labels?|annotations?|annotation[-_]phase))?$", re.IGNORECASE)


@dataclass(frozen=True)
class Description:
    """What phases.yaml says beyond phases and splits."""

    image_fps: Fraction | None = None
    first_row: int = 0
    per_second: bool = False


def read_description(path: Path) -> Description:
    """`fps:` images per second of image folders; `first_row:` 0 or 1; `rows:` frame or second."""
    import yaml

    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    fps, first_row, rows = (document.get(key) for key in ("fps", "first_row", "rows"))
    if first_row not in (None, 0, 1) or isinstance(first_row, bool):
        raise DataError(f"{path}: first_row is {first_row!r}; the first row of a label file is number 0 or 1.")
    if rows not in (None, "frame", "second"):
        raise DataError(f"{path}: rows is {rows!r}; write frame or second.")
    return Description(None if fps is None else parse_fps(str(fps)), first_row or 0, rows == "second")


def description_settings(source: Path) -> dict[str, Setting]:
    """The description as settings of the manifest."""
    description = read_description(phases_file(source))
    fps = description.image_fps
    rows = "second" if description.per_second else "frame"
    return {"image_fps": None if fps is None else str(fps), "first_row": description.first_row, "rows": rows}


def phases_file(source: Path) -> Path:
    """The folder's phases.yaml."""
    path = next((p for name in ("phases.yaml", "phases.yml") if (p := source / name).is_file()), None)
    if path is None:
        raise DataError(f"{source}: no phases.yaml in it; write one with a `phases:` list of the phase names in order.")
    return path


def own_splits(source: Path, procedures: Sequence[Procedure]) -> dict[str, Split]:
    """The splits of phases.yaml, whose ids must all exist, or an automatic one."""
    path = phases_file(source)
    splits = file_splits(path)
    known = {procedure.id for procedure in procedures}
    for split in splits.values():
        unknown = [video for video in split.videos if video not in known]
        if unknown:
            hint = "ids are file names without their ending"
            raise DataError(f"{path}: split {split.name!r} names {unknown[0]!r}, which is not in the folder; {hint}.")
    return splits or {"auto": automatic_split([procedure.id for procedure in procedures])}


def own_id(name: str, path: Path) -> str:
    """A file's name as an id: what cannot be part of a folder name becomes an underscore."""
    video = re.sub(r"[^A-Za-z0-9._+-]+", "_", name).strip("._+-")
    if not video:
        raise DataError(f"{path}: its name has no letter or digit to make an id of; rename it.")
    return video[:120]


def label_files(files: Sequence[Path], recordings: Iterable[str]) -> dict[str, Path]:
    """Label files by the id of the recording they belong to: `op1.csv` before `op1-phase.txt` or `label_op1.txt`.
    Two of a kind are refused; files of no recording are left aside."""
    exact: dict[str, list[Path]] = {}
    around: dict[str, list[Path]] = {}
    for path in files:
        if path.suffix.lower() in LABEL_SUFFIXES and path.name != SHARED_STARTS and (match := _AROUND.match(path.stem)):
            exact.setdefault(own_id(path.stem, path), []).append(path)
            around.setdefault(own_id(match[1], path), []).append(path)
    chosen = {}
    for key in recordings:
        paths = exact.get(key) or around.get(key) or []
        if len(paths) > 1:
            raise DataError(f"two label files for {key}: {paths[0]} and {paths[1]}; keep one.")
        if paths:
            chosen[key] = paths[0]
    return chosen


def recordings(source: Path, files: Sequence[Path]) -> list[Path]:
    """Video files, and the folders that hold images."""
    videos = [path for path in files if path.suffix.lower() in VIDEO_SUFFIXES]
    return videos + sorted({path.parent for path in files if path.suffix.lower() in SUFFIXES and path.parent != source})


class Custom(VideoAdapter):
    """Videos or folders of images below one folder. Uneven frame rates are sampled by time."""

    name = "custom"
    by = "auto"

    @property
    def vocabulary(self) -> PhaseVocabulary:
        return load_vocabulary(phases_file(self.source))

    def label_settings(self) -> dict[str, Setting]:
        return {**super().label_settings(), **description_settings(self.source)}

    def find(self) -> Found:
        _ = self.vocabulary  # a broken phases.yaml is told before anything else
        description = read_description(phases_file(self.source))
        files = walk(self.source)
        media = recordings(self.source, files)
        videos: dict[str, Path] = {}
        for path in sorted(media, key=lambda p: natural_key(p.name)):
            key = own_id(path.name if path.is_dir() else path.stem, path)
            if key in videos:
                raise DataError(f"two recordings called {key}: {videos[key]} and {path}; rename one.")
            if path.is_dir() and description.image_fps is None:
                raise DataError(f"{path} holds images; say in phases.yaml how many were taken per second, such as `fps: 1`.")
            videos[key] = path
        shared = next((p for name in (SHARED_STARTS, SHARED_COCO) if (p := self.source / name).is_file()), None)
        labels = label_files(files, videos) if shared is None else dict.fromkeys(videos, shared)
        found = pair(self, videos, labels, f"video ({', '.join(sorted(VIDEO_SUFFIXES))}) and no folder of images")
        fps = description.image_fps
        return Found([Procedure(p.id, p.media, p.annotations, fps if p.media.is_dir() else None) for p in found.procedures])

    def holds_annotations(self) -> bool:
        return bool(recordings(self.source, walk(self.source)))

    def labels(self, procedure: Procedure) -> Labels:
        path = only_annotation(procedure, f"{procedure.id}.csv or {procedure.id}.txt")
        name = procedure.media.name if procedure.media.is_dir() else procedure.media.stem
        if path.name == SHARED_STARTS:
            return start_labels(path, name, self.vocabulary)
        if path.name == SHARED_COCO:
            check_numbering(procedure.media)
            return read_coco_phases((path,), name, len(self.vocabulary))
        description = read_description(phases_file(self.source))
        return read_any(path, self.vocabulary, description.first_row, description.per_second)

    def splits(self, procedures: Sequence[Procedure]) -> dict[str, Split]:
        return own_splits(self.source, procedures)
