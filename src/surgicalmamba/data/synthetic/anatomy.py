"""One patient's abdomen as pictures: the field behind, the gallbladder, the cystic duct, blood, and the room
outside the body.

Colours, fat, texture and the optics of the scope are drawn per patient. Pictures are bytes in RGB; movable
parts have an alpha."""

from dataclasses import dataclass

import numpy as np

from surgicalmamba.data.synthetic.shading import (
    Bytes,
    Colour,
    Image,
    light,
    lobules,
    mix,
    noise,
    plain,
    smooth_step,
    soften,
    to_bytes,
    tube,
    vessels,
)

FIELD_HW = (460, 600)  # larger than the view, so that the camera can move
GALLBLADDER_HW = (210, 300)
DUCT_HW = (150, 250)
STAIN_HW = (150, 170)
SMOKE_HW = (90, 360)


@dataclass(frozen=True)
class Sprite:
    """A movable picture (h, w, 4): RGB already multiplied by alpha, and alpha. `anchor` (x, y) is the point
    it is placed by."""

    rgba: Bytes
    anchor: tuple[float, float]


def sprite(colour: Image, alpha: Image, anchor: tuple[float, float]) -> Sprite:
    """Round colour (h, w, 3) and alpha (h, w) into a sprite."""
    return Sprite(to_bytes(np.dstack([np.clip(colour, 0.0, 1.0) * alpha[..., None], alpha])), anchor)


@dataclass(frozen=True)
class Look:
    """What differs between patients and scopes."""

    liver: Colour
    fat: Colour
    gallbladder: Colour
    serosa: Colour
    fat_level: float
    tint: Colour
    brightness: float
    scope_radius: float
    scope_centre: tuple[float, float]
    falloff: float
    lie: float
    """How the gallbladder lies, radians."""


@dataclass(frozen=True)
class Anatomy:
    """The pictures of one patient."""

    look: Look
    field: Bytes
    gallbladder: Sprite
    duct: Sprite
    stain: Bytes
    """(h, w) how early blood reaches a point: 255 first, 0 never."""
    stain_rgb: Bytes
    smoke: Bytes
    room: Bytes


def draw_anatomy(rng: np.random.Generator) -> Anatomy:
    """Draw one patient."""
    look = _draw_look(rng)
    stain, stain_rgb = _blood(rng)
    smoke = smooth_step(-0.9, 1.1, noise(rng, SMOKE_HW, 44.0, 4, 1.6))
    field, gallbladder, duct = _field(rng, look), _gallbladder(rng, look), _duct(rng, look)
    return Anatomy(look, field, gallbladder, duct, stain, stain_rgb, to_bytes(smoke), _room(rng))


def _vary(rng: np.random.Generator, colour: Colour, amount: float) -> Colour:
    shift = rng.normal(0.0, amount)
    red, green, blue = (min(max(c + shift + rng.normal(0.0, amount * 0.7), 0.03), 0.97) for c in colour)
    return red, green, blue


def _draw_look(rng: np.random.Generator) -> Look:
    greens = [(0.60, 0.62, 0.50), (0.66, 0.56, 0.50), (0.52, 0.60, 0.56), (0.72, 0.66, 0.46)]
    gallbladders = [*greens, (0.58, 0.40, 0.34)]
    return Look(
        liver=_vary(rng, (0.47, 0.185, 0.15), 0.035),
        fat=_vary(rng, (0.86, 0.66, 0.30), 0.035),
        gallbladder=_vary(rng, gallbladders[int(rng.integers(len(gallbladders)))], 0.03),
        serosa=_vary(rng, (0.80, 0.50, 0.44), 0.04),
        fat_level=rng.uniform(-0.16, 0.14),
        tint=(1.0, rng.uniform(0.90, 1.0), rng.uniform(0.84, 1.02)),
        brightness=rng.uniform(0.92, 1.12),
        scope_radius=rng.uniform(139.0, 172.0),
        scope_centre=(180.0 + rng.uniform(-5, 5), 135.0 + rng.uniform(-5, 5)),
        falloff=rng.uniform(0.55, 0.85),
        lie=rng.uniform(0.02, 0.40),
    )


@dataclass
class _Ground:
    """The field being built from behind to front: colour (h, w, 3) and height (h, w) in pixels. Noise that
    several parts share."""

    colour: Image
    height: Image
    x: Image
    y: Image
    bumps: Image
    fine: Image
    fibres: Image

    def lay(self, colour: Image, height: Image, cover: Image) -> None:
        """Put a part over what is there."""
        self.colour = mix(self.colour, colour, cover)
        self.height = self.height * (1.0 - cover) + cover * height


