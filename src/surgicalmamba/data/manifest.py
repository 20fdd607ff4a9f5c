"""Splits as data, and the records behind `dataset.json` and `video.json` with their hashes.

A split is a named list of video ids by role, with its source and a note where the list is unverified."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from surgicalmamba.data.labels import parse_yaml, read_shipped
from surgicalmamba.errors import DataError

ROLES = ("train", "val", "test")
_KEYS = (*ROLES, "source", "verified", "overlap")


@dataclass(frozen=True)
class Split:
    """One way of dividing a dataset. Roles share no video, except in a published split that says so in
    `overlap`."""

    name: str
    roles: Mapping[str, tuple[str, ...]]
    source: str = ""
    is_verified: bool = True
    overlap: str | None = None

    @property
    def videos(self) -> tuple[str, ...]:
        """Every video of the split once, in order."""
        return tuple(dict.fromkeys(video for ids in self.roles.values() for video in ids))

    @property
    def note(self) -> str:
        """Source, and what a reader must know before quoting a number made with it."""
        return " ".join(filter(None, (self.source, "" if self.is_verified else "The id list is unverified.")))

    def shared(self) -> list[tuple[str, str, str]]:
        """(video, role, other role) for every video that two roles share."""
        pairs = combinations(self.roles.items(), 2)
        return [(video, a, b) for (a, ids), (b, others) in pairs for video in ids if video in others]


def shipped_splits(dataset: str) -> dict[str, Split]:
    """The splits of a known dataset, `paper` first."""
    return read_splits(read_shipped(dataset), f"{dataset}.yaml")


def file_splits(path: Path) -> dict[str, Split]:
    """The splits of a user's YAML file; none if it has no `splits:`."""
    try:
        return read_splits(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}).") from None


def read_splits(text: str, where: str) -> dict[str, Split]:
    """Parse the key `splits:`: names with roles below, or the roles themselves, which then make the split
    `own`."""
    entries = parse_yaml(text, where).get("splits")
    if entries is None:
        return {}
    if not isinstance(entries, dict) or not entries:
        raise DataError(f"{where}: `splits:` must map names to train, val and test lists.")
    if set(entries) <= set(ROLES):
        entries = {"own": entries}
    return {str(name): _split(str(name), entry, where) for name, entry in entries.items()}


def _split(name: str, entry: object, where: str) -> Split:
    if not isinstance(entry, dict) or not set(entry) & set(ROLES):
        raise DataError(f"{where}: split {name!r} has none of the lists {', '.join(ROLES)}.")
    unknown = [key for key in entry if key not in _KEYS]
    if unknown:
        known = ", ".join(_KEYS)
        raise DataError(f"{where}: split {name!r} has the unknown key {unknown[0]!r}; known: {known}.")
    roles = {role: _video_ids(entry[role], f"{where}: {name}/{role}") for role in ROLES if role in entry}
    overlap, source = entry.get("overlap"), " ".join(str(entry.get("source", "")).split())
    split = Split(name, roles, source, bool(entry.get("verified", True)), overlap and str(overlap))
    if overlap is None and (shared := split.shared()):
        video, a, b = shared[0]
        raise DataError(f"{where}: split {name!r} has {video!r} in {a} and in {b}; use one role.")
    return split


def _video_ids(items: object, where: str) -> tuple[str, ...]:
    """Ids from a list of names; `video01..video03` names three videos, and the numbers keep their width."""
    if not isinstance(items, list) or {type(item) for item in items} - {str, int}:
        raise DataError(f"{where} must be a list of video ids; put quotes around ids that look like numbers.")
    videos: list[str] = []
    for item in map(str, items):
        match = re.fullmatch(r"(.*?)([0-9]+)\.\.(.*?)([0-9]+)", item)
        if ".." not in item:
            videos.append(item)
        elif match and match[1] == match[3] and int(match[2]) <= int(match[4]):
            width = len(match[2]) if match[2].startswith("0") else 1
            videos += [f"{match[1]}{i:0{width}d}" for i in range(int(match[2]), int(match[4]) + 1)]
        else:
            raise DataError(f"{where}: {item!r} is no range such as video01..video32.")
    twice = [video for video in videos if videos.count(video) > 1]
    if twice:
        raise DataError(f"{where} names {twice[0]!r} twice.")
    return tuple(videos)


