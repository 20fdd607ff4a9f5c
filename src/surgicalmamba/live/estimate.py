"""What a live session says about one moment of an operation."""

from dataclasses import asdict, dataclass
from typing import Literal

Quality = Literal["ok", "missing", "black", "frozen", "unreadable", "late"]
"""What came for a tick of the model's clock.

ok          a picture (or feature vector) like any other
missing     nothing: the timestamps jumped over this tick
black       a picture with next to nothing above the darkness of the endoscope's margin
frozen      the picture of the tick before, once more
unreadable  something that is no picture: None, another shape or type, values that are not finite
late        a picture that had to be dropped because inference was behind"""


@dataclass(frozen=True)
class Counts:
    """How many ticks of a session were not ordinary, by what came and by what was done about it."""

    missing: int = 0
    black: int = 0
    frozen: int = 0
    unreadable: int = 0
    late: int = 0
    held: int = 0
    """Ticks at which the last features were fed again."""
    neutral: int = 0
    """Ticks at which an empty picture was fed."""
    skipped: int = 0
    """Ticks that passed without a frame for the model."""


@dataclass(frozen=True)
class PhaseEstimate:
    """The phase at one frame of the model's time, from that frame and the past alone."""

    frame_index: int
    """Frames the model has seen of this procedure before this one."""
    tick: int
    """Tick of the model's clock since the first frame; ahead of `frame_index` by the ticks that were skipped."""
    time_s: float
    """Source time in seconds of the picture; of the tick where there was none."""
    phase: int
    name: str
    probabilities: tuple[float, ...]
    intensity: float | None
    """Mean over the blocks of how strongly the model sees a transition, 0 to 1; None for a model without intensity."""
    quality: Quality = "ok"
    fed: Literal["input", "held", "neutral"] = "input"
    """What the model was given: what came, the last features again, or an empty picture."""
    counts: Counts = Counts()
    """Of the session so far, this estimate included."""

    @property
    def confidence(self) -> float:
        """Probability of the phase."""
        return self.probabilities[self.phase]

    def as_dict(self) -> dict[str, object]:
        """For JSON; probabilities as a list."""
        return {**asdict(self), "probabilities": list(self.probabilities)}
