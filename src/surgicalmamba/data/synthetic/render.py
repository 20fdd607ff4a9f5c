"""Pixels: one frame from a patient's pictures and the tracks. A frame depends on its index alone, not on the frames before it."""

import math

import cv2
import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.synthetic.anatomy import Anatomy, Sprite, sprite
from surgicalmamba.data.synthetic.compositing import Placement, dim, glow, place, shoot
from surgicalmamba.data.synthetic.instruments import N_OPENINGS, Tool, draw_bag, draw_clip, draw_instruments
from surgicalmamba.data.synthetic.motion import Hand, Tracks
from surgicalmamba.data.synthetic.shading import Bytes, noise, smooth_step, to_bytes

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
        view = np.asarray(cv2.multiply(view, self._light, scale=1 / _GAIN), dtype=np.uint8)
        dy, dx = (i * 37) % 64, (i * 23) % 64
        view = np.asarray(cv2.subtract(view, self._grain[dy : dy + VIEW_HW[0], dx : dx + VIEW_HW[1]]), dtype=np.uint8)
        picture = np.zeros((*FRAME_HW, 3), dtype=np.uint8)
        picture[:, _MARGIN_X : _MARGIN_X + VIEW_HW[1]] = view
        return picture

    def _camera(self, i: int) -> Placement:
        camera = self._tracks.camera
        return Placement((float(camera.x[i]), float(camera.y[i])), _CENTRE, float(camera.roll[i]), float(camera.zoom[i]))

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
        place(view, self._anatomy.gallbladder, Placement(self._anatomy.gallbladder.anchor, (x, y), turn, stretch), shadow=(5, 9))

    def _duct(self, view: Bytes, i: int, camera: Placement) -> None:
        t = self._tracks
        opacity = min(float(t.duct[i]), 1.0)
        at = camera.forward(*_DUCT_AT)
        duct = Placement(self._anatomy.duct.anchor, at, camera.angle - 0.25, camera.scale)
        place(view, self._anatomy.duct, duct, shadow=(3, 6), opacity=opacity)
        for offset in _CLIPS_AT[: int(t.clips[i])]:
            spot = duct.forward(duct.anchor[0] + offset, duct.anchor[1])
            place(view, self._clip, Placement(self._clip.anchor, spot, duct.angle + 0.1, 0.8 * camera.scale), (2, 3), opacity)

    def _blood(self, view: Bytes, i: int, camera: Placement) -> None:
        stain = self._anatomy.stain
        for bleeding in self._tracks.bleedings:
            if not bleeding.start <= i < bleeding.start + len(bleeding.size):
                continue
            size = float(bleeding.size[i - bleeding.start])
            levels = np.clip((np.arange(256) - 255.0 * (1.0 - size)) * 4.5, 0.0, 225.0).round().astype(np.uint8)
            alpha = np.asarray(cv2.LUT(stain, levels), dtype=np.uint8)
            rgba = np.dstack([dim(self._anatomy.stain_rgb, alpha), alpha])
            pool = Sprite(rgba, (stain.shape[1] / 2, stain.shape[0] * 0.36))
            place(view, pool, Placement(pool.anchor, camera.forward(bleeding.x, bleeding.y), camera.angle, 0.95 * camera.scale))

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

    def _instrument(self, view: Bytes, hand: Hand, i: int, trocar: tuple[float, float], flip: bool) -> tuple[float, float] | None:
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
        strength = float(self._tracks.water[i])
        place(view, self._jet, Placement(self._jet.anchor, tip, angle, 1.0 + 0.06 * (i % 3), i % 2 == 0), opacity=strength)

    def _smoke(self, view: Bytes, i: int) -> None:
        cloud = self._anatomy.smoke
        width = cloud.shape[0] * VIEW_HW[1] // VIEW_HW[0]
        room = cloud.shape[1] - width
        step = (3 * i) % (2 * room)
        x = step if step < room else 2 * room - step
        level = float(self._tracks.smoke[i])
        table = np.clip(np.arange(256) * (0.95 * level) + 40.0 * level - 8.0, 0.0, 235.0).round().astype(np.uint8)
        small = cv2.LUT(np.ascontiguousarray(cloud[:, x : x + width]), table)
        alpha = np.asarray(cv2.resize(small, (VIEW_HW[1], VIEW_HW[0])), dtype=np.uint8)
        grey = cv2.cvtColor(cv2.convertScaleAbs(alpha, alpha=0.78), cv2.COLOR_GRAY2RGB)
        view[:] = cv2.add(dim(view, np.asarray(cv2.bitwise_not(alpha), dtype=np.uint8)), grey)

    def _room(self, i: int) -> Bytes:
        aim = (round(300.0 + 40.0 * math.sin(i * 0.11), 3), round(230.0 + 25.0 * math.sin(i * 0.083 + 1.0), 3))
        swung = Placement(aim, _CENTRE, 2.0 * float(self._tracks.camera.roll[i]), 1.1)
        return shoot(self._anatomy.room, swung, VIEW_HW[1], VIEW_HW[0])

    def _through_trocar(self, view: Bytes, opened: float) -> None:
        """Close the view to a bright disc at the end of the trocar's steel tube."""
        radius = 200.0 * opened
        steps = np.arange(256, dtype=np.float64)
        clear = np.clip((radius - steps) * 40.0 + 255.0, 0.0, 255.0).round().astype(np.uint8)
        wall = np.clip(90.0 - np.abs(steps - radius - 14.0) * 4.0, 0.0, 90.0) + np.clip(38.0 - np.abs(steps - radius - 60.0), 0.0, 38.0)
        ring = cv2.LUT(self._distance, np.where(steps > radius, wall, 0.0).round().astype(np.uint8))
        disc = np.asarray(cv2.LUT(self._distance, clear), dtype=np.uint8)
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
    look = anatomy.look
    radius = _radius(anatomy)
    lamp = 1.14 - look.falloff * smooth_step(0.25, 1.25, radius / look.scope_radius)
    stop = smooth_step(look.scope_radius + 1.2, look.scope_radius - 1.2, radius)
    return to_bytes(np.clip((lamp * stop * look.brightness)[..., None] * np.array(look.tint) * _GAIN / 255.0, 0.0, 1.0))


def _spark() -> Bytes:
    y, x = np.mgrid[-20:21, -20:21].astype(np.float64)
    radius = np.sqrt(x * x + y * y)
    core, halo = np.clip(1.0 - radius / 5.0, 0.0, 1.0), np.clip(1.0 - radius / 20.0, 0.0, 1.0) ** 2
    return to_bytes(core[..., None] * np.array((1.0, 0.95, 0.85)) + 0.45 * halo[..., None] * np.array((1.0, 0.72, 0.42)))


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
    return sprite(np.broadcast_to(np.array((0.90, 0.94, 0.97)), (height, width, 3)), alpha, (0.0, height / 2))
