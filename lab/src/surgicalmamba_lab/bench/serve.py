"""Many rooms at once on loopback: latency from the client's side, drops, and whether memory stays flat."""

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from surgicalmamba.model.surgical_mamba import SurgicalMamba
from surgicalmamba.server.app import untrained_demo
from surgicalmamba.server.client import Client
from surgicalmamba_lab.bench.kills import KillReport, run_kills
from surgicalmamba_lab.bench.malformed import MalformedReport, run_malformed
from surgicalmamba_lab.bench.serving import ServerProcess, make_pictures, uninterrupted_record
from surgicalmamba_lab.bench.timing import machine

PICTURES = 60
_WARM_UP = 0.2
"""Share of the run after which memory is taken as the start."""


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
    """From sending a frame to hearing its estimate, over all streams."""
    durable_ms: dict[str, float]
    """From sending a frame to hearing that it is on record."""
    memory_start_mb: float
    memory_end_mb: float
    memory_peak_mb: float
    kept_up: bool
    """Every frame was sent on time and answered."""

    def lines(self) -> list[str]:
        def ms(values: dict[str, float]) -> str:
            return "  ".join(f"{name} {value:.0f} ms" for name, value in values.items())

        return [
            f"{self.streams} streams at {self.fps:g} fps for {self.seconds:.0f} s: {self.frames} frames, {self.estimates} estimates, "
            f"{self.dropped} dropped, {self.refused} refused, {self.reconnects} reconnects, kept up: {self.kept_up}",
            f"  estimate  {ms(self.latency_ms)}",
            f"  on record {ms(self.durable_ms)}",
            f"  memory {self.memory_start_mb:.0f} MB after warm-up, {self.memory_end_mb:.0f} at the end, {self.memory_peak_mb:.0f} at most",
        ]


@dataclass(frozen=True)
class ServeReport:
    """Everything `bench serve` was asked for."""

    machine: dict[str, object]
    model: str
    load: list[LoadReport]
    kills: KillReport | None
    malformed: MalformedReport | None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def lines(self) -> list[str]:
        found = [f"model: {self.model}", *(line for report in self.load for line in report.lines())]
        return found + (self.kills.lines() if self.kills else []) + (self.malformed.lines() if self.malformed else [])


class Room(threading.Thread):
    """A camera that sends on its clock, whatever the server does."""

    def __init__(self, url: str, name: str, pictures: Sequence[bytes], fps: float, n: int, begin_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self._url, self._pictures, self._fps, self._n, self._begin_s = url, pictures, fps, n, begin_s
        self.estimate_ms: list[float] = []
        self.durable_ms: list[float] = []
        self.dropped = self.refused = self.reconnects = self.late = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:  # told to the main thread, which raises it
            self.error = error

    def _run(self) -> None:
        sent_s: list[float] = []
        with Client(self._url).create(self.name, fps=self._fps, when_behind="drop") as remote:
            marked = -1
            for index in range(self._n):
                due_s = self._begin_s + index / self._fps
                while (left_s := due_s - time.monotonic()) > 0:
                    estimates = remote.listen(left_s)  # returns as soon as something comes
                    now_s = time.monotonic()
                    self.estimate_ms += [(now_s - sent_s[e.frame]) * 1e3 for e in estimates]
                    if remote.durable > marked:
                        self.durable_ms += [(now_s - sent_s[i]) * 1e3 for i in range(marked + 1, remote.durable + 1)]
                        marked = remote.durable
                self.late += time.monotonic() - due_s > 1 / self._fps
                sent_s.append(time.monotonic())
                estimates = remote.push(self._pictures[index % len(self._pictures)], index / self._fps)
                self.estimate_ms += [(time.monotonic() - sent_s[e.frame]) * 1e3 for e in estimates]
            self.estimate_ms += [(time.monotonic() - sent_s[e.frame]) * 1e3 for e in remote.wait()]
        self.dropped, self.refused, self.reconnects = remote.dropped, len(remote.refused), remote.reconnects


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th and 99th percentile (nearest rank) and the largest."""
    ordered = sorted(values)
    n = len(ordered)
    return {f"p{p}": ordered[-(-p * n // 100) - 1] for p in (50, 95, 99)} | {"max": ordered[-1]} if n else {}


def measure_load(model: SurgicalMamba, pictures: Sequence[bytes], streams: int, minutes: float, fps: float, folder: Path) -> LoadReport:
    """Run `streams` rooms against a server process of its own."""
    model.save(folder / "model")
    n = max(2, round(minutes * 60 * fps))
    settings = (f"limits.sessions={streams}", "limits.requests_per_s=1000")
    with ServerProcess(folder / "model", folder / "data", settings) as server:
        begin_s = time.monotonic() + 0.5
        # Cameras do not fire in step: spread over one interval.
        rooms = [Room(server.url, f"room {i}", pictures, fps, n, begin_s + i / streams / fps) for i in range(streams)]
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
    settled = [size for at, size in memory if at >= _WARM_UP * seconds] or [memory[-1][1]]
    estimates = [value for room in rooms for value in room.estimate_ms]
    dropped = sum(room.dropped for room in rooms)
    kept_up = dropped == 0 and len(estimates) == streams * n and not any(room.late for room in rooms)
    return LoadReport(
        streams,
        fps,
        seconds,
        streams * n,
        len(estimates),
        dropped,
        sum(room.refused for room in rooms),
        sum(room.reconnects for room in rooms),
        percentiles(estimates),
        percentiles([value for room in rooms for value in room.durable_ms]),
        settled[0] / 1e6,
        settled[-1] / 1e6,
        max(size for _, size in memory) / 1e6,
        kept_up,
    )


def bench_serve(
    streams: Sequence[int],
    minutes: float,
    fps: float,
    kills: int,
    malformed: int,
    seed: int,
    on_step: Callable[[str], None] = lambda text: None,
) -> ServeReport:
    """The tiny model under load; then, where asked for, killed and lied to."""
    torch.set_num_threads(1)  # the tiny model gains nothing from more
    model = untrained_demo()
    pictures = make_pictures(PICTURES)
    load, killed, lied = [], None, None
    for n in streams:
        on_step(f"{n} streams for {minutes:g} minutes")
        with tempfile.TemporaryDirectory() as folder:
            load.append(measure_load(model, pictures, n, minutes, fps, Path(folder)))
    if kills:
        with tempfile.TemporaryDirectory() as folder:
            killed = run_kills(
                model,
                Path(folder),
                pictures,
                kills,
                streams=4,
                fps=5,
                seed=seed,
                on_kill=lambda number: on_step(f"kill {number} of {kills}"),
                settings=("snapshot_frames=16",),
            )
    if malformed:
        on_step(f"{malformed} malformed messages")
        lied = _measure_malformed(model, pictures, malformed, seed)
    return ServeReport(machine(), "tiny preset, untrained", load, killed, lied)


def _measure_malformed(model: SurgicalMamba, pictures: Sequence[bytes], count: int, seed: int) -> MalformedReport:
    most = 1500
    wanted = [row.unpacked() for row in uninterrupted_record(model, [pictures[i % len(pictures)] for i in range(most)], fps=5)]
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        with ServerProcess(Path(folder) / "model", Path(folder) / "data", ("limits.requests_per_s=10000",)) as server:
            return run_malformed(server, pictures, count, seed, wanted, fps=5)
