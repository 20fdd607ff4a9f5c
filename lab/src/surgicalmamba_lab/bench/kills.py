"""Kill -9 at random moments under load: nothing acknowledged may be lost, nothing may come twice."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from surgicalmamba.model.surgical_mamba import SurgicalMamba
from surgicalmamba.server.client import Client, RemoteEstimate
from surgicalmamba.server.record import Store
from surgicalmamba_lab.bench.serving import ServerProcess, uninterrupted_record


@dataclass(frozen=True)
class KillReport:
    """What a hundred deaths did to the record."""

    kills: int
    streams: int
    frames: int
    """Pushed by all streams."""
    seconds: float
    reconnects: int
    lost: int
    """Estimates that a client had been told and that are not on record."""
    doubled: int
    """Estimates on record more than once, or told to a client more than once."""
    different: int
    """Estimates on record that are not those of an uninterrupted run, to the last bit; also missing or surplus ones."""
    differed_when_redone: int
    """Estimates that came out otherwise when computed anew after a restart."""

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.different or self.differed_when_redone)

    def lines(self) -> list[str]:
        return [
            f"{self.kills} kills in {self.seconds:.0f} s, {self.streams} streams, {self.frames} frames, {self.reconnects} reconnects",
            f"lost {self.lost}   doubled {self.doubled}   different from an uninterrupted run {self.different}   "
            f"different when redone {self.differed_when_redone}",
        ]


class Sender(threading.Thread):
    """One room: pushes pictures at a steady rate, through every crash, until told to stop."""

    def __init__(self, url: str, name: str, pictures: Sequence[bytes], fps: float, stop: threading.Event, start_at: int) -> None:
        super().__init__(name=name, daemon=True)
        self._url, self._pictures, self._fps, self._stop_now = url, pictures, fps, stop
        self._start_at = start_at
        self.sent: list[bytes] = []
        self.heard: list[RemoteEstimate] = []
        self.session = ""
        self.reconnects = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._push_all()
        except BaseException as error:  # told to the main thread, which raises it
            self.error = error

    def _push_all(self) -> None:
        remote = Client(self._url, patience_s=300).create(self.name, fps=self._fps)
        self.session = remote.id
        begin = time.monotonic()
        while not self._stop_now.is_set():
            index = len(self.sent)
            picture = self._pictures[(self._start_at + index) % len(self._pictures)]
            self.sent.append(picture)
            self.heard += remote.push(picture, index / self._fps)
            time.sleep(max(0.0, begin + (index + 1) / self._fps - time.monotonic()) if index % 16 else 0)
        self.heard += remote.wait()
        self.heard += remote.finish()
        self.reconnects = remote.reconnects


def _wait_for_news(senders: Sequence[Sender], timeout_s: float = 120.0) -> None:
    """Until some room has heard an estimate: a server is killed at work, not while it starts."""
    before, end = sum(len(sender.heard) for sender in senders), time.monotonic() + timeout_s
    while sum(len(sender.heard) for sender in senders) == before and time.monotonic() < end:
        if any(sender.error is not None for sender in senders):
            return
        time.sleep(0.01)


def run_kills(
    model: SurgicalMamba,
    folder: Path,
    pictures: Sequence[bytes],
    kills: int,
    streams: int,
    fps: float,
    seed: int,
    life_s: tuple[float, float] = (0.2, 3.0),
    on_kill: Callable[[int], None] = lambda number: None,
    settings: Sequence[str] = (),
) -> KillReport:
    """Run a server on a checkpoint of `model`, kill it `kills` times, compare every record with an uninterrupted run."""
    rng = random.Random(seed)
    model.save(folder / "model")
    stop = threading.Event()
    begin = time.monotonic()
    with ServerProcess(folder / "model", folder / "data", ("limits.requests_per_s=1000", *settings)) as server:
        senders = [Sender(server.url, f"room {i}", pictures, fps, stop, start_at=7 * i) for i in range(streams)]
        for sender in senders:
            sender.start()
        for number in range(kills):
            _wait_for_news(senders)
            time.sleep(rng.uniform(*life_s))
            server.kill()
            on_kill(number + 1)
            server.start()
        _wait_for_news(senders)
        stop.set()
        for sender in senders:
            sender.join(300)
        redone = server.log().count("differs from the record")
        server.stop()
    for sender in senders:
        if sender.error is not None:
            raise sender.error
    lost = doubled = different = 0
    store = Store(folder / "data")
    for sender in senders:
        record = store.rows(sender.session)
        told = [estimate.row for estimate in sender.heard]
        on_record = {row.row: row for row in record}
        lost += sum(
            estimate.row not in on_record or on_record[estimate.row].unpacked() != estimate.probabilities for estimate in sender.heard
        )
        doubled += len(told) - len(set(told)) + len(record) - len(on_record)
        wanted = uninterrupted_record(model, sender.sent, fps)
        different += sum(a != b for a, b in zip(record, wanted, strict=False)) + abs(len(record) - len(wanted))
    store.close()
    frames, reconnects = sum(len(sender.sent) for sender in senders), sum(sender.reconnects for sender in senders)
    return KillReport(kills, streams, frames, time.monotonic() - begin, reconnects, lost, doubled, different, redone)