def automatic_split(videos: Sequence[str]) -> Split:
    """A split for data without one: 60:20:20 in the order of the ids' SHA-256, so that nobody has chosen
    it."""
    ordered = sorted(videos, key=lambda video: hashlib.sha256(video.encode()).hexdigest())
    n_held = len(videos) // 5 if len(videos) >= 5 else int(len(videos) >= 3)
    cut = len(ordered) - 2 * n_held
    parts = {"train": ordered[:cut], "val": ordered[cut : cut + n_held], "test": ordered[cut + n_held :]}
    roles = {role: tuple(sorted(ids)) for role, ids in parts.items() if ids}
    return Split("auto", roles, "No split was given: 60:20:20 by the SHA-256 of the video ids.")


FORMAT = 1
Kind = Literal["frames", "features"]
Settings = dict[str, str | int | float | bool | list[str] | None]
"""Everything that decides the bytes of a prepared video."""
M = TypeVar("M", bound="Record")


def _positive_fraction(text: str) -> str:
    try:
        if Fraction(text) <= 0:
            raise ValueError
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{text!r} is not a positive rational number such as 25 or 30000/1001") from None
    return text


Rate = Annotated[str, AfterValidator(_positive_fraction)]
"""Frames per second as an exact fraction in text: "25", "30000/1001"."""


class Record(BaseModel):
    """A frozen JSON record that rejects unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def text(self) -> str:
        """The record as JSON text, the same bytes for equal records."""
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls: type[M], path: Path) -> M:
        """Read a record; an error is one line that names the file and the field."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in problem["loc"]) or "content"
            raise DataError(f"{path}: {where}: {problem['msg']}; run prepare again.") from None


class SourceFile(Record):
    """A file a video was made from, by its path below the source folder."""

    size: int
    sha256: str = Field(description="Of the whole file up to FULL_HASH_BYTES, else of evenly spaced blocks.")


class VideoEntry(Record):
    """One prepared video: its sources, its size and hashes, and the warnings of its preparation."""

    n_samples: int = Field(gt=0)
    n_labelled: int = Field(ge=0)
    source_fps: Rate | None = Field(None, description="Frame rate of the recording; absent for features.")
    source_frames: int | None = Field(None, description="Readable frames of the recording.")
    sources: dict[str, SourceFile]
    settings_sha256: str
    labels_sha256: str
    content_sha256: str = Field(description="Over the images in order, or of features.npy.")
    content_bytes: int
    warnings: list[str] = []


class Manifest(Record):
    """dataset.json."""

    format: int
    name: str
    kind: Kind
    phases: list[str] = Field(min_length=1)
    fps: Rate
    source: str = Field(description="Which dataset and where it is described; never a path of one machine.")
    settings: Settings
    splits: dict[str, dict[str, list[str]]]
    split_notes: dict[str, str] = {}
    overlaps: dict[str, str] = Field({}, description="Published splits whose roles share videos.")
    missing: list[str] = Field([], description="Ids of the splits that the source folder did not hold.")
    videos: dict[str, VideoEntry] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> "Manifest":
        if self.format != FORMAT:
            raise ValueError(f"format {self.format} is not the format {FORMAT} this version reads")
        for split, roles in self.splits.items():
            for role, ids in roles.items():
                unknown = [video for video in ids if video not in self.videos]
                if unknown:
                    raise ValueError(f"split {split}/{role} names {unknown[0]!r}, no video of this dataset")
        return self


FULL_HASH_BYTES = 64 << 20
_BLOCK = 1 << 16
_BLOCKS = 128


def fingerprint(path: Path) -> SourceFile:
    """Size and SHA-256 of a file: all of it up to 64 MiB, else 128 evenly spaced blocks of 64 KiB, both ends
    included. Large videos stay cheap to compare; an edit that keeps the size and misses every block is not
    detected."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size <= FULL_HASH_BYTES:
            while block := stream.read(1 << 20):
                digest.update(block)
        else:
            for i in range(_BLOCKS):
                stream.seek((size - _BLOCK) * i // (_BLOCKS - 1))
                digest.update(stream.read(_BLOCK))
    return SourceFile(size=size, sha256=digest.hexdigest())


def fingerprints(paths: Iterable[Path], root: Path) -> dict[str, SourceFile]:
    """Fingerprints by path relative to `root`, in sorted order. A folder of images is one entry over its
    files."""
    found = {}
    for path in sorted(paths):
        take = _folder_fingerprint if path.is_dir() else fingerprint
        try:
            found[path.relative_to(root).as_posix()] = take(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    return found


def _folder_fingerprint(folder: Path) -> SourceFile:
    digest, size = hashlib.sha256(), 0
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        n_bytes = path.stat().st_size
        digest.update(f"{path.name}\0{n_bytes}\0".encode())
        size += n_bytes
    return SourceFile(size=size, sha256=digest.hexdigest())


def settings_hash(settings: Settings) -> str:
    """SHA-256 of settings, independent of their order."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

