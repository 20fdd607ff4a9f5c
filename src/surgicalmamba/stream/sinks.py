"""Where estimates go: JSON lines as they come, and the prediction file that `evaluate` reads."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

import numpy as np

from surgicalmamba.config import RecognizerConfig
from surgicalmamba.data.records import Frame, Gap
from surgicalmamba.data.vocabulary import PhaseVocabulary
from surgicalmamba.errors import DataError
from surgicalmamba.eval.predictions import RUN_FILE, RunInfo, VideoPrediction, write_predictions, write_run
from surgicalmamba.stream.estimate import PhaseEstimate


@dataclass(frozen=True)
class Seen:
    """An estimate with the source's frame behind it (None where a tick was filled) and the time from picture to estimate."""

    estimate: PhaseEstimate
    frame: Frame | None
    latency_ms: float

    @property
    def source_frame(self) -> int:
        """The source's own number for the frame; the tick where there is none."""
        return self.estimate.tick if self.frame is None else self.frame.index


class Sink(Protocol):
    """Told of every estimate; `close` is called once, also after an interruption."""

    def estimate(self, seen: Seen) -> None: ...
    def gap(self, gap: Gap) -> None: ...
    def close(self) -> None: ...


class JsonLinesSink:
    """One JSON object per line, on disk before the next frame: a killed process leaves all lines but perhaps the last one whole.

    Lines are of type `session` (first), `estimate`, `gap` and `end` (last, if the session ended by itself or by Ctrl-C)."""

    def __init__(self, path: Path, about: dict[str, object]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream: TextIO = path.open("w", encoding="utf-8", newline="\n")
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror}; choose another place.") from None
        self._n = 0
        self._write({"type": "session", **about})

    def _write(self, line: dict[str, object]) -> None:
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()

    def estimate(self, seen: Seen) -> None:
        self._n += 1
        document = {**seen.estimate.as_dict(), "source_frame": seen.source_frame, "latency_ms": round(seen.latency_ms, 3)}
        self._write({"type": "estimate", **document})

    def gap(self, gap: Gap) -> None:
        self._write({"type": "gap", **vars(gap)})

    def close(self) -> None:
        self._write({"type": "end", "estimates": self._n})
        self._stream.close()


class CsvSink:
    """The prediction file of one video, written whole when the session ends; with a `run.json` where the folder has none yet."""

    def __init__(self, path: Path, config: RecognizerConfig, fps: float) -> None:
        self._path, self._fps = path, fps
        names = config.phases or tuple(f"phase {number}" for number in range(config.n_phases))
        self._vocabulary = PhaseVocabulary(path.stem, names)
        self._rows: list[tuple[int, PhaseEstimate]] = []

    def estimate(self, seen: Seen) -> None:
        self._rows.append((seen.source_frame, seen.estimate))

    def gap(self, gap: Gap) -> None:
        """The estimates say what was made of it."""

    def close(self) -> None:
        if not self._rows:
            return
        estimates = [estimate for _, estimate in self._rows]
        intensities = [e.intensity for e in estimates if e.intensity is not None]
        prediction = VideoPrediction(
            frame=np.array([frame for frame, _ in self._rows]),
            time_s=np.array([e.time_s for e in estimates]),
            phase=np.array([e.phase for e in estimates]),
            probabilities=np.array([e.probabilities for e in estimates]),
            intensity=np.array(intensities) if intensities else None,
        )
        try:
            write_predictions(self._path.parent, self._path.stem, prediction, self._vocabulary)
            if not (self._path.parent / RUN_FILE).exists():
                write_run(self._path.parent, RunInfo("stream", self._vocabulary.names, self._fps))
        except OSError as error:
            raise DataError(f"cannot write {self._path}: {error.strerror}; choose another place.") from None
