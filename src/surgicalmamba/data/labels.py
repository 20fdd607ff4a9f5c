"""Phase names, the labels of a recording, and the readers of label files.

The names are data: `splits/<dataset>.yaml` lists them in id order with their source, and a user's YAML file
of the same form describes a user's procedure. `PhaseVocabulary` alone turns a label text into an id. Readers
accept Windows line ends, a byte-order mark, blank last lines and a missing last newline, nothing else; every
mistake in a file is one line that names the file, the row and the remedy."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.records import IndexSampling
from surgicalmamba.errors import ConfigError, DataError

_SHIPPED = files("surgicalmamba.data").joinpath("splits")
_INTEGER = re.compile(r"[+-]?[0-9]+")

Ids = NDArray[np.int64]
Seconds = NDArray[np.float64]

UNLABELLED = -1
"""Id of a row without a label (a lead-in, a gap). It is a mask, never a class."""
PAST_THE_END = -2
"""Id of samples after the last label row; such samples are not kept."""


def _fold(text: str) -> str:
    """Ignore case, spaces and punctuation: `Calot_triangle dissection` is CalotTriangleDissection."""
    return re.sub(r"[\W_]+", "", text).casefold()


@dataclass(frozen=True)
class PhaseVocabulary:
    """The phases of one dataset. `names[i]` is the phase with id i in this package, whatever number the
    dataset's own files use."""

    dataset: str
    names: tuple[str, ...]
    source: str = ""
    first_id: int = 0
    """The first phase's number in the dataset's own label files: 1 for AutoLaparo and Cataract-101, 0
    elsewhere."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings in circulation, each with the name it stands for."""
    _ids: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        where = f"vocabulary {self.dataset!r}"
        if not self.names:
            raise ConfigError(f"{where} names no phases: list them in id order under `phases:`.")
        ids: dict[str, int] = {}
        for number, name in enumerate(self.names):
            folded = _fold(name)
            if not folded or _INTEGER.fullmatch(name.strip()):
                raise ConfigError(f"{where}: phase {number} is called {name!r}; a name needs a letter.")
            if folded in ids:
                other = self.names[ids[folded]]
                raise ConfigError(f"{where}: {name!r} and {other!r} differ only in case or spacing.")
            ids[folded] = number
        for alias, name in self.aliases.items():
            if _fold(name) not in ids:
                raise ConfigError(f"{where}: alias {alias!r} stands for {name!r}, which is no phase of it.")
            if ids.setdefault(_fold(alias), ids[_fold(name)]) != ids[_fold(name)]:
                raise ConfigError(f"{where}: alias {alias!r} is already another phase.")
        object.__setattr__(self, "aliases", MappingProxyType(dict(self.aliases)))
        object.__setattr__(self, "_ids", MappingProxyType(ids))

    def __len__(self) -> int:
        return len(self.names)

    def id_of_name(self, text: str) -> int:
        """Id of a phase by name; case, spacing and underscores are ignored, an unknown name raises a
        suggestion."""
        found = self._ids.get(_fold(text))
        if found is None:
            near = get_close_matches(_fold(text), self._ids, n=1, cutoff=0.6)
            hint = f"did you mean {self.names[self._ids[near[0]]]!r}?" if near else ""
            hint = hint or f"its phases are {', '.join(self.names)}"
            raise DataError(f"unknown phase {text.strip()!r} for {self.dataset}; {hint}")
        return found

    def id_of(self, text: str, first_id: int | None = None) -> int:
        """Id of a phase by name or by number; numbers count from `first_id`, by default the dataset's own."""
        if not _INTEGER.fullmatch(text.strip()):
            return self.id_of_name(text)
        number, base = int(text), self.first_id if first_id is None else first_id
        if not base <= number < base + len(self):
            other = 1 - base  # files count from 0 or from 1
            hint = f"; if the ids count from {other}, say so" if other <= number < other + len(self) else ""
            last = base + len(self) - 1
            raise DataError(f"phase id {number} is outside {base} to {last} of {self.dataset}{hint}")
        return number - base


def known_datasets() -> list[str]:
    """Names that `load_vocabulary` accepts without a file."""
    return sorted(e.name.removesuffix(".yaml") for e in _SHIPPED.iterdir() if e.name.endswith(".yaml"))


def read_shipped(dataset: str) -> str:
    """The text of `splits/<dataset>.yaml`."""
    return _SHIPPED.joinpath(f"{dataset}.yaml").read_text(encoding="utf-8")


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """A YAML document of keys and values; any other document is an empty one."""
    import yaml

    try:
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise DataError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from None
    return document if isinstance(document, dict) else {}


