"""The relaxed boundary: close to an annotated change of phase, predicting the neighbouring phase is forgiven.

Three modes, because the field's script does not do what it says:

- `published`: identical to the MATLAB script behind most relaxed numbers in print, its defect included. In each annotated segment the
  first W rows forgive the previous phase. For the last W rows the script finds the rows that predict the next phase, but then clears the
  rows at the same offsets from the *start* of the segment. So early changes stay errors unless the segment is no longer than W, and
  unrelated errors near the start of a segment are erased.
- `repaired`: the same rules with the last W rows cleared where they stand.
- `symmetric`: no rules at all. The first W rows of a segment forgive the phase of the segment before it, the last W rows that of the
  segment after it, whatever their numbers.

The first two know "previous" and "next" as differences of phase numbers, so they only make sense where the numbers follow the order of
the procedure. `RULES` holds the differences in use; SV-RCNet's copy of the script lists fewer early ones for the last two phases of
Cholec80, which changes nothing, because no phase has such a number."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.cells import percent
from surgicalmamba.eval.pairs import BoolArray, FloatArray, IntArray
from surgicalmamba.eval.segments import find_segments

RelaxedMode = Literal["published", "repaired", "symmetric"]


@dataclass(frozen=True)
class RelaxedRules:
    """Forgiven differences predicted - annotated, by annotated phase (0-based); phases that are not listed use -1 late and +1 early."""

    name: str
    n_phases: int | None
    late: dict[int, tuple[int, ...]]
    early: dict[int, tuple[int, ...]]

    def table(self, side: Literal["late", "early"], n_phases: int) -> BoolArray:
        """(k, 2k - 1) lookup: row = annotated phase, column = difference + k - 1."""
        listed, default = (self.late, (-1,)) if side == "late" else (self.early, (1,))
        table = np.zeros((n_phases, 2 * n_phases - 1), dtype=bool)
        for phase in range(n_phases):
            for difference in listed.get(phase, default):
                if abs(difference) < n_phases:
                    table[phase, difference + n_phases - 1] = True
        return table


RULES = {
    "cholec80": RelaxedRules("cholec80", 7, late={5: (-1, -2), 6: (-1, -2)}, early={3: (1, 2), 4: (1, 2), 5: (1, 2), 6: (1, 2)}),
    "m2cai16": RelaxedRules("m2cai16", 8, late={6: (-1, -2), 7: (-1, -2)}, early={4: (1, 2), 5: (1, 2), 6: (1, 2), 7: (1, 2)}),
    "neighbours": RelaxedRules("neighbours", None, late={}, early={}),
}


def rules_for(name: str, n_phases: int) -> RelaxedRules:
    """Rules by name, if they fit the number of phases."""
    if name not in RULES:
        raise ConfigError(f"unknown relaxed rules {name!r}; known are {', '.join(sorted(RULES))}.")
    rules = RULES[name]
    if rules.n_phases not in (None, n_phases):
        raise ConfigError(
            f"relaxed rules {name!r} are written for {rules.n_phases} phases, not {n_phases}; use 'neighbours' or the symmetric mode."
        )
    return rules


def forgiven_rows(
    truth: IntArray, predicted: IntArray, mode: RelaxedMode, window_rows: int, n_phases: int, rules: RelaxedRules | None
) -> BoolArray:
    """Rows that count as right: predicted right, or forgiven. Rows without annotation are right in mode `published`, as in the script, and
    False in the other modes, which leave them out."""
    segments = find_segments(truth, keep_gaps=True)
    of_row = np.repeat(np.arange(len(segments)), segments.length)
    window = np.minimum(window_rows, segments.length)
    rows = np.arange(len(truth))
    head = rows - segments.start[of_row] < window[of_row]
    tail = segments.stop[of_row] - rows <= window[of_row]
    labelled = truth >= 0
    if mode == "symmetric":
        before = np.concatenate(([-1], segments.phase[:-1]))
        after = np.concatenate((segments.phase[1:], [-1]))
        right = (predicted == truth) | (head & (predicted == before[of_row])) | (tail & (predicted == after[of_row]))
        return np.asarray(right & labelled)
    if rules is None:
        raise ConfigError(f"the {mode} relaxed mode needs rules; known are {', '.join(sorted(RULES))}.")
    column = np.where(labelled, predicted - truth, 0) + n_phases - 1
    line = np.maximum(truth, 0)
    right = (predicted == truth) | (head & labelled & rules.table("late", n_phases)[line, column])
    early = tail & labelled & rules.table("early", n_phases)[line, column]
    if mode == "repaired":
        return np.asarray((right | early) & labelled)
    found = np.flatnonzero(early)
    right[found - (segments.length - window)[of_row[found]]] = True
    return np.asarray(right | ~labelled)


@dataclass(frozen=True, eq=False)
class RelaxedVideo:
    """Relaxed scores of one video in percent; per phase nan where it is not annotated. `raw_*` are as computed, and may exceed 100."""

    accuracy: float
    jaccard: FloatArray
    raw_precision: FloatArray
    raw_recall: FloatArray

    @property
    def precision(self) -> FloatArray:
        """Clipped at 100, infinity included, as the script does before it averages."""
        return np.minimum(self.raw_precision, 100.0)

    @property
    def recall(self) -> FloatArray:
        return np.minimum(self.raw_recall, 100.0)


def score_relaxed(
    truth: IntArray, predicted: IntArray, mode: RelaxedMode, window_rows: int, n_phases: int, rules: RelaxedRules
) -> RelaxedVideo:
    """The script's scores in mode `published` or `repaired`. A forgiven row is a hit of both phases concerned, while the denominators stay
    strict: precision and recall can pass 100 and are no proportions."""
    right = forgiven_rows(truth, predicted, mode, window_rows, n_phases, rules)
    if mode == "repaired":
        labelled = truth >= 0
        truth, predicted, right = truth[labelled], predicted[labelled], right[labelled]

    def count(ids: IntArray) -> IntArray:
        return np.bincount(ids[ids >= 0], minlength=n_phases).astype(np.int64, copy=False)

    annotated, claimed, both = count(truth), count(predicted), count(truth[truth == predicted])
    hits = count(truth[right]) + count(predicted[right]) - both
    missing = annotated == 0

    def score(denominator: IntArray) -> FloatArray:
        return np.where(missing, np.nan, percent(hits, denominator))

    accuracy = float(percent(np.count_nonzero(right), len(truth)))  # type: ignore[arg-type]
    return RelaxedVideo(accuracy, score(annotated + claimed - both), score(claimed), score(annotated))
