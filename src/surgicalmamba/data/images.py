"""A folder of images as a recording, and the one place that reads and writes JPEG."""

import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.records import Frame, ReadReport, VideoInfo
from surgicalmamba.data.sampling import By, IndexSampling
from surgicalmamba.errors import DataError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff"})
JPEG_QUALITY = 95


def encode_jpeg(rgb: NDArray[np.uint8], quality: int = JPEG_QUALITY) -> bytes:
    """A picture as JPEG bytes, with full colour resolution."""
    import simplejpeg

    data: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(rgb), quality=quality, colorspace="RGB", colorsubsampling="444")
    return data


def decode_jpeg(data: bytes, least_side: int = 0) -> NDArray[np.uint8]:
    """JPEG bytes to (h, w, 3), red first, reduced to sides of no less than `least_side` where that is not 0. Raises ValueError."""
    import simplejpeg

    return np.asarray(simplejpeg.decode_jpeg(data, "RGB", min_height=least_side, min_width=least_side, strict=True), np.uint8)


def read_image(path: Path, least_side: int = 0) -> NDArray[np.uint8]:
    """Read an image file to (h, w, 3), red first. Raises DataError that names it.

    A JPEG's decoder may deliver a reduced picture, at less cost, whose sides are no smaller than `least_side`; 0 asks for the full size."""
    import cv2

    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    try:
        if data[:2] == b"\xff\xd8":
            return decode_jpeg(data, least_side)
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
    except (ValueError, cv2.error):
        bgr = None
    if bgr is None:
        raise DataError(f"{path}: not a readable image.")
    return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)


def natural_key(name: str) -> list[tuple[int, int | str]]:
    """Sort key under which `frame10` follows `frame9`, and letter case does not matter."""
    return [(0, int(part)) if part.isdigit() else (1, part.casefold()) for part in re.split(r"([0-9]+)", name) if part]


def image_files(folder: Path) -> list[Path]:
    """The image files of a folder in natural order; hidden files are left out."""
    files = (p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
    return sorted(files, key=lambda p: natural_key(p.name))


class ImageFolder:
    """A recording stored as one image file per frame, taken at `fps` images per second."""

    def __init__(self, path: Path | str, fps: Fraction, files: list[Path] | None = None) -> None:
        self.path = Path(path)
        self._files = image_files(self.path) if files is None else files
        if not self._files:
            raise DataError(f"{self.path}: no images in it ({', '.join(sorted(SUFFIXES))}).")
        n = len(self._files)
        first = read_image(self._files[0])
        self.info = VideoInfo(str(self.path), "images", first.shape[:2], fps, n, float(n / fps), False, None)
        self.report = ReadReport()

    def samples(self, fps: Fraction, by: By | Literal["auto"] = "auto") -> Iterator[Frame]:
        """Images that become samples, in order; images are evenly spaced, so `by` makes no difference."""
        self.report = report = ReadReport(n_frames=self.info.n_frames)
        rule = IndexSampling.between(self.info.fps, fps)
        last: NDArray[np.uint8] | None = None
        owed: list[int] = []
        for k in range(rule.n_samples(self.info.n_frames)):
            index = rule.frame_of(k)
            try:
                last = read_image(self._files[index])
                report.n_decoded += 1
            except DataError as error:
                report.n_corrupt += 1
                report.held.append(index)
                report.warnings.append(f"{error} The picture before stands in for it.")
            if last is None:
                owed.append(index)
                continue
            for late in [*owed, index]:
                yield Frame(late, float(late / self.info.fps), last)
            owed = []
        if last is None:
            raise DataError(f"{self.path}: none of the images can be read.")
