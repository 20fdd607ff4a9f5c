"""Cholec80 without pictures: the official tool presence (7 inputs per second) with the phases as labels.

Read from `tool_annotations/videoNN-tool.txt` and `phase_annotations/videoNN-phase.txt`, or from an archive
with the arrays `videoNN/tools` (n, 7) and `videoNN/phases` (n,)."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.adapters import base
from surgicalmamba.data.adapters.base import FeatureAdapter, FeatureSequence, Found, Procedure
from surgicalmamba.data.labels import (
    PhaseVocabulary,
    RowFormat,
    integer,
    load_vocabulary,
    read_row_labels,
    read_rows,
)
from surgicalmamba.data.manifest import Split, shipped_splits
from surgicalmamba.errors import DataError

TOOLS = ("Grasper", "Bipolar", "Hook", "Scissors", "Clipper", "Irrigator", "SpecimenBag")
TOOL_STEP = 25
"""Tool rows describe every 25th frame."""
_PHASE_ROWS = RowFormat("\t", ("Frame", "Phase"), labels="names", stride="any")


class Cholec80Tools(FeatureAdapter):
    """Tool files have one row fewer than the phases sampled at the same frames, so the last phase sample is
    dropped."""

    name = "cholec80-tools"

    @property
    def vocabulary(self) -> PhaseVocabulary:
        return load_vocabulary("cholec80")

    def splits(self, procedures: Sequence[Procedure]) -> dict[str, Split]:
        return shipped_splits("cholec80")

    def find(self) -> Found:
        def files(kind: str) -> dict[str, Path]:
            pattern = rf"video([0-9]{{2}})-{kind}\.txt"
            return base.match_files(self.source, pattern, lambda match: f"video{match[1]}")

        tools = files("tool")
        procedures = base.join(tools, files("phase")) if tools else base.archived(self.source, "tools")
        if not procedures:
            expected = "neither tool_annotations/video01-tool.txt nor an .npz of them"
            raise DataError(f"{self.source} does not look like {self.name}: {expected}.")
        return Found(procedures)

    def load(self, procedure: Procedure) -> FeatureSequence:
        path, where = procedure.media, f"{procedure.media}: {procedure.id}"
        if path.suffix == ".npz":
            features = base.as_features(base.load_npz(path, f"{procedure.id}/tools"), where)
            stored = base.load_npz(path, f"{procedure.id}/phases")
            phases = base.as_phases(stored, len(self.vocabulary), where)
            base.same_length(features, phases, where)
            frame = np.arange(len(features)) * TOOL_STEP
        else:
            features = self._tool_rows(procedure)
            frame = np.arange(len(features)) * TOOL_STEP
            label_path = base.only_annotation(procedure, f"phase_annotations/{procedure.id}-phase.txt")
            labels = read_row_labels(label_path, _PHASE_ROWS, self.vocabulary)
            rows_per_sample = TOOL_STEP // min(labels.frames_per_row(Fraction(TOOL_STEP)), TOOL_STEP)
            n_labelled = -(-len(labels.phases) // rows_per_sample)
            if not 0 <= n_labelled - len(features) <= 2:
                counts = f"{len(features)} tool rows but {n_labelled} phase samples"
                raise DataError(f"{path}: {counts}; expected one or two fewer tool rows.")
            phases = labels.phase_of(frame, frame / TOOL_STEP, Fraction(TOOL_STEP))
        if features.shape[1] != len(TOOLS):
            raise DataError(f"{where}: {features.shape[1]} tools, expected {len(TOOLS)}.")
        return FeatureSequence(features, phases, self.fps, frame)

    def _tool_rows(self, procedure: Procedure) -> NDArray[np.float32]:
        path = procedure.media
        rows = read_rows(path, "\t", ("Frame", *TOOLS), 1 + len(TOOLS))
        for i, (number, (frame, *present)) in enumerate(rows):
            if integer(path, number, frame, "frame number") != i * TOOL_STEP:
                problem = f"frame {frame} where {i * TOOL_STEP} belongs"
                raise DataError(f"{path}:{number}: {problem}; tool rows describe every {TOOL_STEP}th frame.")
            for tool, text in zip(TOOLS, present, strict=True):
                if text not in ("0", "1"):
                    raise DataError(f"{path}:{number}: {tool} is {text!r}, expected 0 or 1.")
        return np.array([fields[1:] for _, fields in rows], np.float32)