def load_vocabulary(name_or_path: str | Path) -> PhaseVocabulary:
    """The vocabulary of a known dataset (`cholec80`), or of a YAML file with the key `phases:` (names in id
    order) and, optionally, `dataset:`, `source:`, `first_id:` and `aliases:`. Other keys, such as splits, are
    ignored."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
        try:
            return _vocabulary(path.read_text(encoding="utf-8"), path.stem, str(path))
        except (OSError, UnicodeDecodeError) as error:
            hint = "Give a YAML file with a `phases:` list."
            raise DataError(f"cannot read the phase list {path}: {error}. {hint}") from error
    known = known_datasets()
    if text not in known:
        near = get_close_matches(text.lower(), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)};"
        own = "For your own phases give a YAML file with a `phases:` list."
        raise ConfigError(f"unknown dataset {text!r}: {hint} {own}")
    return _vocabulary(read_shipped(text), text, f"{text}.yaml")


def _vocabulary(text: str, default_name: str, where: str) -> PhaseVocabulary:
    document = parse_yaml(text, where)
    phases, aliases = document.get("phases"), document.get("aliases") or {}
    first_id = document.get("first_id", 0)
    if not isinstance(phases, list) or not phases:
        form = "write the phase names in id order, one `- name` per line"
        raise DataError(f"{where} has no `phases:` list; {form}.")
    for number, name in enumerate(phases):
        if not isinstance(name, str):
            raise DataError(f"{where}: phase {number} is {name!r}, not a text; put quotes around it.")
    texts = [part for pair in aliases.items() for part in pair] if isinstance(aliases, dict) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"{where}: `aliases:` must map another spelling to a phase name, both as text.")
    if not isinstance(first_id, int) or isinstance(first_id, bool):
        expected = "the integer that numbers the first phase, such as 0 or 1"
        raise DataError(f"{where}: `first_id:` is {first_id!r}; it must be {expected}.")
    name, source = document.get("dataset", default_name), " ".join(str(document.get("source", "")).split())
    return PhaseVocabulary(str(name), tuple(phases), source, first_id, aliases)


@dataclass(frozen=True)
class RowLabels:
    """One phase per row. Row r holds for frames `r * stride` to `(r + 1) * stride - 1`; stride "second" means
    round(fps) frames."""

    phases: Ids
    stride: int | Literal["second"] = 1

    def frames_per_row(self, source_fps: Fraction) -> int:
        if self.stride != "second":
            return self.stride
        return IndexSampling.between(max(source_fps, Fraction(1)), Fraction(1)).frame_of(1)

    def n_frames(self, source_fps: Fraction) -> int:
        """Frames that the rows describe: up to the last one that has its own row."""
        return (len(self.phases) - 1) * self.frames_per_row(source_fps) + 1

    def phase_of(self, frame: Ids, time_s: Seconds, source_fps: Fraction) -> Ids:
        """Phase ids of samples by frame index; PAST_THE_END after the last row."""
        row = frame // self.frames_per_row(source_fps)
        last = len(self.phases) - 1
        return np.where(row <= last, self.phases[np.minimum(row, last)], PAST_THE_END)


@dataclass(frozen=True)
class SegmentLabels:
    """Phases by time, `start_s <= t < end_s`; what lies in no segment is unlabelled, and nothing is past the
    end."""

    start_s: Seconds
    end_s: Seconds
    phases: Ids

    def phase_of(self, frame: Ids, time_s: Seconds, source_fps: Fraction) -> Ids:
        """Phase ids of samples by time. A microsecond of rounding never moves a sample across a boundary."""
        time_s = time_s + 1e-6
        place = np.searchsorted(self.start_s, time_s, side="right") - 1
        inside = (place >= 0) & (time_s < self.end_s[np.maximum(place, 0)])
        return np.where(inside, self.phases[np.maximum(place, 0)], UNLABELLED)


@dataclass(frozen=True)
class StartLabels:
    """Phases by the frame at which each begins, in order; the last one holds to the end of the recording."""

    frames: Ids
    phases: Ids

    def phase_of(self, frame: Ids, time_s: Seconds, source_fps: Fraction) -> Ids:
        """Phase ids of samples by frame index; unlabelled before the first start."""
        place = np.searchsorted(self.frames, frame, side="right") - 1
        return np.where(place >= 0, self.phases[np.maximum(place, 0)], UNLABELLED)

    def rows(self, n_frames: int) -> RowLabels:
        """One row per frame, for a recording whose length is known."""
        frame = np.arange(n_frames)
        return RowLabels(self.phase_of(frame, frame.astype(np.float64), Fraction(1)))


Labels = RowLabels | SegmentLabels | StartLabels

Row = tuple[int, list[str]]
"""Line number in the file, and the fields."""
LabelForm = Literal["names", "ids", "either"]
_SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons", " ": "spaces"}


def read_lines(path: Path) -> list[str]:
    """The lines of a text file without their ends. Binary, empty and unreadable files have their own
    messages."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    if not data.strip():
        raise DataError(f"{path}: the label file is empty.")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") and b"\0" in data:
        raise DataError(f"{path}: saved as UTF-16; save it as plain text (UTF-8).")
    if b"\0" in data:
        raise DataError(f"{path}: binary data (a zero byte at {data.index(0)}), not a label file.")
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _fields(line: str, separator: str) -> list[str]:
    return [part.strip() for part in line.split(separator)]


