"""SurgicalMamba: backbone, projector, K dual-path blocks, output head. One call serves clips, whole videos and single frames."""

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from surgicalmamba.config import ModelConfig
from surgicalmamba.core.chunks import chunk_segments
from surgicalmamba.core.state import Group, ModelState
from surgicalmamba.model.dual_path import DualPathBlock
from surgicalmamba.model.head import PhaseHead
from surgicalmamba.model.layout import empty_state, rotation_grids
from surgicalmamba.model.path import SSMPath
from surgicalmamba.model.recognizer import Output, Recognizer


class SurgicalMamba(Recognizer[ModelState]):
    """The paper's recognizer. All of its memory is in the ModelState it returns, so any way of cutting a procedure into calls
    gives the same logits. Fast paths and head start anew every `clip_len` frames of a procedure, however it is cut."""

    name = "surgicalmamba"
    config_class = ModelConfig
    memory = "O(1)"
    config: ModelConfig

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.projector = nn.Sequential(nn.Linear(config.feature_width, config.d_model), nn.LayerNorm(config.d_model))
        block, dropout = config.block, config.dropout
        self.blocks = nn.ModuleList(
            DualPathBlock(config.d_model, block.slow, block.fast, block.ffn_ratio, config.clip_len, slow_carries=True, dropout=dropout)
            for _ in range(config.n_blocks)
        )
        self.norm = nn.LayerNorm(config.d_model)
        self.head = PhaseHead(config.d_model, config.n_phases, config.head, config.clip_len, dropout)

    def _blocks(self) -> Iterable[DualPathBlock]:
        return cast(Iterable[DualPathBlock], self.blocks)

    def initial_state(self, n_lanes: int) -> ModelState:
        """The memory before the first frame of `n_lanes` procedures."""
        return empty_state(self.config, n_lanes, self.dtype, self.device)

    def temporal(self, features: Tensor, state: ModelState) -> Output[ModelState]:
        """From clip end to clip end; fast paths and head start anew there."""
        logits, intensities = [], []
        for piece in chunk_segments(features.shape[1], state.frame_index, self.config.clip_len):
            piece_logits, piece_intensity, state = self._advance(features[:, piece.start : piece.stop], state)
            state = state.reset_clip(piece.closing)
            logits.append(piece_logits)
            intensities += [] if piece_intensity is None else [piece_intensity]
        return Output(torch.cat(logits, dim=1), torch.cat(intensities, dim=1) if intensities else None, state)

    def _advance(self, features: Tensor, state: ModelState) -> tuple[Tensor, Tensor | None, ModelState]:
        """Frames that share a clip, through every block. Chunks close inside; clips do not."""
        x = self.projector(features)
        blocks, intensities = [], []
        for block, block_state in zip(self._blocks(), state.blocks, strict=True):
            x, intensity_logit, block_state = block(x, block_state, state.frame_index)
            blocks.append(block_state)
            intensities.append(intensity_logit)
        logits, head_state = self.head(self.norm(x), state.head, state.frame_index)
        intensity = None if intensities[0] is None else torch.stack(intensities, dim=-1)
        state = replace(state, blocks=tuple(blocks), head=head_state)
        return logits, intensity, state.advance(features.shape[1])

    def advance_within_chunk(self, features: Tensor, state: ModelState) -> Output[ModelState]:
        """One frame (b, d_feature) of every lane with nothing opened, closed or checked, and clocks left alone.

        What engines capture. A chunk's end only turns what is carried on, so `close_chunks` after it, then `reset_clip`, make the
        same frame as `forward_features`."""
        given = features if self.standardise is None else self.standardise(features)
        logits, intensity, after = self._advance(given[:, None], state.at(()))
        return Output(logits[:, 0], None if intensity is None else intensity[:, 0], after.at(state.frame_index))

    def rotating_paths(self) -> dict[Group, tuple[SSMPath, ...]]:
        """The paths that close chunks, by group; a group closes at the same frames."""
        fast = (block.fast for block in self._blocks())
        groups: dict[Group, tuple[SSMPath, ...]] = {
            "slow": tuple(block.slow for block in self._blocks()),
            "fast": tuple(path for path in fast if path is not None),
            "head": (self.head.block.slow,),
        }
        return {name: groups[name] for name in rotation_grids(self.config)}
