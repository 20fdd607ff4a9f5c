"""The pieces of a model that engines capture, and the engine made of them.

A piece maps tensors to tensors: encode, step, close. It holds no formula of its own. PieceEngine calls the
pieces, checks their input, and decides which lanes cross which boundary after a frame."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from surgicalmamba.core.chunks import closing_lanes
from surgicalmamba.core.rotation import Solve
from surgicalmamba.core.state import Group, ModelState, PathState
from surgicalmamba.engines.engine import NO_BACKBONE
from surgicalmamba.errors import InputError, NonFiniteError
from surgicalmamba.model.recognizer import Output
from surgicalmamba.model.surgical_mamba import (
    ModelConfig,
    SurgicalMamba,
    close_chunks,
    empty_state,
    rotation_grids,
)


class EncodePiece(nn.Module):
    """Pictures (n, H, W, 3) uint8 -> features (n, d_feature)."""

    def __init__(self, model: SurgicalMamba) -> None:
        super().__init__()
        assert model.backbone is not None
        self.backbone = model.backbone.for_pixels()

    def forward(self, frames: Tensor) -> Tensor:
        return self.backbone.encode_batch(frames.permute(0, 3, 1, 2).float())


class StepPiece(nn.Module):
    """One frame of every lane without boundaries: features (b, d_feature) and the state's tensors -> logits,
    intensity logits if the model has them, and the state's tensors."""

    def __init__(self, model: SurgicalMamba) -> None:
        super().__init__()
        self.model = model
        self.form = empty_state(model.config, 1).at(
            ()
        )  # its tensors are replaced; only the structure matters

    def forward(self, features: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        output = self.model.advance_within_chunk(features, self.form.with_tensors(state))
        intensity = () if output.intensity_logits is None else (output.intensity_logits,)
        return (output.logits, *intensity, *output.state.tensors())


class ClosePiece(nn.Module):
    """The end of a chunk in a group of paths: states and chunk sums -> the same, rotated and emptied."""

    def __init__(self, model: SurgicalMamba, group: Group, solve: Solve = torch.linalg.solve) -> None:
        super().__init__()
        self.paths, self.solve = model.rotating_paths()[group], solve
        self.held = nn.ModuleList(self.paths)

    def forward(self, ssm: Sequence[Tensor], chunk_sum: Sequence[Tensor]) -> tuple[Tensor, ...]:
        # a chunk's end needs no convolution tail
        states = [PathState(state, state[:, :0], total) for state, total in zip(ssm, chunk_sum, strict=True)]
        closed = close_chunks(self.paths, states, self.solve)
        return (
            *(path.ssm for path in closed),
            *(path.chunk_sum for path in closed if path.chunk_sum is not None),
        )


class PieceEngine(ABC):
    """An engine made of the three pieces; a subclass owns the weights and runs the pieces."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._grids = rotation_grids(config)

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    def config(self) -> ModelConfig:
        return self._config

    @abstractmethod
    def initial_state(self, n_lanes: int) -> ModelState:
        """The state before the first frame, on the engine's device."""

    @abstractmethod
    def _encode(self, frames: Tensor) -> Tensor: ...

    @abstractmethod
    def _step(self, features: Tensor, state: list[Tensor]) -> Sequence[Tensor]:
        """Run StepPiece."""

    @abstractmethod
    def _close(self, group: Group, ssm: list[Tensor], chunk_sum: list[Tensor]) -> Sequence[Tensor]:
        """Run the ClosePiece of a group."""

    @torch.no_grad()
    def encode(self, frames: Tensor) -> Tensor:
        backbone = self.config.backbone
        if backbone is None:
            raise InputError(NO_BACKBONE)
        size, found = backbone.image_size, f"frames are {frames.dtype} of shape {tuple(frames.shape)}"
        if frames.dtype != torch.uint8 or frames.dim() != 4 or frames.shape[1:] != (size, size, 3):
            raise InputError(f"{found}; expected uint8 (n, {size}, {size}, 3).")
        return self._encode(frames)

    @torch.no_grad()
    def advance(self, features: Tensor, state: ModelState) -> Output[ModelState]:
        expected = (state.n_lanes, self.config.feature_width)
        if tuple(features.shape) != expected or features.dtype != torch.float32:
            found = f"features are {features.dtype} of shape {tuple(features.shape)}"
            raise InputError(f"{found}; expected float32 {expected}.")
        _refuse_non_finite(features, state, "the features hold a NaN or infinity")
        logits, *rest = self._step(features, state.tensors())
        _refuse_non_finite(logits, state, f"the {self.name} engine gives a NaN or infinity")
        intensity = rest.pop(0) if self.config.block.slow.intensity is not None else None
        return Output(logits, intensity, self._cross_boundaries(state.with_tensors(rest).advance(1)))

    def _cross_boundaries(self, state: ModelState) -> ModelState:
        """Close chunks and start clips in the lanes that have reached the end of one."""
        for group, grid in self._grids.items():
            lanes, paths = closing_lanes(state.frame_index, grid.chunk_len, grid.clip_len), state.group(group)
            if len(lanes) == state.n_lanes:
                state = state.with_group(group, self._closed(group, paths))
            elif lanes:
                parts = self._closed(group, [path.select(lanes) for path in paths])
                put = [path.put(lanes, part) for path, part in zip(paths, parts, strict=True)]
                state = state.with_group(group, put)
        return state.reset_clip(closing_lanes(state.frame_index, self.config.clip_len))

    def _closed(self, group: Group, paths: Sequence[PathState]) -> list[PathState]:
        """The end of a chunk in every lane of a group's paths; convolution tails do not change."""
        sums = [path.chunk_sum for path in paths if path.chunk_sum is not None]
        after = self._close(group, [path.ssm for path in paths], sums)
        closed = zip(paths, after[: len(paths)], after[len(paths) :], strict=True)
        return [replace(path, ssm=ssm, chunk_sum=chunk_sum) for path, ssm, chunk_sum in closed]


def _refuse_non_finite(values: Tensor, state: ModelState, problem: str) -> None:
    finite = torch.isfinite(values).all(-1)
    if not finite.all():
        lane = int((~finite).nonzero()[0])
        where = f"lane {lane}, frame {state.frame_index[lane]}"
        raise NonFiniteError(f"{problem} at {where}; restart that lane or check its input.")
