"""Readers of the label files in circulation. Every mistake in a file is one line that names the file, the row and the remedy.

All of them accept Windows line ends, a byte-order mark, blank last lines and a missing last newline; nothing else is forgiven."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from surgicalmamba.data.labels import RowLabels, SegmentLabels, StartLabels
from surgicalmamba.data.vocabulary import PhaseVocabulary
from surgicalmamba.errors import DataError

Row = tuple[int, list[str]]
"""Line number in the file, and the fields."""
_SEPARATOR_NAMES = {"\t": "tabs", ",": "commas", ";": "semicolons", " ": "spaces"}


def read_lines(path: Path) -> list[str]:
    """The lines of a text file without their ends. Binary content, an empty file and an unreadable one are told apart."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    if not data.strip():
        raise DataError(f"{path}: the label file is empty.")
    if b"\0" in data:
        encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else None
        if encoding is None:
            raise DataError(f"{path}: binary data (a zero byte at {data.index(0)}), not a label file.")
        raise DataError(f"{path}: saved as UTF-16; save it as plain text (UTF-8).")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}); save it as plain text (UTF-8).") from None
    lines = text.splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def read_rows(path: Path, separator: str, header: tuple[str, ...] | None, n_columns: int) -> list[Row]:
    """Rows of a separated file, with the header checked (or its absence) and the number of columns the same in every row."""
    lines = read_lines(path)
    first = [part.strip() for part in lines[0].split(separator)]
    if header is None:
        if not re.fullmatch(r"[+-]?[0-9]+", first[0]):
            raise DataError(f"{path}:1: expected a row of numbers, found {lines[0][:60]!r}; this format has no header line.")
    elif [part.casefold() for part in first] != [part.casefold() for part in header]:
        wanted = separator.join(header)
        other = next((s for s in _SEPARATOR_NAMES if s != separator and len(lines[0].split(s)) == len(header)), None)
        if other and [p.strip().casefold() for p in lines[0].split(other)] == [p.casefold() for p in header]:
            raise DataError(f"{path}:1: separated by {_SEPARATOR_NAMES[other]}, expected {_SEPARATOR_NAMES[separator]}.")
        if sorted(part.casefold() for part in first) == sorted(part.casefold() for part in header):
            raise DataError(f"{path}:1: columns are in the order {separator.join(first)!r}, expected {wanted!r}.")
        if re.fullmatch(r"[+-]?[0-9]+", first[0]):
            raise DataError(f"{path}:1: the header line is missing; expected {wanted!r} before the first row.")
        raise DataError(f"{path}:1: the header is {lines[0][:60]!r}, expected {wanted!r}.")
    rows = []
    for number, line in enumerate(lines[0 if header is None else 1 :], start=1 if header is None else 2):
        fields = [part.strip() for part in line.split(separator)]
        if len(fields) != n_columns:
            if not line.strip():
                raise DataError(f"{path}:{number}: a blank line between rows; remove it.")
            raise DataError(
                f"{path}:{number}: {line[:60]!r} has {len(fields)} of {n_columns} columns separated by {_SEPARATOR_NAMES[separator]}."
            )
        rows.append((number, fields))
    if not rows:
        raise DataError(f"{path}: a header and no rows.")
    return rows


def integer(path: Path, number: int, text: str, what: str) -> int:
    """A whole number of at least 0, or an error that names the row."""
    if not re.fullmatch(r"[0-9]+", text):
        shape = "negative" if re.fullmatch(r"-[0-9]+", text) else "not a whole number"
        raise DataError(f"{path}:{number}: {what} {text!r} is {shape}.")
    return int(text)


@dataclass(frozen=True)
class RowFormat:
    """A label file with one numbered row per frame or second."""

    separator: str
    header: tuple[str, ...] | None
    first_row: int = 0
    labels: Literal["names", "ids", "either"] = "either"
    stride: int | Literal["second", "any"] = 1
    """Frames from row to row; "any" takes it from the first two rows; "second" means rows are numbered by second."""


