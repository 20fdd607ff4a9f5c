"""What a prepared dataset says about itself: the models behind `dataset.json` and `video.json`, and the hashes in them."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from surgicalmamba.errors import DataError

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
