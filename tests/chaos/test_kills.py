"""kill -9 at random moments under load: the record loses nothing, has nothing twice, and is that of an
uninterrupted run.

pytest tests/chaos/test_kills.py -s --kills 100     a long run; without --kills a short one"""

import random
import threading
import time
from dataclasses import dataclass

import torch

from served import uninterrupted_record
from surgicalmamba.server.client import Client
from surgicalmamba.server.record import Store
from surgicalmamba_lab.bench.serve import ServerProcess


@dataclass(frozen=True)
class KillReport:
    """What the kills did to the record.

    lost: estimates that a client received and the record lacks, or has with other probabilities. doubled:
    estimates that are on record, or were sent to a client, more than once. different: rows on record that
    are not those of an uninterrupted run, to the last bit, and missing or surplus rows.
    differed_when_redone: estimates that changed when they were computed again after a restart."""

    kills: int
    streams: int
    frames: int
    seconds: float
    reconnects: int
    lost: int
    doubled: int
    different: int
    differed_when_redone: int

    @property
    def is_clean(self):
        return not (self.lost or self.doubled or self.different or self.differed_when_redone)

    def __str__(self):
        return (
            f"{self.kills} kills in {self.seconds:.0f} s, {self.streams} streams, {self.frames} frames, "
            f"{self.reconnects} reconnects\nlost {self.lost}   doubled {self.doubled}   "
            f"different from an uninterrupted run {self.different}   different when redone "
            f"{self.differed_when_redone}"
        )


class Sender(threading.Thread):
    """One room: pushes pictures at a steady rate, through every crash, until `stop` is set."""

    def __init__(self, url, name, pictures, fps, stop):
        super().__init__(name=name, daemon=True)
        self.url, self.pictures, self.fps, self.stop = url, pictures, fps, stop
        self.sent, self.received, self.session, self.reconnects = [], [], "", 0
        self.error = None

    def run(self):
        try:
            self.push_all()
        except BaseException as error:  # raised again by the main thread
            self.error = error

    def push_all(self):
        remote = Client(self.url, patience_s=300).create(self.name, fps=self.fps)
        self.session = remote.id
        begin = time.monotonic()
        while not self.stop.is_set():
            index = len(self.sent)
            picture = self.pictures[index % len(self.pictures)]
            self.sent.append(picture)
            self.received += remote.push(picture, index / self.fps)
            time.sleep(max(0.0, begin + (index + 1) / self.fps - time.monotonic()) if index % 16 else 0)
        self.received += remote.wait()
        self.received += remote.finish()
        self.reconnects = remote.reconnects


def wait_for_an_estimate(senders, timeout_s=120.0):
    """Until some room receives an estimate: a server is killed at work, not while it starts."""
    before, end = sum(len(sender.received) for sender in senders), time.monotonic() + timeout_s
    while sum(len(sender.received) for sender in senders) == before and time.monotonic() < end:
        if any(sender.error is not None for sender in senders):
            return
        time.sleep(0.01)


def run_kills(model, folder, pictures, kills, streams, fps, seed, life_s, settings=()):
    """Serve a checkpoint of `model`, kill the server `kills` times, compare every record with an
    uninterrupted run."""
    rng, stop, begin = random.Random(seed), threading.Event(), time.monotonic()
    model.save(folder / "model")
    with ServerProcess(
        folder / "model", folder / "data", ("limits.requests_per_s=1000", *settings)
    ) as server:
        shifted = [
            pictures[7 * i % len(pictures) :] + pictures[: 7 * i % len(pictures)] for i in range(streams)
        ]
        senders = [Sender(server.url, f"room {i}", shifted[i], fps, stop) for i in range(streams)]
        for sender in senders:
            sender.start()
        for _ in range(kills):
            wait_for_an_estimate(senders)
            time.sleep(rng.uniform(*life_s))
            server.kill()
            server.start()
        wait_for_an_estimate(senders)
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
        rows = {row.row: row for row in record}
        received = [estimate.row for estimate in sender.received]
        lost += sum(
            e.row not in rows or rows[e.row].probabilities != e.probabilities for e in sender.received
        )
        doubled += len(received) - len(set(received)) + len(record) - len(rows)
        expected = uninterrupted_record(model, sender.sent, fps)
        different += sum(a != b for a, b in zip(record, expected, strict=False)) + abs(
            len(record) - len(expected)
        )
    store.close()
    frames, reconnects = (
        sum(part) for part in zip(*((len(s.sent), s.reconnects) for s in senders), strict=True)
    )
    return KillReport(
        kills, streams, frames, time.monotonic() - begin, reconnects, lost, doubled, different, redone
    )


def test_random_kills_under_load_lose_and_double_nothing(model, pictures, tmp_path, request):
    if kills := request.config.getoption("kills", None):
        load = {"streams": 4, "fps": 5, "seed": 0, "life_s": (0.2, 3.0), "settings": ("snapshot_frames=16",)}
    else:
        kills, load = 5, {"streams": 3, "fps": 8, "seed": 4, "life_s": (0.1, 1.2)}
    report = run_kills(model, tmp_path, pictures, kills, **load)
    print(f"\n{report}")
    assert report.frames > 20 * kills and report.reconnects >= kills
    assert report.is_clean, str(report)


def test_the_record_is_that_of_this_process_when_it_has_more_threads_than_tests_have(
    model, pictures, tmp_path
):
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        report = run_kills(model, tmp_path, pictures, kills=1, streams=1, fps=8, seed=1, life_s=(0.1, 0.2))
    finally:
        torch.set_num_threads(before)
    assert report.is_clean and report.frames > 0