def read_row_labels(path: Path, form: RowFormat, vocabulary: PhaseVocabulary) -> RowLabels:
    """Read a file of numbered rows; numbers must run on without a gap, and every label must be of the vocabulary."""
    rows = read_rows(path, form.separator, form.header, 2)
    frames = [_frame_number(path, row) for row in rows]
    step = _step_of(path, frames, rows, form)
    known: dict[str, int] = {}
    phases = np.empty(len(rows), np.int64)
    for i, ((number, fields), frame) in enumerate(zip(rows, frames, strict=True)):
        expected = form.first_row + i * step
        if frame != expected:
            raise DataError(_numbering_problem(path, number, frame, expected, frames, i, step))
        text = fields[1]
        if text not in known:
            known[text] = label_id(path, number, text, form.labels, vocabulary)
        phases[i] = known[text]
    return RowLabels(phases, form.stride if form.stride == "second" else step)


def _frame_number(path: Path, row: Row) -> int:
    number, fields = row
    if not re.fullmatch(r"[+-]?[0-9]+", fields[0]) and re.fullmatch(r"[0-9]+", fields[1]):
        raise DataError(f"{path}:{number}: {fields[0]!r} where a frame number belongs: the columns are swapped.")
    return integer(path, number, fields[0], "frame number")


def _step_of(path: Path, frames: list[int], rows: list[Row], form: RowFormat) -> int:
    if frames[0] != form.first_row:
        raise DataError(
            f"{path}:{rows[0][0]}: the first row is number {frames[0]}, expected {form.first_row}: rows count from {form.first_row} here."
        )
    if form.stride != "any":
        return 1 if form.stride == "second" else form.stride
    return max(1, frames[1] - frames[0]) if len(frames) > 1 else 1


def _numbering_problem(path: Path, number: int, frame: int, expected: int, frames: list[int], i: int, step: int) -> str:
    if i and frame == frames[i - 1]:
        return f"{path}:{number}: row {frame} occurs twice."
    if i and frame < frames[i - 1]:
        return f"{path}:{number}: row {frame} comes after row {frames[i - 1]}; rows must be in order."
    missing = (frame - expected) // step
    if (frame - expected) % step:
        return f"{path}:{number}: row {frame} breaks the step of {step} between rows."
    return f"{path}:{number}: row {frame} follows row {frames[i - 1]}: {missing} row{'s are' if missing > 1 else ' is'} missing."


def label_id(path: Path, number: int, text: str, form: Literal["names", "ids", "either"], vocabulary: PhaseVocabulary) -> int:
    """The phase id of a label text, or an error that names file and row."""
    is_number = bool(re.fullmatch(r"[+-]?[0-9]+", text))
    if not text:
        raise DataError(f"{path}:{number}: the label is missing.")
    if form == "names" and is_number:
        raise DataError(
            f"{path}:{number}: label {text} is a number, but numbers are ambiguous for {vocabulary.dataset}: orders differ between copies. "
            "Use phase names."
        )
    if form == "ids" and not is_number:
        raise DataError(f"{path}:{number}: label {text!r} where a phase number belongs.")
    try:
        return vocabulary.id_of(text)
    except DataError as error:
        raise DataError(f"{path}:{number}: {error}") from None


def read_segments(path: Path, vocabulary: PhaseVocabulary, separator: str = ",") -> SegmentLabels:
    """Read `start,end,phase` rows, times in seconds or h:m:s; stretches must not overlap and gaps are unlabelled."""
    starts, ends, phases = [], [], []
    for number, (start, end, phase) in read_rows(path, separator, ("start", "end", "phase"), 3):
        starts.append(_seconds(path, number, start))
        ends.append(_seconds(path, number, end))
        phases.append(label_id(path, number, phase, "either", vocabulary))
        if ends[-1] <= starts[-1]:
            raise DataError(f"{path}:{number}: the segment ends ({end}) before it starts ({start}).")
        if len(ends) > 1 and starts[-1] < starts[-2]:
            raise DataError(f"{path}:{number}: the segment starts before the one above; sort the rows by start.")
        if len(ends) > 1 and starts[-1] < ends[-2]:
            raise DataError(f"{path}:{number}: the segment starts at {start}, before the one above ends.")
    return SegmentLabels(np.array(starts), np.array(ends), np.array(phases, np.int64))


