"""Live sources: real HTTP streams that break off, a real pipe, and the pauses between attempts on a clock of
our own."""

import subprocess
import sys
import threading
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rtsp import Camera
from surgicalmamba.data.records import Frame, Gap
from surgicalmamba.errors import DataError
from surgicalmamba.live.sources import Retry, is_live, live_frames, open_container

FIVE = Fraction(5)


class TestClock:
    """Time passes only when somebody sleeps."""

    __test__ = False

    def __init__(self):
        self.time_s = 100.0
        self.slept = []

    def now_s(self):
        return self.time_s

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.time_s += seconds


@pytest.fixture(scope="module")
def stream_file(tmp_path_factory, numbered):
    return numbered.write(
        tmp_path_factory.mktemp("live") / "a.ts", 50, gop=10, options={"sc_threshold": "0", "bf": "0"}
    )


@pytest.fixture
def server(stream_file):
    """Serves the file while `state["up"]` is true, and answers 503 while it is not."""
    state = {"up": True}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if state["up"] else 503)
            if state.get("tells_length"):
                self.send_header("Content-Length", str(stream_file.stat().st_size))
            self.end_headers()
            if state["up"]:
                self.wfile.write(stream_file.read_bytes())

        def log_message(self, *arguments):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}/a.ts", state
    httpd.shutdown()
    httpd.server_close()


def endless(source, timeout_s):
    """A connection that does not promise an end, as a live stream does not."""
    container = open_container(source, timeout_s)

    class Live:
        duration, size = None, -1
        streams = container.streams
        demux = staticmethod(container.demux)

        def __enter__(self):
            return self

        def __exit__(self, *arguments):
            container.close()

    return Live()


def test_a_lost_stream_is_reconnected_with_growing_pauses_and_the_gap_is_reported(server, numbered):
    """The server is up for the first and the fifth attempt only."""
    url, state = server
    clock, items, attempts = TestClock(), [], []

    def connect(source, timeout_s):
        attempts.append(clock.now_s())
        state["up"] = len(attempts) in (1, 5)
        return endless(source, timeout_s)

    with pytest.raises(DataError, match="nothing arrived for 60 s after"):
        items.extend(
            iter_into(
                items, live_frames(url, FIVE, Retry(first_s=1, longest_s=8, give_up_s=60), clock, connect)
            )
        )
    (gap,) = [item for item in items if isinstance(item, Gap)]
    frames = [item for item in items if isinstance(item, Frame)]
    assert clock.slept[:4] == [1, 2, 4, 8] and max(clock.slept) == 8
    assert (
        gap.attempts == 4
        and gap.start_s == pytest.approx(49 / 25, abs=0.01)
        and gap.end_s == pytest.approx(15)
    )
    assert gap.reason
    assert [numbered.read(f.rgb) for f in frames] == [*range(0, 50, 5)] * 2
    assert [f.time_s for f in frames[:10]] == pytest.approx([k / 5 for k in range(10)])
    assert [f.time_s for f in frames[10:]] == pytest.approx([15 + k / 5 for k in range(10)])


def iter_into(items, source):
    """Keep what came before an error."""
    for item in source:
        items.append(item)
    return []


def test_a_recording_behind_a_url_ends_when_it_ends(server):
    url, state = server
    state["tells_length"] = True
    frames = list(live_frames(url, FIVE, clock=TestClock()))
    assert len(frames) == 10 and all(isinstance(item, Frame) for item in frames)


def test_an_address_that_never_answered_is_an_error_at_once():
    with pytest.raises(DataError, match=r"cannot connect to http://127\.0\.0\.1:9/x: .*Check the address"):
        next(live_frames("http://127.0.0.1:9/x", FIVE, clock=TestClock()))


def test_a_missing_capture_device_is_an_error_that_names_it():
    with pytest.raises(DataError, match=r"cannot connect to device:99"):
        next(live_frames("device:99", FIVE, clock=TestClock()))


def test_a_pipe_is_read_as_it_comes_and_ends_without_reconnecting(stream_file):
    program = (
        "from fractions import Fraction\n"
        "from surgicalmamba.live.sources import live_frames\n"
        "print(*[f'{f.index}@{f.time_s:.2f}' for f in live_frames('-', Fraction(5))])"
    )
    with stream_file.open("rb") as stream:
        done = subprocess.run(
            [sys.executable, "-c", program], stdin=stream, capture_output=True, text=True, check=True
        )
    assert done.stdout.split() == [f"{i}@{i / 25:.2f}" for i in range(0, 50, 5)]


def test_pauses_double_up_to_the_longest():
    retry = Retry(first_s=0.5, longest_s=30)
    assert [retry.pause_s(n) for n in range(1, 10)] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert retry.pause_s(10_000) == 30


@pytest.mark.parametrize(
    ("source", "live"),
    [
        ("rtsp://or1/cam", True),
        ("http://x/a.ts", True),
        ("device:0", True),
        ("/dev/video0", True),
        ("-", True),
        ("a.mp4", False),
        ("/x/y", False),
    ],
)
def test_sources_are_told_apart(source, live):
    assert is_live(source) == live


def test_a_network_camera_is_read_over_rtsp_and_called_again_after_its_cable_was_pulled(tmp_path, numbered):
    file = numbered.write(tmp_path / "camera.ts", 50, gop=10, options={"sc_threshold": "0", "bf": "0"})
    camera = Camera(file, cut_after=file.stat().st_size // 2)
    clock, found = TestClock(), []
    for item in live_frames(camera.url, FIVE, Retry(first_s=0.5), clock):
        if isinstance(item, Gap) and any(isinstance(seen, Gap) for seen in found):
            break
        found.append(item)
    camera.shutdown()
    camera.server_close()
    (at,) = [i for i, seen in enumerate(found) if isinstance(seen, Gap)]
    gap, before, after = found[at], found[:at], found[at + 1 :]
    assert [numbered.read(frame.rgb) for frame in before] == list(range(0, 5 * at, 5)) and 2 <= at < 10
    assert [numbered.read(frame.rgb) for frame in after] == [
        round((frame.time_s - gap.end_s) * 25) for frame in after
    ]
    assert len(after) >= 9 and clock.slept == [0.5, 0.5] and camera.n_plays == 3
