"""The contract that training, streaming and evaluation see: features and a state in, logits and a state out."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor

StateT = TypeVar("StateT")


@dataclass(frozen=True)
class Output(Generic[StateT]):
    """What a recognizer returns for a call of l frames."""

    logits: Tensor  # (b, l, k)
    intensity_logits: Tensor | None  # (b, l, n_blocks); None for a recognizer without intensity
    state: StateT


class Recognizer(Protocol[StateT]):
    """Anything that streams: causal, with all of its memory in an explicit state."""

    @property
    def n_phases(self) -> int: ...

    @property
    def feature_width(self) -> int: ...

    def initial_state(self, n_lanes: int) -> StateT:
        """The memory before the first frame of `n_lanes` procedures."""

    def forward_features(self, features: Tensor, state: StateT | None = None) -> Output[StateT]:
        """features (b, l, d_feature) -> logits for each frame from that frame and the past alone, for any l."""
