"""A user's own folder: recordings, a `phases.yaml`, and one label file per recording in any known format (see
docs/own-data.md)."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from surgicalmamba.data.adapters.base import Found, Procedure, VideoAdapter, only_annotation, pair, walk
from surgicalmamba.data.adapters.grasp import check_numbering, read_coco_phases
from surgicalmamba.data.labels import (
    Labels,
    PhaseVocabulary,
    load_vocabulary,
    parse_yaml,
    read_any,
    start_labels,
)
from surgicalmamba.data.manifest import Settings, Split, automatic_split, file_splits
from surgicalmamba.data.pictures import SUFFIXES
from surgicalmamba.data.records import parse_fps
from surgicalmamba.errors import DataError
from surgicalmamba.files import natural_key

VIDEO_SUFFIXES = {".mp4", ".avi", ".mkv", ".mov", ".m4v", ".mpg", ".mpeg", ".ts", ".mts", ".webm", ".wmv"}
LABEL_SUFFIXES = {".txt", ".csv", ".tsv"}
SHARED_STARTS = "annotations.csv"
SHARED_COCO = "annotations.json"
_ENDING = r"(?:[-_](?:phases?|labels?|annotations?|annotation[-_]phase))?"
_AROUND = re.compile(rf"^(?:labels?[-_])?(.+?){_ENDING}$", re.IGNORECASE)


@dataclass(frozen=True)
class Description:
    """The keys of phases.yaml besides phases and splits."""

    image_fps: Fraction | None = None
    first_row: int = 0
    per_second: bool = False

    @property
    def settings(self) -> Settings:
        """The description as settings of the manifest."""
        fps, rows = self.image_fps, "second" if self.per_second else "frame"
        return {"image_fps": None if fps is None else str(fps), "first_row": self.first_row, "rows": rows}


def read_description(path: Path) -> Description:
    """`fps:` images per second of image folders; `first_row:` 0 or 1; `rows:` frame or second."""
    document = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    fps, first_row, rows = (document.get(key) for key in ("fps", "first_row", "rows"))
    if first_row not in (None, 0, 1) or isinstance(first_row, bool):
        raise DataError(f"{path}: first_row is {first_row!r}; the first row of a label file is 0 or 1.")
    if rows not in (None, "frame", "second"):
        raise DataError(f"{path}: rows is {rows!r}; write frame or second.")
    return Description(None if fps is None else parse_fps(str(fps)), first_row or 0, rows == "second")


def phases_file(source: Path) -> Path:
    """The folder's phases.yaml."""
    path = next((p for name in ("phases.yaml", "phases.yml") if (p := source / name).is_file()), None)
    if path is None:
        remedy = "write one with a `phases:` list of the phase names in order"
        raise DataError(f"{source}: no phases.yaml in it; {remedy}.")
    return path


def describe(source: Path) -> Description:
    """The description in the folder's phases.yaml."""
    return read_description(phases_file(source))


def own_splits(source: Path, procedures: Sequence[Procedure]) -> dict[str, Split]:
    """The splits of phases.yaml, whose ids must all exist, or an automatic one."""
    path, ids = phases_file(source), [procedure.id for procedure in procedures]
    splits = file_splits(path)
    for split in splits.values():
        for video in split.videos:
            if video not in ids:
                problem = f"split {split.name!r} names {video!r}, which is not in the folder"
                raise DataError(f"{path}: {problem}; ids are file names without their ending.")
    return splits or {"auto": automatic_split(ids)}


def own_id(name: str, path: Path) -> str:
    """A file's name as an id: characters that a folder name cannot have become underscores."""
    video = re.sub(r"[^A-Za-z0-9._+-]+", "_", name).strip("._+-")
    if not video:
        raise DataError(f"{path}: its name has no letter or digit to make an id of; rename it.")
    return video[:120]


def label_files(files: Sequence[Path], recordings: Iterable[str]) -> dict[str, Path]:
    """Label files by the id of the recording they belong to: `op1.csv` before `op1-phase.txt` or
    `label_op1.txt`. Two of a kind are refused; files of no recording are left aside."""
    exact: dict[str, list[Path]] = {}
    around: dict[str, list[Path]] = {}
    for path in files:
        is_label = path.suffix.lower() in LABEL_SUFFIXES and path.name != SHARED_STARTS
        if is_label and (match := _AROUND.match(path.stem)):
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
    folders = {path.parent for path in files if path.suffix.lower() in SUFFIXES}
    return videos + sorted(folders - {source})


class Custom(VideoAdapter):
    """Videos or folders of images below one folder. Uneven frame rates are sampled by time."""

    name = "custom"
    by = "auto"

    @property
    def vocabulary(self) -> PhaseVocabulary:
        return load_vocabulary(phases_file(self.source))

    def label_settings(self) -> Settings:
        return super().label_settings() | describe(self.source).settings

    def find(self) -> Found:
        _ = self.vocabulary  # the first error is that of a broken phases.yaml
        fps = describe(self.source).image_fps
        files = walk(self.source)
        videos: dict[str, Path] = {}
        for path in sorted(recordings(self.source, files), key=lambda p: natural_key(p.name)):
            key = own_id(path.name if path.is_dir() else path.stem, path)
            if key in videos:
                raise DataError(f"two recordings called {key}: {videos[key]} and {path}; rename one.")
            if path.is_dir() and fps is None:
                remedy = "write in phases.yaml how many were taken per second, such as `fps: 1`"
                raise DataError(f"{path} holds images; {remedy}.")
            videos[key] = path
        shared = [p for name in (SHARED_STARTS, SHARED_COCO) if (p := self.source / name).is_file()]
        labels = dict.fromkeys(videos, shared[0]) if shared else label_files(files, videos)
        suffixes = ", ".join(sorted(VIDEO_SUFFIXES))
        found = pair(self, videos, labels, f"video ({suffixes}) and no folder of images")
        return Found([replace(p, image_fps=fps) if p.media.is_dir() else p for p in found.procedures])

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
        form = describe(self.source)
        return read_any(path, self.vocabulary, form.first_row, form.per_second)

    def splits(self, procedures: Sequence[Procedure]) -> dict[str, Split]:
        return own_splits(self.source, procedures)
