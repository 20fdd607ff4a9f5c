"""SSMPath: project, convolve, scan, rotate. Slow path, fast path and head are three instances of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surgicalmamba.config import PathConfig, default_dt_rank
from surgicalmamba.core.backends import scan
from surgicalmamba.core.chunks import chunk_segments
from surgicalmamba.core.precision import full
from surgicalmamba.core.rotation import Solve, turn_pairs
from surgicalmamba.core.state import PathState
from surgicalmamba.core.timewarp import warp_step
from surgicalmamba.model.conv import CausalConv
from surgicalmamba.model.intensity import IntensityNet
from surgicalmamba.model.layout import empty_path_state
from surgicalmamba.model.rotator import Rotator, rotate_together


@dataclass(frozen=True)
class PathOutput:
    """What a path gives for a call: its output with skip and without gate, and what else it emits."""

    y: Tensor  # (b, l, d_inner)
    gate: Tensor | None  # (b, l, d_inner)
    intensity_logit: Tensor | None  # (b, l)
    state: PathState


class SSMPath(nn.Module):
    """One selective state-space path over frames, for any number of frames per call.

    Step, B and C come from the convolved input, joined with `condition` where the path has one. `clip_len` is given to a path
    that starts anew every clip; whoever calls empties its state there."""

    def __init__(self, d_model: int, config: PathConfig, clip_len: int | None, conditioned: bool, emits_gate: bool) -> None:
        super().__init__()
        self.config, self.clip_len, self.emits_gate = config, clip_len, emits_gate
        self.d_inner = d_inner = config.expand * d_model
        self.n_heads = n_heads = d_inner // config.d_head
        self.dt_rank = config.dt_rank or default_dt_rank(d_model)
        self.in_proj = nn.Linear(d_model, (2 if emits_gate else 1) * d_inner, bias=False)  # [x, gate]
        self.conv = CausalConv(d_inner, config.d_conv)
        self.select_proj = nn.Linear((2 if conditioned else 1) * d_inner, self.dt_rank + 2 * n_heads * config.d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, n_heads)
        self.A_log = nn.Parameter(torch.empty(n_heads).uniform_(config.a_min, config.a_max).log())
        self.D = nn.Parameter(torch.ones(n_heads))
        self.intensity = None if config.intensity is None else IntensityNet(d_inner, config.intensity)
        self.rotator = None if config.rotation is None else Rotator(n_heads, config.d_head, config.d_state, config.rotation)
        self.turn_proj = nn.Linear(d_inner, config.n_rotary_pairs, bias=False) if config.rotary else None
        self._init_step()

    def _init_step(self) -> None:
        """Steps log-uniform between dt_min and dt_max, as in Mamba: heads begin with memories of different lengths."""
        low, high = math.log(self.config.dt_min), math.log(self.config.dt_max)
        dt = torch.empty(self.n_heads).uniform_(low, high).exp()
        with torch.no_grad():
            self.dt_proj.bias.copy_(torch.log(torch.expm1(dt)) + self.config.dt_shift)  # softplus(bias) = dt when the shift is 0
            nn.init.uniform_(self.dt_proj.weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)

    def initial_state(self, n_lanes: int, dtype: torch.dtype, device: torch.device) -> PathState:
        """The memory before the first frame: zeros, in full precision whatever the weights are."""
        return empty_path_state(self.d_inner, self.config, n_lanes, dtype, device)

    def forward(self, u: Tensor, state: PathState, frame_index: Sequence[int], condition: Tensor | None = None) -> PathOutput:
        """u (b, l, d_model), condition (b, l, d_inner); frame_index[i] frames of lane i's procedure came before."""
        x, gate, tail = self._convolve(u, state)
        dt, B, C, intensity_logit, means = self._select(x, condition, state)
        state = replace(state, conv_tail=tail, means=means)
        if self.turn_proj is not None:
            B, C, state = self._turn(x, dt, B, C, state)
        y, state = self._scan(full(x).unflatten(-1, (self.n_heads, -1)), dt, B, C, state, frame_index)
        return PathOutput(y.flatten(-2), gate, intensity_logit, state)

    def decay(self, u: Tensor, state: PathState, condition: Tensor | None = None) -> Tensor:
        """What every frame of such a call leaves of the carried state, exp(dt A) with the intensity in dt: (b, l, h)."""
        x, _, _ = self._convolve(u, state)
        dt, _, _, _, _ = self._select(x, condition, state)
        return torch.exp(dt * self._decay_rate())

    def _decay_rate(self) -> Tensor:
        """A (h), negative."""
        return -torch.exp(full(self.A_log))

    def _convolve(self, u: Tensor, state: PathState) -> tuple[Tensor, Tensor | None, Tensor]:
        """The convolved input (b, l, d_inner), the gate where the path emits one, and the convolution's new tail."""
        projected = self.in_proj(u)
        x, gate = projected.chunk(2, dim=-1) if self.emits_gate else (projected, None)
        x, tail = self.conv(x, state.conv_tail)
        return F.silu(x), gate, tail

    def _select(
        self, x: Tensor, condition: Tensor | None, state: PathState
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """What the recurrence does with each frame: step (b, l, h), write B and read C (b, l, h, n); the intensity logit and what it
        remembers after the call."""
        heads = (self.n_heads, self.config.d_state)
        width = self.n_heads * self.config.d_state
        selected = self.select_proj(x if condition is None else torch.cat([x, condition.to(x.dtype)], dim=-1))
        dt_low, B, C = selected.split([self.dt_rank, width, width], dim=-1)
        dt = F.softplus(full(F.linear(dt_low, self.dt_proj.weight)) + full(self.dt_proj.bias))
        intensity_logit, means = None, state.means
        if self.intensity is not None:
            intensity_logit, means = self.intensity(x, state.means)
            intensity_logit = full(intensity_logit)
            dt = warp_step(dt, torch.sigmoid(intensity_logit))
        return dt, full(B).unflatten(-1, heads), full(C).unflatten(-1, heads), intensity_logit, means

    def _turn(self, x: Tensor, dt: Tensor, B: Tensor, C: Tensor, state: PathState) -> tuple[Tensor, Tensor, PathState]:
        """B and C (b, l, h, n) turned by the angles accumulated so far, tanh(W x) pi dt per frame; and the state with the last angles."""
        assert self.turn_proj is not None and state.angle is not None
        rate = math.pi * torch.tanh(full(self.turn_proj(x)))  # (b, l, pairs)
        angle = state.angle[:, None] + (dt[..., None] * rate[:, :, None]).cumsum(1)  # (b, l, h, pairs)
        last = torch.remainder(angle[:, -1], 2 * math.pi)  # a procedure lasts long: the angle stays small, its sine exact
        return turn_pairs(B, angle), turn_pairs(C, angle), replace(state, angle=last)

    def _scan(self, x: Tensor, dt: Tensor, B: Tensor, C: Tensor, state: PathState, frame_index: Sequence[int]) -> tuple[Tensor, PathState]:
        """The SSD scan from boundary to boundary, closing chunks in between. y (b, l, h, p) includes the skip D x."""
        A = self._decay_rate()
        skip = full(self.D)[:, None] * x
        chunk_len = None if self.rotator is None else self.config.chunk_len
        outputs = []
        segments = chunk_segments(x.shape[1], frame_index, chunk_len, self.clip_len)
        lengths = [segment.stop - segment.start for segment in segments]
        parts = (whole.split(lengths, dim=1) for whole in (x, dt, B, C, skip))  # one split has a cheaper gradient than many slices
        for segment, x_, dt_, B_, C_, skip_ in zip(segments, *parts, strict=True):
            y, ssm = scan(x_, dt_, A, B_, C_, state.ssm)
            y = y + skip_
            chunk_sum = None if state.chunk_sum is None else state.chunk_sum + y.sum(1)
            state = replace(state, ssm=ssm, chunk_sum=chunk_sum)
            if segment.closing:
                state = self.close_chunk(state, segment.closing)
            outputs.append(y)
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), state

    def close_chunk(self, state: PathState, lanes: Sequence[int]) -> PathState:
        """End the open chunk of these lanes: rotate what is carried on, and begin a new summary."""
        if len(lanes) == state.ssm.shape[0]:
            return close_chunks([self], [state])[0]
        return state.put(lanes, close_chunks([self], [state.select(lanes)])[0])


def close_chunks(paths: Sequence[SSMPath], states: Sequence[PathState], solve: Solve = torch.linalg.solve) -> list[PathState]:
    """End the open chunk of every lane in paths of one size: rotate what is carried on, and begin new summaries."""
    rotators, sums = [], []
    for path, state in zip(paths, states, strict=True):
        assert path.rotator is not None and state.chunk_sum is not None
        rotators.append(path.rotator)
        sums.append(state.chunk_sum)
    means = [total / path.config.chunk_len for path, total in zip(paths, sums, strict=True)]
    rotated = rotate_together(rotators, [state.ssm for state in states], means, solve)
    new = zip(states, rotated, sums, strict=True)
    return [replace(state, ssm=ssm, chunk_sum=torch.zeros_like(total)) for state, ssm, total in new]
