"""The contract of an engine, and the reference engine: the model itself, called with one frame at a time."""

from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from surgicalmamba.data.transforms import normalise
from surgicalmamba.errors import InputError
from surgicalmamba.model.checkpoint import fingerprint
from surgicalmamba.model.recognizer import AnyRecognizer, Output, RecognizerConfig

EXPORT_FILE = "export.json"
NO_BACKBONE = "this model has no backbone (config.backbone is null); push feature vectors, not pictures."


def is_export(folder: str | Path) -> bool:
    """Whether a folder was written by `surgicalmamba export`."""
    return (Path(folder) / EXPORT_FILE).is_file()


class Engine(Protocol):
    """Runs one model without keeping state. Lanes are independent procedures, each at its own frame."""

    @property
    def name(self) -> str:
        """The name to open it by: eager, compiled, onnx."""

    @property
    def config(self) -> RecognizerConfig: ...

    @property
    def fingerprint(self) -> str:
        """`model.checkpoint.fingerprint` of its model: a snapshot is for this model and no other."""

    def initial_state(self, n_lanes: int) -> Any:
        """The state before the first frame of `n_lanes` procedures."""

    def encode(self, frames: Tensor) -> Tensor:
        """Pictures (n, H, W, 3) uint8 of the model's size -> features (n, d_feature), one by one."""

    def advance(self, features: Tensor, state: Any) -> Output[Any]:
        """One frame of every lane: features (b, d_feature) -> logits (b, k), intensity (b, n_blocks)."""


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
        return fingerprint(self.model)

    def initial_state(self, n_lanes: int) -> Any:
        return self.model.initial_state(n_lanes)

    @torch.inference_mode()
    def encode(self, frames: Tensor) -> Tensor:
        backbone = self.config.backbone
        if backbone is None:
            raise InputError(NO_BACKBONE)
        return self.model.encode(normalise(frames.to(self.model.device), backbone.mean_rgb, backbone.std_rgb))

    @torch.inference_mode()
    def advance(self, features: Tensor, state: Any) -> Output[Any]:
        output = self.model.forward_features(features[:, None], state)
        intensity = None if output.intensity_logits is None else output.intensity_logits[:, 0]
        return Output(output.logits[:, 0], intensity, output.state)
