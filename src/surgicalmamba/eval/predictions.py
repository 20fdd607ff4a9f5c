"""The prediction file: written once, scored anywhere.

A folder holds one CSV per video (`frame,time_s,phase,name,p_0..p_k-1,intensity`) and a `run.json` that says where they come from. Files
appear whole or not at all."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np

from surgicalmamba.data.vocabulary import PhaseVocabulary
from surgicalmamba.errors import DataError, InputError
from surgicalmamba.eval.pairs import FloatArray, IntArray
from surgicalmamba.eval.score import Json

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
    """The output for one video: frame ids (t,), seconds (t,), phase ids (t,) and, where there are any, probabilities (t, k) and intensity
    (t,)."""

    frame: IntArray
    time_s: FloatArray
    phase: IntArray
    probabilities: FloatArray | None = None
    intensity: FloatArray | None = None


def write_predictions(folder: Path, video: str, prediction: VideoPrediction, vocabulary: PhaseVocabulary) -> Path:
    """Write `<folder>/<video>.csv` in one step and return its path."""
    _check(video, prediction, len(prediction.frame), len(vocabulary))
    return _write_whole(folder, f"{video}.csv", lambda stream: stream.writelines(prediction_lines(prediction, vocabulary)))


def prediction_lines(prediction: VideoPrediction, vocabulary: PhaseVocabulary) -> Iterator[str]:
    """The text of a prediction file, line by line."""
    header = ["frame", "time_s", "phase", "name", *(f"p_{index}" for index in range(len(vocabulary))), "intensity"]
    probabilities = prediction.probabilities
    if probabilities is None:
        header = header[:4] + header[-1:]
    names = [f'"{name}"' if "," in name else name for name in vocabulary.names]
    yield ",".join(header) + "\n"
    for row in range(len(prediction.frame)):
        phase = int(prediction.phase[row])
        cells = [str(int(prediction.frame[row])), f"{prediction.time_s[row]:.12g}", str(phase), names[phase]]
        if probabilities is not None:
            cells += [f"{value:.9g}" for value in probabilities[row]]
        cells.append("" if prediction.intensity is None else f"{prediction.intensity[row]:.9g}")
        yield ",".join(cells) + "\n"


def _check(video: str, prediction: VideoPrediction, n_rows: int, n_phases: int) -> None:
    if not video or Path(video).name != video:
        raise InputError(f"video name {video!r} cannot be a file name; use the name of the video without folders.")
    shapes: Sequence[tuple[str, FloatArray | IntArray | None, tuple[int, ...]]] = (
        ("time_s", prediction.time_s, (n_rows,)),
        ("phase", prediction.phase, (n_rows,)),
        ("probabilities", prediction.probabilities, (n_rows, n_phases)),
        ("intensity", prediction.intensity, (n_rows,)),
    )
    for name, array, shape in shapes:
        if array is not None and array.shape != shape:
            raise InputError(f"{name} of {video} has shape {array.shape}; {shape} is needed.")
        if array is not None and not np.isfinite(array).all():
            raise InputError(f"{name} of {video} holds a number that is not finite at row {int(np.argwhere(~np.isfinite(array))[0][0])}.")
    if n_rows == 0 or prediction.phase.min() < 0 or prediction.phase.max() >= n_phases:
        raise InputError(f"predictions of {video} must be at least one phase id from 0 to {n_phases - 1}.")


def write_run(folder: Path, info: RunInfo) -> Path:
    """Write `<folder>/run.json` in one step and return its path."""
    document = {"format": FORMAT, "version": VERSION, **vars(info), "phases": list(info.phases)}
    return _write_whole(folder, RUN_FILE, lambda stream: stream.write(json.dumps(document, indent=2) + "\n"))


def read_run(folder: Path) -> RunInfo | None:
    """The folder's run.json, or None where there is none (a plain folder of some other system's files)."""
    path = folder / RUN_FILE
    if not path.is_file():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}. Write the predictions anew.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DataError(f"{path} is no description of predictions (its format is not {FORMAT!r}); remove it or write the predictions anew.")
    if document.get("version") != VERSION:
        raise DataError(f"{path} has version {document.get('version')!r}; this program reads {VERSION}. Use the version that wrote it.")
    phases, fps = document.get("phases"), document.get("fps")
    if not isinstance(phases, list) or not all(isinstance(name, str) for name in phases) or not phases:
        raise DataError(f"{path}: `phases` must be the list of phase names in id order.")
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not fps > 0:
        raise DataError(f"{path}: `fps` is {fps!r}; it must be the rows per second of the prediction files.")
    config = document.get("config")
    return RunInfo(
        dataset=str(document.get("dataset", "")),
        phases=tuple(phases),
        fps=float(fps),
        split=document.get("split"),
        seed=document.get("seed"),
        checkpoint_sha256=document.get("checkpoint_sha256"),
        config=config if isinstance(config, dict) else {},
    )


def _write_whole(folder: Path, name: str, write: Callable[[TextIO], object]) -> Path:
    """Write beside the target, then rename: a reader never meets half a file, whatever happens to the writer."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}.", suffix=".partial")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, folder / name)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return folder / name
