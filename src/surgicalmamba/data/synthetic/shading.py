"""Shapes with light on them: noise, bumps, tubes, vessels. Drawn once per patient, in float64, rounded to
bytes at the end.

Bytes must not depend on the processor. Vector units round the last bit of float32 sums and of sin or exp
differently, so everything here is float64 and ends in one rounding to 8 bits, where a difference of 1e-16 has
no effect."""

from collections.abc import Sequence
from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.float64]  # (h, w) or (h, w, 3), values 0 to 1
Bytes = NDArray[np.uint8]
Colour = tuple[float, float, float]

_LIGHT = (-0.30, -0.42, 0.857)  # the light sits beside the lens: from the upper left, mostly along the view


def to_bytes(image: Image) -> Bytes:
    """Round values from 0 to 1 into 0 to 255."""
    return np.clip(np.round(image * 255.0), 0, 255).astype(np.uint8)


def soften(image: Image, sigma: float) -> Image:
    """Gaussian blur."""
    return np.asarray(cv2.GaussianBlur(image, (0, 0), sigma), dtype=np.float64)


def smooth_step(low: float, high: float, value: Image) -> Image:
    """0 below `low`, 1 above `high`, smooth between."""
    t = np.clip((value - low) / (high - low), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def mix(under: Image, over: Image | Colour, amount: Image | float) -> Image:
    """Blend colour images by a mask (h, w)."""
    weight = np.asarray(amount, dtype=np.float64)
    weight = weight[..., None] if weight.ndim == 2 else weight
    return under + (np.asarray(over, dtype=np.float64) - under) * weight


def plain(colour: Colour, size_hw: tuple[int, int]) -> Image:
    """A picture of one colour."""
    return np.broadcast_to(np.array(colour), (*size_hw, 3))


def noise(
    rng: np.random.Generator, size_hw: tuple[int, int], cell: float, octaves: int = 4, stretch: float = 1.0
) -> Image:
    """Fractal noise around 0 (about -1 to 1); `cell` is the size of the largest features in pixels, `stretch`
    draws them out along x."""
    height, width = size_hw
    total = np.zeros(size_hw)
    weight = 1.0
    for _ in range(octaves):
        rows, columns = max(int(height / cell) + 3, 4), max(int(width / (cell * stretch)) + 3, 4)
        grid = rng.uniform(-1.0, 1.0, (rows, columns))
        total += weight * cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC)
        weight *= 0.5
        cell = max(cell / 2.0, 1.0)
    return total / 1.4


def lobules(rng: np.random.Generator, size_hw: tuple[int, int], spacing: float) -> tuple[Image, Image]:
    """Fat: rounded lobes. Gives height (0 at the crease, 1 on top) and a random shade per lobe."""
    height, width = size_hw
    rows, columns = int(height / spacing) + 2, int(width / spacing) + 2
    ys = (np.arange(rows)[:, None] - 0.5 + rng.uniform(-0.42, 0.42, (rows, columns))) * spacing
    xs = (np.arange(columns)[None, :] - 0.5 + rng.uniform(-0.42, 0.42, (rows, columns))) * spacing
    shades = rng.uniform(0.0, 1.0, rows * columns)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    x = x + 0.5 * spacing * noise(rng, size_hw, spacing * 1.3, 2)
    y = y + 0.5 * spacing * noise(rng, size_hw, spacing * 1.3, 2)
    nearest = np.full(size_hw, np.inf)
    second = np.full(size_hw, np.inf)
    owner = np.zeros(size_hw, dtype=np.int64)
    reach = 2.5 * spacing  # no lobe is the nearest or second nearest from further away
    for index, (cy, cx) in enumerate(zip(ys.ravel().tolist(), xs.ravel().tolist(), strict=True)):
        window = tuple(slice(max(int(c - reach), 0), max(int(c + reach), 0)) for c in (cy, cx))
        distance = np.sqrt((x[window] - cx) ** 2 + (y[window] - cy) ** 2)
        closer = distance < nearest[window]
        second[window] = np.where(closer, nearest[window], np.minimum(second[window], distance))
        owner[window] = np.where(closer, index, owner[window])
        nearest[window] = np.where(closer, distance, nearest[window])
    return smooth_step(0.0, 0.55, (second - nearest) / spacing), shades[owner]


