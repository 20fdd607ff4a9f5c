"""Messages that no correct client sends: each is refused with its reason, and no other session is disturbed.

pytest tests/chaos/test_malformed.py -s --malformed 10000     a long run; without --malformed a short one"""

import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass

from websockets.sync.client import connect

from served import uninterrupted_record
from surgicalmamba.server.client import Client
from surgicalmamba.server.wire import pack_frame
from surgicalmamba_lab.bench.serve import ServerProcess

HEADER = struct.Struct("<4sBBHqd")
MIN_HEALTHY_FRAMES = 20  # of the healthy stream, even when all malformed messages are sent sooner


@dataclass(frozen=True)
class MalformedReport:
    """`unanswered` counts messages with another answer than their reason, or none. `connections_cut` are
    half messages, half handshakes and silent connections. The healthy stream ran at the same time."""

    sent: int
    refused: dict[str, int]
    unanswered: int
    connections_cut: int
    healthy_frames: int
    healthy_is_identical: bool
    is_alive: bool
    seconds: float

    def __str__(self):
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(self.refused.items()))
        return (
            f"{self.sent} malformed messages in {self.seconds:.0f} s, {self.connections_cut} connections "
            "cut\n"
            f"refused: {reasons}\nunanswered {self.unanswered}   server alive: {self.is_alive}\n"
            f"healthy stream: {self.healthy_frames} frames, record identical: {self.healthy_is_identical}"
        )


def malformed(rng, picture, next_index):
    """A malformed message and the reason it must be refused with. `next_index` is the frame the server
    expects."""
    frame = pack_frame(next_index, None, picture)
    kinds = {
        "empty": lambda: ("short", b""),
        "half envelope": lambda: ("short", frame[: rng.randrange(1, 24)]),
        "text as binary": lambda: ("magic", b"this is not a frame, it is a sentence " * 3),
        "random bytes": lambda: ("magic", b"\x00" + rng.randbytes(rng.randrange(30, 300))),
        "other version": lambda: ("version", frame[:4] + bytes([rng.randrange(2, 256)]) + frame[5:]),
        "other kind": lambda: ("kind", frame[:5] + bytes([rng.randrange(3, 256)]) + frame[6:]),
        "negative index": lambda: (
            "index",
            HEADER.pack(b"SMFR", 1, 1, 0, -rng.randrange(1, 10**6), 0.0) + picture,
        ),
        "out of order": lambda: ("gap", pack_frame(next_index + rng.randrange(1, 1000), None, picture)),
        "duplicate": lambda: (
            ("duplicate", pack_frame(rng.randrange(next_index), None, picture))
            if next_index
            else ("short", b"1")
        ),
        "infinite time": lambda: ("time", HEADER.pack(b"SMFR", 1, 1, 0, next_index, float("inf")) + picture),
        "truncated picture": lambda: ("image", frame[: 24 + rng.randrange(2, len(picture) - 2)]),
        "damaged header": lambda: ("image", frame[:26] + rng.randbytes(40)),
        "giant dimensions": lambda: ("pixels", giant_picture(next_index, rng)),
        "text": lambda: ("text", json.dumps({"type": "frame", "index": rng.randrange(100)})),
        "broken text": lambda: ("text", "{" * rng.randrange(1, 50)),
    }
    return kinds[rng.choice(list(kinds))]()


def giant_picture(index, rng):
    """A PNG of a few bytes whose header promises gigapixels."""
    side = rng.randrange(20_000, 2**31)
    size = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return pack_frame(index, None, b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + size + b"\0" * 8)


