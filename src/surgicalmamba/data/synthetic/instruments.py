"""The instruments as sprites, drawn once per procedure: each lies along +x with its tip at the anchor, the
shaft running back to x = 0.

Everything is made of tubes with a material: steel, the black insulation of shafts, white ceramic, blue
polymer."""

from dataclasses import dataclass
from enum import Enum
from functools import cache

import numpy as np

from surgicalmamba.data.synthetic.anatomy import Sprite, sprite
from surgicalmamba.data.synthetic.shading import Colour, Image, light, mix, noise, plain, smooth_step, tube

SPRITE_HW = (78, 380)
TIP_X = 372.0
MIDDLE = 39.0
N_OPENINGS = 4
BAG_HW = (190, 230)


class Tool(Enum):
    """Instruments in the order of Cholec80's tool files."""

    GRASPER = 0
    BIPOLAR = 1
    HOOK = 2
    SCISSORS = 3
    CLIPPER = 4
    IRRIGATOR = 5
    BAG = 6


@dataclass(frozen=True)
class Material:
    """Colour, share of ambient light, strength and sharpness of the highlight."""

    colour: Colour
    ambient: float
    shine: float
    gloss: int


STEEL = Material((0.66, 0.68, 0.70), 0.30, 0.75, 14)
BRIGHT_STEEL = Material((0.80, 0.82, 0.84), 0.34, 0.85, 22)
INSULATION = Material((0.085, 0.085, 0.095), 0.45, 0.42, 10)
CERAMIC = Material((0.88, 0.86, 0.80), 0.45, 0.35, 12)
POLYMER = Material((0.16, 0.34, 0.62), 0.40, 0.45, 14)
TITANIUM = Material((0.88, 0.89, 0.92), 0.42, 0.9, 18)

Points = list[tuple[float, float]]


class _Canvas:
    """A sprite being built: parts are laid over one another."""

    def __init__(self, size_hw: tuple[int, int]) -> None:
        self.size_hw = size_hw
        self.colour: Image = np.zeros((*size_hw, 3))
        self.alpha: Image = np.zeros(size_hw)

    def part(self, points: Points, radii: list[float], material: Material) -> None:
        """Lay a tube of a material over what is there."""
        cover, ridge, across, _ = tube(self.size_hw, points, radii)
        facing = np.clip(0.42 * across + 0.91 * ridge, 0.0, 1.0)
        body = np.array(material.colour) * (material.ambient + (1.0 - material.ambient) * facing[..., None])
        glint = material.shine * np.clip(0.30 * across + 0.954 * ridge, 0.0, 1.0) ** float(material.gloss * 3)
        rebound = 0.10 * smooth_step(-0.55, -0.95, across)  # tissue colour reflected on the lower side
        self._over(body + glint[..., None] + rebound[..., None] * np.array((0.9, 0.35, 0.28)), cover)

    def collar(self, start: float, end: float, radii: list[float], material: Material) -> None:
        """A part along the axis, between two distances from the tip."""
        self.part([(TIP_X - start, MIDDLE), (TIP_X - end, MIDDLE)], radii, material)

    def jaws(
        self, length: float, angle: float, radii: list[float], material: Material, bend: float = 0.0
    ) -> None:
        """Two jaws from their hinge, each opened by `angle` to its side."""
        for sign in (1.0, -1.0):
            x, slope = TIP_X - length, sign * (angle * length)
            middle = (x + 0.5 * length, MIDDLE + sign * 3.5 + 0.62 * slope)
            tip = (TIP_X, MIDDLE + sign * (2.0 - bend) + slope)
            self.part([(x, MIDDLE + sign * 2.5), middle, tip], radii, material)

    def hole(self, x: float, y: float, radius: float) -> None:
        """A dark opening."""
        cover, _, _, _ = tube(self.size_hw, [(x - 0.1, y), (x + 0.1, y)], [radius, radius])
        self._over(plain((0.05, 0.04, 0.04), self.size_hw), cover)

    def _over(self, colour: Image, cover: Image) -> None:
        self.colour = mix(self.colour, colour, cover)
        self.alpha = self.alpha + (1.0 - self.alpha) * cover

    def finish(self, anchor: tuple[float, float]) -> Sprite:
        return sprite(self.colour, self.alpha, anchor)