def read_rows(path: Path, separator: str, header: tuple[str, ...] | None, n_columns: int) -> list[Row]:
    """Rows of a separated file. The header (or its absence) and the number of columns of every row are
    checked."""
    lines = read_lines(path)
    _check_header(path, lines[0], separator, header)
    rows = []
    for number, line in enumerate(lines, start=1):
        if header is not None and number == 1:
            continue
        fields = _fields(line, separator)
        if not line.strip():
            raise DataError(f"{path}:{number}: a blank line between rows; remove it.")
        if len(fields) != n_columns:
            columns = f"{len(fields)} of {n_columns} columns separated by {_SEPARATORS[separator]}"
            raise DataError(f"{path}:{number}: {line[:60]!r} has {columns}.")
        rows.append((number, fields))
    if not rows:
        raise DataError(f"{path}: a header and no rows.")
    return rows


def _check_header(path: Path, line: str, separator: str, header: tuple[str, ...] | None) -> None:
    first = _fields(line, separator)
    if header is None:
        if not _INTEGER.fullmatch(first[0]):
            found = f"expected a row of numbers, found {line[:60]!r}"
            raise DataError(f"{path}:1: {found}; this format has no header line.")
        return
    expected, columns = separator.join(header), [part.casefold() for part in header]
    if [part.casefold() for part in first] == columns:
        return
    for other, name in _SEPARATORS.items():
        if [part.casefold() for part in _fields(line, other)] == columns:
            raise DataError(f"{path}:1: separated by {name}, expected {_SEPARATORS[separator]}.")
    if sorted(part.casefold() for part in first) == sorted(columns):
        order = separator.join(first)
        raise DataError(f"{path}:1: columns are in the order {order!r}, expected {expected!r}.")
    if _INTEGER.fullmatch(first[0]):
        raise DataError(f"{path}:1: the header line is missing; expected {expected!r} before the first row.")
    raise DataError(f"{path}:1: the header is {line[:60]!r}, expected {expected!r}.")


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
    labels: LabelForm = "either"
    stride: int | Literal["second", "any"] = 1
    """Frames from row to row; "any" takes it from the first two rows; "second" means rows are numbered by
    second."""


def read_row_labels(path: Path, form: RowFormat, vocabulary: PhaseVocabulary) -> RowLabels:
    """Read a file of numbered rows without gaps, whose labels are all of the vocabulary."""
    rows = read_rows(path, form.separator, form.header, 2)
    frames = [_frame_number(path, *row) for row in rows]
    if frames[0] != form.first_row:
        expected = f"expected {form.first_row}: rows count from {form.first_row} here"
        raise DataError(f"{path}:{rows[0][0]}: the first row is number {frames[0]}, {expected}.")
    step = form.stride if isinstance(form.stride, int) else 1
    if form.stride == "any" and len(frames) > 1:
        step = max(1, frames[1] - frames[0])
    ids: dict[str, int] = {}
    for i, (number, (_, text)) in enumerate(rows):
        if i and frames[i] != frames[i - 1] + step:
            problem = _numbering_problem(frames[i - 1], frames[i], step)
            raise DataError(f"{path}:{number}: row {frames[i]} {problem}")
        if text not in ids:
            ids[text] = label_id(path, number, text, form.labels, vocabulary)
    phases = np.array([ids[text] for _, (_, text) in rows], np.int64)
    return RowLabels(phases, "second" if form.stride == "second" else step)


def _frame_number(path: Path, number: int, fields: list[str]) -> int:
    if not _INTEGER.fullmatch(fields[0]) and re.fullmatch(r"[0-9]+", fields[1]):
        problem = f"{fields[0]!r} where a frame number belongs"
        raise DataError(f"{path}:{number}: {problem}: the columns are swapped.")
    return integer(path, number, fields[0], "frame number")


