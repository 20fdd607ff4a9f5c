"""Placing pictures on pictures, in integers, so that every processor gives the same bytes.

Of OpenCV's 8-bit operations, `warpAffine` (linear) and `addWeighted` round differently with and without vector units. `remap` with
fixed-point maps, `multiply`, `add`, `LUT`, `blur`, `GaussianBlur` and `resize` do not; only these are used."""

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.synthetic.anatomy import Sprite
from surgicalmamba.data.synthetic.shading import Bytes

_UNIT = 32  # remap's fixed-point maps count in 1/32 pixel
_FRACTION = 10  # further bits kept while adding up a map


@dataclass(frozen=True)
class Placement:
    """Similarity from a picture to the view: `anchor` of the picture lands on `at`, turned by `angle` and scaled."""

    anchor: tuple[float, float]
    at: tuple[float, float]
    angle: float = 0.0
    scale: float = 1.0
    flip: bool = False

    def forward(self, x: float, y: float) -> tuple[float, float]:
        """A point of the picture in the view."""
        dx, dy = x - self.anchor[0], y - self.anchor[1]
        if self.flip:
            dy = -dy
        cos, sin = math.cos(self.angle) * self.scale, math.sin(self.angle) * self.scale
        return self.at[0] + cos * dx - sin * dy, self.at[1] + sin * dx + cos * dy

    def inverse(self) -> tuple[int, int, int, int, int, int]:
        """Rows of the map from view to picture in fixed point: x = (a x' + b y' + c), y = (d x' + e y' + f)."""
        cos, sin = math.cos(self.angle) / self.scale, math.sin(self.angle) / self.scale
        sign = -1.0 if self.flip else 1.0
        c = self.anchor[0] - cos * self.at[0] - sin * self.at[1]
        f = self.anchor[1] - sign * (-sin * self.at[0] + cos * self.at[1])
        unit = _UNIT << _FRACTION
        a, b, c_, d, e, f_ = (round(round(value, 7) * unit) for value in (cos, sin, c, -sign * sin, sign * cos, f))
        return a, b, c_, d, e, f_


def fixed_maps(placement: Placement, x0: int, y0: int, width: int, height: int) -> tuple[NDArray[np.int16], NDArray[np.uint16]]:
    """Maps of `cv2.remap` for a window of the view whose upper left corner is (x0, y0)."""
    a, b, c, d, e, f = placement.inverse()
    columns = np.arange(x0, x0 + width, dtype=np.int64)
    rows = np.arange(y0, y0 + height, dtype=np.int64)
    half = 1 << (_FRACTION - 1)
    source_x = (a * columns + c + half).astype(np.int32)[None, :] + (b * rows).astype(np.int32)[:, None]
    source_y = (d * columns + f + half).astype(np.int32)[None, :] + (e * rows).astype(np.int32)[:, None]
    source_x >>= _FRACTION
    source_y >>= _FRACTION
    whole = np.empty((height, width, 2), dtype=np.int16)
    np.right_shift(source_x, 5, out=whole[..., 0], casting="unsafe")
    np.right_shift(source_y, 5, out=whole[..., 1], casting="unsafe")
    source_x &= 31
    source_y &= 31
    source_y <<= 5
    source_y |= source_x
    part = source_y.astype(np.uint16)
    return whole, part


def shoot(picture: Bytes, placement: Placement, width: int, height: int) -> Bytes:
    """The picture as the camera sees it; beyond its rim it is mirrored."""
    whole, part = fixed_maps(placement, 0, 0, width, height)
    return np.asarray(cv2.remap(picture, whole, part, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101), dtype=np.uint8)


def window(size_hw: tuple[int, int], placement: Placement, view_hw: tuple[int, int]) -> tuple[int, int, int, int] | None:
    """Bounding box (x0, y0, x1, y1) of a placed picture inside the view, or None when it lies outside."""
    corners = [placement.forward(x, y) for x in (0, size_hw[1]) for y in (0, size_hw[0])]
    x0, x1 = max(math.floor(min(c[0] for c in corners)), 0), min(math.ceil(max(c[0] for c in corners)), view_hw[1])
    y0, y1 = max(math.floor(min(c[1] for c in corners)), 0), min(math.ceil(max(c[1] for c in corners)), view_hw[0])
    return (x0, y0, x1, y1) if x1 > x0 and y1 > y0 else None


def place(view: Bytes, sprite: Sprite, placement: Placement, shadow: tuple[int, int] | None = None, opacity: float = 1.0) -> None:
    """Draw a sprite into the view, in place; `shadow` is the offset (x, y) of the soft shadow it throws."""
    box = window((sprite.rgba.shape[0], sprite.rgba.shape[1]), placement, (view.shape[0], view.shape[1]))
    if box is None:
        return
    x0, y0, x1, y1 = box
    whole, part = fixed_maps(placement, x0, y0, x1 - x0, y1 - y0)
    rgba = cv2.remap(sprite.rgba, whole, part, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT)
    if opacity < 1.0:
        rgba = cv2.convertScaleAbs(rgba, alpha=opacity)
    alpha = np.asarray(cv2.extractChannel(rgba, 3), dtype=np.uint8)
    if shadow is not None:
        _darken(view, alpha, x0 + shadow[0], y0 + shadow[1])
    under = view[y0:y1, x0:x1]
    view[y0:y1, x0:x1] = cv2.add(dim(under, np.asarray(cv2.bitwise_not(alpha), dtype=np.uint8)), cv2.cvtColor(rgba, cv2.COLOR_RGBA2RGB))


def _darken(view: Bytes, alpha: Bytes, x: int, y: int) -> None:
    """Half the light where a blurred shape falls."""
    keep = cv2.bitwise_not(cv2.convertScaleAbs(cv2.blur(alpha, (11, 11)), alpha=0.5))
    x0, y0 = max(x, 0), max(y, 0)
    x1, y1 = min(x + alpha.shape[1], view.shape[1]), min(y + alpha.shape[0], view.shape[0])
    if x1 > x0 and y1 > y0:
        view[y0:y1, x0:x1] = dim(view[y0:y1, x0:x1], np.asarray(keep[y0 - y : y1 - y, x0 - x : x1 - x], dtype=np.uint8))


def dim(rgb: Bytes, keep: Bytes) -> Bytes:
    """Multiply colours by a mask (h, w) of 0 to 255."""
    return np.asarray(cv2.multiply(rgb, cv2.cvtColor(keep, cv2.COLOR_GRAY2RGB), scale=1 / 255), dtype=np.uint8)


def glow(view: Bytes, light: Bytes, x: float, y: float) -> None:
    """Add a small light (h, w, 3), centred at a point, in place."""
    height, width = light.shape[:2]
    left, top = round(x) - width // 2, round(y) - height // 2
    x0, y0 = max(left, 0), max(top, 0)
    x1, y1 = min(left + width, view.shape[1]), min(top + height, view.shape[0])
    if x1 > x0 and y1 > y0:
        view[y0:y1, x0:x1] = cv2.add(view[y0:y1, x0:x1], light[y0 - top : y1 - top, x0 - left : x1 - left])
