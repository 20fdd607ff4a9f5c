"""The contract of an engine: the two things a live session asks of a model, one frame of every lane at a time."""

from typing import Any, Protocol

from torch import Tensor

from surgicalmamba.config import RecognizerConfig
from surgicalmamba.model.recognizer import Output


class Engine(Protocol):
    """Runs one model. Lanes are independent procedures and may stand at different frames; an engine keeps no memory of its own."""

    @property
    def name(self) -> str:
        """How the engine is asked for: eager, compiled, onnx."""

    @property
    def config(self) -> RecognizerConfig: ...

    @property
    def fingerprint(self) -> str:
        """`model.checkpoint.fingerprint` of the model it runs: a snapshot is for this model and no other."""

    def initial_state(self, n_lanes: int) -> Any:
        """The memory before the first frame of `n_lanes` procedures."""

    def encode(self, frames: Tensor) -> Tensor:
        """Pictures (n, H, W, 3) uint8 of the model's size -> features (n, d_feature); each picture by itself."""

    def advance(self, features: Tensor, state: Any) -> Output[Any]:
        """One frame of every lane: features (b, d_feature) -> logits (b, k), intensity logits (b, n_blocks) or None, and the state."""
