"""Folders of label files and folders of predictions, matched video by video."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from surgicalmamba.data.vocabulary import PhaseVocabulary
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.eval.pairs import FloatArray, VideoPair, no_distribution
from surgicalmamba.eval.predictions import RunInfo, read_run
from surgicalmamba.eval.rows import LabelRows, read_rows

_SUFFIXES = (".txt", ".csv", ".tsv")
_OTHER_FILES = re.compile(r"(timestamps?|tools?)$|^readme", re.IGNORECASE)
_DECORATION = re.compile(
    r"^(labels?|phases?|pred|predictions?)[-_]|[-_](annotations?|phases?|labels?|gt|pred|predictions?)$", re.IGNORECASE
)


@dataclass(frozen=True)
class Matching:
    """How labels and predictions are paired. The defaults refuse whatever could pair the wrong rows."""

    tolerance_rows: int = 0
    """Rows by which a video's two files may differ in length; the longer one is cut at its end."""
    by_row: bool = False
    """Pair rows by their order and ignore frame ids."""
    sample_labels: bool = False
    """Keep of each label file only the rows whose frame id the prediction file has; every prediction must find its row."""
    common_videos: bool = False
    """Score only videos that both folders hold, instead of refusing."""
    label_first_id: int | None = None
    prediction_first_id: int | None = None


@dataclass(frozen=True, eq=False)
class Loaded:
    """Videos of several runs with the same labels, and what was found out while reading."""

    runs: list[list[VideoPair]]
    fps: float | None
    """Rows per second, where the files tell."""
    mixed_steps: str | None
    """Two videos with different frame steps, in words; None if all agree."""
    notes: tuple[str, ...]
    run_infos: tuple[RunInfo | None, ...]


def video_key(stem: str) -> str:
    """The video's name in a file name: `video41-phase`, `Video41` and `video41_pred` are all video41."""
    key = stem
    while True:
        shorter = _DECORATION.sub("", key)
        if shorter == key or not shorter:
            return key.casefold()
        key = shorter


def find_files(folder: Path, what: str) -> dict[str, Path]:
    """Files of a folder by video name: `<video>.txt|csv|tsv`, or those of a prepared dataset (`videos/<video>/labels.csv`)."""
    if folder.is_file():
        return {video_key(folder.stem): folder}
    if not folder.is_dir():
        raise DataError(f"the {what} folder {folder} does not exist; give a folder with one file per video.")
    found: dict[str, Path] = {}
    if (folder / "dataset.json").is_file() and (folder / "videos").is_dir():
        folder = folder / "videos"
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


def load(labels: Path, predictions: Sequence[Path], vocabulary: PhaseVocabulary, matching: Matching | None = None) -> Loaded:
    """Read and pair one folder of labels with one folder of predictions per run."""
    how = matching or Matching()
    if not predictions:
        raise ConfigError("no predictions given; name a folder with one prediction file per video.")
    label_files = find_files(labels, "labels")
    folders = [find_files(folder, "predictions") for folder in predictions]
    if len(label_files) == 1 and labels.is_file():
        only = next(iter(label_files))
        folders = [{only: next(iter(files.values()))} if len(files) == 1 else files for files in folders]
    notes: list[str] = []
    names = _common_videos(labels, label_files, predictions, folders, how, notes)
    infos = tuple(_run_info(folder, vocabulary) for folder in predictions)
    truths = {name: read_rows(label_files[name], vocabulary, how.label_first_id) for name in names}
    runs: list[list[VideoPair]] = []
    steps: dict[int, Path] = {}
    rates = {info.fps: str(folder / "run.json") for folder, info in zip(predictions, infos, strict=True) if info}
    for files in folders:
        videos = []
        for name in names:
            rows = read_rows(files[name], vocabulary, how.prediction_first_id, allow_unlabelled=False)
            truth = _sample(truths[name], rows, how, notes) if how.sample_labels else truths[name]
            videos.append(_pair(name, truth, rows, how, notes))
            for side in (truth, rows):
                if side.step is not None and not how.by_row:
                    steps.setdefault(side.step, side.path)
                rate = rows_per_second(side)
                if rate is not None:
                    rates.setdefault(rate, str(side.path))
        runs.append(videos)
    if len(rates) > 1:
        (first, where), (second, elsewhere) = list(rates.items())[:2]
        raise DataError(f"{where} has {first:g} rows per second and {elsewhere} {second:g}; mixed frame grids cannot be scored together.")
    mixed = None
    if len(steps) > 1:
        (first_step, where_path), (second_step, other_path) = list(steps.items())[:2]
        mixed = f"frame ids are {first_step} apart in {where_path} and {second_step} apart in {other_path}"
    return Loaded(runs, next(iter(rates), None), mixed, tuple(notes), infos)


