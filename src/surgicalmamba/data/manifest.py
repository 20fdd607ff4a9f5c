"""What a prepared dataset says about itself: the models behind `dataset.json` and `video.json`, and the hashes in them."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from surgicalmamba.errors import DataError

# Splits as data: named lists of video ids by role, each with its source, and an honest word where the list is unverified.


ROLES = ("train", "val", "test")
_KEYS = (*ROLES, "source", "verified", "overlap")


@dataclass(frozen=True)
class Split:
    """One way of dividing a dataset. `overlap` quotes a published split whose roles share videos; without it they must not."""

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
        return " ".join(part for part in (self.source, "" if self.is_verified else "The id list is unverified.") if part)

    def shared(self) -> list[tuple[str, str, str]]:
        """(video, role, other role) for every video that two roles share."""
        names = list(self.roles)
        pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
        return [(video, a, b) for a, b in pairs for video in self.roles[a] if video in set(self.roles[b])]


def shipped_splits(dataset: str) -> dict[str, Split]:
    """The splits of a known dataset, `paper` first."""
    place = files("surgicalmamba.data").joinpath("splits").joinpath(f"{dataset}.yaml")
    return read_splits(place.read_text(encoding="utf-8"), f"{dataset}.yaml")


def file_splits(path: Path) -> dict[str, Split]:
    """The splits of a user's YAML file; none if it has no `splits:`."""
    try:
        return read_splits(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}).") from None


def read_splits(text: str, where: str) -> dict[str, Split]:
    """Parse the key `splits:`: either names with roles below, or the roles themselves, which then make the split `own`."""
    import yaml

    try:
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise DataError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from None
    entries = document.get("splits") if isinstance(document, dict) else None
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
        raise DataError(f"{where}: split {name!r} has the unknown key {unknown[0]!r}; known: {', '.join(_KEYS)}.")
    roles = {}
    for role in ROLES:
        if role not in entry:
            continue
        ids = entry[role]
        if not isinstance(ids, list) or not all(isinstance(video, str | int) and not isinstance(video, bool) for video in ids):
            raise DataError(f"{where}: {name}/{role} must be a list of video ids; put quotes around ids that look like numbers.")
        roles[role] = tuple(video for item in ids for video in _expand(str(item), f"{where}: {name}/{role}"))
        twice = [video for video in roles[role] if roles[role].count(video) > 1]
        if twice:
            raise DataError(f"{where}: {name}/{role} names {twice[0]!r} twice.")
    overlap = entry.get("overlap")
    split = Split(name, roles, " ".join(str(entry.get("source", "")).split()), bool(entry.get("verified", True)), overlap and str(overlap))
    shared = split.shared()
    if shared and overlap is None:
        video, a, b = shared[0]
        raise DataError(f"{where}: split {name!r} has {video!r} in {a} and in {b}; a video belongs to one role.")
    return split


def _expand(item: str, where: str) -> list[str]:
    """`video01..video03` names three videos; the numbers keep their width."""
    if ".." not in item:
        return [item]
    match = re.fullmatch(r"(.*?)([0-9]+)\.\.(.*?)([0-9]+)", item)
    if not match or match[1] != match[3] or int(match[2]) > int(match[4]):
        raise DataError(f"{where}: {item!r} is no range such as video01..video32.")
    width = len(match[2]) if match[2].startswith("0") else 1
    return [f"{match[1]}{i:0{width}d}" for i in range(int(match[2]), int(match[4]) + 1)]


def automatic_split(videos: Sequence[str]) -> Split:
    """A split for data that comes without one: 60:20:20 in the order of the ids' SHA-256, so no one has chosen it."""
    ordered = sorted(videos, key=lambda video: hashlib.sha256(video.encode()).hexdigest())
    n_held = len(videos) // 5 if len(videos) >= 5 else int(len(videos) >= 3)
    cut = len(ordered) - 2 * n_held
    parts = {"train": ordered[:cut], "val": ordered[cut : cut + n_held], "test": ordered[cut + n_held :]}
    roles = {role: tuple(sorted(ids)) for role, ids in parts.items() if ids}
    return Split("auto", roles, "No split was given: 60:20:20 by the SHA-256 of the video ids.")


FORMAT = 1
Kind = Literal["frames", "features"]
Setting = str | int | float | bool | None | list[str]
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
    """A frozen JSON record that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def text(self) -> str:
        """The record as JSON text, the same bytes for equal records."""
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls: type[M], path: Path) -> M:
        """Read a record; every way it can be broken is one line that names the file."""
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
    sha256: str = Field(description="Of the whole file up to FULL_HASH_BYTES, beyond that of evenly spaced blocks and both ends.")


class VideoEntry(Record):
    """One prepared video: what it was made from, what came out, what was noticed on the way."""

    n_samples: int = Field(gt=0)
    n_labelled: int = Field(ge=0)
    source_fps: Rate | None = Field(None, description="Frames per second of the recording; absent for feature datasets without one.")
    source_frames: int | None = Field(None, description="Frames of the recording, as far as it could be read.")
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
    settings: dict[str, Setting]
    splits: dict[str, dict[str, list[str]]]
    split_notes: dict[str, str] = {}
    overlaps: dict[str, str] = Field({}, description="Splits whose roles share videos because they were published so.")
    missing: list[str] = Field([], description="Ids that the splits name and the source folder did not hold.")
    videos: dict[str, VideoEntry] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> "Manifest":
        if self.format != FORMAT:
            raise ValueError(f"format {self.format} is not the format {FORMAT} this version reads")
        for split, roles in self.splits.items():
            for role, ids in roles.items():
                unknown = [video for video in ids if video not in self.videos]
                if unknown:
                    raise ValueError(f"split {split}/{role} names {unknown[0]!r}, which is no video of this dataset")
        return self


FULL_HASH_BYTES = 64 << 20
_BLOCK = 1 << 16
_BLOCKS = 128


def fingerprint(path: Path) -> SourceFile:
    """Size and SHA-256 of a file: all of it up to 64 MiB, else 128 evenly spaced blocks of 64 KiB, first and last included.

    Videos of many gigabytes stay cheap to compare; an edit inside one that keeps its size and misses every block goes unseen."""
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
    """Fingerprints by path relative to `root`, in sorted order. A folder of images counts as one entry over its files."""
    found = {}
    for path in sorted(paths):
        try:
            found[path.relative_to(root).as_posix()] = _folder_fingerprint(path) if path.is_dir() else fingerprint(path)
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


def settings_hash(settings: Mapping[str, Setting]) -> str:
    """SHA-256 of settings, independent of their order."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

