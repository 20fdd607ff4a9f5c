"""A CI-sized part of `surgicalmamba bench serve --malformed 10000`, and a slow sender."""

import socket
import time

from surgicalmamba_lab.bench.malformed import run_malformed
from surgicalmamba_lab.bench.serving import ServerProcess, uninterrupted_record


def test_malformed_messages_are_refused_with_their_reason_and_others_do_not_notice(server, model, pictures):
    frames = [pictures[i % len(pictures)] for i in range(60)]
    wanted = [row.unpacked() for row in uninterrupted_record(model, frames, fps=20)]
    report = run_malformed(server, pictures, count=360, seed=1, wanted=wanted)
    assert report.sent == sum(report.refused.values()) == 360 and report.unanswered == 0, "\n".join(report.lines())
    expected = {"short", "magic", "version", "kind", "index", "gap", "duplicate", "time", "image", "pixels", "text"}
    assert set(report.refused) == expected
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
