"""Label and prediction files: read from any system, written by ours, and matched video by video.

Read are tab, comma or semicolon separated files with or without a header: `Frame<TAB>Phase` with names or
ids, `frame,phase` CSV, the `labels.csv` of a prepared dataset (`frame,time_s,phase`) and our prediction files
(`frame,time_s,phase,name,p_0..p_k-1,intensity`). A header is a first row whose frame is no number. Ids count
as the dataset's own files count, except in files with a `time_s` column, which are ours and count from 0.
Every error names the file and its row, counted from 1."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

import numpy as np

from surgicalmamba.data.labels import UNLABELLED, PhaseVocabulary, read_lines
from surgicalmamba.errors import ConfigError, DataError, InputError
from surgicalmamba.eval.pairs import FloatArray, IntArray, VideoPair, no_distribution
from surgicalmamba.eval.score import Json
from surgicalmamba.files import make_folder, natural_key, write_atomic

# One file.

_FRAME_NAMES = {"frame", "frames", "frame_id", "frameno", "frame_no", "frame_index", "index"}
_PHASE_NAMES = {"phase", "phases", "phase_id", "label", "labels", "prediction", "pred", "class", "gt"}
At = Callable[[int], str]
"""The place of an entry in its file, for errors: file and row."""


@dataclass(frozen=True, eq=False)
class LabelRows:
    """One file. `frame` and `phase` (t,); phase is UNLABELLED where the cell is empty. `first_row` is the
    file's row of the first entry."""

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

    def at(self, index: int) -> str:
        return f"{self.path} row {self.first_row + index}"


@dataclass(frozen=True)
class _Columns:
    frame: int
    phase: int
    time_s: int | None
    name: int | None
    probabilities: tuple[int, ...]
    width: int


def read_rows(
    path: Path, vocabulary: PhaseVocabulary, first_id: int | None = None, allow_unlabelled: bool = True
) -> LabelRows:
    """Read one file. `first_id` overrides what the first phase is numbered in files that are not ours."""
    lines = read_lines(path)
    separator = next((mark for mark in ("\t", ";", ",") if mark in lines[0]), None)
    columns, first_row = _find_columns(path, _split(lines[0], separator), len(vocabulary))
    lines = lines[first_row - 1 :]
    if not lines:
        raise DataError(f"{path} has a header and no rows.")

    def at(index: int) -> str:
        return f"{path} row {first_row + index}"

    table = _transpose(lines, separator, columns.width, at)
    frame = _integers(table[columns.frame], at)
    base = 0 if columns.time_s is not None else first_id
    phase = _phase_ids(table[columns.phase], vocabulary, base, allow_unlabelled, at)
    _check_grid(frame, at)
    if columns.name is not None:
        _check_names(table[columns.name], phase, vocabulary, at)
    time_s = None if columns.time_s is None else _floats(table, columns.time_s, at)
    probabilities = [_floats(table, column, at) for column in columns.probabilities]
    stacked = np.stack(probabilities, axis=1) if probabilities else None
    return LabelRows(path, first_row, frame, phase, time_s, stacked)


def _split(line: str, separator: str | None) -> list[str]:
    if separator is None:
        return line.split(maxsplit=1)
    return next(csv.reader([line], delimiter=separator)) if '"' in line else line.split(separator)