def _field(rng: np.random.Generator, look: Look) -> Bytes:
    """Liver above, the raw gallbladder bed in it, fat and bowel below, the peritoneal sheet between."""
    ground = _sheet(rng, look)
    _lay_fat(rng, look, ground)
    _lay_bowel(rng, look, ground)
    _lay_liver(rng, look, ground)
    _lay_bed(rng, ground)
    # A film of fluid shines on bumps that carry no colour.
    wet = 7.0 * noise(rng, FIELD_HW, 34.0, 3, 1.6) + 0.7 * noise(rng, FIELD_HW, 7.0, 2)
    _, film = light(wet + 0.25 * ground.height, 0.38, 1.0, 70)
    patches = smooth_step(-0.3, 0.5, noise(rng, FIELD_HW, 80.0, 2))
    shine = soften(film * smooth_step(0.50, 1.0, film) * patches, 0.7)
    gleam = (shine + 0.55 * soften(shine, 6.0))[..., None] * np.array((1.0, 0.95, 0.90))
    return to_bytes(_lit(ground.colour, ground.height, 0.11, 0.55, 42) + gleam)


def _sheet(rng: np.random.Generator, look: Look) -> _Ground:
    """Peritoneum and connective tissue, on which everything lies."""
    size = FIELD_HW
    y, x = np.mgrid[0 : size[0], 0 : size[1]].astype(np.float64)
    bumps, fine, fibres = noise(rng, size, 90.0, 5), noise(rng, size, 14.0, 3), noise(rng, size, 12.0, 3, 5.0)
    colour = mix(plain(look.serosa, size) * 0.86, (0.60, 0.22, 0.18), smooth_step(-0.2, 1.0, bumps))
    colour = mix(colour, (0.92, 0.74, 0.62), 0.45 * smooth_step(0.2, 0.9, fibres))
    colour = mix(colour, (0.55, 0.08, 0.08), 0.6 * vessels(rng, size, 10, 34, 1.6, 0.3))
    return _Ground(colour, 9.0 * bumps + 2.2 * fine, x, y, bumps, fine, fibres)


def _lay_fat(rng: np.random.Generator, look: Look, ground: _Ground) -> None:
    """Fat with lobes; how high it reaches differs between patients."""
    size = FIELD_HW
    lobe, shade = lobules(rng, size, rng.uniform(34.0, 50.0))
    lobe, shade = soften(lobe, 3.2), soften(shade, 2.0)
    edge = (ground.y - size[0] * (0.60 - look.fat_level)) / 60.0 + 0.9 * noise(rng, size, 120.0, 3)
    edge = edge - 0.35 * (ground.x - 300.0) / 300.0
    colour = np.array(look.fat) * (0.92 + 0.18 * shade[..., None]) * (0.80 + 0.26 * lobe[..., None])
    creases = 0.55 * (1.0 - smooth_step(0.1, 0.7, lobe)) + 0.2 * smooth_step(0.2, 1.0, ground.bumps)
    colour = mix(colour, (0.86, 0.42, 0.26), creases)
    colour = mix(colour, (0.66, 0.12, 0.08), 0.7 * vessels(rng, size, 12, 26, 1.4))
    height = 11.0 * lobe + 9.0 * ground.bumps + 1.5 * ground.fine + 10.0
    ground.lay(colour, height, smooth_step(-0.05, 0.35, edge))


def _lay_bowel(rng: np.random.Generator, look: Look, ground: _Ground) -> None:
    """The duodenum, a soft tube at the lower right."""
    way = [(330.0, 470.0), (430.0, 410.0), (520.0, 395.0), (620.0, 350.0)]
    cover, ridge, _, _ = tube(FIELD_HW, way, [48.0, 56.0, 50.0, 58.0], 6.0 * noise(rng, FIELD_HW, 70.0, 2))
    colour = np.array(look.serosa) * (0.62 + 0.48 * ridge[..., None])
    colour = mix(colour, (0.70, 0.20, 0.18), 0.5 * vessels(rng, FIELD_HW, 9, 24, 1.1))
    ground.lay(colour, 46.0 * ridge + 1.2 * ground.fine + 3.0 * ground.bumps, cover)


