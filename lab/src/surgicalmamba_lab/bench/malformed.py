"""Messages no honest client sends, by the thousand: each must be refused with its reason, and nobody else may notice."""

import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from surgicalmamba.server.client import Client, RemoteEstimate
from surgicalmamba.server.wire import pack_frame
from surgicalmamba_lab.bench.serving import ServerProcess

_HEADER = struct.Struct("<4sBBHqd")


LEAST_HEALTHY = 20
"""Frames of the healthy stream even where all wrong messages are sent sooner."""


@dataclass(frozen=True)
class MalformedReport:
    """What came of it."""

    sent: int
    refused: dict[str, int]
    """By reason, as the server said it."""
    unanswered: int
    """Messages that got neither a refusal nor a closed connection."""
    connections_cut: int
    """Half messages, half handshakes and silent connections."""
    healthy_frames: int
    healthy_is_identical: bool
    """The record of a stream that ran beside is that of an undisturbed run."""
    is_alive: bool
    seconds: float

    def lines(self) -> list[str]:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(self.refused.items()))
        return [
            f"{self.sent} malformed messages in {self.seconds:.0f} s, {self.connections_cut} connections cut in the middle",
            f"refused: {reasons}",
            f"unanswered {self.unanswered}   server alive: {self.is_alive}",
            f"healthy stream beside: {self.healthy_frames} frames, record identical: {self.healthy_is_identical}",
        ]


def malformed(rng: random.Random, picture: bytes, next_index: int) -> tuple[str, bytes | str]:
    """One wrong message and the reason it must be refused with. `next_index` is what the server expects."""
    frame = pack_frame(next_index, None, picture)
    kinds: dict[str, Callable[[], tuple[str, bytes | str]]] = {
        "empty": lambda: ("short", b""),
        "half envelope": lambda: ("short", frame[: rng.randrange(1, 24)]),
        "text as binary": lambda: ("magic", b"this is not a frame, it is a sentence " * 3),
        "random bytes": lambda: ("magic", b"\x00" + rng.randbytes(rng.randrange(30, 300))),
        "other version": lambda: ("version", frame[:4] + bytes([rng.randrange(2, 256)]) + frame[5:]),
        "other kind": lambda: ("kind", frame[:5] + bytes([rng.randrange(3, 256)]) + frame[6:]),
        "negative index": lambda: ("index", _HEADER.pack(b"SMFR", 1, 1, 0, -rng.randrange(1, 10**6), 0.0) + picture),
        "out of order": lambda: ("gap", pack_frame(next_index + rng.randrange(1, 1000), None, picture)),
        "duplicate": lambda: ("duplicate", pack_frame(rng.randrange(next_index), None, picture)) if next_index else ("short", b"1"),
        "infinite time": lambda: ("time", _HEADER.pack(b"SMFR", 1, 1, 0, next_index, float("inf")) + picture),
        "truncated picture": lambda: ("image", frame[: 24 + rng.randrange(2, len(picture) - 2)]),
        "damaged header": lambda: ("image", frame[:26] + rng.randbytes(40)),
        "giant dimensions": lambda: ("pixels", _giant(next_index, rng)),
        "text": lambda: ("text", json.dumps({"type": "frame", "index": rng.randrange(100)})),
        "broken text": lambda: ("text", "{" * rng.randrange(1, 50)),
    }
    return kinds[rng.choice(list(kinds))]()


def _giant(index: int, rng: random.Random) -> bytes:
    """A PNG of a few bytes whose header promises gigapixels."""
    side = rng.randrange(20_000, 2**31)
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0) + b"\0" * 8
    return pack_frame(index, None, png)


def run_malformed(
    server: ServerProcess, pictures: Sequence[bytes], count: int, seed: int, wanted: Sequence[tuple[float, ...]] | None, fps: float = 20.0
) -> MalformedReport:
    """Send `count` wrong messages to a server while a healthy stream runs beside. `wanted` are the probabilities the healthy stream must
    get for its frames, as many as there are."""
    rng, begin, stop = random.Random(seed), time.monotonic(), threading.Event()
    heard: list[RemoteEstimate] = []
    healthy = threading.Thread(target=_push_healthy, args=(server.url, pictures, fps, stop, heard, len(wanted or ())), daemon=True)
    healthy.start()
    client = Client(server.url)
    refused: Counter[str] = Counter()
    sent = unanswered = cut = 0
    while sent < count:
        session = str(client.request("POST", "/v1/sessions", {"name": "malformed", "when_behind": "wait"})["id"])
        batch = min(90, count - sent)  # below the number at which a connection is closed
        reasons, silent = _send_batch(server, session, rng, pictures[0], batch)
        refused.update(reasons)
        unanswered, sent = unanswered + silent, sent + batch
        cut += _cut_connections(server, session, pack_frame(0, None, pictures[0]))
        client.request("DELETE", f"/v1/sessions/{session}")
    stop.set()
    healthy.join(120)
    alive = bool(client.request("GET", "/v1/about"))
    got = [estimate.probabilities for estimate in heard]
    identical = wanted is not None and len(got) > 0 and got == list(wanted[: len(got)])
    return MalformedReport(sent, dict(refused), unanswered, cut, len(got), identical, alive, time.monotonic() - begin)


def _push_healthy(url: str, pictures: Sequence[bytes], fps: float, stop: threading.Event, heard: list[RemoteEstimate], most: int) -> None:
    with Client(url).create("healthy", fps=fps) as remote:
        while remote.next_index < most and not (stop.is_set() and remote.next_index >= LEAST_HEALTHY):
            index = remote.next_index
            heard += remote.push(pictures[index % len(pictures)], index / fps)
            time.sleep(1 / fps)
        heard += remote.wait()


def _send_batch(server: ServerProcess, session: str, rng: random.Random, picture: bytes, count: int) -> tuple[Counter[str], int]:
    """Send wrong messages over one connection; what each was refused with, and how many got another answer or none."""
    from websockets.sync.client import connect

    found: Counter[str] = Counter()
    missed = 0
    with connect(f"ws{server.url.removeprefix('http')}/v1/sessions/{session}/frames", compression=None) as connection:
        next_index = int(json.loads(connection.recv(20))["next_index"])
        for _ in range(count):
            reason, message = malformed(rng, picture, next_index)
            connection.send(message)
            said = _next_refusal(connection.recv)
            found[said or "nothing"] += 1
            missed += said != reason
            next_index += reason in ("image", "pixels")  # a frame refused for its picture keeps its place
    return found, missed


def _next_refusal(receive: Callable[[float], str | bytes]) -> str | None:
    try:
        for _ in range(100):
            message = json.loads(receive(20))
            if message["type"] == "refused":
                return str(message["reason"])
    except (TimeoutError, EOFError, OSError):
        pass
    return None


def _cut_connections(server: ServerProcess, session: str, frame: bytes) -> int:
    """A handshake that never ends, one cut in the middle, and a frame of which half arrives."""
    handshake = (
        f"GET /v1/sessions/{session}/frames HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    ).encode()
    half = b"\x82\xfe" + struct.pack(">H", len(frame) % 65536) + b"\0\0\0\0" + frame[:100]
    for content in (handshake[:60], handshake, handshake + half):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
            raw.sendall(content)
            if content.endswith(half):
                raw.recv(64)
    return 3
