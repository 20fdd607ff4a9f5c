"""`surgicalmamba bench serve`: many rooms at once on loopback. Latency as clients see it, drops, and memory
of the server.

`ServerProcess` is also what tests start, stop and kill."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from surgicalmamba.data.pictures import encode_jpeg
from surgicalmamba.data.synthetic import operation
from surgicalmamba.devices import resident
from surgicalmamba.errors import ServerError
from surgicalmamba.live.estimate import ServedEstimate
from surgicalmamba.model.surgical_mamba import SurgicalMamba
from surgicalmamba.server.app import untrained_demo
from surgicalmamba.server.client import Client
from surgicalmamba_lab.bench.timing import Report, machine, percentile

START_TIMEOUT_S = 180.0
WARM_UP = 0.2
"""Share of a run after which the memory counts as the start."""


class ServerProcess:
    """`surgicalmamba serve` in a process. After a restart it has the same address and the same record."""

    def __init__(
        self, model: Path, data: Path, settings: Sequence[str] = (), environment: dict[str, str] | None = None
    ) -> None:
        self.port = 0  # a free one, chosen at the first start
        self._arguments = ["--model", str(model), "--data", str(data), *settings]
        # As many threads as here: tests compare records, and the last digits depend on the threads.
        self._environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
            **(environment or {}),
        }
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed in __exit__

    def __enter__(self) -> "ServerProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._errors.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return when the server listens."""
        command = [
            sys.executable,
            "-m",
            "surgicalmamba",
            "serve",
            "--json",
            "--port",
            str(self.port),
            *self._arguments,
        ]
        self._process = subprocess.Popen(
            command,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_TIMEOUT_S)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self.kill()
            raise ServerError(f"the server did not start: {self.log()[-2000:]}")
        self.port = int(json.loads(line)["url"].rpartition(":")[2])

    def kill(self) -> None:
        """kill -9: the process gets no chance to do anything."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to end; return its exit code."""
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
        """Its stderr since the first start."""
        self._errors.seek(0)
        return self._errors.read()

    def memory_bytes(self) -> int:
        """Resident memory now; 0 where the system does not report it."""
        assert self._process is not None
        return resident(self._process.pid).now


def make_pictures(n: int, seed: int = 0) -> list[bytes]:
    """JPEG files of a synthetic procedure, a second apart."""
    op = operation(seed, 0, short=True, fps=1)
    return [encode_jpeg(op.renderer.frame(i % op.procedure.n_frames), quality=85) for i in range(n)]


@dataclass(frozen=True)
class LoadReport:
    """`streams` rooms at `fps` frames per second each."""

    streams: int
    fps: float
    seconds: float
    frames: int
    estimates: int
    dropped: int
    refused: int
    reconnects: int
    latency_ms: dict[str, float]
    """From sending a frame to receiving its estimate, over all streams."""
    durable_ms: dict[str, float]
    """From sending a frame to the message that it is on record."""
    memory_start_mb: float
    memory_end_mb: float
    memory_peak_mb: float
    kept_up: bool
    """Every frame was sent on time and answered."""

    def lines(self) -> list[str]:
        latency, durable = (
            "  ".join(f"{name} {ms:.0f} ms" for name, ms in values.items())
            for values in (self.latency_ms, self.durable_ms)
        )
        return [
            f"{self.streams} streams at {self.fps:g} fps for {self.seconds:.0f} s: {self.frames} frames, "
            f"{self.estimates} estimates, {self.dropped} dropped, {self.refused} refused, "
            f"{self.reconnects} reconnects, kept up: {self.kept_up}",
            f"  estimate  {latency}",
            f"  on record {durable}",
            f"  memory {self.memory_start_mb:.0f} MB after warm-up, {self.memory_end_mb:.0f} at the end, "
            f"{self.memory_peak_mb:.0f} at most",
        ]


@dataclass(frozen=True)
class ServeReport(Report):
    """What `bench serve` reports."""

    machine: dict[str, object]
    model: str
    load: list[LoadReport]

    def lines(self) -> list[str]:
        return [f"model: {self.model}", *(line for report in self.load for line in report.lines())]


