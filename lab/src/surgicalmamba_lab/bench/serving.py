"""A real server process to measure and to kill, with pictures to send and the record it should end with."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from surgicalmamba.devices import resident
from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba.errors import ServerError
from surgicalmamba.live.session import SessionPool
from surgicalmamba.model.surgical_mamba import SurgicalMamba
from surgicalmamba.server.config import ServeConfig
from surgicalmamba.server.record import Row
from surgicalmamba.server.rooms import FixedLanes

START_S = 180.0
Settings = Sequence[str]
"""Overrides such as limits.sessions=4."""


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """`surgicalmamba serve` as its user runs it. Started anew, it has the same address and the same record."""

    def __init__(self, model: Path, data: Path, settings: Settings = (), environment: dict[str, str] | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "surgicalmamba", "serve", "--json", "--port", str(self.port)]
        self._command += ["--model", str(model), "--data", str(data), *settings]
        # As many threads as here: the last digits of a product depend on it, and records are compared with what is computed here.
        self._environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed in __exit__

    def __enter__(self) -> "ServerProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._errors.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when the server listens."""
        self._process = subprocess.Popen(
            self._command, env=self._environment, stdout=subprocess.PIPE, stderr=self._errors, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_S)
        line = self._process.stdout.readline() if ready else ""
        if not line or json.loads(line)["url"] != self.url:
            self.kill()
            raise ServerError(f"the server did not start: {self.log()[-2000:]}")

    def kill(self) -> None:
        """kill -9: the process gets no chance to do anything."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to end; returns its exit code."""
        return self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        code = self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code

    def log(self) -> str:
        """What it wrote to stderr so far, over all its lives."""
        self._errors.seek(0)
        return self._errors.read()

    def memory_bytes(self) -> int:
        """Resident memory now; 0 where the system does not tell."""
        return resident(self.pid).now


def make_pictures(n: int, seed: int = 0) -> list[bytes]:
    """JPEG files of a synthetic procedure, a second apart."""
    from surgicalmamba.data.pictures import encode_jpeg
    from surgicalmamba.data.synthetic import operation

    op = operation(seed, 0, short=True, fps=1)
    return [encode_jpeg(op.renderer.frame(i % op.procedure.n_frames), quality=85) for i in range(n)]


def uninterrupted_record(model: SurgicalMamba, pictures: Sequence[bytes], fps: float, lanes: int | None = None) -> list[Row]:
    """What the record of a session must be: the same frames through the recognizer alone, with no server and no neighbours."""
    from surgicalmamba.data.pictures import decode_jpeg

    engine = FixedLanes(EagerEngine(model), lanes or ServeConfig().lanes)
    pool = SessionPool(engine, capacity=1, queue_len=2)
    pool.open("alone", fps)
    rows = []
    for index, picture in enumerate(pictures):
        pool.push("alone", decode_jpeg(picture), index / fps)
        while pool.is_busy("alone"):
            rows += [Row.of(estimate, index, 0) for estimate in pool.tick().estimates.values()]
    return rows