def _find_columns(path: Path, first: list[str], n_phases: int) -> tuple[_Columns, int]:
    """Where the columns are, and the row of the file where the data begin."""
    if first[0].strip().lstrip("+-").isdigit():
        if len(first) != 2:
            raise DataError(f"{path} row 1 has {len(first)} columns and there is no header; without one, two "
                            "are needed: frame and phase.")
        return _Columns(0, 1, None, None, (), 2), 1
    names = [cell.strip().lower().replace(" ", "_") for cell in first]
    frame = next((index for index, name in enumerate(names) if name in _FRAME_NAMES), None)
    phase = next((index for index, name in enumerate(names) if name in _PHASE_NAMES), None)
    if frame is None or phase is None:
        missing = "frame" if frame is None else "phase"
        raise DataError(f"{path} row 1 is neither a header with a {missing} column nor a row `frame, phase`: "
                        f"{', '.join(first)[:80]!r}.")
    probabilities = tuple(i for i, name in enumerate(names) if name.startswith("p_") and name[2:].isdigit())
    if probabilities and [names[index] for index in probabilities] != [f"p_{i}" for i in range(n_phases)]:
        raise DataError(f"{path} has {len(probabilities)} probability columns; {n_phases} phases need p_0 to "
                        f"p_{n_phases - 1} in order.")
    time_s = names.index("time_s") if "time_s" in names else None
    name = names.index("name") if "name" in names else None
    return _Columns(frame, phase, time_s, name, probabilities, len(names)), 2


def _transpose(lines: list[str], separator: str | None, width: int, at: At) -> list[list[str]]:
    """The cells of each column. Without quotes and with the right number of cells in every line, one split of
    the whole text does it."""
    if separator is not None and set(map(str.count, lines, repeat(separator))) == {width - 1}:
        text = separator.join(lines)
        if '"' not in text:
            cells = text.split(separator)
            return [cells[column::width] for column in range(width)]
    rows = [_split(line, separator) for line in lines]
    for index, row in enumerate(rows):
        if len(row) != width:
            raise DataError(f"{at(index)} has {len(row)} columns where {width} are needed; is the file cut "
                            "or mixed?")
    return [list(column) for column in zip(*rows, strict=True)]


def _integers(cells: Sequence[str], at: At) -> IntArray:
    try:
        return np.fromiter(map(int, cells), dtype=np.int64, count=len(cells))
    except (ValueError, OverflowError):
        wrong = (not cell.strip().lstrip("+-").isdigit() or len(cell) > 18 for cell in cells)
        index = list(wrong).index(True)
        raise DataError(f"{at(index)}: frame {cells[index]!r} is no whole number.") from None


def _floats(table: list[list[str]], column: int, at: At) -> FloatArray:
    cells = table[column]
    try:
        values = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
    except ValueError:
        index = next(index for index, cell in enumerate(cells) if not _is_number(cell))
        raise DataError(f"{at(index)}: {cells[index]!r} in column {column + 1} is no number.") from None
    if not np.isfinite(values).all():
        index = int(np.argmax(~np.isfinite(values)))
        raise DataError(f"{at(index)} holds a number that is not finite in column {column + 1}.")
    return values


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _phase_ids(
    cells: Sequence[str], vocabulary: PhaseVocabulary, base: int | None, allow_unlabelled: bool, at: At
) -> IntArray:
    ids: dict[str, int] = {}
    for text in set(cells):
        try:
            if text.strip():
                ids[text] = vocabulary.id_of(text, base)
            elif allow_unlabelled:
                ids[text] = UNLABELLED
            else:
                raise DataError("a prediction is missing")
        except DataError as error:
            raise DataError(f"{at(cells.index(text))}: {error}") from None
    return np.fromiter(map(ids.__getitem__, cells), dtype=np.int64, count=len(cells))


def _check_grid(frame: IntArray, at: At) -> None:
    steps = np.diff(frame)
    if len(steps) == 0 or (steps[0] > 0 and (steps == steps[0]).all()):
        return
    index = int(np.argmax(steps <= 0 if (steps <= 0).any() else steps != steps[0]))
    raise DataError(f"{at(index + 1)}: frame {frame[index + 1]} follows frame {frame[index]}, but the first "
                    f"rows are {steps[0]} apart: mixed frame grids in one file.")


