"""From stored frames to model input: augmentation for training, a fixed transform for evaluation, and
normalisation.

Frames stay bytes until they reach the model's device: a clip of 256 frames at 224 x 224 is 38 MB as bytes and
154 MB as floats. Resize, crop, shift, scale and rotation are one affine warp; brightness, contrast,
saturation, hue and RGB shift are one colour matrix. By default one draw serves a whole clip, so that only the
surgery moves in it; a draw per frame, as in the authors' release, is an option."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from surgicalmamba.config import Positive, Section
from surgicalmamba.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Frames = NDArray[np.uint8]
Share = Annotated[float, Field(ge=0, lt=1)]
Degrees = Annotated[float, Field(ge=0, le=180)]
RGB = tuple[float, float, float]
_LUMA = np.array((0.299, 0.587, 0.114))
_RESIZE_OVER_CROP = 250 / 224
_ALIASES_BEYOND = 1.5


class AugmentConfig(Section):
    """How training frames are varied. The paper: resize 250, crop 224, "standard augmentation". Amounts
    without a source are ours."""

    resize: Positive | None = Field(
        None,
        description="Side frames are resized to before the crop, pixels; "
        "None keeps the paper's 250 to 224 for any image size.",
    )
    shift: Share = Field(0.05, description="Largest shift, as a share of the side.")
    scale: Share = Field(0.1, description="Largest change of scale, as a share.")
    rotate_deg: Degrees = Field(15.0, description="Largest rotation, degrees. Release: 15.")
    brightness: Share = Field(0.2, description="Largest change of brightness, as a share.")
    contrast: Share = Field(0.2, description="Largest change of contrast about mid-grey, as a share.")
    saturation: Share = Field(0.2, description="Largest change of saturation, as a share.")
    hue_deg: Degrees = Field(5.0, description="Largest turn of hue, degrees.")
    rgb_shift: Annotated[float, Field(ge=0, le=255)] = Field(
        0.0, description="Largest shift of red, green and blue, each by itself, of 255. Release: 15."
    )
    probability: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="How often each group is changed at all: shift, scale and rotation; brightness and "
        "contrast; saturation and hue; RGB. Release: 0.5.",
    )
    draw: Literal["clip", "frame"] = Field(
        "clip", description="One draw for a clip, or a new one for every frame as in the release."
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        """Without newer settings that change nothing: a loader compares its transform by repr, also with old
        runs."""
        newer = {"rgb_shift": 0.0, "probability": 1.0}
        fields = super().__repr_args__()
        return ((name, value) for name, value in fields if (name, value) not in newer.items())


@dataclass(frozen=True)
class Draw:
    """The random choices for a frame: geometry as shares of the side and radians, colours as a matrix on 0 to
    255."""

    crop_x: float
    """Where the crop lies in its free play, 0 (left) to 1 (right)."""
    crop_y: float
    shift_x: float
    shift_y: float
    scale: float
    angle: float
    colour: NDArray[np.float32]
    """(3, 4): three columns for red, green and blue, one for the constant."""


class FrameTransform(Protocol):
    """What a loader needs of a transform. Its repr names every setting; a loader compares it with a saved
    state."""

    @property
    def image_size(self) -> int:
        """Height and width of the result."""

    @property
    def decode_side(self) -> int:
        """A decoder may reduce a frame to sides of at least this; 0 means full size."""

    def draw(self, rng: np.random.Generator, n_frames: int) -> list[Draw]:
        """One draw per frame of a clip."""

    def apply(self, frame_rgb: Frames, draw: Draw, out: Frames) -> None:
        """Transform a frame (h, w, 3) of any size into `out` (image_size, image_size, 3)."""


@dataclass(frozen=True)
class Augment:
    """The training transform."""

    config: AugmentConfig = field(default_factory=AugmentConfig)
    image_size: int = 224

    def __post_init__(self) -> None:
        if self.resize < self.image_size:
            crop = f"the crop of {self.image_size}; use at least {self.image_size}"
            raise InputError(f"augment.resize={self.resize} is smaller than {crop}.")

    @property
    def resize(self) -> int:
        """Side of the frame from which the crop is taken."""
        return self.config.resize or round(self.image_size * _RESIZE_OVER_CROP)

    @property
    def decode_side(self) -> int:
        """The decoder does most of a strong reduction, which is faster and without aliasing."""
        return self.resize

    def draw(self, rng: np.random.Generator, n_frames: int) -> list[Draw]:
        """The same draw for every frame of a clip, or one each."""
        if self.config.draw == "clip":
            return [self._draw(rng)] * n_frames
        return [self._draw(rng) for _ in range(n_frames)]

    def _draw(self, rng: np.random.Generator) -> Draw:
        c = self.config
        crop_x, crop_y = rng.random(2).tolist()
        amounts = rng.uniform(-1.0, 1.0, 8)
        rgb = c.rgb_shift * (rng.uniform(-1.0, 1.0, 3) if c.rgb_shift else np.zeros(3))
        if c.probability < 1:
            moves, lights, tints, shifts = rng.random(4) < c.probability
            amounts *= np.repeat((moves, lights, tints), (4, 2, 2))
            rgb *= shifts
        shift_x, shift_y, scale, turn, brightness, contrast, saturation, hue = amounts.tolist()
        colour = colour_matrix(
            brightness=1.0 + c.brightness * brightness,
            contrast=1.0 + c.contrast * contrast,
            saturation=1.0 + c.saturation * saturation,
            hue=math.radians(c.hue_deg) * hue,
            rgb_shift=rgb,
        )
        angle = math.radians(c.rotate_deg) * turn
        scale = 1.0 + c.scale * scale
        return Draw(crop_x, crop_y, c.shift * shift_x, c.shift * shift_y, scale, angle, colour)

    def apply(self, frame_rgb: Frames, draw: Draw, out: Frames) -> None:
        """One warp and one colour matrix; what lies beyond the frame is mirrored."""
        matrix = crop_matrix(draw, frame_rgb.shape[1], frame_rgb.shape[0], self.resize, self.image_size)
        size, flags = (self.image_size, self.image_size), cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        warped = cv2.warpAffine(frame_rgb, matrix, size, flags=flags, borderMode=cv2.BORDER_REFLECT_101)
        cv2.transform(warped, draw.colour, dst=out)

    def clip(self, frames_rgb: Frames, rng: np.random.Generator) -> Frames:
        """Augment the frames (n, h, w, 3) of a clip -> (n, image_size, image_size, 3)."""
        return transform_frames(self, frames_rgb, rng)


@dataclass(frozen=True)
class WholeFrame:
    """The evaluation transform, for files and live sources: the whole frame at the model's size, as in the
    release."""

    image_size: int = 224

    @property
    def decode_side(self) -> int:
        """Full size: the result must not depend on whether the frame was a JPEG."""
        return 0

    def draw(self, rng: np.random.Generator, n_frames: int) -> list[Draw]:
        """Nothing is drawn."""
        return [NO_CHANGE] * n_frames

    def apply(self, frame_rgb: Frames, draw: Draw, out: Frames) -> None:
        """Resize linearly as the release does, by area where linear sampling would skip pixels."""
        shrink = max(frame_rgb.shape[0], frame_rgb.shape[1]) / self.image_size
        interpolation = cv2.INTER_AREA if shrink > _ALIASES_BEYOND else cv2.INTER_LINEAR
        cv2.resize(frame_rgb, (self.image_size, self.image_size), dst=out, interpolation=interpolation)

    def clip(self, frames_rgb: Frames) -> Frames:
        """Transform frames (n, h, w, 3) -> (n, image_size, image_size, 3)."""
        return transform_frames(self, frames_rgb, np.random.Generator(np.random.PCG64(0)))


def transform_frames(transform: FrameTransform, frames_rgb: Frames, rng: np.random.Generator) -> Frames:
    """Apply a transform to the frames (n, h, w, 3) of one clip."""
    if frames_rgb.ndim != 4 or frames_rgb.shape[-1] != 3 or frames_rgb.dtype != np.uint8:
        found = f"frames are {frames_rgb.dtype} of shape {frames_rgb.shape}"
        raise InputError(f"{found}; expected uint8 RGB of shape (n, h, w, 3).")
    out = np.empty((len(frames_rgb), transform.image_size, transform.image_size, 3), dtype=np.uint8)
    for frame, draw, target in zip(frames_rgb, transform.draw(rng, len(frames_rgb)), out, strict=True):
        transform.apply(frame, draw, target)
    return out


def crop_matrix(draw: Draw, width: int, height: int, resize: int, image_size: int) -> NDArray[np.float64]:
    """(2, 3) map from a pixel of the result to the stored frame: crop, undo shift, rotation and scale about
    the centre, undo resize. Pixel centres lie at half-integers, so that without any draw the map is a plain
    resize and crop."""
    play = resize - image_size
    cos, sin = math.cos(draw.angle) / draw.scale, math.sin(draw.angle) / draw.scale
    centre = resize / 2
    # A point q of the result is at p = q + crop in the resized frame; p = centre + shift + R (p0 - centre).
    offset_x = 0.5 + draw.crop_x * play - centre - draw.shift_x * resize
    offset_y = 0.5 + draw.crop_y * play - centre - draw.shift_y * resize
    back_x, back_y = width / resize, height / resize
    return np.array(
        [
            [cos * back_x, sin * back_x, (cos * offset_x + sin * offset_y + centre) * back_x - 0.5],
            [-sin * back_y, cos * back_y, (-sin * offset_x + cos * offset_y + centre) * back_y - 0.5],
        ]
    )


def colour_matrix(
    brightness: float,
    contrast: float,
    saturation: float,
    hue: float,
    rgb_shift: NDArray[np.float64] | float = 0.0,
) -> NDArray[np.float32]:
    """(3, 4) matrix on RGB of 0 to 255: shift, turn the hue about the grey axis, scale the distance from
    luma, then that from mid-grey, then everything."""
    third, root = (1.0 - math.cos(hue)) / 3.0, math.sin(hue) / math.sqrt(3.0)
    around_grey = np.array(((0.0, -1.0, 1.0), (1.0, 0.0, -1.0), (-1.0, 1.0, 0.0)))
    turn = math.cos(hue) * np.eye(3) + third + root * around_grey
    saturate = saturation * np.eye(3) + (1.0 - saturation) * _LUMA
    linear = brightness * contrast * (saturate @ turn)
    constant = brightness * (1.0 - contrast) * 127.5 + linear @ np.broadcast_to(rgb_shift, 3)
    return np.column_stack([linear, constant]).astype(np.float32)


NO_CHANGE = Draw(0.5, 0.5, 0.0, 0.0, 1.0, 0.0, colour_matrix(1.0, 1.0, 1.0, 0.0))


def normalise(frames: "Tensor", mean_rgb: RGB, std_rgb: RGB) -> "Tensor":
    """Bytes (..., h, w, 3) -> float32 (..., 3, h, w), (value / 255 - mean) / std, on the device of the
    bytes."""
    import torch

    if frames.dtype != torch.uint8 or frames.shape[-1] != 3:
        found = f"frames are {frames.dtype} of shape {tuple(frames.shape)}"
        raise InputError(f"{found}; expected uint8 RGB with colours last.")
    mean = torch.tensor(mean_rgb, device=frames.device)
    std = torch.tensor(std_rgb, device=frames.device)
    return (frames * (1.0 / (255.0 * std)) - mean / std).movedim(-1, -3).contiguous()
