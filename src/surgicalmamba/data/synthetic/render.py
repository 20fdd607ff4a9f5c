"""Pixels: one frame from a patient's pictures and the tracks. A frame depends on its index alone.

Pictures are placed on pictures in integers, so that every processor gives the same bytes. Of OpenCV's 8-bit
operations, `warpAffine` (linear) and `addWeighted` round differently with and without vector units. `remap`
with fixed-point maps, `multiply`, `add`, `LUT`, `blur`, `GaussianBlur` and `resize` do not; only these are
used."""

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.synthetic.anatomy import Anatomy, Sprite, sprite
from surgicalmamba.data.synthetic.instruments import N_OPENINGS, Tool, draw_bag, draw_clip, draw_instruments
from surgicalmamba.data.synthetic.motion import Hand, Tracks
from surgicalmamba.data.synthetic.shading import Bytes, noise, plain, smooth_step, to_bytes

_UNIT = 32  # remap's fixed-point maps count in 1/32 pixel
_FRACTION = 10  # further bits kept while adding up a map
_LEVELS = np.arange(256, dtype=np.float64)
Point = tuple[float, float]
Window = tuple[slice, slice]


def as_bytes(picture: cv2.typing.MatLike) -> Bytes:
    """A result of OpenCV, typed."""
    return np.asarray(picture, dtype=np.uint8)


def _look_up(picture: Bytes, levels: NDArray[np.float64]) -> Bytes:
    """Replace every value of a picture (h, w) by its level."""
    return as_bytes(cv2.LUT(picture, levels.round().astype(np.uint8)))


@dataclass(frozen=True)
class Placement:
    """Similarity from a picture to the view: `anchor` of the picture lands on `at`, turned by `angle` and
    scaled."""

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
        """Rows of the map from view to picture in fixed point: x = (a x' + b y' + c), y = (d x' + e y' +
        f)."""
        cos, sin = math.cos(self.angle) / self.scale, math.sin(self.angle) / self.scale
        sign = -1.0 if self.flip else 1.0
        c = self.anchor[0] - cos * self.at[0] - sin * self.at[1]
        f = self.anchor[1] - sign * (-sin * self.at[0] + cos * self.at[1])
        unit = _UNIT << _FRACTION
        values = (cos, sin, c, -sign * sin, sign * cos, f)
        a, b, c_, d, e, f_ = (round(round(value, 7) * unit) for value in values)
        return a, b, c_, d, e, f_


def fixed_maps(
    placement: Placement, x0: int, y0: int, width: int, height: int
) -> tuple[NDArray[np.int16], NDArray[np.uint16]]:
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
    return whole, source_y.astype(np.uint16)


def shoot(picture: Bytes, placement: Placement, width: int, height: int) -> Bytes:
    """The picture as the camera sees it; beyond its rim it is mirrored."""
    maps = fixed_maps(placement, 0, 0, width, height)
    return as_bytes(cv2.remap(picture, *maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101))


def window(
    size_hw: tuple[int, int], placement: Placement, view_hw: tuple[int, int]
) -> tuple[int, int, int, int] | None:
    """Bounding box (x0, y0, x1, y1) of a placed picture inside the view, or None when it lies outside."""
    xs, ys = zip(*(placement.forward(x, y) for x in (0, size_hw[1]) for y in (0, size_hw[0])), strict=True)
    x0, x1 = max(math.floor(min(xs)), 0), min(math.ceil(max(xs)), view_hw[1])
    y0, y1 = max(math.floor(min(ys)), 0), min(math.ceil(max(ys)), view_hw[0])
    return (x0, y0, x1, y1) if x1 > x0 and y1 > y0 else None