def _check_names(cells: Sequence[str], phase: IntArray, vocabulary: PhaseVocabulary, at: At) -> None:
    """A file with ids and names must be consistent: this catches a different order of phases."""
    pairs = list(zip(cells, phase.tolist(), strict=True))
    for text, number in sorted(set(pairs)):
        if not text.strip():
            continue
        where = at(pairs.index((text, number)))
        try:
            named = vocabulary.id_of_name(text)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        if named != number:
            expected = repr(vocabulary.names[number]) if number >= 0 else "unlabelled"
            raise DataError(f"{where}: phase {number} is called {text!r} here but {expected} in "
                            f"{vocabulary.dataset}; the file uses another order of phases.")


def rows_per_second(rows: LabelRows) -> float | None:
    """Rows per second by the time column, to four digits; None without one."""
    if rows.time_s is None or len(rows.time_s) < 2:
        return None
    steps = np.diff(rows.time_s)
    if not (steps > 0).all():
        raise DataError(f"{rows.at(1 + int(np.argmax(steps <= 0)))}: time_s does not increase.")
    return float(f"{(len(rows.time_s) - 1) / float(rows.time_s[-1] - rows.time_s[0]):.4g}")


def check_rate(fps: float, found: float | None, where: str) -> None:
    """Refuse --fps when the files have another rate."""
    if found is not None and abs(found - fps) > 1e-3 * fps:
        raise DataError(f"--fps {fps:g} was given, but the time column of {where} has {found:g} rows per "
                        "second.")


# Predictions: a folder holds one CSV per video and a `run.json` about their origin. Files appear whole or not
# at all.

RUN_FILE = "run.json"
FORMAT = "surgicalmamba-predictions"
VERSION = 1


@dataclass(frozen=True)
class RunInfo:
    """What a reader must know about a folder of predictions."""

    dataset: str
    phases: tuple[str, ...]
    fps: float
    """Rows per second of the prediction files."""
    split: str | None = None
    seed: int | None = None
    checkpoint_sha256: str | None = None
    config: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class VideoPrediction:
    """The output for one video: frame ids (t,), seconds (t,), phase ids (t,) and, where there are any,
    probabilities (t, k) and intensity (t,)."""

    frame: IntArray
    time_s: FloatArray
    phase: IntArray
    probabilities: FloatArray | None = None
    intensity: FloatArray | None = None


def write_predictions(
    folder: Path, video: str, prediction: VideoPrediction, vocabulary: PhaseVocabulary
) -> Path:
    """Write `<folder>/<video>.csv` in one step and return its path."""
    if not video or Path(video).name != video:
        raise InputError(f"video name {video!r} cannot be a file name; use the name of the video without "
                         "folders.")
    _check_prediction(video, prediction, len(prediction.frame), len(vocabulary))
    make_folder(folder)
    write_atomic(folder / f"{video}.csv", "".join(prediction_lines(prediction, vocabulary)))
    return folder / f"{video}.csv"


def _check_prediction(video: str, prediction: VideoPrediction, n_rows: int, n_phases: int) -> None:
    for name in ("time_s", "phase", "probabilities", "intensity"):
        array, shape = getattr(prediction, name), (n_rows, n_phases) if name == "probabilities" else (n_rows,)
        if array is None:
            continue
        if array.shape != shape:
            raise InputError(f"{name} of {video} has shape {array.shape}; {shape} is needed.")
        if not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            raise InputError(f"{name} of {video} holds a number that is not finite at row {row}.")
    if n_rows == 0 or prediction.phase.min() < 0 or prediction.phase.max() >= n_phases:
        raise InputError(f"predictions of {video} must be at least one phase id from 0 to {n_phases - 1}.")


def prediction_lines(prediction: VideoPrediction, vocabulary: PhaseVocabulary) -> Iterator[str]:
    """The text of a prediction file, line by line."""
    probabilities, intensity = prediction.probabilities, prediction.intensity
    columns = [] if probabilities is None else [f"p_{index}" for index in range(len(vocabulary))]
    yield ",".join(["frame", "time_s", "phase", "name", *columns, "intensity"]) + "\n"
    names = [f'"{name}"' if "," in name else name for name in vocabulary.names]
    for row in range(len(prediction.frame)):
        phase = int(prediction.phase[row])
        cells = [str(int(prediction.frame[row])), f"{prediction.time_s[row]:.12g}", str(phase), names[phase]]
        if probabilities is not None:
            cells += [f"{value:.9g}" for value in probabilities[row]]
        cells.append("" if intensity is None else f"{intensity[row]:.9g}")
        yield ",".join(cells) + "\n"


