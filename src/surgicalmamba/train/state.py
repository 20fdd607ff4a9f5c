"""What a run keeps on disk to be resumed after kill -9: its state, as safetensors and JSON, and its log.

    RUN/states/00000120/tensors.safetensors   weights, moments, averages, the state of the lanes
    RUN/states/00000120/state.json            counters, position of the loader, length of the log

The newest complete folder is used; older ones are removed when a newer one is complete. No pickle."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from surgicalmamba.errors import CheckpointError

STATE_FILE, TENSOR_FILE = "state.json", "tensors.safetensors"


@dataclass(frozen=True)
class RunState:
    """A moment of a run: tensors by name and plain values."""

    tensors: dict[str, Tensor]
    values: dict[str, object]


def save_state(run: Path, update: int, state: RunState) -> None:
    """Save a state. Raises OSError when the disk is full or gone, and then keeps the earlier states."""
    from safetensors.torch import save_file

    states = run / "states"
    part, final = states / f"{update:08d}.part", states / f"{update:08d}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        save_file(
            {name: t.detach().cpu().contiguous() for name, t in state.tensors.items()}, part / TENSOR_FILE
        )
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
        advice = "Remove that folder to resume from an earlier state."
        raise CheckpointError(f"{folders[-1]} cannot be read: {error}. {advice}") from None


class RunLog:
    """Writes `log.jsonl`, and TensorBoard events where `surgicalmamba[train]` is installed; only in the first
    process.

    On resume the log is cut back to the length that the state recorded, so that no line appears twice."""

    def __init__(self, run: Path, keep_bytes: int, update: int, writes: bool) -> None:
        self._stream, self._board = None, None
        if not writes:
            return
        path = run / "log.jsonl"
        self._stream = path.open("r+b" if path.exists() else "w+b")
        self._stream.truncate(keep_bytes)
        self._stream.seek(keep_bytes)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._board = SummaryWriter(str(run / "tensorboard"), purge_step=update)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """The numbers of an update or an epoch."""
        if self._stream is not None:
            self._stream.write((json.dumps({"kind": kind, "step": step, **values}) + "\n").encode())
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def length(self) -> int:
        """Bytes written and flushed to disk."""
        if self._stream is None:
            return 0
        self._stream.flush()
        os.fsync(self._stream.fileno())
        return self._stream.tell()

    def close(self) -> None:
        for sink in (self._stream, self._board):
            if sink is not None:
                sink.close()
