"""From a camera picture to the stored one: cut the dark margin of the endoscope's round view, then 250 x 250.

The steps are the field's, in its order: height 300; grey above 15; median of that mask over 19 x 19; bounding box; crop; resize
without keeping the aspect ratio. The box is found anew in every frame. White and blue censored frames are brighter than the
threshold and keep their place."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.errors import ConfigError

BoxRule = Literal["inclusive", "exclusive", "all-columns", "none"]
"""How the mask's bounding box is cut.

inclusive     rows and columns of the box, ends included; 10 outer columns on each side always go (SurgicalMamba's release)
exclusive     the same, but the last row and column of the box are lost (TMRNet, Surgformer)
all-columns   as exclusive, with the outer columns searched too (AutoLaparo's own script)
none          no cut, only the resize (TeCNO)"""

SEARCH_HEIGHT = 300
THRESHOLD = 15
MEDIAN_SIZE = 19
OUTER_COLUMNS = 10


@dataclass(frozen=True)
class Preprocess:
    """The deterministic part of image preparation, recorded in the manifest."""

    box: BoxRule = "inclusive"
    size: int = 250

    def __post_init__(self) -> None:
        if self.box not in get_args(BoxRule):
            raise ConfigError(f"box rule {self.box!r} is unknown; choose one of {', '.join(get_args(BoxRule))}.")
        if self.size < 16:
            raise ConfigError(f"image size {self.size} is too small; use 16 or more (the field's is 250).")

    def __call__(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """(h, w, 3) of any size → (size, size, 3)."""
        import cv2

        cut = cut_margin(rgb, self.box)
        return np.asarray(cv2.resize(cut, (self.size, self.size)), np.uint8)


def cut_margin(rgb: NDArray[np.uint8], box: BoxRule) -> NDArray[np.uint8]:
    """Scale to height 300 and crop to the bright part; a frame with none, or with an empty crop, is kept whole."""
    import cv2

    if box == "none":
        return rgb
    height, width = rgb.shape[:2]
    scaled = np.asarray(cv2.resize(rgb, (max(1, int(width / height * SEARCH_HEIGHT)), SEARCH_HEIGHT)), np.uint8)
    mask = binary_median((cv2.cvtColor(scaled, cv2.COLOR_RGB2GRAY) > THRESHOLD).astype(np.uint8))
    outer = 0 if box == "all-columns" else OUTER_COLUMNS
    rows, columns = np.nonzero(mask[:, outer : mask.shape[1] - outer])
    if not len(rows):
        return scaled
    end = 1 if box == "inclusive" else 0
    top, bottom = int(rows.min()), int(rows.max()) + end
    left, right = int(columns.min()) + outer, int(columns.max()) + outer + end
    crop = scaled[top:bottom, left:right]
    return crop if crop.size else scaled


def binary_median(mask: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """The median of a mask of zeros and ones over 19 x 19 neighbours, edges repeated: whether most of the 361 are one.

    A running sum gives what a median filter gives, at a fraction of its time."""
    import cv2

    window = (MEDIAN_SIZE, MEDIAN_SIZE)
    n_bright = np.asarray(cv2.boxFilter(mask, cv2.CV_16U, window, normalize=False, borderType=cv2.BORDER_REPLICATE))
    return n_bright > MEDIAN_SIZE * MEDIAN_SIZE // 2