def place(
    view: Bytes,
    sprite: Sprite,
    placement: Placement,
    shadow: tuple[int, int] | None = None,
    opacity: float = 1.0,
) -> None:
    """Draw a sprite into the view, in place; `shadow` is the offset (x, y) of the soft shadow it throws."""
    box = window((sprite.rgba.shape[0], sprite.rgba.shape[1]), placement, (view.shape[0], view.shape[1]))
    if box is None:
        return
    x0, y0, x1, y1 = box
    maps = fixed_maps(placement, x0, y0, x1 - x0, y1 - y0)
    rgba = cv2.remap(sprite.rgba, *maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT)
    if opacity < 1.0:
        rgba = cv2.convertScaleAbs(rgba, alpha=opacity)
    alpha = as_bytes(cv2.extractChannel(rgba, 3))
    if shadow is not None:
        _darken(view, alpha, x0 + shadow[0], y0 + shadow[1])
    under = dim(view[y0:y1, x0:x1], as_bytes(cv2.bitwise_not(alpha)))
    view[y0:y1, x0:x1] = cv2.add(under, cv2.cvtColor(rgba, cv2.COLOR_RGBA2RGB))


def _darken(view: Bytes, alpha: Bytes, x: int, y: int) -> None:
    """Half the light where a blurred shape falls."""
    keep = as_bytes(cv2.bitwise_not(cv2.convertScaleAbs(cv2.blur(alpha, (11, 11)), alpha=0.5)))
    if overlap := _overlap(view, keep, x, y):
        view[overlap[0]] = dim(view[overlap[0]], keep[overlap[1]])


def _overlap(view: Bytes, picture: Bytes, x: int, y: int) -> tuple[Window, Window] | None:
    """The part of the view that a picture at (x, y) covers, and that part of the picture; None without
    any."""
    x0, y0 = max(x, 0), max(y, 0)
    x1, y1 = min(x + picture.shape[1], view.shape[1]), min(y + picture.shape[0], view.shape[0])
    if x1 <= x0 or y1 <= y0:
        return None
    return (slice(y0, y1), slice(x0, x1)), (slice(y0 - y, y1 - y), slice(x0 - x, x1 - x))


def dim(rgb: Bytes, keep: Bytes) -> Bytes:
    """Multiply colours by a mask (h, w) of 0 to 255."""
    return as_bytes(cv2.multiply(rgb, cv2.cvtColor(keep, cv2.COLOR_GRAY2RGB), scale=1 / 255))


def glow(view: Bytes, light: Bytes, x: float, y: float) -> None:
    """Add a small light (h, w, 3), centred at a point, in place."""
    left, top = round(x) - light.shape[1] // 2, round(y) - light.shape[0] // 2
    if overlap := _overlap(view, light, left, top):
        view[overlap[0]] = cv2.add(view[overlap[0]], light[overlap[1]])


FRAME_HW = (270, 480)
VIEW_HW = (270, 360)  # the part of the frame the round view can reach; the rest is margin
_MARGIN_X = (FRAME_HW[1] - VIEW_HW[1]) // 2
_CENTRE = (VIEW_HW[1] / 2, VIEW_HW[0] / 2)
_GAIN = 190.0  # value of the light map that leaves a colour as it is

_LEFT_TROCAR = (-95.0, -30.0)
_RIGHT_TROCAR = (455.0, 20.0)
_GALLBLADDER_AT = (262.0, 158.0)
_DUCT_AT = (332.0, 250.0)
_CLIPS_AT = (-26.0, -14.0, 22.0)
_BAG_AT = (212.0, 172.0)


