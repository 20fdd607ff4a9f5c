"""Cholec80 without pictures: the official tool presence (7 inputs per second) with the phases as labels.

Read from `tool_annotations/videoNN-tool.txt` and `phase_annotations/videoNN-phase.txt`, or from an archive with the arrays
`videoNN/tools` (n, 7) and `videoNN/phases` (n,)."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.adapters.base import (
    FeatureAdapter,
    FeatureSequence,
    Found,
    Procedure,
    as_features,
    as_phases,
    load_npz,
    match_files,
    npz_names,
    only_annotation,
    same_length,
)
from surgicalmamba.data.labels import PhaseVocabulary, RowFormat, integer, load_vocabulary, read_row_labels, read_rows
from surgicalmamba.data.manifest import Split, shipped_splits
from surgicalmamba.errors import DataError

TOOLS = ("Grasper", "Bipolar", "Hook", "Scissors", "Clipper", "Irrigator", "SpecimenBag")
TOOL_STEP = 25
"""Tool rows stand at every 25th frame."""


class Cholec80Tools(FeatureAdapter):
    """Tool files have one row fewer than the phases sampled at the same frames, so the last phase sample goes."""

    name = "cholec80-tools"

    @property
    def vocabulary(self) -> PhaseVocabulary:
        return load_vocabulary("cholec80")

    def splits(self, procedures: Sequence[Procedure]) -> dict[str, Split]:
        return shipped_splits("cholec80")

    def find(self) -> Found:
        tools = match_files(self.source, r"video([0-9]{2})-tool\.txt", lambda match: f"video{match[1]}")
        if tools:
            phases = match_files(self.source, r"video([0-9]{2})-phase\.txt", lambda match: f"video{match[1]}")
            return Found([Procedure(key, path, (phases[key],) if key in phases else ()) for key, path in tools.items()])
        procedures = [
            Procedure(name.partition("/")[0], path, ())
            for path in match_files(self.source, r".*\.npz", lambda match: match[0]).values()
            for name in npz_names(path)
            if name.endswith("/tools")
        ]
        if not procedures:
            raise DataError(f"{self.source} does not look like {self.name}: neither tool_annotations/video01-tool.txt nor an .npz of them.")
        return Found(sorted(procedures, key=lambda procedure: procedure.id))

    def load(self, procedure: Procedure) -> FeatureSequence:
        path, where = procedure.media, f"{procedure.media}: {procedure.id}"
        if path.suffix == ".npz":
            features = as_features(load_npz(path, f"{procedure.id}/tools"), where)
            phases = as_phases(load_npz(path, f"{procedure.id}/phases"), len(self.vocabulary), where)
            same_length(len(features), len(phases), where)
            frame = np.arange(len(features)) * TOOL_STEP
        else:
            features, frame = self._tool_rows(procedure)
            rows = RowFormat("\t", ("Frame", "Phase"), labels="names", stride="any")
            labels = read_row_labels(only_annotation(procedure, f"phase_annotations/{procedure.id}-phase.txt"), rows, self.vocabulary)
            n_labelled = -(-len(labels.phases) // (TOOL_STEP // min(labels.frames_per_row(Fraction(TOOL_STEP)), TOOL_STEP)))
            if not 0 <= n_labelled - len(features) <= 2:
                raise DataError(f"{path}: {len(features)} tool rows but {n_labelled} phase samples; expected one or two fewer tool rows.")
            phases = labels.phase_of(frame, frame / TOOL_STEP, Fraction(TOOL_STEP))
        if features.shape[1] != len(TOOLS):
            raise DataError(f"{where}: {features.shape[1]} tools, expected {len(TOOLS)}.")
        return FeatureSequence(features, phases, self.fps, frame)

    def _tool_rows(self, procedure: Procedure) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        path = procedure.media
        rows = read_rows(path, "\t", ("Frame", *TOOLS), 1 + len(TOOLS))
        features = np.empty((len(rows), len(TOOLS)), np.float32)
        for i, (number, fields) in enumerate(rows):
            if integer(path, number, fields[0], "frame number") != i * TOOL_STEP:
                raise DataError(f"{path}:{number}: frame {fields[0]} where {i * TOOL_STEP} belongs; tool rows stand at every 25th frame.")
            for j, text in enumerate(fields[1:]):
                if text not in ("0", "1"):
                    raise DataError(f"{path}:{number}: {TOOLS[j]} is {text!r}, expected 0 or 1.")
                features[i, j] = float(text)
        return features, np.arange(len(rows), dtype=np.int64) * TOOL_STEP