def _common_videos(
    labels: Path, label_files: dict[str, Path], predictions: Sequence[Path], folders: list[dict[str, Path]], how: Matching, notes: list[str]
) -> list[str]:
    common = set(label_files)
    for folder, files in zip(predictions, folders, strict=True):
        for missing, present, where in ((set(label_files) - set(files), labels, folder), (set(files) - set(label_files), folder, labels)):
            if not missing:
                continue
            listed = ", ".join(sorted(missing)[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            if not how.common_videos:
                raise DataError(f"{listed}: in {present} but not in {where}; add the files, or score the rest with --common-videos.")
            notes.append(f"left out {len(missing)} video(s) that {where} does not hold: {', '.join(sorted(missing))}")
        common &= set(files)
    if not common:
        raise DataError(f"{labels} and {predictions[0]} have no video in common; files are matched by name, such as video41.")
    return sorted(common, key=_natural)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key with numbers by value: video2 before video10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def _run_info(folder: Path, vocabulary: PhaseVocabulary) -> RunInfo | None:
    info = read_run(folder) if folder.is_dir() else None
    if info is not None:
        if len(info.phases) != len(vocabulary):
            raise DataError(f"{folder / 'run.json'} lists {len(info.phases)} phases, but {vocabulary.dataset} has {len(vocabulary)}.")
        for index, (name, expected) in enumerate(zip(info.phases, vocabulary.names, strict=True)):
            try:
                agrees = vocabulary.id_of_name(name) == index
            except DataError:
                agrees = False
            if not agrees:
                raise DataError(f"{folder / 'run.json'}: phase {index} is {name!r} but {expected!r} in {vocabulary.dataset}.")
    return info


def _sample(truth: LabelRows, predicted: LabelRows, how: Matching, notes: list[str]) -> LabelRows:
    """The label rows at the frames of the predictions, for labels that are denser than what was predicted."""
    index = np.minimum(np.searchsorted(truth.frame, predicted.frame), len(truth.frame) - 1)
    absent = truth.frame[index] != predicted.frame
    if absent.any():
        row = int(np.argmax(absent))
        raise DataError(
            f"{predicted.path} row {predicted.first_row + row} is frame {predicted.frame[row]}, which {truth.path} does not have: "
            "mixed frame grids."
        )
    step = predicted.step or 1
    uncovered = int(truth.frame[-1] - predicted.frame[-1]) // step + int(predicted.frame[0] - truth.frame[0]) // step
    if uncovered > how.tolerance_rows:
        raise DataError(
            f"{predicted.path} covers frames {predicted.frame[0]} to {predicted.frame[-1]} of {truth.path}, whose rows go from "
            f"{truth.frame[0]} to {truth.frame[-1]}: {uncovered} row(s) are missing. Predict them, or allow --tolerance {uncovered}."
        )
    if uncovered:
        notes.append(f"left out {uncovered} row(s) of {truth.path} beyond the predictions")
    time_s = None if truth.time_s is None else truth.time_s[index]
    return LabelRows(truth.path, truth.first_row, truth.frame[index], truth.phase[index], time_s)


def _pair(name: str, truth: LabelRows, predicted: LabelRows, how: Matching, notes: list[str]) -> VideoPair:
    n_truth, n_predicted = len(truth.frame), len(predicted.frame)
    rows = min(n_truth, n_predicted)
    if not how.by_row:
        differ = truth.frame[:rows] != predicted.frame[:rows]
        if differ.any():
            index = int(np.argmax(differ))
            raise DataError(
                f"{truth.path} row {truth.first_row + index} is frame {truth.frame[index]}, but {predicted.path} row "
                f"{predicted.first_row + index} is frame {predicted.frame[index]}: mixed frame grids. If labels are denser, "
                "--sample-labels takes their rows at the predicted frames; if ids mean nothing, --by-row pairs by order."
            )
    if n_truth != n_predicted:
        longer = truth if n_truth > n_predicted else predicted
        if abs(n_truth - n_predicted) > how.tolerance_rows:
            raise DataError(
                f"{name}: {truth.path} has {n_truth} rows and {predicted.path} {n_predicted}; {longer.path} goes on at row "
                f"{longer.first_row + rows}. Give equal lengths, or allow it with --tolerance {abs(n_truth - n_predicted)}."
            )
        notes.append(f"cut the last {abs(n_truth - n_predicted)} row(s) of {longer.path}")
    labels = truth.phase[:rows]
    if not (labels >= 0).any():
        raise DataError(f"{truth.path} labels none of its rows; there is nothing to score.")
    return VideoPair(name, labels, predicted.phase[:rows], _checked(predicted, rows))


def _checked(predicted: LabelRows, rows: int) -> FloatArray | None:
    values = predicted.probabilities
    if values is None:
        return None
    wrong = no_distribution(values)
    if wrong.any():
        index = int(np.argmax(wrong))
        raise DataError(f"{predicted.path} row {predicted.first_row + index}: probabilities must lie between 0 and 1 and sum to 1.")
    return values[:rows]


def rows_per_second(rows: LabelRows) -> float | None:
    """Rows per second told by the time column, to four digits."""
    if rows.time_s is None or len(rows.time_s) < 2:
        return None
    span = float(rows.time_s[-1] - rows.time_s[0])
    if not (np.diff(rows.time_s) > 0).all():
        raise DataError(f"{rows.path} row {rows.first_row + 1 + int(np.argmax(np.diff(rows.time_s) <= 0))}: time_s does not increase.")
    return float(f"{(len(rows.time_s) - 1) / span:.4g}")
