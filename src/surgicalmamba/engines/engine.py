"""The reference engine: the model itself, called with one frame at a time."""

from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from surgicalmamba.data.transforms import normalise
from surgicalmamba.errors import InputError
from surgicalmamba.model.checkpoint import fingerprint
from surgicalmamba.model.recognizer import AnyRecognizer, Output, RecognizerConfig

# The contract of an engine: the two things a live session asks of a model, one frame of every lane at a time.


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


class EagerEngine:
    """Every other engine is compared with this one."""

    name = "eager"

    def __init__(self, model: AnyRecognizer) -> None:
        self.model = model.eval()

    @property
    def config(self) -> RecognizerConfig:
        return self.model.config

    @cached_property
    def fingerprint(self) -> str:
        """Read from the weights once, when first asked for."""
        return fingerprint(self.model)

    def initial_state(self, n_lanes: int) -> Any:
        return self.model.initial_state(n_lanes)

    @torch.inference_mode()
    def encode(self, frames: Tensor) -> Tensor:
        backbone = self.config.backbone
        if backbone is None:
            raise InputError("this model has no backbone (config.backbone is null); push feature vectors, not pictures.")
        return self.model.encode(normalise(frames.to(self.model.device), backbone.mean_rgb, backbone.std_rgb))

    @torch.inference_mode()
    def advance(self, features: Tensor, state: Any) -> Output[Any]:
        output = self.model.forward_features(features[:, None], state)
        intensity = None if output.intensity_logits is None else output.intensity_logits[:, 0]
        return Output(output.logits[:, 0], intensity, output.state)