def run_malformed(server, pictures, count, seed, expected, fps):
    """Send `count` malformed messages while a healthy stream runs. `expected` are the probabilities of its
    frames, at most as many as it may send."""
    rng, begin, stop = random.Random(seed), time.monotonic(), threading.Event()
    received = []
    healthy = threading.Thread(
        target=push_healthy, args=(server.url, pictures, fps, stop, received, len(expected)), daemon=True
    )
    healthy.start()
    client, refused = Client(server.url), Counter()
    sent = unanswered = cut = 0
    while sent < count:
        session = str(
            client.request("POST", "/v1/sessions", {"name": "malformed", "when_behind": "wait"})["id"]
        )
        batch = min(90, count - sent)  # below the number at which a connection is closed
        reasons, missed = send_batch(server, session, rng, pictures[0], batch)
        refused.update(reasons)
        unanswered, sent = unanswered + missed, sent + batch
        cut += cut_connections(server, session, pack_frame(0, None, pictures[0]))
        client.request("DELETE", f"/v1/sessions/{session}")
    stop.set()
    healthy.join(120)
    alive = bool(client.request("GET", "/v1/about"))
    probabilities = [estimate.probabilities for estimate in received]
    identical = len(received) > 0 and probabilities == expected[: len(received)]
    seconds = time.monotonic() - begin
    return MalformedReport(sent, dict(refused), unanswered, cut, len(received), identical, alive, seconds)


def push_healthy(url, pictures, fps, stop, received, most):
    with Client(url).create("healthy", fps=fps) as remote:
        while remote.next_index < most and not (stop.is_set() and remote.next_index >= MIN_HEALTHY_FRAMES):
            index = remote.next_index
            received += remote.push(pictures[index % len(pictures)], index / fps)
            time.sleep(1 / fps)
        received += remote.wait()


def send_batch(server, session, rng, picture, count):
    """Send malformed messages over one connection; returns the reasons of the refusals, and how many had
    another."""
    reasons, missed = Counter(), 0
    url = f"ws{server.url.removeprefix('http')}/v1/sessions/{session}/frames"
    with connect(url, compression=None) as connection:
        next_index = int(json.loads(connection.recv(20))["next_index"])
        for _ in range(count):
            expected, message = malformed(rng, picture, next_index)
            connection.send(message)
            reason = next_refusal(connection)
            reasons[reason or "nothing"] += 1
            missed += reason != expected
            next_index += expected in ("image", "pixels")  # a frame refused for its picture keeps its place
    return reasons, missed


def next_refusal(connection):
    try:
        for _ in range(100):
            message = json.loads(connection.recv(20))
            if message["type"] == "refused":
                return message["reason"]
    except (TimeoutError, EOFError, OSError):
        pass
    return None


def cut_connections(server, session, frame):
    """A handshake that never ends, one without a message after it, and a frame of which half arrives."""
    handshake = (
        f"GET /v1/sessions/{session}/frames HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: "
        "websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
        "AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    ).encode()
    half = b"\x82\xfe" + struct.pack(">H", len(frame) % 65536) + b"\0\0\0\0" + frame[:100]
    for content in (handshake[:60], handshake, handshake + half):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
            raw.sendall(content)
            if content.endswith(half):
                raw.recv(64)
    return 3


def test_malformed_messages_are_refused_with_their_reason_and_others_do_not_notice(
    server, model, pictures, request
):
    count, frames, fps = 360, 60, 20
    if long := request.config.getoption("malformed", None):
        count, frames, fps = long, 1500, 5
    healthy = [pictures[i % len(pictures)] for i in range(frames)]
    expected = [row.probabilities for row in uninterrupted_record(model, healthy, fps)]
    report = run_malformed(server, pictures, count, seed=1, expected=expected, fps=fps)
    print(f"\n{report}")
    assert report.sent == sum(report.refused.values()) == count and report.unanswered == 0, str(report)
    reasons = {
        "short",
        "magic",
        "version",
        "kind",
        "index",
        "gap",
        "duplicate",
        "time",
        "image",
        "pixels",
        "text",
    }
    assert set(report.refused) == reasons
    assert report.is_alive and report.healthy_frames > 10 and report.healthy_is_identical
    assert "Traceback" not in server.log()


def test_a_sender_that_never_finishes_its_request_is_cut_off(checkpoint, tmp_path):
    with ServerProcess(checkpoint, tmp_path, ("limits.header_s=0.5",)) as server, socket.socket() as slow:
        slow.settimeout(20)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        begin = time.monotonic()
        assert slow.recv(100) == b""
        assert time.monotonic() - begin < 15