class Renderer:
    """Renders any frame of one procedure. Owns the patient's pictures for as long as it lives."""

    def __init__(self, anatomy: Anatomy, tracks: Tracks, rng: np.random.Generator) -> None:
        self._anatomy = anatomy
        self._tracks = tracks
        self._instruments = draw_instruments()
        self._clip = draw_clip()
        self._open_bag = draw_bag(rng, anatomy.look.gallbladder, is_open=True)
        self._shut_bag = draw_bag(rng, anatomy.look.gallbladder, is_open=False)
        self._light = _light_map(anatomy)
        self._distance = _distance_map(anatomy)
        self._spark = _spark()
        self._jet = _jet(rng)
        self._grain = rng.integers(0, 7, (VIEW_HW[0] + 64, VIEW_HW[1] + 64, 3), dtype=np.uint8)

    def frame(self, i: int) -> NDArray[np.uint8]:
        """Frame i as RGB bytes (270, 480, 3)."""
        outside = float(self._tracks.outside[i])
        view = self._room(i) if outside > 0.5 else self._inside(i)
        if outside > 0.0:
            self._through_trocar(view, abs(outside - 0.5) * 2.0)
        self._defocus(view, i)
        lit = as_bytes(cv2.multiply(view, self._light, scale=1 / _GAIN))
        dy, dx = (i * 37) % 64, (i * 23) % 64
        grain = self._grain[dy : dy + VIEW_HW[0], dx : dx + VIEW_HW[1]]
        picture = np.zeros((*FRAME_HW, 3), dtype=np.uint8)
        picture[:, _MARGIN_X : _MARGIN_X + VIEW_HW[1]] = cv2.subtract(lit, grain)
        return picture

    def _camera(self, i: int) -> Placement:
        x, y, zoom, roll = (float(track[i]) for track in vars(self._tracks.camera).values())
        return Placement((x, y), _CENTRE, roll, zoom)

    def _inside(self, i: int) -> Bytes:
        t = self._tracks
        camera = self._camera(i)
        view = shoot(self._anatomy.field, camera, VIEW_HW[1], VIEW_HW[0])
        if t.duct[i] > 0.02:
            self._duct(view, i, camera)
        if t.gallbladder[i] > 0.0:
            self._gallbladder(view, i, camera)
        self._blood(view, i, camera)
        if t.bag[i] > 0.0:
            self._bag(view, i)
        self._instrument(view, t.left, i, _LEFT_TROCAR, False)
        right_tip = self._instrument(view, t.right, i, _RIGHT_TROCAR, True)
        if right_tip is not None and t.water[i] > 0.05:
            self._water(view, i, right_tip)
        if right_tip is not None and t.spark[i] > 0.5 and i % 3 != 2:
            glow(view, self._spark, *right_tip)
        if t.smoke[i] > 0.03:
            self._smoke(view, i)
        return view

    def _gallbladder(self, view: Bytes, i: int, camera: Placement) -> None:
        t = self._tracks
        away = 1.0 - float(t.gallbladder[i])
        aside = float(t.duct[i])
        x, y = camera.forward(
            _GALLBLADDER_AT[0] + 0.8 * float(t.pull_x[i]) - 150.0 * away - 62.0 * aside,
            _GALLBLADDER_AT[1] + 0.8 * float(t.pull_y[i]) - 190.0 * away - 58.0 * aside,
        )
        turn = camera.angle + self._anatomy.look.lie + 0.006 * float(t.pull_x[i])
        stretch = camera.scale * (1.12 + 0.002 * float(t.pull_y[i]))
        gallbladder = self._anatomy.gallbladder
        place(view, gallbladder, Placement(gallbladder.anchor, (x, y), turn, stretch), shadow=(5, 9))

    def _duct(self, view: Bytes, i: int, camera: Placement) -> None:
        t = self._tracks
        opacity = min(float(t.duct[i]), 1.0)
        at = camera.forward(*_DUCT_AT)
        duct = Placement(self._anatomy.duct.anchor, at, camera.angle - 0.25, camera.scale)
        place(view, self._anatomy.duct, duct, shadow=(3, 6), opacity=opacity)
        for offset in _CLIPS_AT[: int(t.clips[i])]:
            spot = duct.forward(duct.anchor[0] + offset, duct.anchor[1])
            clip = Placement(self._clip.anchor, spot, duct.angle + 0.1, 0.8 * camera.scale)
            place(view, self._clip, clip, (2, 3), opacity)

    def _blood(self, view: Bytes, i: int, camera: Placement) -> None:
        stain = self._anatomy.stain
        for bleeding in self._tracks.bleedings:
            if not bleeding.start <= i < bleeding.start + len(bleeding.size):
                continue
            size = float(bleeding.size[i - bleeding.start])
            levels = np.clip((_LEVELS - 255.0 * (1.0 - size)) * 4.5, 0.0, 225.0)
            alpha = _look_up(stain, levels)
            rgba = np.dstack([dim(self._anatomy.stain_rgb, alpha), alpha])
            pool = Sprite(rgba, (stain.shape[1] / 2, stain.shape[0] * 0.36))
            at = camera.forward(bleeding.x, bleeding.y)
            place(view, pool, Placement(pool.anchor, at, camera.angle, 0.95 * camera.scale))

    def _bag(self, view: Bytes, i: int) -> None:
        t = self._tracks
        bag = self._open_bag if t.bag_is_open[i] else self._shut_bag
        hidden = 1.0 - float(t.bag[i])
        sway = 4.0 * math.sin(i * 0.21)
        at = (_BAG_AT[0] + 170.0 * hidden + sway, _BAG_AT[1] + 130.0 * hidden - 0.4 * sway)
        place(view, bag, Placement(bag.anchor, at, 0.03 * sway, 1.12), shadow=(6, 10))
        if t.bag_is_open[i] and hidden == 0.0 and t.left.reach[i] > 0.5:
            held = Placement((66.0, 66.0), (float(t.left.x[i]) + 6.0, float(t.left.y[i]) + 8.0), 0.25, 0.62)
            place(view, self._anatomy.gallbladder, held, shadow=(5, 8))

    def _instrument(self, view: Bytes, hand: Hand, i: int, trocar: Point, flip: bool) -> Point | None:
        """Draw the hand's tool and give the place of its tip; None while nothing is in view."""
        reach = float(hand.reach[i])
        if reach == 0.0 or hand.tool[i] < 0:
            return None
        pictures = self._instruments[Tool(int(hand.tool[i]))]
        picture = pictures[min(int(hand.jaws[i] * N_OPENINGS), len(pictures) - 1)]
        eased = reach * (2.0 - reach)
        dx, dy = float(hand.x[i]) - trocar[0], float(hand.y[i]) - trocar[1]
        tip = (trocar[0] + dx * eased, trocar[1] + dy * eased)
        scale = 0.98 + 0.12 * float(self._tracks.camera.zoom[i] - 1.0)
        place(view, picture, Placement(picture.anchor, tip, math.atan2(dy, dx), scale, flip), shadow=(9, 15))
        return tip

    def _water(self, view: Bytes, i: int, tip: tuple[float, float]) -> None:
        angle = math.atan2(tip[1] - _RIGHT_TROCAR[1], tip[0] - _RIGHT_TROCAR[0])
        jet = Placement(self._jet.anchor, tip, angle, 1.0 + 0.06 * (i % 3), i % 2 == 0)
        place(view, self._jet, jet, opacity=float(self._tracks.water[i]))

    def _smoke(self, view: Bytes, i: int) -> None:
        cloud = self._anatomy.smoke
        width = cloud.shape[0] * VIEW_HW[1] // VIEW_HW[0]
        room = cloud.shape[1] - width
        step = (3 * i) % (2 * room)
        x = step if step < room else 2 * room - step
        level = float(self._tracks.smoke[i])
        levels = np.clip(_LEVELS * (0.95 * level) + 40.0 * level - 8.0, 0.0, 235.0)
        small = _look_up(np.ascontiguousarray(cloud[:, x : x + width]), levels)
        alpha = as_bytes(cv2.resize(small, (VIEW_HW[1], VIEW_HW[0])))
        grey = cv2.cvtColor(cv2.convertScaleAbs(alpha, alpha=0.78), cv2.COLOR_GRAY2RGB)
        view[:] = cv2.add(dim(view, as_bytes(cv2.bitwise_not(alpha))), grey)

    def _room(self, i: int) -> Bytes:
        x, y = 300.0 + 40.0 * math.sin(i * 0.11), 230.0 + 25.0 * math.sin(i * 0.083 + 1.0)
        swung = Placement((round(x, 3), round(y, 3)), _CENTRE, 2.0 * float(self._tracks.camera.roll[i]), 1.1)
        return shoot(self._anatomy.room, swung, VIEW_HW[1], VIEW_HW[0])

    def _through_trocar(self, view: Bytes, opened: float) -> None:
        """Close the view to a bright disc at the end of the trocar's steel tube."""
        radius = 200.0 * opened
        wall = np.clip(90.0 - np.abs(_LEVELS - radius - 14.0) * 4.0, 0.0, 90.0)
        wall = wall + np.clip(38.0 - np.abs(_LEVELS - radius - 60.0), 0.0, 38.0)
        ring = _look_up(self._distance, np.where(radius < _LEVELS, wall, 0.0))
        disc = _look_up(self._distance, np.clip((radius - _LEVELS) * 40.0 + 255.0, 0.0, 255.0))
        view[:] = cv2.add(dim(view, disc), cv2.cvtColor(ring, cv2.COLOR_GRAY2RGB))

    def _defocus(self, view: Bytes, i: int) -> None:
        kernel = 2 * min(int(self._tracks.defocus[i] * 2.5), 3) + 1
        if kernel > 1:
            view[:] = cv2.blur(cv2.blur(view, (kernel, kernel)), (kernel, kernel))


