"""The pieces of a model that engines capture, as modules from tensors to tensors: encode, step, close. They hold no formula."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from surgicalmamba.core.rotation import Solve
from surgicalmamba.core.state import Group, PathState
from surgicalmamba.model.layout import empty_state
from surgicalmamba.model.path import close_chunks
from surgicalmamba.model.surgical_mamba import SurgicalMamba


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
