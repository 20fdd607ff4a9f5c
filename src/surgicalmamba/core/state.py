"""The memory of a recognizer as frozen records of tensors. The first axis of every tensor is the lane."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
from torch import Tensor

T = TypeVar("T", bound="TensorRecord")


@dataclass(frozen=True)
class TensorRecord:
    """A record of tensors, of other records, or of tuples of records; anything else in it is left alone."""

    def map(self: T, function: Callable[..., Tensor], *others: T) -> T:
        """The same record with `function` applied to each tensor, and to the matching tensors of `others`."""
        records = (self, *others)
        values = ((f.name, [getattr(record, f.name) for record in records]) for f in fields(self))
        return replace(self, **{name: _map(function, *matching) for name, matching in values})

    def tensors(self) -> list[Tensor]:
        """Every tensor, in a fixed order."""
        found: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            found.append(tensor)
            return tensor

        self.map(note)
        return found

    def with_tensors(self: T, tensors: Sequence[Tensor]) -> T:
        """A record of the same form holding these tensors, in the order of `tensors()`."""
        remaining = iter(tensors)
        return self.map(lambda _: next(remaining))

    def names(self) -> list[str]:
        """A dotted name for every tensor, in the order of `tensors()`: blocks.0.slow.ssm."""
        found: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                found.append(field.name)
            elif isinstance(value, TensorRecord):
                found += [f"{field.name}.{name}" for name in value.names()]
            elif isinstance(value, tuple):
                parts = [(i, part) for i, part in enumerate(value) if isinstance(part, TensorRecord)]
                found += [f"{field.name}.{i}.{name}" for i, part in parts for name in part.names()]
        return found

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())

    def detach(self: T) -> T:
        """The same values without history: gradients stop here."""
        return self.map(Tensor.detach)

    def to(self: T, device: torch.device | str) -> T:
        return self.map(lambda tensor: tensor.to(device))

    def select(self: T, lanes: Sequence[int]) -> T:
        """Only these lanes, in this order."""
        return self.map(lambda tensor: tensor.index_select(0, _index(lanes, tensor)))

    def put(self: T, lanes: Sequence[int], part: T) -> T:
        """A copy in which these lanes hold `part`; the others are untouched."""
        return self.map(lambda whole, values: whole.index_copy(0, _index(lanes, whole), values), part)

    def clear(self: T, lanes: Sequence[int]) -> T:
        """A copy in which these lanes are zero, as before the first frame."""
        return self.map(lambda tensor: tensor.index_fill(0, _index(lanes, tensor), 0.0))


def _index(lanes: Sequence[int], like: Tensor) -> Tensor:
    """Lane numbers as an index; typed, so that no lanes at all is a valid choice."""
    return torch.tensor(list(lanes), dtype=torch.long, device=like.device)


def _map(function: Callable[..., Tensor], *values: object) -> object:
    first = values[0]
    if isinstance(first, Tensor):
        return function(*values)
    if isinstance(first, TensorRecord):
        return first.map(function, *cast(tuple[TensorRecord, ...], values[1:]))
    if isinstance(first, tuple) and first and isinstance(first[0], TensorRecord):
        return tuple(_map(function, *items) for items in zip(*values, strict=True))
    return first


@dataclass(frozen=True)
class PathState(TensorRecord):
    """One SSD path: recurrent state, last inputs of the convolution, summed output of the open chunk."""

    ssm: Tensor  # (b, h, p, n)
    conv_tail: Tensor  # (b, d_conv - 1, d_inner)
    chunk_sum: Tensor | None  # (b, h, p); None in a path that does not rotate
    angle: Tensor | None = None  # (b, h, pairs), accumulated; None in a path without rotary B and C
    means: Tensor | None = None  # (b, scales, d_inner), running means of the intensity's input; None without


@dataclass(frozen=True)
class BlockState(TensorRecord):
    """One block: the slow path, and the fast path where there is one."""

    slow: PathState
    fast: PathState | None


Group = Literal["slow", "fast", "head"]
"""Paths that end their chunks at the same frames: the slow paths of all blocks, the fast ones, the head's."""


L = TypeVar("L", bound="LaneState")