def _radius(anatomy: Anatomy) -> NDArray[np.float64]:
    y, x = np.mgrid[0 : VIEW_HW[0], 0 : VIEW_HW[1]].astype(np.float64)
    cx, cy = anatomy.look.scope_centre
    return np.asarray(np.sqrt((x - cx) ** 2 + (y - cy) ** 2))


def _distance_map(anatomy: Anatomy) -> Bytes:
    return np.clip(np.round(_radius(anatomy)), 0, 255).astype(np.uint8)


def _light_map(anatomy: Anatomy) -> Bytes:
    """The lamp's fall-off towards the rim, the colour of the light, and the round stop of the scope."""
    look, radius = anatomy.look, _radius(anatomy)
    lamp = 1.14 - look.falloff * smooth_step(0.25, 1.25, radius / look.scope_radius)
    stop = smooth_step(look.scope_radius + 1.2, look.scope_radius - 1.2, radius)
    light = (lamp * stop * look.brightness)[..., None] * np.array(look.tint)
    return to_bytes(np.clip(light * _GAIN / 255.0, 0.0, 1.0))


def _spark() -> Bytes:
    y, x = np.mgrid[-20:21, -20:21].astype(np.float64)
    radius = np.sqrt(x * x + y * y)
    core, halo = np.clip(1.0 - radius / 5.0, 0.0, 1.0), np.clip(1.0 - radius / 20.0, 0.0, 1.0) ** 2
    white, amber = np.array((1.0, 0.95, 0.85)), np.array((1.0, 0.72, 0.42))
    return to_bytes(core[..., None] * white + 0.45 * halo[..., None] * amber)


def _jet(rng: np.random.Generator) -> Sprite:
    """A fan of water with droplets, leaving the tip along +x."""
    height, width = 90, 120
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    spread = 3.0 + 0.26 * x
    across = np.abs(y - height / 2) / spread
    streaks = noise(rng, (height, width), 8.0, 3, 6.0)
    fan = np.clip(1.0 - across, 0.0, 1.0) * (0.55 + 0.5 * streaks) * smooth_step(width * 1.0, width * 0.35, x)
    drops = smooth_step(0.72, 0.95, noise(rng, (height, width), 6.0, 2)) * np.clip(1.3 - across, 0.0, 1.0)
    alpha = np.clip(0.75 * fan + 0.8 * drops, 0.0, 0.85)
    return sprite(plain((0.90, 0.94, 0.97), (height, width)), alpha, (0.0, height / 2))