def light(height: Image, strength: float, shine: float, gloss: int) -> tuple[Image, Image]:
    """Light a height field: a diffuse factor around 1, and the wet highlights (0 to 1)."""
    gy, gx = np.gradient(soften(height, 0.8))
    nx, ny = -gx * strength, -gy * strength
    length = np.sqrt(nx * nx + ny * ny + 1.0)
    facing = (nx * _LIGHT[0] + ny * _LIGHT[1] + _LIGHT[2]) / length
    hx, hy, hz = _LIGHT[0] / 2, _LIGHT[1] / 2, (_LIGHT[2] + 1.0) / 2
    h_length = (hx * hx + hy * hy + hz * hz) ** 0.5
    half = np.clip((nx * hx + ny * hy + hz) / (length * h_length), 0.0, 1.0)
    return 0.35 + 0.75 * np.clip(facing, 0.0, 1.0), shine * half ** float(gloss)


def tube(
    size_hw: tuple[int, int],
    points: Sequence[tuple[float, float]],
    radii: Sequence[float],
    wobble: Image | None = None,
) -> tuple[Image, Image, Image, Image]:
    """A round body along a polyline of (x, y) with a radius at each point; `wobble` (pixels) makes its
    outline uneven.

    Gives coverage (0 to 1, one pixel of soft edge), height (0 at the rim, 1 on the ridge), position across
    (-1 to 1, the left of the way positive) and position along (0 to 1)."""
    height, width = size_hw
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    best, radius = np.full(size_hw, np.inf), np.ones(size_hw)
    across, along = np.zeros(size_hw), np.zeros(size_hw)
    lengths = [((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5 for (x0, y0), (x1, y1) in pairwise(points)]
    total, passed = sum(lengths), 0.0
    ends = zip(pairwise(points), pairwise(radii), lengths, strict=True)
    for ((x0, y0), (x1, y1)), (r0, r1), length in ends:
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        s = np.clip((x - x0) * ux + (y - y0) * uy, 0.0, length)
        dx, dy = x - x0 - s * ux, y - y0 - s * uy
        local = r0 + (r1 - r0) * s / length
        if wobble is not None:
            local = local + wobble
        distance = np.sqrt(dx * dx + dy * dy) / local
        closer = distance < best
        best = np.where(closer, distance, best)
        side = np.where(dx * uy - dy * ux >= 0, 1.0, -1.0)
        across = np.where(closer, side * distance, across)
        along = np.where(closer, (passed + s) / total, along)
        radius = np.where(closer, local, radius)
        passed += length
    coverage = np.clip((1.0 - best) * radius + 0.5, 0.0, 1.0)
    ridge = np.sqrt(np.clip(1.0 - best * best, 0.0, 1.0))
    return coverage, ridge, np.clip(across, -1.0, 1.0), along


def vessels(
    rng: np.random.Generator,
    size_hw: tuple[int, int],
    roots: int,
    length: int,
    width: float,
    heading: float | None = None,
) -> Image:
    """Branching vessels as a soft mask; `heading` in radians, None for any direction."""
    height, w = size_hw
    mask = np.zeros(size_hw, dtype=np.uint8)
    branches = []
    for _ in range(roots):
        angle = rng.uniform(0, 6.283) if heading is None else heading + rng.normal(0, 0.4)
        branches.append((rng.uniform(0, w), rng.uniform(0, height), angle, width, length))
    while branches:
        x, y, angle, thick, steps = branches.pop()
        path = [(x, y)]
        for _ in range(steps):
            angle += rng.normal(0.0, 0.22)
            x, y = x + 5.0 * float(np.cos(angle)), y + 5.0 * float(np.sin(angle))
            path.append((x, y))
            if thick > 0.7 and rng.random() < 0.10:
                branches.append((x, y, angle + rng.choice((-0.7, 0.7)), thick * 0.6, steps // 2))
        fixed = np.round(np.array(path) * 16).astype(np.int32).reshape(-1, 1, 2)
        shade = int(min(255.0, 110.0 + 90.0 * thick))
        cv2.polylines(mask, [fixed], False, shade, max(1, round(thick)), cv2.LINE_AA, 4)
    return soften(mask.astype(np.float64) / 255.0, 0.7)