def write_run(folder: Path, info: RunInfo) -> Path:
    """Write `<folder>/run.json` in one step and return its path."""
    document = {"format": FORMAT, "version": VERSION, **vars(info), "phases": list(info.phases)}
    make_folder(folder)
    write_atomic(folder / RUN_FILE, json.dumps(document, indent=2) + "\n")
    return folder / RUN_FILE


def read_run(folder: Path) -> RunInfo | None:
    """The folder's run.json, or None where there is none (a plain folder of some other system's files)."""
    path = folder / RUN_FILE
    if not path.is_file():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}. Write the predictions again.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DataError(f"{path} is no description of predictions (its format is not {FORMAT!r}); remove it "
                        "or write the predictions again.")
    if document.get("version") != VERSION:
        raise DataError(f"{path} has version {document.get('version')!r}; this program reads {VERSION}. Use "
                        "the version that wrote it.")
    phases, fps, config = document.get("phases"), document.get("fps"), document.get("config")
    if not isinstance(phases, list) or not all(isinstance(name, str) for name in phases) or not phases:
        raise DataError(f"{path}: `phases` must be the list of phase names in id order.")
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not fps > 0:
        raise DataError(f"{path}: `fps` is {fps!r}; it must be the rows per second of the prediction files.")
    return RunInfo(
        dataset=str(document.get("dataset", "")),
        phases=tuple(phases),
        fps=float(fps),
        split=document.get("split"),
        seed=document.get("seed"),
        checkpoint_sha256=document.get("checkpoint_sha256"),
        config=config if isinstance(config, dict) else {},
    )


# Folders of labels and of predictions.

