"""Reading label and prediction files: one row per frame, as text, from any system.

Read are tab, comma or semicolon separated files with a header or without: `Frame<TAB>Phase` with names or ids, `frame,phase` CSV, the
`labels.csv` of a prepared dataset (`frame,time_s,phase`) and our prediction files (`frame,time_s,phase,name,p_0..p_k-1,intensity`). A
header is a first row whose frame is no number, so a file without one loses no row. Ids count as the dataset's own files count, except in
files with a `time_s` column, which are ours and count from 0. Every complaint names the file and the row of the file, counted from 1."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

from surgicalmamba.data.vocabulary import UNLABELLED, PhaseVocabulary
from surgicalmamba.errors import DataError
from surgicalmamba.eval.pairs import FloatArray, IntArray

_FRAME_NAMES = {"frame", "frames", "frame_id", "frameno", "frame_no", "frame_index", "index"}
_PHASE_NAMES = {"phase", "phases", "phase_id", "label", "labels", "prediction", "pred", "class", "gt"}


@dataclass(frozen=True, eq=False)
class LabelRows:
    """One file. `frame` and `phase` (t,); phase is UNLABELLED where the cell is empty. `first_row` is the file's row of the first entry."""

    path: Path
    first_row: int
    frame: IntArray
    phase: IntArray
    time_s: FloatArray | None = None
    probabilities: FloatArray | None = None

    @property
    def step(self) -> int | None:
        """Frame ids between two rows; None for a single row."""
        return int(self.frame[1] - self.frame[0]) if len(self.frame) > 1 else None


@dataclass(frozen=True)
class _Columns:
    frame: int
    phase: int
    time_s: int | None
    name: int | None
    probabilities: tuple[int, ...]
    width: int


