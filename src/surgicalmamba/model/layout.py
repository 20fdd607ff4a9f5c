"""What follows from a configuration alone, without weights: sizes of the memory, and where groups of paths end their chunks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from surgicalmamba.config import ModelConfig, PathConfig
from surgicalmamba.core.precision import full_dtype
from surgicalmamba.core.state import BlockState, Group, ModelState, PathState


@dataclass(frozen=True)
class Grid:
    """Where a group of paths ends its chunks, as `core.chunks.closes_after` takes it. `clip_len` None: counted over the procedure."""

    chunk_len: int
    clip_len: int | None


def rotation_grids(config: ModelConfig) -> dict[Group, Grid]:
    """The groups of paths that rotate, and where."""
    fast, head = config.block.fast, config.head.path
    grids: dict[Group, Grid] = {}
    if config.block.slow.rotation is not None:
        grids["slow"] = Grid(config.block.slow.chunk_len, None)
    if fast is not None and fast.rotation is not None:
        grids["fast"] = Grid(fast.chunk_len, config.clip_len)
    if head.rotation is not None:
        grids["head"] = Grid(head.chunk_len, config.clip_len)
    return grids


def empty_state(config: ModelConfig, n_lanes: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> ModelState:
    """The memory before the first frame of `n_lanes` procedures: zeros, in full precision whatever the weights are."""

    def path(of: PathConfig) -> PathState:
        return empty_path_state(of.expand * config.d_model, of, n_lanes, dtype, device)

    slow, fast = config.block.slow, config.block.fast
    blocks = tuple(BlockState(path(slow), None if fast is None else path(fast)) for _ in range(config.n_blocks))
    return ModelState(frame_index=(0,) * n_lanes, blocks=blocks, head=path(config.head.path))


def empty_path_state(d_inner: int, config: PathConfig, n_lanes: int, dtype: torch.dtype, device: torch.device | str) -> PathState:
    """The memory of one path."""
    n_heads = d_inner // config.d_head

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(n_lanes, *shape, dtype=full_dtype(dtype), device=device)

    chunk_sum = None if config.rotation is None else zeros(n_heads, config.d_head)
    angle = zeros(n_heads, config.n_rotary_pairs) if config.rotary else None
    scales = 0 if config.intensity is None else len(config.intensity.memory)
    means = zeros(scales, d_inner) if scales else None
    return PathState(zeros(n_heads, config.d_head, config.d_state), zeros(config.d_conv - 1, d_inner), chunk_sum, angle, means)
