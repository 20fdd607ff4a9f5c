"""The output head: a single-path block that starts anew every clip, and the classifier (section 3.6)."""

from collections.abc import Sequence

from torch import Tensor, nn

from surgicalmamba.config import HeadConfig
from surgicalmamba.core.state import BlockState, PathState
from surgicalmamba.model.dual_path import DualPathBlock


class PhaseHead(nn.Module):
    """Mirrors the slow path without cross-clip carry and without intensity, then maps to phase logits."""

    def __init__(self, d_model: int, n_phases: int, config: HeadConfig, clip_len: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.block = DualPathBlock(d_model, config.path, None, config.ffn_ratio, clip_len, slow_carries=False, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(d_model, n_phases)

    def forward(self, x: Tensor, state: PathState, frame_index: Sequence[int]) -> tuple[Tensor, PathState]:
        """x (b, l, d_model) -> logits (b, l, k) and the new state."""
        x, _, block_state = self.block(self.dropout(x), BlockState(state, None), frame_index)
        return self.classifier(x), block_state.slow