def _seconds(path: Path, number: int, text: str) -> float:
    """Seconds from `75`, `75.5`, `1:15` or `0:01:15.5`."""
    match = re.fullmatch(r"(?:(?:([0-9]+):)?([0-9]{1,2}):)?([0-9]+(?:\.[0-9]*)?)", text)
    if not match:
        raise DataError(f"{path}:{number}: time {text!r} is neither seconds nor h:m:s.")
    hours, minutes, seconds = match.groups()
    if minutes is not None and float(seconds) >= 60:
        raise DataError(f"{path}:{number}: time {text!r} has {seconds} seconds in a minute.")
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds)


def read_starts(path: Path, vocabulary: PhaseVocabulary) -> dict[str, list[tuple[int, int, int]]]:
    """Read `VideoID;FrameNo;Phase`, segment starts of many videos: video id → (line, frame, phase id), in order of frame."""
    starts: dict[str, list[tuple[int, int, int]]] = {}
    for number, (video, frame_text, phase) in read_rows(path, ";", ("VideoID", "FrameNo", "Phase"), 3):
        frame = integer(path, number, frame_text, "frame number")
        rows = starts.setdefault(video, [])
        if rows and frame < rows[-1][1]:
            raise DataError(f"{path}:{number}: frame {frame} of video {video} comes after frame {rows[-1][1]}; rows must be in order.")
        rows.append((number, frame, label_id(path, number, phase, "either", vocabulary)))
    return starts


def start_labels(path: Path, video: str, vocabulary: PhaseVocabulary) -> StartLabels:
    """The starts of one video from such a table."""
    starts = read_starts(path, vocabulary)
    if video not in starts:
        raise DataError(f"{path}: no row for video {video}.")
    return StartLabels(np.array([frame for _, frame, _ in starts[video]]), np.array([phase for *_, phase in starts[video]]))


def read_any(path: Path, vocabulary: PhaseVocabulary, first_row: int = 0, per_second: bool = False) -> RowLabels | SegmentLabels:
    """Read one video's labels in whichever per-video format the first line tells: numbered rows with or without a header, or
    `start,end,phase` segments. Numbers are frames counted from `first_row`; with `per_second`, or under the heading Second, seconds."""
    first = read_lines(path)[0]
    separator = max("\t,;", key=first.count) if any(s in first for s in "\t,;") else " "
    columns = [part.strip().casefold() for part in first.split(separator)]
    if columns == ["start", "end", "phase"]:
        return read_segments(path, vocabulary, separator)
    if len(columns) != 2:
        known = "a header 'Frame<tab>Phase' or 'start,end,phase', or rows 'frame,phase'"
        raise DataError(f"{path}:1: {first[:60]!r} is no known label format; use {known}.")
    header = None if re.fullmatch(r"[+-]?[0-9]+", columns[0]) else tuple(columns)
    if header is not None and header[0] not in ("frame", "second"):
        swapped = " and put it first" if header == ("phase", "frame") else ""
        raise DataError(f"{path}:1: the first column is called {columns[0]!r}; call it Frame or Second{swapped}.")
    if header is not None and header[1] != "phase":
        raise DataError(f"{path}:1: the second column is called {columns[1]!r}; call it Phase.")
    by_second = per_second or (header is not None and header[0] == "second")
    return read_row_labels(path, RowFormat(separator, header, first_row, "either", "second" if by_second else "any"), vocabulary)