@cache
def draw_instruments() -> dict[Tool, tuple[Sprite, ...]]:
    """Sprites of every instrument but the bag, at N_OPENINGS jaw openings (from closed to open); rigid tips
    have one."""
    jaws = [0.17 * level / (N_OPENINGS - 1) for level in range(N_OPENINGS)]
    return {
        Tool.GRASPER: tuple(_grasper(0.03 + angle) for angle in jaws),
        Tool.BIPOLAR: tuple(_bipolar(0.04 + 0.5 * angle) for angle in jaws),
        Tool.HOOK: (_hook(),),
        Tool.SCISSORS: tuple(_scissors(0.05 + 1.4 * angle) for angle in jaws),
        Tool.CLIPPER: tuple(_clipper(0.03 + 0.8 * angle) for angle in jaws),
        Tool.IRRIGATOR: (_irrigator(),),
    }


def _instrument(shaft: tuple[float, float], material: Material) -> _Canvas:
    """A canvas with a shaft (end before the tip, radius)."""
    canvas = _Canvas(SPRITE_HW)
    canvas.part([(-20.0, MIDDLE), (TIP_X - shaft[0], MIDDLE)], [shaft[1], shaft[1]], material)
    return canvas


def _grasper(angle: float) -> Sprite:
    canvas = _instrument((62.0, 11.5), INSULATION)
    canvas.collar(62.0, 46.0, [10.5, 8.5], STEEL)
    canvas.jaws(48.0, angle, [6.0, 5.5, 4.2], BRIGHT_STEEL)
    for k in range(4):
        canvas.hole(TIP_X - 30.0 + 7.0 * k, MIDDLE + 4.0 + angle * (19.0 + 6.5 * k), 1.4)
    canvas.collar(48.5, 47.5, [4.0, 4.0], STEEL)
    return canvas.finish((TIP_X - 2.0, MIDDLE))


def _bipolar(angle: float) -> Sprite:
    canvas = _instrument((70.0, 11.0), POLYMER)
    canvas.collar(72.0, 54.0, [10.5, 8.0], CERAMIC)
    canvas.jaws(56.0, angle, [4.6, 3.6, 3.0], BRIGHT_STEEL, bend=1.0)
    return canvas.finish((TIP_X - 1.0, MIDDLE))


def _hook() -> Sprite:
    canvas = _instrument((44.0, 11.5), INSULATION)
    canvas.collar(46.0, 32.0, [9.0, 5.5], CERAMIC)
    way = [(34.0, 0.0), (8.0, 0.0), (2.0, 4.0), (3.0, 19.0)]
    canvas.part([(TIP_X - x, MIDDLE + y) for x, y in way], [3.4, 3.2, 3.0, 2.6], BRIGHT_STEEL)
    return canvas.finish((TIP_X - 3.0, MIDDLE + 17.0))


def _scissors(angle: float) -> Sprite:
    canvas = _instrument((54.0, 11.5), INSULATION)
    canvas.collar(56.0, 42.0, [10.0, 7.0], STEEL)
    canvas.jaws(44.0, angle, [6.0, 4.6, 1.2], BRIGHT_STEEL, bend=2.0)
    canvas.collar(43.5, 42.5, [3.4, 3.4], STEEL)
    return canvas.finish((TIP_X - 2.0, MIDDLE))


