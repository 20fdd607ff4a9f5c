"""JIGSAWS: robot kinematics and gestures of bench-top suturing, with leave-one-user-out splits.

Read from the official layout (`<Task>/kinematics/AllGestures/<Task>_B001.txt`, 76 columns at 30 Hz, and
`<Task>/transcriptions/<Task>_B001.txt`, rows `first last G1` counted from 1), or from an archive with
`<trial>/x` (n, 14) and `<trial>/y` (n,) at 5 Hz. The 14 signals are those of the patient-side arms, left then
right: position, linear velocity, gripper angle."""

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.adapters import base
from surgicalmamba.data.adapters.base import FeatureAdapter, FeatureSequence, Found, Procedure
from surgicalmamba.data.labels import UNLABELLED, PhaseVocabulary, integer, read_lines
from surgicalmamba.data.manifest import Split
from surgicalmamba.errors import DataError

GESTURES = {
    "Suturing": (1, 2, 3, 4, 5, 6, 8, 9, 10, 11),
    "Knot_Tying": (1, 11, 12, 13, 14, 15),
    "Needle_Passing": (1, 2, 3, 4, 5, 6, 8, 11),
}
"""Gesture numbers that occur in each task; phase ids are their positions."""
SOURCE_HZ = 30
STEP = 6
_ARM = (*range(3), *range(12, 15), 18)
COLUMNS = tuple(38 + column for column in _ARM) + tuple(57 + column for column in _ARM)
"""0-based columns of the 14 signals among the 76: each arm has position 3, rotation 9, velocity 3, turn rate
3, gripper 1."""
_TRIAL = r"(Suturing|Knot_Tying|Needle_Passing)_(?:([A-Z])([0-9]{3})|(S[0-9]+)_(T[0-9]+))"


class Jigsaws(FeatureAdapter):
    """Trials of one task at 5 samples per second; phases are gestures."""

    name = "jigsaws"
    fps = Fraction(SOURCE_HZ, STEP)

    @property
    def vocabulary(self) -> PhaseVocabulary:
        task = self._task([procedure.id for procedure in self.find().procedures])
        return PhaseVocabulary(f"jigsaws {task}", tuple(f"G{number}" for number in GESTURES[task]))

    def _task(self, trials: Sequence[str]) -> str:
        tasks = sorted({match[1] for trial in trials if (match := re.match(_TRIAL, trial))})
        if len(tasks) != 1:
            several = f"holds several tasks ({', '.join(tasks)})"
            raise DataError(f"{self.source} {several}; give the folder of one as --source.")
        return tasks[0]

    def find(self) -> Found:
        pattern = rf"{_TRIAL}\.txt"
        kinematics, transcriptions = (
            base.match_files(self.source, pattern, _trial_id, within=rf"(^|/){folder}/")
            for folder in ("kinematics", "transcriptions")
        )
        procedures = base.join(kinematics, transcriptions)
        procedures = procedures or [p for p in base.archived(self.source, "x") if re.fullmatch(_TRIAL, p.id)]
        if not procedures:
            expected = "neither kinematics/AllGestures/Suturing_B001.txt nor an .npz of trials"
            raise DataError(f"{self.source} does not look like jigsaws: {expected} in it.")
        return Found(sorted(procedures, key=lambda procedure: procedure.id))

    def splits(self, procedures: Sequence[Procedure]) -> dict[str, Split]:
        users: dict[str, list[str]] = {}
        for procedure in procedures:
            match = re.fullmatch(_TRIAL, procedure.id)
            assert match is not None
            users.setdefault(match[2] or match[4], []).append(procedure.id)
        source = "Leave one user out, the usual protocol: all trials of one surgeon are the test."
        splits = {}
        for user, trials in sorted(users.items()):
            train = tuple(trial for other, others in users.items() if other != user for trial in others)
            name = f"louo-{user}"
            splits[name] = Split(name, {"train": train, "test": tuple(trials)}, source)
        return splits

    def load(self, procedure: Procedure) -> FeatureSequence:
        path, where = procedure.media, f"{procedure.media}: {procedure.id}"
        if path.suffix == ".npz":
            features = base.as_features(base.load_npz(path, f"{procedure.id}/x"), where)
            gestures = base.load_npz(path, f"{procedure.id}/y").astype(np.int64)
            base.same_length(features, gestures, where)
        else:
            features = read_kinematics(path)[::STEP]
            transcription = base.only_annotation(procedure, f"transcriptions/{procedure.id}.txt")
            gestures = read_transcription(transcription, len(features) * STEP)[::STEP][: len(features)]
        if features.shape[1] != len(COLUMNS):
            raise DataError(f"{where}: {features.shape[1]} signals, expected {len(COLUMNS)}.")
        phases = self._phase_ids(gestures, self._task([procedure.id]), where)
        return FeatureSequence(features, phases, self.fps, np.arange(len(features)) * STEP)

    def _phase_ids(self, gestures: NDArray[np.int64], task: str, where: str) -> NDArray[np.int64]:
        phases = np.full(len(gestures), UNLABELLED, np.int64)
        for number in np.unique(gestures[gestures >= 0]).tolist():
            if number not in GESTURES[task]:
                known = GESTURES[task]
                raise DataError(f"{where}: gesture G{number} does not occur in {task}; known are {known}.")
            phases[gestures == number] = GESTURES[task].index(number)
        return phases


def _trial_id(match: re.Match[str]) -> str:
    """The official spelling of a trial's name."""
    task = next(name for name in GESTURES if name.lower() == match[1].lower())
    trial = match[2] + match[3] if match[2] else f"{match[4]}_{match[5]}"
    return f"{task}_{trial.upper()}"


def read_kinematics(path: Path) -> NDArray[np.float32]:
    """The 14 signals of every row of a 76-column file."""
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split()
        if len(fields) != 76:
            raise DataError(f"{path}:{number}: {len(fields)} columns, expected 76.")
        try:
            rows.append([float(fields[column]) for column in COLUMNS])
        except ValueError:
            raise DataError(f"{path}:{number}: a column is not a number.") from None
    return base.as_features(np.array(rows), str(path))


def read_transcription(path: Path, n_rows: int) -> NDArray[np.int64]:
    """Gesture numbers per kinematics row from `first last Gn`, both ends included and counted from 1; -1
    where there is none."""
    gestures = np.full(n_rows, -1, np.int64)
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split()
        if len(fields) != 3 or not re.fullmatch(r"G[0-9]+", fields[2]):
            raise DataError(f"{path}:{number}: {line[:60]!r} is not 'first last G1'.")
        first, last = (integer(path, number, text, "frame number") for text in fields[:2])
        if not 1 <= first <= last:
            raise DataError(f"{path}:{number}: frames {first} to {last} are no stretch; they count from 1.")
        gestures[first - 1 : last] = int(fields[2][1:])
    return gestures
