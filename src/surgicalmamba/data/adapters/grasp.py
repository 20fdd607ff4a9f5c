"""GraSP: `GraSP_1fps/frames/CASExxx/00000.jpg`, `GraSP_1fps/annotations/grasp_long-term_{train,test}.json`,
one phase per second."""

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np

from surgicalmamba.data.adapters.base import Found, PhaseRows, Procedure, VideoAdapter
from surgicalmamba.data.labels import UNLABELLED, RowLabels
from surgicalmamba.data.pictures import image_files
from surgicalmamba.errors import DataError


class Grasp(VideoAdapter):
    """13 robot-assisted prostatectomies as images at 1 fps. The 30 fps set is not read: its numbering differs
    from case to case."""

    name = "grasp"

    def find(self) -> Found:
        root = self._root("frames")
        folders = sorted((root / "frames").iterdir()) if (root / "frames").is_dir() else []
        cases = [p for p in folders if p.is_dir() and re.fullmatch(r"case[0-9]{3}", p.name, re.IGNORECASE)]
        if not cases:
            expected = "no folder GraSP_1fps/frames/CASE001 in it"
            raise DataError(f"{self.source} does not look like grasp: {expected}.")
        files = _annotation_files(root)
        return Found([Procedure(case.name.upper(), case, files, Fraction(1)) for case in cases])

    def labels(self, procedure: Procedure) -> RowLabels:
        check_numbering(procedure.media)
        return read_coco_phases(procedure.annotations, procedure.media.name, len(self.vocabulary))

    def _root(self, part: str) -> Path:
        inner = self.source / "GraSP_1fps"
        return inner if (inner / part).is_dir() else self.source

    def holds_annotations(self) -> bool:
        return (self._root("annotations") / "annotations").is_dir()

    def phase_rows(self) -> Iterator[PhaseRows]:
        """From the annotation files alone: one phase per second."""
        files = _annotation_files(self._root("annotations"))
        found = [a.get("image_name") for path in files for a in _annotations(path) if isinstance(a, dict)]
        for case in sorted({str(name).partition("/")[0].upper() for name in found if name is not None}):
            yield PhaseRows(case, read_coco_phases(files, case, len(self.vocabulary)).phases, Fraction(1))


def _annotation_files(root: Path) -> tuple[Path, ...]:
    names = [f"grasp_long-term_{role}.json" for role in ("train", "test")]
    files = tuple(path for name in names if (path := root / "annotations" / name).is_file())
    if not files:
        raise DataError(f"{root / 'annotations'}: {' and '.join(names)} are not in it.")
    return files


def check_numbering(folder: Path) -> None:
    """Images must be numbered 0, 1, 2, ...: a hole would shift every label after it."""
    for expected, path in enumerate(image_files(folder)):
        if not path.stem.isdigit() or int(path.stem) != expected:
            rule = "the images of a case must be numbered from 0 without a gap"
            raise DataError(f"{path}: expected image number {expected:05d}; {rule}.")


def read_coco_phases(paths: tuple[Path, ...], case: str, n_phases: int) -> RowLabels:
    """Phases of one case from COCO-like files, joined on `image_name`; seconds without an annotation are
    unlabelled."""
    found: dict[int, int] = {}
    for path in paths:
        for position, annotation in enumerate(_annotations(path)):
            where = f"{path}: annotations[{position}]"
            if not isinstance(annotation, dict) or not isinstance(name := annotation.get("image_name"), str):
                raise DataError(f"{where} has no image_name.")
            match = re.fullmatch(r"([^/]+)/([0-9]+)\.[A-Za-z]+", name)
            if match is None:
                raise DataError(f"{where}: image_name {name!r} is not CASE/number.jpg.")
            if match[1].casefold() != case.casefold():
                continue
            phase = annotation.get("phases", annotation.get("phase"))
            if not isinstance(phase, int) or isinstance(phase, bool):
                raise DataError(f"{where}: phases is {phase!r}, not a number.")
            if not 0 <= phase < n_phases:
                raise DataError(f"{where}: phase {phase} is outside 0 to {n_phases - 1}.")
            if found.setdefault(int(match[2]), phase) != phase:
                raise DataError(f"{where}: {name} is annotated twice, with different phases.")
    if not found:
        raise DataError(f"{paths[0]}: no annotation of {case}.")
    phases = np.full(max(found) + 1, UNLABELLED, np.int64)
    phases[list(found)] = list(found.values())
    return RowLabels(phases)


def _annotations(path: Path) -> list[object]:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error}).") from None
    annotations = document.get("annotations") if isinstance(document, dict) else None
    if not isinstance(annotations, list):
        raise DataError(f"{path}: no list called annotations in it.")
    return annotations
