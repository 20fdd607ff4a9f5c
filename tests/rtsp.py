"""A network camera for tests: just enough of RTSP to play a transport stream file over TCP, as a camera in a
room would."""

import re
import socketserver
import struct
import threading
import time
from pathlib import Path

import av
import numpy as np

TS_PACKET, PER_DATAGRAM, CLOCK_HZ, MP2T = 188, 7, 90_000, 33
SDP = (
    "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nt=0 0\r\n"
    "m=video 0 RTP/AVP 33\r\na=rtpmap:33 MP2T/90000\r\na=control:track1\r\n"
)


def transport_stream(file: Path, n_frames: int, fps: int) -> Path:
    """Pictures of random blocks as H.264 in a transport stream."""
    rng = np.random.default_rng(0)
    with av.open(str(file), "w", format="mpegts") as container:
        stream = container.add_stream("libx264", rate=fps, options={"bf": "0"})
        stream.height, stream.width, stream.pix_fmt = 96, 128, "yuv420p"
        for _ in range(n_frames):
            blocks = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(blocks.repeat(16, 0).repeat(16, 1))))
        container.mux(stream.encode(None))
    return file


class Camera(socketserver.ThreadingTCPServer):
    """Plays `file` to every client and then closes. With `cut_after` it closes once after so many bytes, as a
    pulled cable does."""

    daemon_threads, allow_reuse_address = True, True

    def __init__(self, file: Path, cut_after: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Caller)
        self.video, self.cut_after, self.n_plays = file.read_bytes(), cut_after, 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"rtsp://127.0.0.1:{self.server_address[1]}/stream"


class _Caller(socketserver.StreamRequestHandler):
    server: Camera

    def handle(self) -> None:
        try:
            while request := self._request():
                if self._answer(*request):
                    return
        except OSError:
            pass  # the caller hung up

    def _request(self) -> tuple[str, str] | None:
        lines = []
        while (line := self.rfile.readline().decode("latin-1").rstrip("\r\n")) or not lines:
            if line:
                lines.append(line)
            elif not lines:
                return None
        number = re.search(r"(?im)^cseq:\s*(\d+)", "\n".join(lines))
        return lines[0].split()[0], number[1] if number else "0"

    def _answer(self, method: str, number: str) -> bool:
        """True when the play is over."""
        extra, body = {
            "OPTIONS": ("Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\n", ""),
            "DESCRIBE": (
                f"Content-Base: {self.server.url}/\r\nContent-Type: application/sdp\r\n"
                f"Content-Length: {len(SDP)}\r\n",
                SDP,
            ),
            "SETUP": ("Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 1\r\n", ""),
        }.get(method, ("Session: 1\r\n", ""))
        self.wfile.write(f"RTSP/1.0 200 OK\r\nCSeq: {number}\r\n{extra}\r\n{body}".encode())
        if method == "PLAY":
            self._play()
        return method in ("PLAY", "TEARDOWN")

    def _play(self) -> None:
        camera = self.server
        camera.n_plays += 1
        cut = camera.cut_after if camera.n_plays == 1 else None
        video = camera.video if cut is None else camera.video[: cut - cut % TS_PACKET]
        step = TS_PACKET * PER_DATAGRAM
        for sequence, start in enumerate(range(0, len(video), step)):
            rtp = (
                struct.pack(
                    "!BBHII", 0x80, MP2T, sequence & 0xFFFF, int(time.monotonic() * CLOCK_HZ) & 0xFFFFFFFF, 7
                )
                + video[start : start + step]
            )
            self.wfile.write(struct.pack("!BBH", ord("$"), 0, len(rtp)) + rtp)
