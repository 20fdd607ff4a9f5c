"""SurgicalMamba: settings, path (with its convolution, intensity and rotator), block, head, network, presets.

One call serves clips, whole videos and single frames. A part that is None in the settings is not built, so an
ablation needs no flag. "Paper" and section names refer to the paper, "release" to the authors' code."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from surgicalmamba.config import Positive, Section
from surgicalmamba.core.chunks import chunk_segments, closes_after
from surgicalmamba.core.rotation import Solve, coordinate_pairs, faster_form, regram, turn_pairs, unit_columns
from surgicalmamba.core.ssd import full, full_dtype, in_full_precision, running_means, scan, warp_step
from surgicalmamba.core.state import BlockState, Group, ModelState, PathState
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.backbone import BACKBONES, BackboneConfig, FeedForward
from surgicalmamba.model.recognizer import Output, Recognizer, RecognizerConfig


class RotationConfig(Section):
    """State regramming: the content-dependent rotation of the carried state at chunk ends (section 3.5)."""

    rank: Positive = Field(16, description="Rotation planes r per head. Paper: 16.")
    d_hidden: Positive = Field(128, description="Hidden width of the networks. Release: 128.")
    kind: Literal["content", "pairs", "constant"] = Field(
        "content",
        description="What a chunk decides: planes and angles (paper), the angles of fixed coordinate pairs, "
        "or nothing (one learned Z). The last two are controls.",
    )
    init: Literal["paper", "release"] = Field(
        "paper",
        description="Start of training; planes and angles depend on content in both. paper: angles near 0, "
        "so that training starts from plain SSD; release: angles about 1.",
    )
    theta_init: float | None = Field(
        None, gt=0, description="Initial angle for a neutral summary, radians; null: 0.005, release 0.854."
    )
    form: Literal["auto", "low-rank", "dense"] = Field(
        "auto", description="Solve a 2r x 2r (Woodbury) or an N x N system; auto: the one measured faster."
    )

    @property
    def start_angle(self) -> float:
        """The angle for a neutral summary before training, radians. Release: 0.3 before the softplus."""
        return self.theta_init or {"paper": 0.005, "release": math.log1p(math.exp(0.3))}[self.init]


class IntensityConfig(Section):
    """The network that enlarges the slow path's step at phase boundaries (section 3.3)."""

    reduction: Positive = Field(16, description="d_inner over hidden width. Paper: a small MLP; release: 16.")
    d_hidden_min: Positive = Field(1, description="Least hidden width. Release: 8.")
    memory: tuple[Annotated[int, Field(ge=2)], ...] = Field(
        (),
        description="Frames of running means that the network also reads, such as [8, 32, 128]. Paper: none, "
        "so that the first block sees only the four frames of the convolution.",
    )
    intensity_init: float = Field(
        0.02, gt=0, lt=1, description="Intensity before training. Paper: near 0 inside phases; release: 0.5."
    )


