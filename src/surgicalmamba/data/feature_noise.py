"""How stored features are disturbed in training, so that a model does not learn one room's or one surgeon's values by heart."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.float32]  # (n, d)


@dataclass(frozen=True)
class FeatureNoise:
    """`dropout`: share of values set to 0. `jitter`: every feature of a procedure is scaled by 1 + jitter z and moved by jitter z
    deviations, z normal; drawn once per procedure, as another setting up of the same instruments would do it. `grain`: noise on every
    value, in deviations of its feature over the procedure."""

    dropout: float = 0.0
    jitter: float = 0.0
    grain: float = 0.0

    def apply(self, part: Features, whole: Features, of_video: np.random.Generator, of_clip: np.random.Generator) -> Features:
        """`part` of the procedure `whole`, disturbed; one source of random numbers for the procedure, one for the part."""
        values = part
        if self.dropout:
            values = np.where(of_clip.random(part.shape) < self.dropout, np.float32(0), values)
        if self.jitter or self.grain:
            d, deviation = part.shape[1], whole.std(0)
            gain, shift = 1 + self.jitter * of_video.standard_normal(d), self.jitter * deviation * of_video.standard_normal(d)
            values = values * gain + shift + self.grain * deviation * of_clip.standard_normal(part.shape)
        return values.astype(np.float32, copy=False)
