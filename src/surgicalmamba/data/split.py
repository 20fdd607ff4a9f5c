"""Splits as data: named lists of video ids by role, each with its source, and an honest word where the list is unverified."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from surgicalmamba.errors import DataError

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
