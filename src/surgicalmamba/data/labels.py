"""The phases of a recording, whatever file they came from, and the phase of any sample of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.records import IndexSampling
from surgicalmamba.errors import ConfigError, DataError

# Phase names of a dataset in id order, and the one place where a label text becomes an id.
#
# The names are data: `splits/<dataset>.yaml` holds them with their source, and a user's own YAML file of the same form serves a user's own
# procedure. Nothing here imports numpy or pydantic: reading the label files of a whole test set has to take less than a blink.


_SHIPPED = files("surgicalmamba.data").joinpath("splits")

UNLABELLED = -1
"""Id of a row that carries no label (a lead-in, a gap). It is a mask, never a class."""


def _fold(text: str) -> str:
    """Case, spaces and punctuation do not tell two phases apart: `Calot_triangle dissection` is CalotTriangleDissection."""
    return re.sub(r"[\W_]+", "", text).casefold()


@dataclass(frozen=True)
class PhaseVocabulary:
    """The phases of one dataset. `names[i]` is the phase with id i in this package, whatever number the dataset's own files use."""

    dataset: str
    names: tuple[str, ...]
    source: str = ""
    first_id: int = 0
    """The number of the first phase in the dataset's own label files: 1 for AutoLaparo and Cataract-101, 0 elsewhere."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings in circulation, each with the name it stands for."""
    _ids: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.names:
            raise ConfigError(f"vocabulary {self.dataset!r} names no phases: list them in id order under `phases:`.")
        ids: dict[str, int] = {}
        for number, name in enumerate(self.names):
            folded = _fold(name)
            if not folded or _as_integer(name) is not None:
                raise ConfigError(f"vocabulary {self.dataset!r}: phase {number} is called {name!r}; a name needs a letter.")
            if folded in ids:
                raise ConfigError(f"vocabulary {self.dataset!r}: {name!r} and {self.names[ids[folded]]!r} differ only in case or spacing.")
            ids[folded] = number
        for alias, name in self.aliases.items():
            if _fold(name) not in ids:
                raise ConfigError(f"vocabulary {self.dataset!r}: alias {alias!r} stands for {name!r}, which is no phase of it.")
            if ids.setdefault(_fold(alias), ids[_fold(name)]) != ids[_fold(name)]:
                raise ConfigError(f"vocabulary {self.dataset!r}: alias {alias!r} is already another phase.")
        object.__setattr__(self, "aliases", MappingProxyType(dict(self.aliases)))
        object.__setattr__(self, "_ids", MappingProxyType(ids))

    def __len__(self) -> int:
        return len(self.names)

    def id_of_name(self, text: str) -> int:
        """Id of a phase given by name only; case, spacing and underscores are forgiven, anything else is an error with a suggestion."""
        found = self._ids.get(_fold(text))
        if found is None:
            raise DataError(f"unknown phase {text.strip()!r} for {self.dataset}{self._suggestion(text)}")
        return found

    def id_of(self, text: str, first_id: int | None = None) -> int:
        """Id of a phase given by name or by number. Numbers count from `first_id`, by default from the dataset's own first number."""
        number = _as_integer(text)
        if number is None:
            return self.id_of_name(text)
        base = self.first_id if first_id is None else first_id
        if not base <= number < base + len(self):
            other = 1 - base  # files count from 0 or from 1
            hint = f"; if the ids count from {other}, say so" if other <= number < other + len(self) else ""
            raise DataError(f"phase id {number} is outside {base} to {base + len(self) - 1} of {self.dataset}{hint}")
        return number - base

    def _suggestion(self, text: str) -> str:
        near = get_close_matches(_fold(text), self._ids, n=1, cutoff=0.6)
        return f"; did you mean {self.names[self._ids[near[0]]]!r}?" if near else f"; its phases are {', '.join(self.names)}"


def _as_integer(text: str) -> int | None:
    """The integer that a text spells in plain digits, or None."""
    stripped = text.strip()
    return int(stripped) if re.fullmatch(r"[+-]?[0-9]+", stripped) else None


