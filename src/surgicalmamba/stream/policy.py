"""What to do about a tick for which no ordinary picture came, and how to tell that a picture is not ordinary."""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from surgicalmamba.config import Section
from surgicalmamba.data.preprocess import THRESHOLD
from surgicalmamba.stream.estimate import Quality

Action = Literal["hold", "skip", "advance"]
"""hold      the model's time advances; it is fed the features of the last usable picture again
skip      the model's time does not advance; the tick yields no estimate
advance   the model's time advances; it is fed the picture as it is (black, frozen), or an empty one where there is none

Nothing can be held before the first usable picture: until then `hold` does as `skip` does."""

SIDE = 64
STILL_LEVEL = 0.05
BRIGHT_SHARE = 0.01
LEAST_SIDE = 16
LARGEST_ASPECT = 16  # scaling a sliver to the height of the margin search would take all memory


class Policy(Section):
    """An action for each kind. The defaults do what `prepare` did to the training videos: dark and still pictures are part of an
    operation and stay, a picture that cannot be read is replaced by the one before. A session that falls behind gives up ticks."""

    missing: Action = Field("hold", description="The timestamps jumped over a tick.")
    black: Action = Field("advance", description="Next to nothing is brighter than the endoscope's margin.")
    frozen: Action = Field("advance", description="The same picture as at the tick before.")
    unreadable: Action = Field("hold", description="No picture of three bytes per pixel, or a vector with values that are not finite.")
    late: Action = Field("skip", description="The picture was dropped because inference was behind.")
    longest_fill_s: Annotated[float, Field(ge=0)] = Field(
        60.0, description="Of a longer gap only so many seconds, the last ones, are held or advanced; the rest is skipped."
    )

    @classmethod
    def everywhere(cls, action: Action) -> "Policy":
        """The same action for every kind."""
        return cls(missing=action, black=action, frozen=action, unreadable=action, late=action)

    def action(self, quality: Quality) -> Action:
        """What to do about a kind; an ordinary picture is fed."""
        actions: dict[Quality, Action] = {
            "ok": "advance",
            "missing": self.missing,
            "black": self.black,
            "frozen": self.frozen,
            "unreadable": self.unreadable,
            "late": self.late,
        }
        return actions[quality]


def thumbnail(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(64, 64) grey: enough to tell a black or a frozen picture from another."""
    import cv2

    small = cv2.resize(rgb, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.uint8)


def look(small: NDArray[np.uint8], before: NDArray[np.uint8] | None) -> Quality:
    """Whether a thumbnail is black, the same as the one before, or neither.

    Black: no more than a hundredth of it is above the threshold of the margin cut. Frozen: it differs from the one before by no more
    than 0.05 grey levels on average; the noise of a camera that still runs is above that."""
    if np.count_nonzero(small > THRESHOLD) <= BRIGHT_SHARE * small.size:
        return "black"
    if before is not None and np.abs(small.astype(np.int16) - before).mean() <= STILL_LEVEL:
        return "frozen"
    return "ok"


def is_picture(frame: object) -> bool:
    """Whether a frame is (height, width, 3) of bytes, with sides of at least 16 pixels, neither 16 times as long as the other."""
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        return False
    short, long = sorted(frame.shape[:2])
    return bool(short >= LEAST_SIDE and long <= LARGEST_ASPECT * short)