@dataclass(frozen=True)
class LaneState(TensorRecord):
    """The memory of a recognizer between two calls; lane i has seen `frame_index[i]` frames of its procedure.

    Tensors named in `GROWING` have time as their second axis: as long as the longest lane, and zero after the
    end of a shorter one."""

    GROWING: ClassVar[frozenset[str]] = frozenset()

    frame_index: tuple[int, ...]

    @property
    def n_lanes(self) -> int:
        return len(self.frame_index)

    def select(self: L, lanes: Sequence[int]) -> L:
        """Only these lanes, in this order."""
        chosen = replace(super().select(lanes), frame_index=tuple(self.frame_index[lane] for lane in lanes))
        return chosen.with_length(min(self.length, max(chosen.frame_index, default=0)))

    def put(self: L, lanes: Sequence[int], part: L) -> L:
        """A copy in which these lanes hold `part`; the others are untouched."""
        index = dict(enumerate(self.frame_index)) | dict(zip(lanes, part.frame_index, strict=True))
        length = max(self.length, part.length)
        written = super(LaneState, self.with_length(length)).put(lanes, part.with_length(length))
        return replace(written, frame_index=tuple(index.values()))

    @property
    def length(self) -> int:
        """Frames for which the growing tensors have room; 0 where nothing grows."""
        return max((int(getattr(self, name).shape[1]) for name in self.GROWING), default=0)

    def with_length(self: L, length: int) -> L:
        """The same memory with room for this many frames in its growing tensors."""

        def fit(tensor: Tensor) -> Tensor:
            room = length - tensor.shape[1]
            if room <= 0:
                return tensor[:, :length]
            return torch.cat([tensor, tensor.new_zeros(tensor.shape[0], room, *tensor.shape[2:])], dim=1)

        changed: dict[str, Any] = {name: fit(getattr(self, name)) for name in self.GROWING}
        return replace(self, **changed)

    def advance(self: L, n_frames: int) -> L:
        """The same memory with every lane's clock advanced."""
        return replace(self, frame_index=tuple(seen + n_frames for seen in self.frame_index))

    def at(self: L, frame_index: Sequence[int]) -> L:
        """The same memory with the lanes' clocks set."""
        return replace(self, frame_index=tuple(frame_index))

    def reset(self: L, lanes: Sequence[int]) -> L:
        """A copy in which these lanes begin a new procedure."""
        index = tuple(0 if lane in set(lanes) else seen for lane, seen in enumerate(self.frame_index))
        length = min(self.length, max(index, default=0))
        return replace(self.clear(lanes), frame_index=index).with_length(length)

    def reset_clip(self: L, lanes: Sequence[int]) -> L:
        """A copy in which these lanes begin a new clip; by default nothing is reset."""
        return self

    @classmethod
    def stack(cls: type[L], states: Sequence[L]) -> L:
        """One batch from several states, lanes in order; the inverse of `select`."""
        length = max(state.length for state in states)
        first, *others = (state.with_length(length) for state in states)
        joined = first.map(lambda *tensors: torch.cat(tensors), *others)
        return replace(joined, frame_index=tuple(seen for state in states for seen in state.frame_index))


@dataclass(frozen=True)
class ModelState(LaneState):
    """The whole network between two calls."""

    blocks: tuple[BlockState, ...]
    head: PathState

    def reset_clip(self, lanes: Sequence[int]) -> "ModelState":
        """A copy in which these lanes begin a new clip: fast paths and head are cleared."""
        if not lanes:
            return self
        blocks = tuple(replace(b, fast=None if b.fast is None else b.fast.clear(lanes)) for b in self.blocks)
        return replace(self, blocks=blocks, head=self.head.clear(lanes))

    def group(self, group: Group) -> tuple[PathState, ...]:
        """The paths of a group, block by block; none where the model has no such path."""
        if group == "head":
            return (self.head,)
        paths = (block.slow if group == "slow" else block.fast for block in self.blocks)
        return tuple(path for path in paths if path is not None)

    def with_group(self, group: Group, paths: Sequence[PathState]) -> "ModelState":
        """A copy in which the paths of a group are these, in the order of `group`."""
        if group == "head":
            (head,) = paths
            return replace(self, head=head)
        pairs = zip(self.blocks, paths, strict=True)
        is_slow = group == "slow"
        blocks = (replace(b, slow=path) if is_slow else replace(b, fast=path) for b, path in pairs)
        return replace(self, blocks=tuple(blocks))