def _numbering_problem(before: int, frame: int, step: int) -> str:
    if frame == before:
        return "occurs twice."
    if frame < before:
        return f"comes after row {before}; rows must be in order."
    missing, rest = divmod(frame - before - step, step)
    if rest:
        return f"breaks the step of {step} between rows."
    return f"follows row {before}: {missing} row{'s are' if missing > 1 else ' is'} missing."


def label_id(path: Path, number: int, text: str, form: LabelForm, vocabulary: PhaseVocabulary) -> int:
    """The phase id of a label text, or an error that names file and row."""
    where, is_number = f"{path}:{number}", bool(_INTEGER.fullmatch(text))
    if not text:
        raise DataError(f"{where}: the label is missing.")
    if form == "names" and is_number:
        reason = f"numbers are ambiguous for {vocabulary.dataset}: orders differ between copies"
        raise DataError(f"{where}: label {text} is a number, but {reason}. Use phase names.")
    if form == "ids" and not is_number:
        raise DataError(f"{where}: label {text!r} where a phase number belongs.")
    try:
        return vocabulary.id_of(text)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def read_segments(path: Path, vocabulary: PhaseVocabulary, separator: str = ",") -> SegmentLabels:
    """Read `start,end,phase` rows, times in seconds or h:m:s. Segments must not overlap; gaps are
    unlabelled."""
    starts, ends, phases = [], [], []
    for number, (start, end, phase) in read_rows(path, separator, ("start", "end", "phase"), 3):
        starts.append(_seconds(path, number, start))
        ends.append(_seconds(path, number, end))
        phases.append(label_id(path, number, phase, "either", vocabulary))
        if ends[-1] <= starts[-1]:
            raise DataError(f"{path}:{number}: the segment ends ({end}) before it starts ({start}).")
        if len(ends) > 1 and starts[-1] < starts[-2]:
            raise DataError(f"{path}:{number}: the segment starts before the one above; sort by start.")
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


def read_starts(path: Path, vocabulary: PhaseVocabulary) -> dict[str, StartLabels]:
    """Read `VideoID;FrameNo;Phase`, the segment starts of many videos in order of frame, by video id."""
    starts: dict[str, list[tuple[int, int]]] = {}
    for number, (video, frame_text, phase) in read_rows(path, ";", ("VideoID", "FrameNo", "Phase"), 3):
        frame = integer(path, number, frame_text, "frame number")
        rows = starts.setdefault(video, [])
        if rows and frame < rows[-1][0]:
            order = f"comes after frame {rows[-1][0]}; rows must be in order"
            raise DataError(f"{path}:{number}: frame {frame} of video {video} {order}.")
        rows.append((frame, label_id(path, number, phase, "either", vocabulary)))
    return {video: StartLabels(*np.array(rows, np.int64).T) for video, rows in starts.items()}


def start_labels(path: Path, video: str, vocabulary: PhaseVocabulary) -> StartLabels:
    """The starts of one video from such a table."""
    starts = read_starts(path, vocabulary)
    if video not in starts:
        raise DataError(f"{path}: no row for video {video}.")
    return starts[video]


def read_any(
    path: Path, vocabulary: PhaseVocabulary, first_row: int = 0, per_second: bool = False
) -> RowLabels | SegmentLabels:
    """Read one video's labels, in the format its first line shows: numbered rows with or without a header, or
    `start,end,phase` segments. Numbers are frames counted from `first_row`, or seconds with `per_second` or
    under the heading Second."""
    first = read_lines(path)[0]
    separator = max("\t,;", key=first.count) if any(s in first for s in "\t,;") else " "
    columns = tuple(part.casefold() for part in _fields(first, separator))
    if columns == ("start", "end", "phase"):
        return read_segments(path, vocabulary, separator)
    if len(columns) != 2:
        known = "a header 'Frame<tab>Phase' or 'start,end,phase', or rows 'frame,phase'"
        raise DataError(f"{path}:1: {first[:60]!r} is no known label format; use {known}.")
    header = None if _INTEGER.fullmatch(columns[0]) else columns
    if header and header[0] not in ("frame", "second"):
        swapped = " and put it first" if header == ("phase", "frame") else ""
        remedy = f"call it Frame or Second{swapped}"
        raise DataError(f"{path}:1: the first column is called {columns[0]!r}; {remedy}.")
    if header and header[1] != "phase":
        raise DataError(f"{path}:1: the second column is called {columns[1]!r}; call it Phase.")
    stride: Literal["second", "any"] = "second" if per_second or columns[0] == "second" else "any"
    return read_row_labels(path, RowFormat(separator, header, first_row, "either", stride), vocabulary)
