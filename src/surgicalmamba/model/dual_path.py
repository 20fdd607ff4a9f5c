"""The dual-path block: a slow path, a fast path conditioned on it, gated fusion, and a feed-forward layer.

Without a fast path it is a single-path block: the paper's controls, and the block inside the output head."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surgicalmamba.config import PathConfig
from surgicalmamba.core.state import BlockState
from surgicalmamba.model.path import SSMPath


class FeedForward(nn.Module):
    """Linear, exact GELU, Linear."""

    def __init__(self, d_model: int, ratio: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(d_model, ratio * d_model)
        self.fc2 = nn.Linear(ratio * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class DualPathBlock(nn.Module):
    """x + Linear(RMSNorm((y_slow + y_fast) SiLU(gate))), then x + FFN(x), each behind a LayerNorm (appendix Implementation, fusion).

    The fast input projection emits the gate; in a single-path block the one path does. With two paths each has a learned
    scale per channel, which the release has and which starts at one. Without `ffn_ratio` the feed-forward layer is left out.
    In training `dropout` falls on what each of the two branches adds to x."""

    def __init__(
        self,
        d_model: int,
        slow: PathConfig,
        fast: PathConfig | None,
        ffn_ratio: int | None,
        clip_len: int,
        slow_carries: bool,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.slow = SSMPath(d_model, slow, None if slow_carries else clip_len, conditioned=False, emits_gate=fast is None)
        self.fast = None if fast is None else SSMPath(d_model, fast, clip_len, conditioned=True, emits_gate=True)
        d_inner = self.slow.d_inner
        self.slow_scale = None if fast is None else nn.Parameter(torch.ones(d_inner))
        self.fast_scale = None if fast is None else nn.Parameter(torch.ones(d_inner))
        self.out_norm = nn.RMSNorm(d_inner, eps=1e-5)
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)
        self.ffn_norm = None if ffn_ratio is None else nn.LayerNorm(d_model)
        self.ffn = None if ffn_ratio is None else FeedForward(d_model, ffn_ratio)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, state: BlockState, frame_index: Sequence[int]) -> tuple[Tensor, Tensor | None, BlockState]:
        """x (b, l, d_model) -> the same shape, the slow path's intensity logit (b, l) or None, and the new state."""
        u = self.norm(x)
        slow = self.slow(u, state.slow, frame_index)
        y, gate, fast_state = slow.y, slow.gate, None
        if self.fast is not None:
            fast = self.fast(u, state.fast, frame_index, condition=slow.y)
            y, gate, fast_state = self.slow_scale * slow.y + self.fast_scale * fast.y, fast.gate, fast.state
        x = x + self.dropout(self.out_proj(self.out_norm(y * F.silu(gate)).to(x.dtype)))
        if self.ffn is not None and self.ffn_norm is not None:
            x = x + self.dropout(self.ffn(self.ffn_norm(x)))
        return x, slow.intensity_logit, BlockState(slow.state, fast_state)