class Room(threading.Thread):
    """A camera that sends a frame whenever one is due, whatever the server does."""

    def __init__(
        self, url: str, name: str, pictures: Sequence[bytes], fps: float, n: int, begin_s: float
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._url, self._pictures, self._fps, self._n, self._begin_s = url, pictures, fps, n, begin_s
        self._sent_s: list[float] = []
        self.estimate_ms: list[float] = []
        self.durable_ms: list[float] = []
        self.dropped = self.refused = self.reconnects = self.late = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._send_all()
        except BaseException as error:  # raised again by the main thread
            self.error = error

    def _send_all(self) -> None:
        with Client(self._url).create(self.name, fps=self._fps, when_behind="drop") as remote:
            for index in range(self._n):
                due_s = self._begin_s + index / self._fps
                while (left_s := due_s - time.monotonic()) > 0:
                    self._note(remote.listen(left_s), remote.durable)  # returns as soon as a message arrives
                self.late += time.monotonic() - due_s > 1 / self._fps
                self._sent_s.append(time.monotonic())
                self._note(remote.push(self._pictures[index % len(self._pictures)], index / self._fps))
            self._note(remote.wait())
        self.dropped, self.refused, self.reconnects = remote.dropped, len(remote.refused), remote.reconnects

    def _note(self, estimates: Sequence[ServedEstimate], durable: int = -1) -> None:
        """Add the waiting times of these estimates, and of the frames up to `durable` that are newly on
        record."""
        now_s = time.monotonic()
        self.estimate_ms += [1e3 * (now_s - self._sent_s[estimate.frame]) for estimate in estimates]
        self.durable_ms += [1e3 * (now_s - at_s) for at_s in self._sent_s[len(self.durable_ms) : durable + 1]]


def percentiles(values: list[float]) -> dict[str, float]:
    """Median, 95th and 99th percentile (nearest rank) and the largest."""
    return {f"p{p}": percentile(values, p) for p in (50, 95, 99)} | {"max": max(values)} if values else {}


def measure_load(
    model: SurgicalMamba, pictures: Sequence[bytes], streams: int, minutes: float, fps: float, folder: Path
) -> LoadReport:
    """Run `streams` rooms against a new server process."""
    model.save(folder / "model")
    n = max(2, round(minutes * 60 * fps))
    settings = (f"limits.sessions={streams}", "limits.requests_per_s=1000")
    with ServerProcess(folder / "model", folder / "data", settings) as server:
        begin_s = time.monotonic() + 0.5
        # Cameras do not fire in step: spread over one interval.
        rooms = [
            Room(server.url, f"room {i}", pictures, fps, n, begin_s + i / streams / fps)
            for i in range(streams)
        ]
        for room in rooms:
            room.start()
        memory: list[tuple[float, int]] = []
        while any(room.is_alive() for room in rooms):
            memory.append((time.monotonic() - begin_s, server.memory_bytes()))
            time.sleep(0.25)
        seconds = time.monotonic() - begin_s
    for room in rooms:
        if room.error is not None:
            raise room.error
    settled = [size for at, size in memory if at >= WARM_UP * seconds] or [memory[-1][1]]
    estimates = [ms for room in rooms for ms in room.estimate_ms]
    dropped = sum(room.dropped for room in rooms)
    return LoadReport(
        streams=streams,
        fps=fps,
        seconds=seconds,
        frames=streams * n,
        estimates=len(estimates),
        dropped=dropped,
        refused=sum(room.refused for room in rooms),
        reconnects=sum(room.reconnects for room in rooms),
        latency_ms=percentiles(estimates),
        durable_ms=percentiles([ms for room in rooms for ms in room.durable_ms]),
        memory_start_mb=settled[0] / 1e6,
        memory_end_mb=settled[-1] / 1e6,
        memory_peak_mb=max(size for _, size in memory) / 1e6,
        kept_up=dropped == 0 and len(estimates) == streams * n and not any(room.late for room in rooms),
    )


def bench_serve(
    streams: Sequence[int], minutes: float, fps: float, on_step: Callable[[str], None] = lambda text: None
) -> ServeReport:
    """The tiny model with each number of rooms in turn; `on_step` is called with what runs next."""
    torch.set_num_threads(1)  # the tiny model gains nothing from more
    model, pictures, load = untrained_demo(), make_pictures(60), []
    for n in streams:
        on_step(f"{n} streams for {minutes:g} minutes")
        with tempfile.TemporaryDirectory() as folder:
            load.append(measure_load(model, pictures, n, minutes, fps, Path(folder)))
    return ServeReport(machine(), "tiny preset, untrained", load)