def read_rows(path: Path, vocabulary: PhaseVocabulary, first_id: int | None = None, allow_unlabelled: bool = True) -> LabelRows:
    """Read one file. `first_id` overrides what the first phase is numbered in files that are not ours."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}. Give a text file with one `frame<TAB>phase` row per frame.") from error
    lines = text.splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise DataError(f"{path} is empty; expected one `frame<TAB>phase` row per frame.")
    separator = next((mark for mark in ("\t", ";", ",") if mark in lines[0]), None)
    columns, first_row = _columns(path, _split(lines[0], separator), len(vocabulary))
    lines = lines[first_row - 1 :]
    if not lines:
        raise DataError(f"{path} has a header and no rows.")
    table = _transpose(path, lines, separator, columns.width, first_row)
    base = 0 if columns.time_s is not None else first_id
    frame = _integers(path, table[columns.frame], first_row)
    phase = _phases(path, table[columns.phase], vocabulary, base, first_row, allow_unlabelled)
    _check_grid(path, frame, first_row)
    if columns.name is not None:
        _check_names(path, table[columns.name], phase, vocabulary, first_row)
    time_s = None if columns.time_s is None else _floats(path, table, columns.time_s, first_row)
    probabilities = [_floats(path, table, column, first_row) for column in columns.probabilities]
    return LabelRows(path, first_row, frame, phase, time_s, np.stack(probabilities, axis=1) if probabilities else None)


def _split(line: str, separator: str | None) -> list[str]:
    if separator is None:
        return line.split(maxsplit=1)
    return next(csv.reader([line], delimiter=separator)) if '"' in line else line.split(separator)


def _transpose(path: Path, lines: list[str], separator: str | None, width: int, first_row: int) -> list[list[str]]:
    """The cells of each column. Without quotes and with the right number of cells in every line, one split of the whole text does it."""
    if separator is not None and set(map(str.count, lines, repeat(separator))) == {width - 1}:
        text = separator.join(lines)
        if '"' not in text:
            cells = text.split(separator)
            return [cells[column::width] for column in range(width)]
    rows = [_split(line, separator) for line in lines]
    for index, row in enumerate(rows):
        if len(row) != width:
            raise DataError(f"{path} row {first_row + index} has {len(row)} columns where {width} are needed; is the file cut or mixed?")
    return [list(column) for column in zip(*rows, strict=True)]


def _columns(path: Path, first: list[str], n_phases: int) -> tuple[_Columns, int]:
    """Where the columns are, and the row of the file where the data begin."""
    if first[0].strip().lstrip("+-").isdigit():
        if len(first) != 2:
            raise DataError(f"{path} row 1 has {len(first)} columns and there is no header; without one, two are needed: frame and phase.")
        return _Columns(0, 1, None, None, (), 2), 1
    names = [cell.strip().lower().replace(" ", "_") for cell in first]
    frame = next((index for index, name in enumerate(names) if name in _FRAME_NAMES), None)
    phase = next((index for index, name in enumerate(names) if name in _PHASE_NAMES), None)
    if frame is None or phase is None:
        missing = "frame" if frame is None else "phase"
        raise DataError(f"{path} row 1 is neither a header with a {missing} column nor a row `frame, phase`: {', '.join(first)[:80]!r}.")
    probabilities = tuple(index for index, name in enumerate(names) if name.startswith("p_") and name[2:].isdigit())
    if probabilities and [names[index] for index in probabilities] != [f"p_{number}" for number in range(n_phases)]:
        raise DataError(f"{path} has {len(probabilities)} probability columns; {n_phases} phases need p_0 to p_{n_phases - 1} in order.")
    time_s = names.index("time_s") if "time_s" in names else None
    name = names.index("name") if "name" in names else None
    return _Columns(frame, phase, time_s, name, probabilities, len(names)), 2


def _integers(path: Path, cells: Sequence[str], first_row: int) -> IntArray:
    try:
        return np.fromiter(map(int, cells), dtype=np.int64, count=len(cells))
    except (ValueError, OverflowError):
        index = next(index for index, cell in enumerate(cells) if not cell.strip().lstrip("+-").isdigit() or len(cell) > 18)
        raise DataError(f"{path} row {first_row + index}: frame {cells[index]!r} is no whole number.") from None


def _floats(path: Path, table: list[list[str]], column: int, first_row: int) -> FloatArray:
    cells = table[column]
    try:
        values = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
    except ValueError:
        index = next(index for index, cell in enumerate(cells) if not _is_number(cell))
        raise DataError(f"{path} row {first_row + index}: {cells[index]!r} in column {column + 1} is no number.") from None
    if not np.isfinite(values).all():
        row = first_row + int(np.argmax(~np.isfinite(values)))
        raise DataError(f"{path} row {row} holds a number that is not finite in column {column + 1}.")
    return values


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _phases(
    path: Path, cells: Sequence[str], vocabulary: PhaseVocabulary, base: int | None, first_row: int, allow_unlabelled: bool
) -> IntArray:
    ids: dict[str, int] = {}
    for text in set(cells):
        try:
            if not text.strip() and allow_unlabelled:
                ids[text] = UNLABELLED
            elif not text.strip():
                raise DataError("a prediction is missing")
            else:
                ids[text] = vocabulary.id_of(text, base)
        except DataError as error:
            raise DataError(f"{path} row {first_row + cells.index(text)}: {error}") from None
    return np.fromiter(map(ids.__getitem__, cells), dtype=np.int64, count=len(cells))


def _check_grid(path: Path, frame: IntArray, first_row: int) -> None:
    steps = np.diff(frame)
    if len(steps) == 0 or (steps[0] > 0 and (steps == steps[0]).all()):
        return
    index = int(np.argmax(steps <= 0)) if (steps <= 0).any() else int(np.argmax(steps != steps[0]))
    raise DataError(
        f"{path} row {first_row + index + 1}: frame {frame[index + 1]} follows frame {frame[index]}, but the first rows are {steps[0]} "
        "apart: mixed frame grids in one file."
    )


def _check_names(path: Path, cells: Sequence[str], phase: IntArray, vocabulary: PhaseVocabulary, first_row: int) -> None:
    """A file that carries ids and names must agree with itself: this catches a different order of phases."""
    pairs = list(zip(cells, phase.tolist(), strict=True))
    for text, number in sorted(set(pairs)):
        if not text.strip():
            continue
        where = f"{path} row {first_row + pairs.index((text, number))}"
        try:
            named = vocabulary.id_of_name(text)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        if named != number:
            expected = repr(vocabulary.names[number]) if number >= 0 else "unlabelled"
            raise DataError(
                f"{where}: phase {number} is called {text!r} here but {expected} in {vocabulary.dataset}; "
                "the file uses another order of phases."
            )
