"""Vanilla Mamba-2: a single selective state-space path per block, state carried through the procedure.

Published (code): the reference block has inner width 2d, heads of 64, one group of B and C shared by all
heads, a causal depthwise convolution of four taps over x, B and C with SiLU, steps initialised log-uniformly
in [0.001, 0.1], A in [1, 16], a skip D and a gated RMSNorm; state width 128 upstream, 64 in the control of
the SurgicalMamba paper. That control is a stack of four blocks with LayerNorm, residual and a GELU
feed-forward layer; in its release B and C are per head, the step comes from the convolved input through a
low-rank projection, and the convolution is over x alone. Clips of 256 frames with carried state, AdamW, label
smoothing.
Uncertain: the control's recipe; its release uses clips of 128 frames and gradients through six of them.
Changed: nothing in the blocks. `form: control` is the paper's control block (the package's own SSMPath, with
no rotation, no intensity and no fast path); `form: upstream` is the reference block, without a feed-forward
layer."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from surgicalmamba.config import Positive
from surgicalmamba.core.ssd import full, scan
from surgicalmamba.core.state import BlockState, LaneState, PathState
from surgicalmamba.model.recognizer import Output, Recognizer, RecognizerConfig
from surgicalmamba.model.surgical_mamba import CausalConv, DualPathBlock, PathConfig, empty_path_state


class Mamba2Config(RecognizerConfig):
    form: Literal["control", "upstream"] = Field(
        "control", description="The SurgicalMamba paper's control block, or Mamba-2's own."
    )
    d_model: Positive = Field(768, description="Width. Paper's control: 768.")
    n_blocks: Positive = Field(4, description="Blocks. Paper's control: 4.")
    d_state: Positive = Field(64, description="State width N. Paper's control: 64; upstream: 128.")
    d_head: Positive = Field(64, description="Head width P. Upstream: 64.")
    expand: Positive = Field(2, description="Inner width over model width. Upstream: 2.")
    d_conv: int = Field(4, ge=2, description="Taps of the causal convolution, frames. Upstream: 4.")
    ffn_ratio: Positive = Field(
        4, description="Feed-forward width over model width, in the control's blocks. Release: 4."
    )

    @model_validator(mode="after")
    def _check_heads(self) -> "Mamba2Config":
        if self.expand * self.d_model % self.d_head:
            inner = f"the inner width {self.expand * self.d_model} (expand x d_model)"
            raise ValueError(f"d_head={self.d_head} does not divide {inner}.")
        return self

    @property
    def path(self) -> PathConfig:
        """The control's only path."""
        return PathConfig(
            d_state=self.d_state, d_head=self.d_head, expand=self.expand, d_conv=self.d_conv, rotation=None
        )


@dataclass(frozen=True)
class Mamba2State(LaneState):
    blocks: tuple[PathState, ...]


class ControlBlock(nn.Module):
    """The paper's control: a dual-path block with one path."""

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        self.block = DualPathBlock(
            config.d_model, config.path, None, config.ffn_ratio, config.clip_len, slow_carries=True
        )

    def forward(self, x: Tensor, state: PathState) -> tuple[Tensor, PathState]:
        x, _, after = self.block(x, BlockState(state, None), ())
        return x, after.slow


class UpstreamBlock(nn.Module):
    """x + out_proj(RMSNorm(y SiLU(gate))), y the scan of one projection to [gate, x, B, C, dt]."""

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        d_inner, n = config.expand * config.d_model, config.d_state
        self.n_heads, self.d_head = d_inner // config.d_head, config.d_head
        self.sizes = [d_inner, d_inner + 2 * n, self.n_heads]  # gate; x, B and C, which are convolved; dt
        self.parts = [d_inner, n, n]
        self.norm = nn.LayerNorm(config.d_model)
        self.in_proj = nn.Linear(config.d_model, sum(self.sizes), bias=False)
        self.conv = CausalConv(d_inner + 2 * n, config.d_conv)
        dt = torch.empty(self.n_heads).uniform_(math.log(0.001), math.log(0.1)).exp()
        self.dt_bias = nn.Parameter(torch.log(torch.expm1(dt)))
        self.A_log = nn.Parameter(torch.empty(self.n_heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(self.n_heads))
        self.out_norm = nn.RMSNorm(d_inner, eps=1e-5)
        self.out_proj = nn.Linear(d_inner, config.d_model, bias=False)

    def forward(self, u: Tensor, state: PathState) -> tuple[Tensor, PathState]:
        """u (b, l, d) -> the same shape."""
        gate, convolved, dt_raw = self.in_proj(self.norm(u)).split(self.sizes, dim=-1)
        convolved, tail = self.conv(convolved, state.conv_tail)
        x, B, C = full(F.silu(convolved)).split(self.parts, dim=-1)
        x = x.unflatten(-1, (self.n_heads, self.d_head))  # (b, l, h, p)
        B, C = (each[:, :, None].expand(-1, -1, self.n_heads, -1) for each in (B, C))  # shared by all heads
        dt, A = F.softplus(full(dt_raw) + self.dt_bias), -torch.exp(full(self.A_log))
        y, ssm = scan(x, dt, A, B, C, state.ssm)
        y = (y + self.D[:, None] * x).flatten(-2)
        return u + self.out_proj(self.out_norm(y * F.silu(gate)).to(u.dtype)), PathState(ssm, tail, None)


class VanillaMamba2(Recognizer[Mamba2State]):
    """The baseline for the dual path, the rotation and the intensity of SurgicalMamba."""

    name = "mamba2"
    config_class = Mamba2Config
    memory = "O(1)"
    config: Mamba2Config

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__(config)
        make = ControlBlock if config.form == "control" else UpstreamBlock
        self.projector = nn.Sequential(
            nn.Linear(config.feature_width, config.d_model), nn.LayerNorm(config.d_model)
        )
        self.blocks = nn.ModuleList(make(config) for _ in range(config.n_blocks))
        self.norm = nn.LayerNorm(config.d_model)
        self.classifier = nn.Linear(config.d_model, config.n_phases)

    def initial_state(self, n_lanes: int) -> Mamba2State:
        config = self.config
        d_inner = config.expand * config.d_model
        d_conv_input = d_inner + (2 * config.d_state if config.form == "upstream" else 0)
        empty = empty_path_state(d_inner, config.path, n_lanes, self.dtype, self.device)
        state = PathState(empty.ssm, self.zeros(n_lanes, config.d_conv - 1, d_conv_input), None)
        return Mamba2State((0,) * n_lanes, (state,) * config.n_blocks)

    def temporal(self, features: Tensor, state: Mamba2State) -> Output[Mamba2State]:
        x, after = self.projector(features), []
        for block, before in zip(self.blocks, state.blocks, strict=True):
            x, block_state = block(x, before)
            after.append(block_state)
        next_state = Mamba2State(state.frame_index, tuple(after)).advance(features.shape[1])
        return Output(self.classifier(self.norm(x)), None, next_state)
