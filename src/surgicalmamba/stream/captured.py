"""What every engine made of captured pieces shares: checks at the door, and which lanes cross which boundary after a frame."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from surgicalmamba.config import ModelConfig
from surgicalmamba.core.chunks import closing_lanes
from surgicalmamba.core.state import Group, ModelState, PathState
from surgicalmamba.errors import InputError, NonFiniteError
from surgicalmamba.model.layout import rotation_grids
from surgicalmamba.model.recognizer import Output


class CapturedEngine(ABC):
    """An engine from three pieces. Sizes and boundaries come from the configuration; where the weights are is its own affair."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._grids = rotation_grids(config)

    @property
    def config(self) -> ModelConfig:
        return self._config

    @abstractmethod
    def initial_state(self, n_lanes: int) -> ModelState:
        """The memory before the first frame, where this engine wants it."""

    @abstractmethod
    def _encode(self, frames: Tensor) -> Tensor: ...

    @abstractmethod
    def _step(self, features: Tensor, state: ModelState) -> Output[ModelState]:
        """One frame of every lane without any boundary."""

    @abstractmethod
    def _close(self, group: Group, paths: Sequence[PathState]) -> list[PathState]:
        """The end of a chunk in every lane of a group's paths; convolution tails are as they were."""

    @torch.no_grad()
    def encode(self, frames: Tensor) -> Tensor:
        backbone = self.config.backbone
        if backbone is None:
            raise InputError("this model has no backbone (config.backbone is null); push feature vectors, not pictures.")
        size = backbone.image_size
        if frames.dtype != torch.uint8 or frames.dim() != 4 or frames.shape[1:] != (size, size, 3):
            raise InputError(f"frames are {frames.dtype} of shape {tuple(frames.shape)}; expected uint8 (n, {size}, {size}, 3).")
        return self._encode(frames)

    @torch.no_grad()
    def advance(self, features: Tensor, state: ModelState) -> Output[ModelState]:
        expected = (state.n_lanes, self.config.feature_width)
        if tuple(features.shape) != expected or features.dtype != torch.float32:
            raise InputError(f"features are {features.dtype} of shape {tuple(features.shape)}; expected float32 {expected}.")
        self._refuse_non_finite(features, state, "the features hold a NaN or infinity")
        output = self._step(features, state)
        self._refuse_non_finite(output.logits, state, f"the {self.name} engine gives a NaN or infinity")
        return replace(output, state=self._cross_boundaries(output.state.advance(1)))

    @property
    @abstractmethod
    def name(self) -> str: ...

    def _cross_boundaries(self, state: ModelState) -> ModelState:
        """Close chunks and begin clips in the lanes that have reached the end of one."""
        for group, grid in self._grids.items():
            lanes = closing_lanes(state.frame_index, grid.chunk_len, grid.clip_len)
            if len(lanes) == state.n_lanes:
                state = state.with_group(group, self._close(group, state.group(group)))
            elif lanes:
                closed = self._close(group, [path.select(lanes) for path in state.group(group)])
                state = state.with_group(group, [path.put(lanes, part) for path, part in zip(state.group(group), closed, strict=True)])
        return state.reset_clip(closing_lanes(state.frame_index, self.config.clip_len))

    def _refuse_non_finite(self, values: Tensor, state: ModelState, problem: str) -> None:
        finite = torch.isfinite(values).all(-1)
        if not finite.all():
            lane = int((~finite).nonzero()[0])
            raise NonFiniteError(f"{problem} at lane {lane}, frame {state.frame_index[lane]}; start that lane anew or check its input.")