def known_datasets() -> list[str]:
    """Names that `load_vocabulary` knows without a file."""
    names = (entry.name for entry in _SHIPPED.iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def load_vocabulary(name_or_path: str | Path) -> PhaseVocabulary:
    """The vocabulary of a known dataset (`cholec80`), or of a YAML file with the key `phases:` (a list of names in id order) and, if
    wanted, `dataset:`, `source:`, `first_id:` and `aliases:`. Other keys, such as splits, are left to their own readers."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
        try:
            content = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read the phase list {path}: {error}. Give a YAML file with a `phases:` list.") from error
        return _parse(content, path.stem, str(path))
    known = known_datasets()
    if text not in known:
        near = get_close_matches(text.lower(), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)};"
        raise ConfigError(f"unknown dataset {text!r}: {hint} For your own phases give a YAML file with a `phases:` list.")
    return _parse(_SHIPPED.joinpath(f"{text}.yaml").read_text(encoding="utf-8"), text, f"{text}.yaml")


def _parse(content: str, default_name: str, where: str) -> PhaseVocabulary:
    import yaml

    try:
        document = yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise DataError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error
    phases = document.get("phases") if isinstance(document, dict) else None
    if not isinstance(phases, list) or not phases:
        raise DataError(f"{where} has no `phases:` list; write the phase names in id order, one `- name` per line.")
    for number, name in enumerate(phases):
        if not isinstance(name, str):
            raise DataError(f"{where}: phase {number} is {name!r}, not a text; put quotes around it.")
    aliases = document.get("aliases") or {}
    if not isinstance(aliases, dict) or not all(isinstance(part, str) for pair in aliases.items() for part in pair):
        raise DataError(f"{where}: `aliases:` must map another spelling to a phase name, both as text.")
    first_id = document.get("first_id", 0)
    if not isinstance(first_id, int) or isinstance(first_id, bool):
        raise DataError(f"{where}: `first_id:` is {first_id!r}; it must be the integer that numbers the first phase, such as 0 or 1.")
    return PhaseVocabulary(
        dataset=str(document.get("dataset", default_name)),
        names=tuple(phases),
        source=" ".join(str(document.get("source", "")).split()),
        first_id=first_id,
        aliases=aliases,
    )


PAST_THE_END = -2
"""Returned for samples after the last label row; such samples are not kept."""


@dataclass(frozen=True)
class RowLabels:
    """One phase per row. Row r holds for frames `r * stride` to `(r + 1) * stride - 1`; stride "second" means round(fps) frames."""

    phases: NDArray[np.int64]
    stride: int | Literal["second"] = 1

    def frames_per_row(self, source_fps: Fraction) -> int:
        return IndexSampling.between(max(source_fps, Fraction(1)), Fraction(1)).frame_of(1) if self.stride == "second" else self.stride

    def n_frames(self, source_fps: Fraction) -> int:
        """Frames that the rows speak of: up to the last one that has a row of its own."""
        return (len(self.phases) - 1) * self.frames_per_row(source_fps) + 1

    def phase_of(self, frame: NDArray[np.int64], time_s: NDArray[np.float64], source_fps: Fraction) -> NDArray[np.int64]:
        """Phase ids of samples by frame index; PAST_THE_END after the last row."""
        row = frame // self.frames_per_row(source_fps)
        return np.where(row < len(self.phases), self.phases[np.minimum(row, len(self.phases) - 1)], PAST_THE_END)


@dataclass(frozen=True)
class SegmentLabels:
    """Phases by stretches of time, `start_s <= t < end_s`; what lies in no stretch is unlabelled, and nothing is past the end."""

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    phases: NDArray[np.int64]

    def phase_of(self, frame: NDArray[np.int64], time_s: NDArray[np.float64], source_fps: Fraction) -> NDArray[np.int64]:
        """Phase ids of samples by time. A microsecond of rounding never moves a sample across a boundary."""
        time_s = time_s + 1e-6
        place = np.searchsorted(self.start_s, time_s, side="right") - 1
        inside = (place >= 0) & (time_s < self.end_s[np.maximum(place, 0)])
        return np.where(inside, self.phases[np.maximum(place, 0)], UNLABELLED)


@dataclass(frozen=True)
class StartLabels:
    """Phases by the frame at which each begins, in order; the last one holds to the end, whatever the recording's length."""

    frames: NDArray[np.int64]
    phases: NDArray[np.int64]

    def phase_of(self, frame: NDArray[np.int64], time_s: NDArray[np.float64], source_fps: Fraction) -> NDArray[np.int64]:
        """Phase ids of samples by frame index; unlabelled before the first start."""
        place = np.searchsorted(self.frames, frame, side="right") - 1
        return np.where(place >= 0, self.phases[np.maximum(place, 0)], UNLABELLED)

    def rows(self, n_frames: int) -> RowLabels:
        """One row per frame, for a recording whose length is known."""
        frame = np.arange(n_frames)
        return RowLabels(self.phase_of(frame, frame.astype(np.float64), Fraction(1)))


Labels = RowLabels | SegmentLabels | StartLabels


# Readers of the label files in circulation. Every mistake in a file is one line that names the file, the row and the remedy.
#
# All of them accept Windows line ends, a byte-order mark, blank last lines and a missing last newline; nothing else is forgiven.


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

