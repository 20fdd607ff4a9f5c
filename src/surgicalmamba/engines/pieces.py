"""What every engine made of captured pieces shares: checks at the door, and which lanes cross which boundary after a frame."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from surgicalmamba.core.chunks import closing_lanes
from surgicalmamba.core.rotation import Solve
from surgicalmamba.core.state import Group, ModelState, PathState
from surgicalmamba.errors import InputError, NonFiniteError
from surgicalmamba.model.recognizer import Output
from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba, close_chunks, empty_state, rotation_grids

# The pieces of a model that engines capture, as modules from tensors to tensors: encode, step, close. They hold no formula.


class EncodePiece(nn.Module):
    """Pictures (n, H, W, 3) uint8 -> features (n, d_feature)."""

    def __init__(self, model: SurgicalMamba) -> None:
        super().__init__()
        assert model.backbone is not None
        self.backbone = model.backbone.for_pixels()

    def forward(self, frames: Tensor) -> Tensor:
        return self.backbone.encode_batch(frames.permute(0, 3, 1, 2).float())


class StepPiece(nn.Module):
    """One frame of every lane, free of boundaries: features (b, d_feature) and the state's tensors -> logits, intensity logits if
    the model has them, and the state's tensors."""

    def __init__(self, model: SurgicalMamba) -> None:
        super().__init__()
        self.model = model
        self.form = empty_state(model.config, 1).at(())  # its tensors are replaced; only the structure matters

    def forward(self, features: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        output = self.model.advance_within_chunk(features, self.form.with_tensors(state))
        intensity = () if output.intensity_logits is None else (output.intensity_logits,)
        return (output.logits, *intensity, *output.state.tensors())


class ClosePiece(nn.Module):
    """The end of a chunk in one group of paths: their states and chunk sums -> the same, rotated and emptied."""

    def __init__(self, model: SurgicalMamba, group: Group, solve: Solve = torch.linalg.solve) -> None:
        super().__init__()
        self.paths, self.solve = model.rotating_paths()[group], solve
        self.held = nn.ModuleList(self.paths)

    def forward(self, ssm: Sequence[Tensor], chunk_sum: Sequence[Tensor]) -> tuple[Tensor, ...]:
        states = [PathState(state, state[:, :0], total) for state, total in zip(ssm, chunk_sum, strict=True)]  # no tail is needed
        closed = close_chunks(self.paths, states, self.solve)
        return (*(path.ssm for path in closed), *(path.chunk_sum for path in closed if path.chunk_sum is not None))


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