class PathConfig(Section):
    """One SSD path: slow path, fast path and head are three instances of it."""

    chunk_len: Positive = Field(64, description="Frames between two rotations. Paper: 64.")
    d_state: Positive = Field(64, description="State width N. Paper: 64.")
    d_head: Positive = Field(64, description="Head width P. Release: 64.")
    expand: Positive = Field(2, description="Inner width over model width. Release: 2.")
    d_conv: Annotated[int, Field(ge=2)] = Field(4, description="Frames of the convolution. Release: 4.")
    dt_rank: Positive | None = Field(None, description="Rank of the step; null: ceil(d_model / 16), release.")
    dt_min: float = Field(0.001, gt=0, description="Smallest initial step. Mamba's usual range.")
    dt_max: float = Field(0.1, gt=0, description="Largest initial step. Mamba's usual range.")
    dt_shift: float = Field(0.0, description="Added to the initial bias of dt. Release: -2 in slow.")
    a_min: float = Field(1.0, gt=0, description="Smallest initial |A|, uniform over heads. Mamba-2: 1.")
    a_max: float = Field(16.0, gt=0, description="Largest initial decay rate. Mamba-2: 16; release: d_state.")
    rotation: RotationConfig | None = Field(RotationConfig(), description="State regramming; null: none.")
    intensity: IntensityConfig | None = Field(None, description="In the slow path only (section 3.3).")
    rotary: bool = Field(
        False, description="Control: every frame turns B and C, in half of the state, as in Mamba-3."
    )

    @model_validator(mode="after")
    def _check(self) -> "PathConfig":
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min={self.dt_min} is larger than dt_max={self.dt_max}; swap them.")
        if self.a_min > self.a_max:
            raise ValueError(f"a_min={self.a_min} is larger than a_max={self.a_max}; swap them.")
        if self.rotation is not None:
            is_half, rank = self.rotation.kind == "pairs", self.rotation.rank
            largest, name = (self.d_state // 2, "half of d_state") if is_half else (self.d_state, "d_state")
            if rank > largest:
                raise ValueError(f"rotation.rank={rank} exceeds {name}={largest}; use at most {largest}.")
        if self.rotary and self.d_state < 4:
            raise ValueError(f"rotary needs a d_state of at least 4, not {self.d_state}; it turns half.")
        return self

    @property
    def n_rotary_pairs(self) -> int:
        """Coordinate pairs that a rotary path turns: half of the state."""
        return self.d_state // 4 if self.rotary else 0


class BlockConfig(Section):
    """One dual-path block. Without `fast` it is a single-path block whose slow path also emits the gate."""

    slow: PathConfig = Field(PathConfig(intensity=IntensityConfig()), description="Not reset between clips.")
    fast: PathConfig | None = Field(PathConfig(), description="Reset at each clip; conditioned on slow.")
    ffn_ratio: Positive = Field(4, description="Feed-forward width over model width. Release: 4.")

    @model_validator(mode="after")
    def _check(self) -> "BlockConfig":
        fast, slow = self.fast, self.slow
        if fast is not None and fast.intensity is not None:
            raise ValueError("fast.intensity must be null: it is confined to the slow path (section 3.3).")
        if fast is not None and (fast.expand, fast.d_head) != (slow.expand, slow.d_head):
            raise ValueError("slow and fast paths are summed, so expand and d_head must be equal in both.")
        return self


class HeadConfig(Section):
    """The output head: a single-path block that is reset at every clip, and the classifier (section 3.6)."""

    path: PathConfig = Field(PathConfig(chunk_len=32), description="Its SSD path. Release: chunk_len 32.")
    ffn_ratio: Positive = Field(4, description="Feed-forward width over model width. Release: 4.")

    @model_validator(mode="after")
    def _check(self) -> "HeadConfig":
        if self.path.intensity is not None:
            raise ValueError("path.intensity must be null: it is confined to the slow path (section 3.3).")
        return self


class ModelConfig(RecognizerConfig):
    """SurgicalMamba. `ModelConfig()` is the paper's model for seven phases."""

    d_model: Positive = Field(768, description="Width of the temporal model. Release: 768.")
    n_blocks: Positive = Field(4, description="Dual-path blocks K. Paper: 4.")
    clip_len: Positive = Field(256, description="Frames L between resets of fast paths and head. Paper: 256.")
    backbone: BackboneConfig | None = Field(BackboneConfig(), description="Frame encoder; null: none.")
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of values dropped in training: both branches of every block and the head's input. "
        "Paper: not mentioned; release: 0.1.",
    )
    block: BlockConfig = Field(BlockConfig(), description="Every one of the K blocks.")
    head: HeadConfig = Field(HeadConfig(), description="The output head.")

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        for name, path in self.paths().items():
            d_inner = path.expand * self.d_model
            if d_inner % path.d_head:
                raise ValueError(f"{name}.d_head={path.d_head} does not divide the inner width {d_inner}.")
            if name != "block.slow" and path.rotation is not None and path.chunk_len >= self.clip_len:
                raise ValueError(
                    f"{name}.chunk_len={path.chunk_len} is not below clip_len={self.clip_len}: the path is "
                    f"reset before it can rotate. Use at most {max(1, self.clip_len // 2)}, or set "
                    f"{name}.rotation to null."
                )
        return self

    def paths(self) -> dict[str, PathConfig]:
        """The SSD paths that exist, by their dotted setting name."""
        named = {"block.slow": self.block.slow, "block.fast": self.block.fast, "head.path": self.head.path}
        return {name: path for name, path in named.items() if path is not None}

    @property
    def snapshot_frames(self) -> int:
        return self.block.slow.chunk_len

    def closes_after(self, frames_seen: int) -> bool:
        """Whether any path closes a chunk there."""
        grids = rotation_grids(self).values()
        return any(closes_after(frames_seen, grid.chunk_len, grid.clip_len) for grid in grids)

    def with_paths(self, **changes: object) -> "ModelConfig":
        """A copy with the same change made to every SSD path, such as `with_paths(d_state=16)`."""
        return self._map_paths(lambda path: path.with_(**changes))

    def with_rotation(self, **changes: object) -> "ModelConfig":
        """A copy with the same change made to every rotation, such as `with_rotation(rank=4)`."""

        def change(path: PathConfig) -> PathConfig:
            return path if path.rotation is None else path.with_(rotation=path.rotation.with_(**changes))

        return self._map_paths(change)

    def _map_paths(self, change: Callable[[PathConfig], PathConfig]) -> "ModelConfig":
        fast = None if self.block.fast is None else change(self.block.fast)
        block = self.block.with_(slow=change(self.block.slow), fast=fast)
        return self.with_(block=block, head=self.head.with_(path=change(self.head.path)))

    @classmethod
    def preset(cls, name: str, **changes: object) -> "ModelConfig":
        """A named configuration: `paper`, `release` or `tiny`; `changes` replace top-level settings."""
        if name not in PRESETS:
            raise ConfigError(f"unknown preset {name!r}; presets: {', '.join(PRESETS)}.")
        return PRESETS[name].with_(**changes)

    @classmethod
    def preset_settings(cls, name: str) -> dict[str, object]:
        return cls.preset(name).model_dump()

    def variant(self, name: str) -> "ModelConfig":
        """A row of the paper's component ablation, or a control of the rotation (see VARIANTS)."""
        if name not in VARIANTS:
            raise ConfigError(f"unknown variant {name!r}; variants: {', '.join(VARIANTS)}.")
        without, block = VARIANTS[name], self.block
        if "fast" in without:
            block = block.with_(fast=None)
        if "intensity" in without:
            block = block.with_(slow=block.slow.with_(intensity=None))
        config = self.with_(block=block)
        if "rotation" in without:
            return config.with_paths(rotation=None, rotary=name == "rotary")
        is_control = name in ("constant-z", "pairs-z")
        return config.with_rotation(kind=name.removesuffix("-z")) if is_control else config


