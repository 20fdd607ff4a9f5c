"""Files on disk: atomic writes, folders, natural sort order."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surgicalmamba.errors import DataError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A draft beside `path` to write to. When the block ends it is flushed to disk and renamed to `path`;
    on an error it is removed. A reader never finds half a file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        with draft.open("rb") as stream:
            os.fsync(stream.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a whole file or nothing; text is UTF-8. A failed write raises DataError with its remedy."""
    try:
        with atomic_path(path) as draft:
            draft.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}. {remedy(error)}") from None


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; it may exist already."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder {folder}: {error.strerror}. {remedy(error)}") from None


def remedy(error: OSError) -> str:
    """What a user can do about a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space and run the same command again: finished videos are kept."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Choose a folder you may write to, or change its permissions."
    return "Check the disk and run the same command again: finished videos are kept."


def natural_key(name: str) -> list[tuple[int, int | str]]:
    """Sort key that puts `frame10` after `frame9` and ignores letter case."""
    parts = (part for part in re.split(r"([0-9]+)", name) if part)
    return [(0, int(part)) if part.isdigit() else (1, part.casefold()) for part in parts]
