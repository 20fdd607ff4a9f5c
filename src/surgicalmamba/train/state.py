"""Everything a run needs to go on after kill -9, as safetensors and JSON: written whole or not at all, never unpickled.

    RUN/states/00000120/tensors.safetensors   weights, moments, averages, the lanes' memory
    RUN/states/00000120/state.json            counters, the loader's place, length of the log; written last
The newest complete folder counts; older ones are removed once a newer one is complete."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from surgicalmamba.errors import CheckpointError

# The run folder's log: one JSON object per line, and TensorBoard where it is installed.


class Sink(Protocol):
    """Takes the numbers of an update or an epoch."""

    def write(self, kind: str, step: int, values: Mapping[str, float | int | str]) -> None: ...
    def close(self) -> None: ...


class JsonLines:
    """`log.jsonl`. On resume it is cut back to the length the resumed state knows, so no line appears twice."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("r+b" if path.exists() else "w+b")
        self._stream.truncate(keep_bytes)
        self._stream.seek(keep_bytes)

    def write(self, kind: str, step: int, values: Mapping[str, float | int | str]) -> None:
        self._stream.write((json.dumps({"kind": kind, "step": step, **values}) + "\n").encode())

    def length(self) -> int:
        """Bytes written and flushed to disk."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        return self._stream.tell()

    def close(self) -> None:
        self._stream.close()


class TensorBoard:
    """Scalars for TensorBoard. Optional: `pip install surgicalmamba[train]`."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=step)

    def write(self, kind: str, step: int, values: Mapping[str, float | int | str]) -> None:
        for name, value in values.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


STATE_FILE, TENSOR_FILE = "state.json", "tensors.safetensors"


@dataclass(frozen=True)
class RunState:
    """A moment of a run: tensors by name and plain values."""

    tensors: dict[str, Tensor]
    values: dict[str, object]


def save_state(run: Path, update: int, state: RunState) -> None:
    """Write a state. Raises OSError when the disk is full or gone; the states before it are untouched then."""
    from safetensors.torch import save_file

    states = run / "states"
    part, final = states / f"{update:08d}.part", states / f"{update:08d}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        save_file({name: value.detach().cpu().contiguous() for name, value in state.tensors.items()}, part / TENSOR_FILE)
        (part / STATE_FILE).write_text(json.dumps(state.values), encoding="utf-8")
        for file in (part / TENSOR_FILE, part / STATE_FILE):
            _flush(file)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(part, final)
        _flush(states)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError) or "No space left" in str(error):
            raise OSError(str(error)) from None
        raise
    for old in complete_states(run)[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def complete_states(run: Path) -> list[Path]:
    """Folders of complete states, oldest first."""
    found = (run / "states").glob("[0-9]*")
    return sorted(folder for folder in found if folder.suffix == "" and (folder / STATE_FILE).is_file())


def load_state(run: Path) -> RunState | None:
    """The newest complete state, or None for a run that has none yet."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folders = complete_states(run)
    if not folders:
        return None
    try:
        values = json.loads((folders[-1] / STATE_FILE).read_text(encoding="utf-8"))
        return RunState(load_file(folders[-1] / TENSOR_FILE), values)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{folders[-1]} cannot be read: {error}. Remove that folder to go on from an earlier state.") from None