_SUFFIXES = (".txt", ".csv", ".tsv")
_OTHER_FILES = re.compile(r"(timestamps?|tools?)$|^readme", re.IGNORECASE)
_DECORATION = re.compile(
    r"^(labels?|phases?|pred|predictions?)[-_]|[-_](annotations?|phases?|labels?|gt|pred|predictions?)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Matching:
    """How labels and predictions are paired. The defaults refuse whatever could pair the wrong rows."""

    tolerance_rows: int = 0
    """Rows by which a video's two files may differ in length; the longer one is cut at its end."""
    by_row: bool = False
    """Pair rows by their order and ignore frame ids."""
    sample_labels: bool = False
    """Keep of each label file only the rows whose frame id the prediction file has; every prediction must
    find its row."""
    common_videos: bool = False
    """Score only videos that both folders hold, instead of refusing."""
    label_first_id: int | None = None
    prediction_first_id: int | None = None


@dataclass(frozen=True, eq=False)
class Loaded:
    """Videos of several runs with the same labels."""

    runs: list[list[VideoPair]]
    fps: float | None
    """Rows per second, where the files contain them."""
    mixed_steps: str | None
    """Two videos with different frame steps, in words; None if all agree."""
    notes: tuple[str, ...]


def video_key(stem: str) -> str:
    """The video's name in a file name: `video41-phase`, `Video41` and `video41_pred` are all video41."""
    shorter = _DECORATION.sub("", stem)
    return stem.casefold() if shorter in ("", stem) else video_key(shorter)


def find_files(folder: Path, what: str) -> dict[str, Path]:
    """Files of a folder by video name: `<video>.txt|csv|tsv`, or those of a prepared dataset
    (`videos/<video>/labels.csv`)."""
    if folder.is_file():
        return {video_key(folder.stem): folder}
    if not folder.is_dir():
        raise DataError(f"the {what} folder {folder} does not exist; give a folder with one file per video.")
    if (folder / "dataset.json").is_file() and (folder / "videos").is_dir():
        folder = folder / "videos"
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and (path / "labels.csv").is_file():
            key, path = path.name.casefold(), path / "labels.csv"
        elif path.is_file() and path.suffix.lower() in _SUFFIXES and not _OTHER_FILES.search(path.stem):
            key = video_key(path.stem)
        else:
            continue
        if key in found:
            raise DataError(f"{found[key]} and {path} are both video {key!r}; keep one file per video.")
        found[key] = path
    if not found:
        raise DataError(f"no {what} in {folder}; expected one .txt, .csv or .tsv file per video.")
    return found


def load(
    labels: Path, predictions: Sequence[Path], vocabulary: PhaseVocabulary, matching: Matching | None = None
) -> Loaded:
    """Read and pair one folder of labels with one folder of predictions per run."""
    how = matching or Matching()
    if not predictions:
        raise ConfigError("no predictions given; name a folder with one prediction file per video.")
    label_files = find_files(labels, "labels")
    folders = [find_files(folder, "predictions") for folder in predictions]
    if labels.is_file():  # one file against one file: their names may differ
        (only,) = label_files
        folders = [{only: next(iter(files.values()))} if len(files) == 1 else files for files in folders]
    notes: list[str] = []
    names = _common_videos(labels, label_files, predictions, folders, how, notes)
    steps: dict[int, str] = {}
    rates: dict[float, str] = {}
    for folder in predictions:
        info = read_run(folder) if folder.is_dir() else None
        if info is not None:
            _check_phases(folder / RUN_FILE, info, vocabulary)
            rates.setdefault(info.fps, str(folder / RUN_FILE))
    truths = {name: read_rows(label_files[name], vocabulary, how.label_first_id) for name in names}
    runs: list[list[VideoPair]] = []
    for files in folders:
        videos = []
        for name in names:
            rows = read_rows(files[name], vocabulary, how.prediction_first_id, allow_unlabelled=False)
            truth = _sample(truths[name], rows, how, notes) if how.sample_labels else truths[name]
            videos.append(_pair(name, truth, rows, how, notes))
            for side in (truth, rows):
                if side.step is not None and not how.by_row:
                    steps.setdefault(side.step, str(side.path))
                rate = rows_per_second(side)
                if rate is not None:
                    rates.setdefault(rate, str(side.path))
        runs.append(videos)
    if len(rates) > 1:
        (first, where), (second, elsewhere) = list(rates.items())[:2]
        raise DataError(f"{where} has {first:g} rows per second and {elsewhere} {second:g}; mixed frame "
                        "grids cannot be scored together.")
    mixed = None
    if len(steps) > 1:
        (step, where), (other_step, elsewhere) = list(steps.items())[:2]
        mixed = f"frame ids are {step} apart in {where} and {other_step} apart in {elsewhere}"
    return Loaded(runs, next(iter(rates), None), mixed, tuple(notes))


def _common_videos(
    labels: Path,
    label_files: dict[str, Path],
    predictions: Sequence[Path],
    folders: list[dict[str, Path]],
    how: Matching,
    notes: list[str],
) -> list[str]:
    """The videos that all folders hold, sorted; a difference is an error or a note."""
    common = set(label_files)
    for folder, files in zip(predictions, folders, strict=True):
        for missing, present, where in (
            (set(label_files) - set(files), labels, folder),
            (set(files) - set(label_files), folder, labels),
        ):
            if missing and not how.common_videos:
                more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
                listed = ", ".join(sorted(missing)[:5]) + more
                raise DataError(f"{listed}: in {present} but not in {where}; add the files, or score the "
                                "rest with --common-videos.")
            if missing:
                videos = ", ".join(sorted(missing))
                notes.append(f"left out {len(missing)} video(s) that {where} does not hold: {videos}")
        common &= set(files)
    if not common:
        raise DataError(f"{labels} and {predictions[0]} have no video in common; files are matched by name, "
                        "such as video41.")
    return sorted(common, key=natural_key)


def _check_phases(path: Path, info: RunInfo, vocabulary: PhaseVocabulary) -> None:
    """The run.json of the predictions must list the phases of the labels."""
    if len(info.phases) != len(vocabulary):
        raise DataError(f"{path} lists {len(info.phases)} phases, but {vocabulary.dataset} has "
                        f"{len(vocabulary)}.")
    for index, (name, expected) in enumerate(zip(info.phases, vocabulary.names, strict=True)):
        try:
            agrees = vocabulary.id_of_name(name) == index
        except DataError:
            agrees = False
        if not agrees:
            raise DataError(f"{path}: phase {index} is {name!r} but {expected!r} in {vocabulary.dataset}.")


def _sample(truth: LabelRows, predicted: LabelRows, how: Matching, notes: list[str]) -> LabelRows:
    """The label rows at the frames of the predictions, for labels that are denser than the predictions."""
    index = np.minimum(np.searchsorted(truth.frame, predicted.frame), len(truth.frame) - 1)
    absent = truth.frame[index] != predicted.frame
    if absent.any():
        row = int(np.argmax(absent))
        raise DataError(f"{predicted.at(row)} is frame {predicted.frame[row]}, which {truth.path} does not "
                        "have: mixed frame grids.")
    step = predicted.step or 1
    first, last = int(predicted.frame[0]), int(predicted.frame[-1])
    uncovered = (int(truth.frame[-1]) - last) // step + (first - int(truth.frame[0])) // step
    if uncovered > how.tolerance_rows:
        raise DataError(f"{predicted.path} covers frames {first} to {last} of {truth.path}, whose rows go "
                        f"from {truth.frame[0]} to {truth.frame[-1]}: {uncovered} row(s) are missing. "
                        f"Predict them, or allow --tolerance {uncovered}.")
    if uncovered:
        notes.append(f"left out {uncovered} row(s) of {truth.path} beyond the predictions")
    time_s = None if truth.time_s is None else truth.time_s[index]
    return LabelRows(truth.path, truth.first_row, truth.frame[index], truth.phase[index], time_s)


def _pair(name: str, truth: LabelRows, predicted: LabelRows, how: Matching, notes: list[str]) -> VideoPair:
    n_truth, n_predicted = len(truth.frame), len(predicted.frame)
    rows, extra = min(n_truth, n_predicted), abs(n_truth - n_predicted)
    differ = truth.frame[:rows] != predicted.frame[:rows]
    if differ.any() and not how.by_row:
        index = int(np.argmax(differ))
        raise DataError(f"{truth.at(index)} is frame {truth.frame[index]}, but {predicted.at(index)} is "
                        f"frame {predicted.frame[index]}: mixed frame grids. If labels are denser, "
                        "--sample-labels takes their rows at the predicted frames; if ids mean nothing, "
                        "--by-row pairs by order.")
    if extra:
        longer = truth if n_truth > n_predicted else predicted
        if extra > how.tolerance_rows:
            raise DataError(f"{name}: {truth.path} has {n_truth} rows and {predicted.path} {n_predicted}; "
                            f"{longer.path} continues at row {longer.first_row + rows}. Give equal lengths, "
                            f"or allow it with --tolerance {extra}.")
        notes.append(f"cut the last {extra} row(s) of {longer.path}")
    labels, probabilities = truth.phase[:rows], predicted.probabilities
    if not (labels >= 0).any():
        raise DataError(f"{truth.path} labels none of its rows; there is nothing to score.")
    if probabilities is not None:
        wrong = no_distribution(probabilities)
        if wrong.any():
            where = predicted.at(int(np.argmax(wrong)))
            raise DataError(f"{where}: probabilities must lie between 0 and 1 and sum to 1.")
        probabilities = probabilities[:rows]
    return VideoPair(name, labels, predicted.phase[:rows], probabilities)