class CausalConv(nn.Module):
    """y_t = bias + sum_k weight[:, k] x_{t - d_conv + 1 + k}: depthwise, over any number of frames.

    The tail holds the last d_conv - 1 inputs, zeros before the first frame, so cutting a sequence changes
    nothing (appendix Implementation, cross-clip carry)."""

    def __init__(self, width: int, d_conv: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(d_conv)
        self.weight = nn.Parameter(torch.empty(width, d_conv).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(width).uniform_(-bound, bound))

    def forward(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """x (b, l, d), tail (b, d_conv - 1, d) -> y (b, l, d) and the new tail."""
        length = x.shape[1]
        seen = torch.cat([tail.to(x.dtype), x], dim=1)
        y = self.bias.to(x.dtype)
        for k, tap in enumerate(self.weight.to(x.dtype).unbind(1)):
            y = y + tap * seen[:, k : k + length]
        return y, seen[:, length:].to(tail.dtype)


class IntensityNet(nn.Module):
    """One logit per frame from the convolved feature, eq. (lambda); its sigmoid is the intensity.

    The input is detached: the transition loss trains this network alone. A boundary is a change, which a
    single frame does not show; with `memory` the network also reads running means of its input."""

    def __init__(self, d_inner: int, config: IntensityConfig) -> None:
        super().__init__()
        hidden = max(config.d_hidden_min, d_inner // config.reduction)
        self.up = nn.Linear(d_inner * (1 + len(config.memory)), hidden)
        self.out = nn.Linear(hidden, 1)
        self.frames: Tensor
        self.register_buffer("frames", torch.tensor(config.memory, dtype=torch.float32), persistent=False)
        nn.init.constant_(self.out.bias, math.log(config.intensity_init / (1 - config.intensity_init)))

    def forward(self, x: Tensor, means: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x (b, l, d_inner), means (b, s, d_inner) before the call -> logits (b, l), means after the call."""
        seen = x.detach()
        if means is not None:
            past, means = running_means(seen, self.frames, means)
            seen = torch.cat([seen, past.flatten(-2).to(seen.dtype)], dim=-1)
        return self.out(F.silu(self.up(seen)))[..., 0], means


class PerHeadMLP(nn.Module):
    """A two-layer SiLU network with separate weights for every head, evaluated for all heads at once.

    Weights are stored (head, in, out). They start as in the release: Xavier's normal with gain 1, then 2, so
    that the output depends on the input from the first update; hidden biases are zero."""

    def __init__(self, n_heads: int, d_in: int, d_hidden: int, bias: Tensor) -> None:
        super().__init__()

        def xavier(d_in: int, d_out: int, gain: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(n_heads, d_in, d_out) * gain * math.sqrt(2 / (d_in + d_out)))

        self.w1 = xavier(d_in, d_hidden, gain=1.0)
        self.b1 = nn.Parameter(torch.zeros(n_heads, d_hidden))
        self.w2 = xavier(d_hidden, bias.shape[1], gain=2.0)
        self.b2 = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (b, h, d_in) -> (b, h, d_out)."""
        rows = x.transpose(0, 1)  # (h, b, d_in)
        hidden = F.silu(torch.baddbmm(self.b1[:, None], rows, self.w1))
        return torch.baddbmm(self.b2[:, None], hidden, self.w2).transpose(0, 1)


class PerHeadConstant(nn.Module):
    """A learned vector per head, whatever the input: the control whose rotation ignores the content."""

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.b2 = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.b2.expand(x.shape[0], -1, -1)


class Rotator(nn.Module):
    """Planes and angles of the rotation, from the chunk that just ended: eqs. (phi), (uvtheta)."""

    def __init__(self, n_heads: int, d_head: int, d_state: int, config: RotationConfig) -> None:
        super().__init__()
        self.rank, self.d_state = config.rank, d_state
        self.form = faster_form(d_state, config.rank) if config.form == "auto" else config.form
        angle_bias = torch.full((n_heads, config.rank), math.log(math.expm1(config.start_angle)))
        plane_bias = _plane_bias(n_heads, d_state * config.rank)
        self.planes: nn.Module | None
        self.angles: nn.Module
        if config.kind == "constant":
            self.planes, self.angles = PerHeadConstant(plane_bias), PerHeadConstant(angle_bias)
        else:
            pairs = config.kind == "pairs"
            self.planes = None if pairs else PerHeadMLP(n_heads, d_head, config.d_hidden, plane_bias)
            self.angles = PerHeadMLP(n_heads, d_head, config.d_hidden, angle_bias)

    @in_full_precision
    def factors(self, summary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """U, V (b, h, n, r) with unit columns and theta (b, h, r) from a chunk's mean output (b, h, p)."""
        phi = F.layer_norm(summary, summary.shape[-1:])
        theta = F.softplus(self.angles(phi))
        if self.planes is None:
            U, V = coordinate_pairs(self.d_state, self.rank, phi).expand(2, *phi.shape[:2], -1, -1)
            return U, V, theta
        U, V = self.planes(phi).unflatten(-1, (2, self.d_state, self.rank)).unbind(2)
        return unit_columns(U), unit_columns(V), theta

    def forward(self, state: Tensor, summary: Tensor) -> Tensor:
        """state (b, h, p, n) and the chunk's mean output (b, h, p) -> the rotated state."""
        return rotate_together([self], [state], [summary])[0]


def _plane_bias(n_heads: int, size: int) -> Tensor:
    """Biases of U and V (h, 2 * size), entries of about 0.5; heads are orthogonal as far as possible."""
    halves = [nn.init.orthogonal_(torch.empty(size, n_heads)) for _ in range(2)]
    columns = torch.cat([F.normalize(half, dim=0) for half in halves])
    return (0.5 * math.sqrt(size) * columns.T).contiguous()


def rotate_together(
    rotators: Sequence[Rotator],
    states: Sequence[Tensor],
    summaries: Sequence[Tensor],
    solve: Solve = torch.linalg.solve,
) -> list[Tensor]:
    """Rotate the states of paths of equal size. Heads are independent, so one solve serves all paths."""
    factors = [rotator.factors(summary) for rotator, summary in zip(rotators, summaries, strict=True)]
    if len(rotators) == 1:
        return [regram(states[0], *factors[0], rotators[0].form, solve)]
    U, V, theta = (torch.cat(parts, dim=1) for parts in zip(*factors, strict=True))
    rotated = regram(torch.cat(list(states), dim=1), U, V, theta, rotators[0].form, solve)
    return list(rotated.split([state.shape[1] for state in states], dim=1))


def empty_path_state(
    d_inner: int, config: PathConfig, n_lanes: int, dtype: torch.dtype, device: torch.device | str
) -> PathState:
    """The memory of one path before the first frame: zeros, in full precision whatever the weights are."""
    n_heads = d_inner // config.d_head
    n_means = 0 if config.intensity is None else len(config.intensity.memory)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(n_lanes, *shape, dtype=full_dtype(dtype), device=device)

    return PathState(
        ssm=zeros(n_heads, config.d_head, config.d_state),
        conv_tail=zeros(config.d_conv - 1, d_inner),
        chunk_sum=None if config.rotation is None else zeros(n_heads, config.d_head),
        angle=zeros(n_heads, config.n_rotary_pairs) if config.rotary else None,
        means=zeros(n_means, d_inner) if n_means else None,
    )


@dataclass(frozen=True)
class PathOutput:
    """Output of a path for one call. `y` includes the skip and not the gate."""

    y: Tensor  # (b, l, d_inner)
    gate: Tensor | None  # (b, l, d_inner)
    intensity_logit: Tensor | None  # (b, l)
    state: PathState


class SSMPath(nn.Module):
    """One selective state-space path: project, convolve, scan, rotate, for any number of frames per call.

    Step, B and C come from the convolved input, joined with `condition` where the path has one. A path with
    `clip_len` counts its chunks from the start of a clip; the caller resets its state there."""

    def __init__(
        self, d_model: int, config: PathConfig, clip_len: int | None, conditioned: bool, emits_gate: bool
    ) -> None:
        super().__init__()
        self.config, self.clip_len, self.emits_gate = config, clip_len, emits_gate
        self.d_inner = d_inner = config.expand * d_model
        self.n_heads = n_heads = d_inner // config.d_head
        self.dt_rank = dt_rank = config.dt_rank or math.ceil(d_model / 16)
        d_select = dt_rank + 2 * n_heads * config.d_state
        self.in_proj = nn.Linear(d_model, (2 if emits_gate else 1) * d_inner, bias=False)  # [x, gate]
        self.conv = CausalConv(d_inner, config.d_conv)
        self.select_proj = nn.Linear((2 if conditioned else 1) * d_inner, d_select, bias=False)  # [dt, B, C]
        self.dt_proj = nn.Linear(dt_rank, n_heads)
        self.A_log = nn.Parameter(torch.empty(n_heads).uniform_(config.a_min, config.a_max).log())
        self.D = nn.Parameter(torch.ones(n_heads))
        self.intensity = None if config.intensity is None else IntensityNet(d_inner, config.intensity)
        rotation = config.rotation
        self.rotator = None if rotation is None else Rotator(n_heads, config.d_head, config.d_state, rotation)
        self.turn_proj = nn.Linear(d_inner, config.n_rotary_pairs, bias=False) if config.rotary else None

        # Log-uniform steps, as in Mamba: heads start with memories of different lengths.
        dt = torch.empty(n_heads).uniform_(math.log(config.dt_min), math.log(config.dt_max)).exp()
        with torch.no_grad():
            self.dt_proj.bias.copy_(torch.log(torch.expm1(dt)) + config.dt_shift)  # inverse of softplus
            nn.init.uniform_(self.dt_proj.weight, -(dt_rank**-0.5), dt_rank**-0.5)

    def initial_state(self, n_lanes: int, dtype: torch.dtype, device: torch.device) -> PathState:
        return empty_path_state(self.d_inner, self.config, n_lanes, dtype, device)

    def forward(
        self, u: Tensor, state: PathState, frame_index: Sequence[int], condition: Tensor | None = None
    ) -> PathOutput:
        """u (b, l, d_model), condition (b, l, d_inner); lane i has seen frame_index[i] frames before."""
        x, gate, tail = self._convolve(u, state)
        dt, B, C, intensity_logit, means = self._select(x, condition, state)
        state = replace(state, conv_tail=tail, means=means)
        if self.turn_proj is not None:
            B, C, state = self._turn(x, dt, B, C, state)
        y, state = self._scan(full(x).unflatten(-1, (self.n_heads, -1)), dt, B, C, state, frame_index)
        return PathOutput(y.flatten(-2), gate, intensity_logit, state)

    def decay(self, u: Tensor, state: PathState, condition: Tensor | None = None) -> Tensor:
        """The share of the carried state that each frame of such a call keeps, exp(dt A): (b, l, h)."""
        x, _, _ = self._convolve(u, state)
        return torch.exp(self._select(x, condition, state)[0] * self._decay_rate())

    def _decay_rate(self) -> Tensor:
        """A (h), negative."""
        return -torch.exp(full(self.A_log))

    def _convolve(self, u: Tensor, state: PathState) -> tuple[Tensor, Tensor | None, Tensor]:
        """The convolved input (b, l, d_inner), the gate if the path emits one, and the new tail."""
        projected = self.in_proj(u)
        x, gate = projected.chunk(2, dim=-1) if self.emits_gate else (projected, None)
        x, tail = self.conv(x, state.conv_tail)
        return F.silu(x), gate, tail

    def _select(
        self, x: Tensor, condition: Tensor | None, state: PathState
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """Step (b, l, h), write B and read C (b, l, h, n), intensity logit (b, l), and its new means."""
        heads = (self.n_heads, self.config.d_state)
        selected = self.select_proj(x if condition is None else torch.cat([x, condition.to(x.dtype)], dim=-1))
        dt_low, B, C = selected.split([self.dt_rank, math.prod(heads), math.prod(heads)], dim=-1)
        dt = F.softplus(full(F.linear(dt_low, self.dt_proj.weight)) + full(self.dt_proj.bias))
        intensity_logit, means = None, state.means
        if self.intensity is not None:
            intensity_logit, means = self.intensity(x, state.means)
            intensity_logit = full(intensity_logit)
            dt = warp_step(dt, torch.sigmoid(intensity_logit))
        return dt, full(B).unflatten(-1, heads), full(C).unflatten(-1, heads), intensity_logit, means

    def _turn(
        self, x: Tensor, dt: Tensor, B: Tensor, C: Tensor, state: PathState
    ) -> tuple[Tensor, Tensor, PathState]:
        """B and C (b, l, h, n) turned by the accumulated angle, which grows by tanh(W x) pi dt per frame."""
        assert self.turn_proj is not None and state.angle is not None
        rate = math.pi * torch.tanh(full(self.turn_proj(x)))  # (b, l, pairs)
        angle = state.angle[:, None] + (dt[..., None] * rate[:, :, None]).cumsum(1)  # (b, l, h, pairs)
        last = torch.remainder(angle[:, -1], 2 * math.pi)  # small numbers keep the sine exact
        return turn_pairs(B, angle), turn_pairs(C, angle), replace(state, angle=last)

    def _scan(
        self, x: Tensor, dt: Tensor, B: Tensor, C: Tensor, state: PathState, frame_index: Sequence[int]
    ) -> tuple[Tensor, PathState]:
        """Scan from boundary to boundary and close chunks there. y (b, l, h, p) includes the skip D x."""
        A = self._decay_rate()
        skip = full(self.D)[:, None] * x
        chunk_len = None if self.rotator is None else self.config.chunk_len
        segments = chunk_segments(x.shape[1], frame_index, chunk_len, self.clip_len)
        lengths = [segment.stop - segment.start for segment in segments]
        # One split has a cheaper gradient than many slices.
        parts = (whole.split(lengths, dim=1) for whole in (x, dt, B, C, skip))
        outputs = []
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
        """End the open chunk of these lanes: rotate the carried state and start a new summary."""
        if len(lanes) == state.ssm.shape[0]:
            return close_chunks([self], [state])[0]
        return state.put(lanes, close_chunks([self], [state.select(lanes)])[0])


def close_chunks(
    paths: Sequence[SSMPath], states: Sequence[PathState], solve: Solve = torch.linalg.solve
) -> list[PathState]:
    """End the open chunk of all lanes in paths of equal size: rotate the states, start new summaries."""
    rotators, summaries = [], []
    for path, state in zip(paths, states, strict=True):
        assert path.rotator is not None and state.chunk_sum is not None
        rotators.append(path.rotator)
        summaries.append(state.chunk_sum / path.config.chunk_len)
    rotated = rotate_together(rotators, [state.ssm for state in states], summaries, solve)
    new = zip(states, rotated, summaries, strict=True)
    return [replace(state, ssm=ssm, chunk_sum=torch.zeros_like(mean)) for state, ssm, mean in new]


class DualPathBlock(nn.Module):
    """x + Linear(RMSNorm((y_slow + y_fast) SiLU(gate))), then x + FFN(x), each behind a LayerNorm (appendix
    Implementation, fusion). In training `dropout` acts on both additions.

    The fast input projection emits the gate. Each path has a learned scale per channel, as in the release.
    Without a fast path this is a single-path block (the paper's controls, and the output head): its one path
    emits the gate and has no scale. Without `ffn_ratio` there is no feed-forward layer."""

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
        slow_clip_len = None if slow_carries else clip_len
        self.slow = SSMPath(d_model, slow, slow_clip_len, conditioned=False, emits_gate=fast is None)
        self.fast = None if fast is None else SSMPath(d_model, fast, clip_len, True, True)
        d_inner = self.slow.d_inner
        self.slow_scale = None if fast is None else nn.Parameter(torch.ones(d_inner))
        self.fast_scale = None if fast is None else nn.Parameter(torch.ones(d_inner))
        self.out_norm = nn.RMSNorm(d_inner, eps=1e-5)
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)
        self.ffn_norm = None if ffn_ratio is None else nn.LayerNorm(d_model)
        self.ffn = None if ffn_ratio is None else FeedForward(d_model, ffn_ratio)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, state: BlockState, frame_index: Sequence[int]
    ) -> tuple[Tensor, Tensor | None, BlockState]:
        """x (b, l, d_model) -> the same shape, the intensity logit (b, l) or None, and the new state."""
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


class PhaseHead(nn.Module):
    """A single-path block without intensity that is reset at each clip, and the classifier (section 3.6)."""

    def __init__(
        self, d_model: int, n_phases: int, config: HeadConfig, clip_len: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.block = DualPathBlock(d_model, config.path, None, config.ffn_ratio, clip_len, False, dropout)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(d_model, n_phases)

    def forward(self, x: Tensor, state: PathState, frame_index: Sequence[int]) -> tuple[Tensor, PathState]:
        """x (b, l, d_model) -> logits (b, l, k) and the new state."""
        x, _, block_state = self.block(self.dropout(x), BlockState(state, None), frame_index)
        return self.classifier(x), block_state.slow


class SurgicalMamba(Recognizer[ModelState]):
    """The paper's recognizer: backbone, projector, K dual-path blocks, output head.

    All of its memory is in the ModelState it returns, so logits do not depend on how a procedure is cut into
    calls. Fast paths and head are reset every `clip_len` frames of a procedure."""

    name = "surgicalmamba"
    config_class = ModelConfig
    memory = "O(1)"
    config: ModelConfig

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        d_model, clip_len, dropout = config.d_model, config.clip_len, config.dropout
        self.projector = nn.Sequential(nn.Linear(config.feature_width, d_model), nn.LayerNorm(d_model))
        slow, fast, ffn_ratio = config.block.slow, config.block.fast, config.block.ffn_ratio
        self.blocks = nn.ModuleList(
            DualPathBlock(d_model, slow, fast, ffn_ratio, clip_len, slow_carries=True, dropout=dropout)
            for _ in range(config.n_blocks)
        )
        self.norm = nn.LayerNorm(d_model)
        self.head = PhaseHead(d_model, config.n_phases, config.head, clip_len, dropout)

    def _blocks(self) -> Iterable[DualPathBlock]:
        return cast(Iterable[DualPathBlock], self.blocks)

    def initial_state(self, n_lanes: int) -> ModelState:
        """The memory before the first frame of `n_lanes` procedures."""
        return empty_state(self.config, n_lanes, self.dtype, self.device)

    def temporal(self, features: Tensor, state: ModelState) -> Output[ModelState]:
        """Advance from clip end to clip end, and reset fast paths and head there."""
        logits, intensities = [], []
        for piece in chunk_segments(features.shape[1], state.frame_index, self.config.clip_len):
            piece_logits, intensity, state = self._advance(features[:, piece.start : piece.stop], state)
            state = state.reset_clip(piece.closing)
            logits.append(piece_logits)
            intensities += [] if intensity is None else [intensity]
        return Output(torch.cat(logits, 1), torch.cat(intensities, 1) if intensities else None, state)

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
        """One frame (b, d_feature) of every lane, without checks, chunk ends or clocks.

        Engines capture this; followed by `close_chunks` and `reset_clip` it equals `forward_features`."""
        x = features if self.standardise is None else self.standardise(features)
        logits, intensity, after = self._advance(x[:, None], state.at(()))
        intensity = None if intensity is None else intensity[:, 0]
        return Output(logits[:, 0], intensity, after.at(state.frame_index))

    def in_pieces(self) -> "SurgicalMamba":
        return self

    def rotators(self) -> dict[str, Rotator]:
        """By path: slow0, slow1, ..., fast0, ..., head."""
        groups = self.rotating_paths().items()
        paths = {
            group if group == "head" else f"{group}{i}": path
            for group, members in groups
            for i, path in enumerate(members)
        }
        return {name: path.rotator for name, path in paths.items() if path.rotator is not None}

    def shard_units(self) -> list[nn.Module]:
        """Backbone, each block and the head. A slow chunk longer than a clip is refused: some processes would
        rotate where others do not, and their gradients could not be combined."""
        slow, clip_len = self.config.block.slow, self.config.clip_len
        if slow.rotation is not None and slow.chunk_len > clip_len:
            raise ConfigError(
                f"block.slow.chunk_len={slow.chunk_len} exceeds clip_len={clip_len}, which distributed=shard "
                "cannot train; use distributed=replicate or a shorter chunk."
            )
        return [*self.blocks, self.head, *([] if self.backbone is None else [self.backbone])]

    def rotating_paths(self) -> dict[Group, tuple[SSMPath, ...]]:
        """The paths that close chunks, by group; a group closes at the same frames."""
        fast = (block.fast for block in self._blocks())
        groups: dict[Group, tuple[SSMPath, ...]] = {
            "slow": tuple(block.slow for block in self._blocks()),
            "fast": tuple(path for path in fast if path is not None),
            "head": (self.head.block.slow,),
        }
        return {name: groups[name] for name in rotation_grids(self.config)}


def empty_state(
    config: ModelConfig, n_lanes: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> ModelState:
    """The memory before the first frame of `n_lanes` procedures, from the settings alone."""

    def path(of: PathConfig) -> PathState:
        return empty_path_state(of.expand * config.d_model, of, n_lanes, dtype, device)

    slow, fast = config.block.slow, config.block.fast
    blocks = (BlockState(path(slow), None if fast is None else path(fast)) for _ in range(config.n_blocks))
    return ModelState((0,) * n_lanes, tuple(blocks), path(config.head.path))


@dataclass(frozen=True)
class Grid:
    """Where paths end their chunks, as arguments of `core.chunks.closes_after`."""

    chunk_len: int
    clip_len: int | None


def rotation_grids(config: ModelConfig) -> dict[Group, Grid]:
    """The groups of paths that rotate, and where their chunks end."""
    groups: dict[Group, tuple[PathConfig | None, int | None]] = {
        "slow": (config.block.slow, None),
        "fast": (config.block.fast, config.clip_len),
        "head": (config.head.path, config.clip_len),
    }
    return {
        group: Grid(path.chunk_len, clip_len)
        for group, (path, clip_len) in groups.items()
        if path is not None and path.rotation is not None
    }


VARIANTS: dict[str, frozenset[str]] = {
    "full": frozenset(),
    "vanilla-mamba2": frozenset({"fast", "intensity", "rotation"}),
    "z-only": frozenset({"fast", "intensity"}),
    "without-z": frozenset({"rotation"}),
    "without-lambda": frozenset({"intensity"}),
    "without-fast": frozenset({"fast"}),
    "constant-z": frozenset(),
    "pairs-z": frozenset(),
    "rotary": frozenset({"rotation"}),
}
"""The parts that each row of the paper's table "Component ablation" leaves out; the smoothness loss belongs
to training. The last three are controls of the rotation: one learned Z for all chunks, angles from content in
fixed planes, and B and C turned at every frame."""


def _release() -> ModelConfig:
    path = PathConfig(a_max=64.0, rotation=RotationConfig(init="release"))  # a_max is d_state
    slow = path.with_(dt_shift=-2.0, intensity=IntensityConfig(d_hidden_min=8, intensity_init=0.5))
    head = HeadConfig(path=path.with_(chunk_len=32))
    return ModelConfig(clip_len=128, dropout=0.1, block=BlockConfig(slow=slow, fast=path), head=head)


def _tiny() -> ModelConfig:
    config = ModelConfig(d_model=128, n_blocks=2, backbone=BACKBONES["tiny"])
    return config.with_paths(d_state=32, d_head=32, rotation=RotationConfig(rank=4, d_hidden=32))


PRESETS: dict[str, ModelConfig] = {"paper": ModelConfig(), "release": _release(), "tiny": _tiny()}