def _lay_liver(rng: np.random.Generator, look: Look, ground: _Ground) -> None:
    """The liver with its sharp lower edge, and the shadow it throws."""
    size = FIELD_HW
    sag = 0.00105 * rng.uniform(0.5, 1.1) * (ground.x - 250.0) ** 2
    edge = size[0] * 0.47 - sag + 0.10 * (ground.x - 300.0) + 16.0 * noise(rng, size, 150.0, 2)
    inside = edge - ground.y  # pixels above the edge
    cover = smooth_step(-1.5, 1.5, inside)
    shadow = smooth_step(-46.0, 0.0, inside) * (1 - cover)
    ground.colour = ground.colour * (1.0 - 0.62 * shadow[..., None])
    grain = noise(rng, size, 5.0, 2)
    colour = np.array(look.liver) * (1.0 + 0.10 * ground.bumps[..., None] + 0.09 * grain[..., None])
    rim = 0.7 * smooth_step(12.0, 0.0, inside) * smooth_step(0.0, 3.0, inside)
    colour = mix(colour, (0.70, 0.36, 0.30), rim)
    rounding = np.sqrt(np.clip(inside / 60.0, 0.0, 1.0))
    ground.lay(colour, 42.0 * rounding + 5.0 * ground.bumps + 0.7 * grain + 18.0, cover)


def _lay_bed(rng: np.random.Generator, ground: _Ground) -> None:
    """The raw bed of the gallbladder: always there, hidden while the gallbladder lies on it."""
    size = FIELD_HW
    way = [(210.0, 110.0), (270.0, 180.0), (330.0, 240.0)]
    cover, ridge, _, _ = tube(size, way, [44.0, 42.0, 22.0], 13.0 * noise(rng, size, 34.0, 3))
    cover = soften(cover, 2.5)
    fibres = smooth_step(0.0, 0.9, ground.fibres + 0.5 * ground.fine)
    colour = mix(plain((0.46, 0.10, 0.08), size), (0.74, 0.50, 0.34), fibres)
    charred = 0.6 * smooth_step(0.45, 1.0, noise(rng, size, 22.0, 3))
    ground.colour = mix(ground.colour, mix(colour, (0.24, 0.13, 0.09), charred), 0.92 * cover)
    ground.height = ground.height - 14.0 * cover * ridge + 2.5 * cover * ground.fine


def _lit(colour: Image, height: Image, strength: float, shine: float, gloss: int) -> Image:
    """A coloured height field under the scope's light."""
    diffuse, highlight = light(height, strength, shine, gloss)
    gleam = highlight * smooth_step(0.25, 1.0, highlight)
    return np.asarray(colour * diffuse[..., None] + gleam[..., None] * np.array((1.0, 0.96, 0.90)))


def _gallbladder(rng: np.random.Generator, look: Look) -> Sprite:
    """The pear: fundus at the upper left, neck at the lower right, wet and veined. Its anchor is where the
    grasper holds it."""
    size = GALLBLADDER_HW
    bumps = noise(rng, size, 55.0, 4)
    points = [(66.0, 66.0), (112.0, 84.0), (160.0, 106.0), (204.0, 134.0), (238.0, 160.0), (262.0, 176.0)]
    radii = [50.0, 56.0, 48.0, 33.0, 18.0, 12.0]
    swelling = rng.uniform(0.84, 1.06)
    cover, ridge, across, along = tube(size, points, [r * swelling for r in radii], 3.0 * bumps)
    base = np.array(look.gallbladder) * (0.58 + 0.50 * ridge[..., None])
    base = mix(base, (0.80, 0.48, 0.42), 0.35 * smooth_step(0.1, 0.9, bumps))
    neck = 0.85 * smooth_step(0.62, 0.95, along + 0.25 * bumps)
    base = mix(base, np.array(look.fat) * 0.95, neck)
    base = mix(base, (0.58, 0.12, 0.11), 0.62 * vessels(rng, size, 9, 24, 1.6, 0.5))
    sides = 0.5 * smooth_step(-0.55, -0.95, across) + 0.35 * smooth_step(0.75, 1.0, across)
    base = mix(base, (0.42, 0.14, 0.12), sides)
    height = 52.0 * swelling * ridge + 3.0 * bumps + 0.5 * noise(rng, size, 9.0, 2)
    _, film = light(0.55 * height + 3.2 * noise(rng, size, 24.0, 3), 0.42, 1.0, 44)
    shine = film * smooth_step(0.62, 1.0, film) * smooth_step(0.25, 0.6, ridge)
    colour = _lit(base, height, 0.07, 0.3, 80) + (0.9 * shine + 0.5 * soften(shine, 5.0))[..., None]
    return sprite(colour, cover, (150.0, 92.0))


