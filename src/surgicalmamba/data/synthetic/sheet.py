"""The contact sheet: a column per phase, a row per patient, so that a reader sees which views recur."""

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.store import write_atomic
from surgicalmamba.data.synthetic.operation import Operation
from surgicalmamba.data.synthetic.procedure import PHASE_NAMES, PHASES, Activity, Bout
from surgicalmamba.data.synthetic.render import VIEW_HW
from surgicalmamba.errors import DataError

_CELL_HW = (150, 200)
_TITLE_H = 26
_ROWS = 5
_TITLES = (
    "Preparation",
    "Calot dissection",
    "Clipping, cutting",
    "Gallbladder dissection",
    "Packaging",
    "Cleaning, coagulation",
    "Retraction",
)


def write_contact_sheet(path: Path, seed: int) -> None:
    """Write a PNG of frames from five operations of a seed: rows are patients, columns are phases."""
    if path.suffix.lower() != ".png":
        raise DataError(f"the contact sheet is a PNG picture; {path.name!r} does not end in .png.")
    sheet = contact_sheet(seed)
    done, png = cv2.imencode(".png", cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_PNG_COMPRESSION, 9])
    assert done
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}. Choose a folder you may write to.") from None
    write_atomic(path, png.tobytes())


def contact_sheet(seed: int) -> NDArray[np.uint8]:
    """The sheet as RGB bytes."""
    rows = [_title_row()]
    for row, op in enumerate(_complete_operations(seed)):
        cells = [_cell(op, phase, row) for phase in range(len(PHASES))]
        rows.append(np.hstack(cells))
    return np.vstack(rows)


def _complete_operations(seed: int) -> list[Operation]:
    """The first operations of the seed in which every phase occurs."""
    found: list[Operation] = []
    video = 0
    while len(found) < _ROWS:
        op = Operation(seed, video)
        if set(op.procedure.order) == set(range(len(PHASES))):
            found.append(op)
        video += 1
    return found


def _cell(op: Operation, phase: int, row: int) -> NDArray[np.uint8]:
    """The middle of a bout of the row-th most frequent activity of the phase; a phase with fewer starts again at the first."""
    shares = PHASES[phase].mixture.shares
    wanted = sorted(shares, key=lambda activity: -shares[activity])
    for turn in range(len(wanted)):
        activity = wanted[(row + turn) % len(wanted)]
        bouts = [bout for bout in op.procedure.bouts if bout.phase == phase and bout.activity is activity and _shows(bout, op.fps)]
        if bouts:
            bout = bouts[len(bouts) // 2]
            where = 0.35 if activity is Activity.BAG else 0.6
            frame = op.renderer.frame(bout.start + int((bout.stop - bout.start) * where))
            break
    else:
        frame = op.renderer.frame(next(bout for bout in op.procedure.bouts if bout.phase == phase).start)
    margin = (frame.shape[1] - VIEW_HW[1]) // 2
    cell = cv2.resize(frame[:, margin : margin + VIEW_HW[1]], (_CELL_HW[1], _CELL_HW[0]), interpolation=cv2.INTER_AREA)
    return np.asarray(cell, dtype=np.uint8)


def _shows(bout: Bout, fps: int) -> bool:
    return bout.stop - bout.start >= 4 * fps


def _title_row() -> NDArray[np.uint8]:
    assert len(_TITLES) == len(PHASE_NAMES)
    row = np.zeros((_TITLE_H, _CELL_HW[1] * len(_TITLES), 3), dtype=np.uint8)
    for column, title in enumerate(_TITLES):
        (width, _), _ = cv2.getTextSize(title, cv2.FONT_HERSHEY_SIMPLEX, 0.44, 1)
        x = column * _CELL_HW[1] + (_CELL_HW[1] - width) // 2
        cv2.putText(row, title, (x, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.44, (235, 235, 235), 1, cv2.LINE_AA)
    return row
