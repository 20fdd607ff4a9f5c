"""Single pictures: JPEG, image files and folders of them, and the way from a camera picture to the stored
one.

The dark margin around the endoscope's round view is cut as the field does, in its order: height 300; grey
above 15; median of that mask over 19 x 19; bounding box; crop; resize to 250 x 250 without keeping the aspect
ratio. The box is found in every frame. White and blue censored frames are brighter than the threshold and
keep their place."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.records import By, Frame, IndexSampling, ReadReport, VideoInfo
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.files import natural_key

BoxRule = Literal["inclusive", "exclusive", "all-columns", "none"]
"""How the mask's bounding box is cut.

inclusive     rows and columns of the box, ends included; 10 outer columns on each side always go (the
release) exclusive     the same, but the last row and column of the box are lost (TMRNet, Surgformer)
all-columns   as exclusive, with the outer columns searched too (AutoLaparo's own script) none          no
cut, only the resize (TeCNO)"""

SEARCH_HEIGHT = 300
THRESHOLD = 15
MEDIAN_SIZE = 19
OUTER_COLUMNS = 10
JPEG_QUALITY = 95
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff"})


@dataclass(frozen=True)
class Preprocess:
    """The deterministic part of image preparation, recorded in the manifest."""

    box: BoxRule = "inclusive"
    size: int = 250

    def __post_init__(self) -> None:
        if self.box not in get_args(BoxRule):
            rules = ", ".join(get_args(BoxRule))
            raise ConfigError(f"box rule {self.box!r} is unknown; choose one of {rules}.")
        if self.size < 16:
            raise ConfigError(f"image size {self.size} is too small; use 16 or more (the field's is 250).")

    def __call__(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """(h, w, 3) of any size → (size, size, 3)."""
        import cv2

        return np.asarray(cv2.resize(cut_margin(rgb, self.box), (self.size, self.size)), np.uint8)


def cut_margin(rgb: NDArray[np.uint8], box: BoxRule) -> NDArray[np.uint8]:
    """Scale to height 300 and crop to the bright part; a frame with none, or with an empty crop, is kept
    whole."""
    import cv2

    if box == "none":
        return rgb
    height, width = rgb.shape[:2]
    size = (max(1, int(width / height * SEARCH_HEIGHT)), SEARCH_HEIGHT)
    scaled = np.asarray(cv2.resize(rgb, size), np.uint8)
    mask = binary_median((cv2.cvtColor(scaled, cv2.COLOR_RGB2GRAY) > THRESHOLD).astype(np.uint8))
    outer = 0 if box == "all-columns" else OUTER_COLUMNS
    rows, columns = np.nonzero(mask[:, outer : mask.shape[1] - outer])
    if not len(rows):
        return scaled
    end = 1 if box == "inclusive" else 0
    left, right = int(columns.min()) + outer, int(columns.max()) + outer + end
    crop = scaled[int(rows.min()) : int(rows.max()) + end, left:right]
    return crop if crop.size else scaled


def binary_median(mask: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """The median of a mask of zeros and ones over 19 x 19 neighbours, edges repeated: whether most are one.

    A running sum gives the same result as a median filter in a fraction of the time."""
    import cv2

    window, border = (MEDIAN_SIZE, MEDIAN_SIZE), cv2.BORDER_REPLICATE
    n_bright = np.asarray(cv2.boxFilter(mask, cv2.CV_16U, window, normalize=False, borderType=border))
    return n_bright > MEDIAN_SIZE * MEDIAN_SIZE // 2


def encode_jpeg(rgb: NDArray[np.uint8], quality: int = JPEG_QUALITY) -> bytes:
    """A picture as JPEG bytes, with full colour resolution."""
    import simplejpeg

    pixels = np.ascontiguousarray(rgb)
    data: bytes = simplejpeg.encode_jpeg(pixels, quality=quality, colorspace="RGB", colorsubsampling="444")
    return data


def decode_jpeg(data: bytes, least_side: int = 0) -> NDArray[np.uint8]:
    """JPEG bytes to (h, w, 3), red first. The decoder may reduce the picture, which is faster, to sides of at
    least `least_side`; 0 means full size. Raises ValueError."""
    import simplejpeg

    least = {"min_height": least_side, "min_width": least_side}
    return np.asarray(simplejpeg.decode_jpeg(data, "RGB", strict=True, **least), np.uint8)


def read_image(path: Path, least_side: int = 0) -> NDArray[np.uint8]:
    """Read an image file to (h, w, 3), red first; a JPEG may be reduced as by `decode_jpeg`."""
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


def image_files(folder: Path) -> list[Path]:
    """The image files of a folder in natural order; hidden files are left out."""
    files = (p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
    return sorted(files, key=lambda p: natural_key(p.name))


class ImageFolder:
    """A recording stored as one image file per frame, taken at `fps` images per second."""

    def __init__(self, path: Path | str, fps: Fraction) -> None:
        self.path = Path(path)
        self._files = image_files(self.path)
        if not self._files:
            raise DataError(f"{self.path}: no images in it ({', '.join(sorted(SUFFIXES))}).")
        n = len(self._files)
        first = read_image(self._files[0])
        self.info = VideoInfo(str(self.path), "images", first.shape[:2], fps, n, float(n / fps), False, None)
        self.report = ReadReport()

    def samples(self, fps: Fraction, by: By = "auto") -> Iterator[Frame]:
        """Images that become samples, in order; images are evenly spaced, so `by` makes no difference."""
        self.report = report = ReadReport(n_frames=self.info.n_frames)
        rule = IndexSampling.between(self.info.fps, fps)
        last: NDArray[np.uint8] | None = None
        unreadable: list[int] = []  # images before the first readable one, which replaces them
        for k in range(rule.n_samples(self.info.n_frames)):
            index = rule.frame_of(k)
            try:
                last = read_image(self._files[index])
                report.n_decoded += 1
            except DataError as error:
                report.n_corrupt += 1
                report.held.append(index)
                report.warnings.append(f"{error} The previous picture replaces it.")
            if last is None:
                unreadable.append(index)
                continue
            for late in [*unreadable, index]:
                yield Frame(late, float(late / self.info.fps), last)
            unreadable = []
        if last is None:
            raise DataError(f"{self.path}: none of the images can be read.")