def _duct(rng: np.random.Generator, look: Look) -> Sprite:
    """The cystic duct laid bare for clipping, a tube from left to right; its anchor is its middle."""
    size = DUCT_HW
    bumps = noise(rng, size, 26.0, 3)
    colour = np.zeros((*size, 3))
    alpha = np.zeros(size)
    artery = [(0.0, 104.0), (80.0, 96.0), (170.0, 108.0), (249.0, 98.0)]
    duct = [(0.0, 52.0), (60.0, 62.0), (130.0, 60.0), (200.0, 66.0), (249.0, 58.0)]
    for points, radii, tone in (
        (artery, [9.0, 7.0, 7.0, 9.0], (0.80, 0.30, 0.26)),
        (duct, [30.0, 19.0, 15.0, 16.0, 24.0], (0.84, 0.70, 0.52)),
    ):
        cover, ridge, _, _ = tube(size, points, radii, 2.2 * bumps)
        body = np.array(tone) * (0.60 + 0.46 * ridge[..., None]) * (0.8 + 0.2 * np.array(look.tint))
        red = 0.4 * smooth_step(0.3, 1.0, bumps) + 0.4 * vessels(rng, size, 6, 14, 1.1, 0.0)
        body = mix(body, (0.72, 0.22, 0.18), red)
        body = _lit(body, max(radii) * 1.1 * ridge + 1.5 * bumps, 0.16, 1.2, 46)
        colour = mix(colour, body, cover)
        alpha = alpha + (1 - alpha) * cover
    x = np.arange(size[1], dtype=np.float64)[None, :]
    fade = smooth_step(0.0, 26.0, x) * smooth_step(size[1] - 1.0, size[1] - 27.0, x)
    return sprite(colour, alpha * fade, (125.0, 62.0))


def _blood(rng: np.random.Generator) -> tuple[Bytes, Bytes]:
    """How a bleeding spreads: out from its source and down."""
    y, x = np.mgrid[0 : STAIN_HW[0], 0 : STAIN_HW[1]].astype(np.float64)
    cx, cy = STAIN_HW[1] / 2, STAIN_HW[0] * 0.36
    stretch = np.where(y > cy, 1.7, 0.8)
    distance = np.sqrt(((x - cx) / 66.0) ** 2 + ((y - cy) / (44.0 * stretch)) ** 2)
    wobble = noise(rng, STAIN_HW, 34.0, 4)
    streaks = noise(rng, STAIN_HW[::-1], 16.0, 2, 6.0).T
    trickles = smooth_step(0.15, 0.8, streaks) * smooth_step(0.0, 30.0, y - cy)
    reach = np.clip(1.0 - distance + 0.42 * wobble * (0.35 + distance) + 0.22 * trickles, 0.0, 1.0)
    u, v = x / STAIN_HW[1], y / STAIN_HW[0]
    rim = smooth_step(0.0, 0.05, np.minimum.reduce([u, 1 - u, v, 1 - v]))
    fresh = smooth_step(-0.5, 0.8, wobble)
    colour = mix(plain((0.34, 0.012, 0.015), STAIN_HW), (0.52, 0.035, 0.03), fresh)
    _, film = light(5.0 * noise(rng, STAIN_HW, 20.0, 3, 1.5) + 12.0 * reach, 0.42, 1.0, 60)
    return to_bytes(reach * rim), to_bytes(colour + 0.85 * (film * smooth_step(0.55, 1.0, film))[..., None])


def _room(rng: np.random.Generator) -> Bytes:
    """What the scope sees outside: drapes, a glove, the glare of the lamp, out of focus."""
    size = FIELD_HW
    y, x = np.mgrid[0 : size[0], 0 : size[1]].astype(np.float64)
    folds = noise(rng, size, 120.0, 4, 2.5)
    drape = (0.16, 0.42, 0.50) if rng.random() < 0.6 else (0.20, 0.46, 0.36)
    colour = np.array(drape) * (0.9 + 0.45 * folds[..., None])
    hand = [(-20.0, 360.0), (160.0, 300.0), (290.0, 250.0)]
    glove, ridge, _, _ = tube(size, hand, [80.0, 66.0, 40.0], 10.0 * noise(rng, size, 60.0, 2))
    colour = mix(colour, np.array((0.86, 0.82, 0.72)) * (0.5 + 0.5 * ridge[..., None]), glove)
    steel, ridge, _, _ = tube(size, [(400.0, 470.0), (470.0, 260.0), (560.0, -10.0)], [16.0, 16.0, 14.0])
    colour = mix(colour, np.array((0.66, 0.68, 0.70)) * (0.4 + 0.7 * ridge[..., None]), steel)
    lamp = np.exp(-(((x - 420.0) / 130.0) ** 2) - ((y - 90.0) / 90.0) ** 2)
    return to_bytes(soften(colour + lamp[..., None] * np.array((0.95, 0.97, 1.0)), 5.0))
