"""A camera's picture as the model saw it in training: what `prepare` does to a frame, then what `predict` does to a stored one."""

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.config import RecognizerConfig
from surgicalmamba.data.images import decode_jpeg, encode_jpeg
from surgicalmamba.data.preprocess import Preprocess
from surgicalmamba.data.transforms import NO_CHANGE, WholeFrame
from surgicalmamba.errors import InputError


class PictureMaker:
    """Margin cut, stored size, the loss of the stored JPEG, the model's size. The settings come from the checkpoint."""

    def __init__(self, config: RecognizerConfig) -> None:
        if config.backbone is None:
            raise InputError("this model has no backbone (config.backbone is null); push feature vectors, not pictures.")
        self._quality = config.preprocess.jpeg_quality
        self._prepare = Preprocess(config.preprocess.box, config.preprocess.size)
        self._resize = WholeFrame(config.backbone.image_size)
        self._mean_rgb = config.backbone.mean_rgb

    def __call__(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """(h, w, 3) of any size -> (image_size, image_size, 3)."""
        stored = self._prepare(rgb)
        if self._quality is not None:
            stored = decode_jpeg(encode_jpeg(stored, self._quality))
        out = np.empty((self._resize.image_size, self._resize.image_size, 3), np.uint8)
        self._resize.apply(stored, NO_CHANGE, out)
        return out

    def neutral(self) -> NDArray[np.uint8]:
        """A picture of the mean colour, next to zero once normalised: what is fed where there is nothing."""
        side = self._resize.image_size
        return np.broadcast_to(np.round(np.array(self._mean_rgb) * 255).astype(np.uint8), (side, side, 3)).copy()