def _clipper(angle: float) -> Sprite:
    canvas = _instrument((50.0, 15.5), STEEL)
    canvas.collar(78.0, 72.0, [16.2, 16.2], POLYMER)
    canvas.collar(52.0, 34.0, [14.5, 10.0], BRIGHT_STEEL)
    canvas.jaws(38.0, angle + 0.10, [7.0, 5.4, 4.6], STEEL)
    if angle > 0.05:  # the loaded clip lies between the open jaws
        for sign in (1.0, -1.0):
            legs = [(TIP_X - 24.0, MIDDLE + sign * 1.5), (TIP_X - 3.0, MIDDLE + sign * 4.2)]
            canvas.part(legs, [1.7, 1.7], TITANIUM)
    return canvas.finish((TIP_X - 3.0, MIDDLE))


def _irrigator() -> Sprite:
    canvas = _instrument((8.0, 11.0), STEEL)
    for k in range(4):
        canvas.hole(TIP_X - 18.0 - 11.0 * k, MIDDLE + (3.0 if k % 2 else -3.0), 2.2)
    canvas.hole(TIP_X - 1.0, MIDDLE, 5.0)
    return canvas.finish((TIP_X, MIDDLE))


def draw_clip() -> Sprite:
    """A closed titanium clip, upright across the duct."""
    canvas = _Canvas((58, 20))
    canvas.part([(8.0, 6.0), (8.0, 52.0)], [2.8, 2.8], TITANIUM)
    canvas.part([(12.5, 6.0), (12.5, 50.0)], [2.2, 2.2], TITANIUM)
    canvas.part([(8.0, 5.0), (12.5, 5.0)], [2.8, 2.8], TITANIUM)
    return canvas.finish((10.0, 28.0))


def draw_bag(rng: np.random.Generator, content: Colour, is_open: bool) -> Sprite:
    """The retrieval bag, translucent film with folds: open with a dark mouth, or drawn shut around its
    content."""
    size = BAG_HW
    folds, creases = noise(rng, size, 46.0, 3, 0.6), noise(rng, size, 20.0, 2, 0.35)
    if is_open:
        points, radii = [(64.0, 58.0), (120.0, 96.0), (168.0, 134.0)], [46.0, 56.0, 36.0]
    else:
        points, radii = [(30.0, 22.0), (70.0, 60.0), (128.0, 108.0), (170.0, 138.0)], [7.0, 24.0, 48.0, 34.0]
    cover, ridge, _, along = tube(size, points, radii, 4.0 * folds)
    film = np.array((0.80, 0.83, 0.86)) * (0.55 + 0.5 * ridge[..., None]) * (0.92 + 0.16 * folds[..., None])
    inside = smooth_step(0.25, 0.75, ridge) * smooth_step(0.15, 0.45, along)
    film = mix(film, np.array(content) * 0.8, 0.55 * inside)
    diffuse, _ = light(30.0 * ridge + 8.0 * folds + 4.0 * creases, 0.13, 1.0, 40)
    _, glint = light(16.0 * ridge + 7.0 * folds + 5.0 * creases, 0.34, 1.0, 70)
    colour = film * diffuse[..., None] + 0.9 * (glint * smooth_step(0.5, 1.0, glint))[..., None]
    alpha = np.clip(cover * (0.66 + 0.26 * (1 - ridge) + 0.3 * glint), 0.0, 1.0)
    if is_open:
        mouth, depth, _, _ = tube(size, [(34.0, 78.0), (84.0, 26.0)], [24.0, 24.0], 2.0 * folds)
        rim, _, _, _ = tube(size, [(34.0, 78.0), (84.0, 26.0)], [27.5, 27.5], 2.0 * folds)
        colour = mix(colour, (0.90, 0.92, 0.95), rim)
        colour = mix(colour, np.array((0.20, 0.15, 0.15)) * (1.3 - 0.9 * depth[..., None]), mouth)
        alpha = np.maximum(alpha, rim * 0.95)
    else:
        cord, _, _, _ = tube(size, [(0.0, 0.0), (34.0, 26.0)], [2.2, 2.2])
        colour = mix(colour, (0.30, 0.36, 0.62), cord)
        alpha = np.maximum(alpha, cord)
    return sprite(colour, alpha, (100.0, 80.0))
