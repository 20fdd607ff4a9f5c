"""The run folder's log: one JSON object per line, and TensorBoard where it is installed."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


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
