"""Live video: network streams, capture devices and pipes. A lost link is tried again with growing pauses, and every gap is reported.

Time is the session's: seconds since the first frame, continuous across reconnects, so a gap shows as a jump in time."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, BinaryIO, Protocol

from surgicalmamba.data.records import Frame, Gap
from surgicalmamba.data.video import rgb_of
from surgicalmamba.errors import DataError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame

_DEVICE_FORMAT = {"linux": "v4l2", "darwin": "avfoundation", "win32": "dshow"}


class Clock(Protocol):
    """Where live reading gets its time from; tests bring their own."""

    def now_s(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True)
class Retry:
    """How long to keep trying: pauses double from `first_s` to `longest_s`; after `give_up_s` without a frame it is an error."""

    first_s: float = 0.5
    longest_s: float = 30.0
    give_up_s: float = 600.0
    timeout_s: float = 10.0
    """A link that delivers nothing for so long counts as lost."""

    def pause_s(self, attempt: int) -> float:
        """Pause before attempt 1, 2, ..."""
        return float(min(self.first_s * 2 ** min(attempt - 1, 30), self.longest_s))


def is_live(source: str) -> bool:
    """Whether a source is a URL, a capture device or a pipe, not a file or folder."""
    return source == "-" or source.startswith(("pipe:", "device:", "/dev/video")) or "://" in source


def open_source(source: str, timeout_s: float, stdin: BinaryIO | None = None) -> "InputContainer":
    """Connect to `rtsp://`, `http://`, ..., `device:NAME` (or /dev/videoN), or `-` for standard input."""
    import av

    if source == "-" or source == "pipe:0":
        return av.open(stdin or sys.stdin.buffer, mode="r")
    if source.startswith(("device:", "/dev/video")):
        name = source.removeprefix("device:")
        name = f"/dev/video{name}" if name.isdigit() and sys.platform == "linux" else name
        return av.open(name, format=_DEVICE_FORMAT.get(sys.platform, "v4l2"))
    options = {"rtsp_transport": "tcp"} if source.startswith("rtsp") else {}
    return av.open(source, options=options, timeout=(timeout_s, timeout_s))


def live_frames(
    source: str,
    fps: Fraction,
    retry: Retry | None = None,
    clock: Clock | None = None,
    connect: Callable[[str, float], "InputContainer"] = open_source,
) -> Iterator[Frame | Gap]:
    """Samples of a live source at up to `fps` per second, as they arrive, and a Gap after each interruption.

    Sample times are the first frame at or after each tick of `1 / fps`; ticks inside a gap are not made up for. A pipe, and a
    recording behind a URL, end when they end; streams and devices are reconnected. Raises DataError if the first connection
    fails, or nothing arrives for `retry.give_up_s`."""
    import av

    retry, clock = retry or Retry(), clock or SystemClock()
    origin_s: float | None = None  # clock time of the session's first frame
    last_s, next_tick, index, attempts = 0.0, 0, 0, 0
    lost: tuple[float, str] | None = None  # since when, and why
    while True:
        reason, is_over = "the stream ended", source == "-" or source.startswith("pipe:")
        start_s: float | None = None  # session time of this connection's first frame
        zero: float = 0.0
        try:
            with connect(source, retry.timeout_s) as container:
                is_over = is_over or bool(container.duration) or container.size > 0
                for frame in _decoded(container, source):
                    now_s = clock.now_s()
                    origin_s = now_s if origin_s is None else origin_s
                    if start_s is None:
                        start_s = max(now_s - origin_s, last_s)
                        zero = frame.time or 0.0
                        if lost is not None:
                            yield Gap(lost[0], start_s, lost[1], attempts)
                        lost, attempts = None, 0
                    last_s = start_s + ((frame.time - zero) if frame.time is not None else (now_s - origin_s - start_s))
                    if last_s * fps >= next_tick - 1e-6:
                        yield Frame(index, last_s, rgb_of(frame))
                        next_tick = int(last_s * fps + 1e-6) + 1
                    index += 1
        except (av.FFmpegError, OSError) as error:
            reason = error.strerror or type(error).__name__
            if origin_s is None:
                raise DataError(f"cannot connect to {source}: {reason}. Check the address, the cable and the permissions.") from None
            is_over = is_over and source == "-"
        if is_over:
            return
        if lost is None:
            lost = (last_s, reason)
        attempts += 1
        if origin_s is None:
            raise DataError(f"{source}: connected, but not a single frame arrived ({reason}).")
        if clock.now_s() - origin_s - lost[0] > retry.give_up_s:
            raise DataError(f"{source}: nothing arrived for {retry.give_up_s:g} s after {attempts} attempts ({reason}); giving up.")
        clock.sleep(retry.pause_s(attempts))


def _decoded(container: "InputContainer", source: str) -> Iterator["VideoFrame"]:
    """Frames of the first picture stream; a packet that cannot be decoded is left out."""
    import av

    if not container.streams.video:
        raise DataError(f"{source}: no video stream in it.")
    stream = container.streams.video[0]
    for packet in container.demux(stream):
        try:
            yield from packet.decode()
        except av.error.InvalidDataError:
            continue
