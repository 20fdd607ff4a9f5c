"""Where pictures come from: a recording, a folder of images, a camera, a network stream or a pipe."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from surgicalmamba.config import PreprocessConfig
from surgicalmamba.data.images import ImageFolder
from surgicalmamba.data.live import is_live, live_frames
from surgicalmamba.data.records import Frame, Gap
from surgicalmamba.data.video import VideoFile
from surgicalmamba.errors import DataError

EVERY_FRAME = Fraction(1000)
"""Asked of a live source, it hands out all of its frames; the session's clock chooses."""


@dataclass(frozen=True)
class Source:
    """Frames to be pushed in order. Opened once, read once."""

    name: str
    frames: Iterator[Frame | Gap]
    is_sampled: bool
    """The frames are the samples `prepare` would store, so each is one tick. Else their times decide."""
    is_paced: bool
    """Pictures come in their own time and will not wait for slow inference."""
    duration_s: float | None
    """Length of a recording."""


def open_pictures(source: str, preprocess: PreprocessConfig, fps: Fraction, image_fps: Fraction | None = None) -> Source:
    """A recording or image folder by its path, or a live source: `rtsp://...`, `http://...`, `device:0`, `-` for standard input.

    `image_fps` is the rate at which the images of a folder were taken; None says that each is a sample."""
    if is_live(source):
        waits = source == "-" or source.startswith(("pipe:", "http://", "https://"))
        return Source(source, live_frames(source, EVERY_FRAME), is_sampled=False, is_paced=not waits, duration_s=None)
    path = Path(source)
    if not path.exists():
        raise DataError(f"{source}: there is no such file or folder; live sources are rtsp://..., device:0, or - for a pipe.")
    if path.is_dir():
        folder = ImageFolder(path, image_fps or fps)
        frames = _repeated(folder, fps) if folder.info.fps < fps else folder.samples(fps)
        return Source(source, frames, is_sampled=True, is_paced=False, duration_s=folder.info.duration_s)
    video = VideoFile(path)
    # A recording slower than the model shows some pictures more than once, which only sampling by time does.
    samples = video.samples(fps, "time" if video.info.fps < fps else preprocess.sampling)
    return Source(source, samples, is_sampled=True, is_paced=False, duration_s=video.info.duration_s)


def _repeated(folder: ImageFolder, fps: Fraction) -> Iterator[Frame]:
    """Images that are further apart than samples: each is shown at every tick until the next one."""
    rate, tick = folder.info.fps, 0
    for frame in folder.samples(rate):
        while Fraction(tick) / fps < Fraction(frame.index + 1) / rate:
            yield Frame(frame.index, float(tick / fps), frame.rgb)
            tick += 1
