"""Where pictures come from: a recording, a folder of images, a camera, a network stream or a pipe."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from surgicalmamba.data.pictures import ImageFolder
from surgicalmamba.data.records import By, Frame, Gap
from surgicalmamba.data.video import VideoFile, rgb_of
from surgicalmamba.errors import DataError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame

_DEVICE_FORMAT = {"linux": "v4l2", "darwin": "avfoundation", "win32": "dshow"}
_EVERY_FRAME = Fraction(1000)
"""At this rate a live source returns all of its frames; the session's clock samples them."""


@dataclass(frozen=True)
class Source:
    """Frames to be pushed in order. Opened once, read once."""

    name: str
    frames: Iterator[Frame | Gap]
    is_sampled: bool
    """The frames are the samples `prepare` would store; otherwise the clock samples them by time."""
    is_paced: bool
    """Pictures come at their own pace and do not wait for slow inference."""
    duration_s: float | None
    """Length of a recording."""


def open_source(
    source: str, sampling: By | Literal["auto"], fps: Fraction, image_fps: Fraction | None = None
) -> Source:
    """A recording or image folder by its path, or a live source: `rtsp://...`, `http://...`, `device:0`, `-`
    for standard input. `image_fps` is the rate at which the images of a folder were taken; None: each is a
    sample."""
    if is_live(source):
        is_paced = not _is_pipe(source) and not source.startswith(("http://", "https://"))
        return Source(
            source, live_frames(source, _EVERY_FRAME), is_sampled=False, is_paced=is_paced, duration_s=None
        )
    path = Path(source)
    if not path.exists():
        raise DataError(
            f"{source}: no such file or folder; live sources are rtsp://..., device:0, or - for a pipe."
        )
    opened: ImageFolder | VideoFile
    if path.is_dir():
        opened = ImageFolder(path, image_fps or fps)
        frames = _repeated(opened, fps) if opened.info.fps < fps else opened.samples(fps)
    else:
        opened = VideoFile(path)
        # A recording slower than the model shows some pictures more than once, which only sampling by time
        # does.
        frames = opened.samples(fps, "time" if opened.info.fps < fps else sampling)
    return Source(source, frames, is_sampled=True, is_paced=False, duration_s=opened.info.duration_s)


def _repeated(folder: ImageFolder, fps: Fraction) -> Iterator[Frame]:
    """Images further apart than samples: each is repeated at every tick until the next one."""
    rate, tick = folder.info.fps, 0
    for frame in folder.samples(rate):
        while Fraction(tick) / fps < Fraction(frame.index + 1) / rate:
            yield Frame(frame.index, float(tick / fps), frame.rgb)
            tick += 1


def is_live(source: str) -> bool:
    """Whether a source is a URL, a capture device or a pipe, not a file or folder."""
    return _is_pipe(source) or source.startswith(("device:", "/dev/video")) or "://" in source


def _is_pipe(source: str) -> bool:
    return source == "-" or source.startswith("pipe:")


class WallClock:
    """The machine's monotonic clock; tests replace it."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True)
class Retry:
    """Pauses double from `first_s` to `longest_s`; after `give_up_s` without a frame it is an error."""

    first_s: float = 0.5
    longest_s: float = 30.0
    give_up_s: float = 600.0
    timeout_s: float = 10.0
    """A connection without data for this long counts as lost."""

    def pause_s(self, attempt: int) -> float:
        """Pause before attempt 1, 2, ..."""
        return float(min(self.first_s * 2 ** min(attempt - 1, 30), self.longest_s))


def open_container(source: str, timeout_s: float) -> "InputContainer":
    """Connect to `rtsp://`, `http://`, ..., `device:NAME` (or /dev/videoN), or `-` for standard input."""
    import av

    if source in ("-", "pipe:0"):
        return av.open(sys.stdin.buffer, mode="r")
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
    clock: WallClock | None = None,
    connect: Callable[[str, float], "InputContainer"] = open_container,
) -> Iterator[Frame | Gap]:
    """Samples of a live source at up to `fps` per second, as they arrive, and a Gap after each interruption.

    A sample is the first frame at or after a tick of `1 / fps`; ticks inside a gap are left out. Time counts
    in seconds since the first frame and continues across reconnects, so a gap is a jump in time. A pipe, and
    a recording behind a URL, end when they end; streams and devices are reconnected with growing pauses.
    Raises DataError if the first connection fails, or nothing arrives for `retry.give_up_s`."""
    import av

    retry, clock = retry or Retry(), clock or WallClock()
    origin_s: float | None = None  # clock time of the session's first frame
    last_s, next_tick, index, attempts = 0.0, 0, 0, 0
    lost: tuple[float, str] | None = None  # since when, and why
    while True:
        reason, is_over = "the stream ended", _is_pipe(source)
        start_s: float | None = None  # session time of this connection's first frame
        zero = 0.0
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
                    last_s = now_s - origin_s if frame.time is None else start_s + (frame.time - zero)
                    if last_s * fps >= next_tick - 1e-6:
                        yield Frame(index, last_s, rgb_of(frame))
                        next_tick = int(last_s * fps + 1e-6) + 1
                    index += 1
        except (av.FFmpegError, OSError) as error:
            reason = error.strerror or type(error).__name__
            if origin_s is None:
                advice = "Check the address, the cable and the permissions."
                raise DataError(f"cannot connect to {source}: {reason}. {advice}") from None
            is_over = is_over and source == "-"
        if is_over:
            return
        if origin_s is None:
            raise DataError(f"{source}: connected, but not a single frame arrived ({reason}).")
        lost = lost or (last_s, reason)
        attempts += 1
        if clock.now_s() - origin_s - lost[0] > retry.give_up_s:
            waited = f"nothing arrived for {retry.give_up_s:g} s after {attempts} attempts"
            raise DataError(f"{source}: {waited} ({reason}); giving up.")
        clock.sleep(retry.pause_s(attempts))


def _decoded(container: "InputContainer", source: str) -> Iterator["VideoFrame"]:
    """Frames of the first picture stream; a packet that cannot be decoded is left out."""
    import av

    if not container.streams.video:
        raise DataError(f"{source}: no video stream in it.")
    for packet in container.demux(container.streams.video[0]):
        try:
            yield from packet.decode()
        except av.error.InvalidDataError:
            continue
