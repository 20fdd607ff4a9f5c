"""Memory of past frames and the transformer layers on it, for any number of frames per call.

In order: windows over the last W frames; a cache of all frames so far; attention layers that keep keys and
values of past frames, in a window or in a cache; and the local transformer that LoViT and SKiT share. Each
frame is projected once, when it arrives, so one pass over a clip and a step per frame are the same function.

A cache (b, t, ...) holds each lane from its first frame on, followed by zeros where another lane is longer.
With a limit it holds the newest `limit` frames of each lane. `frame_index` always counts the frames of each
lane before the call."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pydantic import model_validator
from torch import Tensor, nn

from surgicalmamba.config import Positive
from surgicalmamba.core.ssd import full
from surgicalmamba.core.state import TensorRecord
from surgicalmamba.model.recognizer import RecognizerConfig


def join_window(tail: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The tail (b, w, d) followed by the frames x (b, l, d) as one line (b, w + l, d), and the tail for the
    next call."""
    line = torch.cat([tail.to(x.dtype), x], dim=1)
    return line, line[:, x.shape[1] :].to(tail.dtype)


def windows(x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    """x (b, l, d) after tail (b, W - 1, d) -> for every frame its window (b, l, W, d), oldest first, and the
    new tail.

    Before the first frame of a procedure the tail is zero; `seen_in_window` marks the places with frames."""
    line, after = join_window(tail, x)
    return line.unfold(1, tail.shape[1] + 1, 1).transpose(-1, -2), after


def seen_in_window(
    frame_index: Sequence[int], length: int, size: int, device: torch.device | None = None
) -> Tensor:
    """Which places of each window hold a frame of the procedure: (b, l, W) bool."""
    before = torch.tensor(list(frame_index), device=device)[:, None]  # (b, 1)
    n_seen = before + torch.arange(1, length + 1, device=device)  # (b, l): frames seen once frame t is in
    place = torch.arange(size, device=device)
    return place >= size - n_seen[..., None]


def visible_in_line(
    frame_index: Sequence[int], length: int, size: int, device: torch.device | None = None
) -> Tensor:
    """Which places of a line (b, W - 1 + l), tail first, lie in the window of W frames that ends at each
    frame: (b, l, W - 1 + l)."""
    place = torch.arange(size - 1 + length, device=device)
    ages = place[size - 1 :, None] - place  # (l, W - 1 + l); negative is the future
    position = torch.tensor(list(frame_index), device=device)[:, None] + torch.arange(length, device=device)
    return (ages >= 0) & (ages < size) & (ages <= position[..., None])


_PLACE = "surgicalmamba_place"
"""Attribute of a cache that is a view of a room: its `_Place`. Any operation on the tensor loses it, and the
next call then copies the cache."""


class _Room:
    """A buffer (b, capacity, ...) in which a cache grows without being copied for every frame.

    A cache is a view of a part of it. Only a cache that ends where the used part ends can grow in place; an
    older one, whose next frames are already written, is copied. So the values of a cache never change."""

    def __init__(self, buffer: Tensor, used: int) -> None:
        self.buffer, self.used, self.lock = buffer, used, threading.Lock()

    def claim(self, stop: int, length: int) -> bool:
        """Reserve the `length` places from `stop` on; False if they are not free."""
        if self.buffer.is_inference() and not torch.is_inference_mode_enabled():
            return False
        with self.lock:
            free = stop == self.used and stop + length <= self.buffer.shape[1]
            self.used += length if free else 0
            return free

    def view(self, start: int, stop: int) -> Tensor:
        part = self.buffer[:, start:stop]
        setattr(part, _PLACE, _Place(self, stop))
        return part


@dataclass(frozen=True)
class _Place:
    room: _Room
    stop: int

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copied or pickled cache has no room; the next call makes one."""
        return type(None), ()


def with_room(cache: Tensor, length: int, frame_index: Sequence[int]) -> Tensor | None:
    """The cache with `length` more places to write to: (b, t + l, ...). None where gradients are recorded,
    which forbid writing in place, and where lanes end at different places."""
    cached = cache.shape[1]
    if torch.is_grad_enabled() or not _even(cache, frame_index):
        return None
    place: _Place | None = getattr(cache, _PLACE, None)
    if place is None or not place.room.claim(place.stop, length):
        needed = cached + length
        buffer = cache.new_empty(cache.shape[0], needed + needed // 2, *cache.shape[2:])
        buffer[:, :cached] = cache
        place = _Place(_Room(buffer, needed), cached)
    return place.room.view(place.stop - cached, place.stop + length)


def append(cache: Tensor, x: Tensor, frame_index: Sequence[int], limit: int | None = None) -> Tensor:
    """The cache with the frames x (b, l, ...) after those of each lane."""
    kept = _kept(frame_index, limit)
    if _even(cache, kept):
        return join_cache(cache, x, frame_index, limit)[1]
    return _lane_by_lane(cache, x, kept, limit)


def join_cache(
    cache: Tensor, x: Tensor, frame_index: Sequence[int], limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """The cache followed by the call as one line (b, t + l, ...), in the order of `visible_in_cache`; and the
    cache after the call, as from `append`."""
    cached, length = cache.shape[1], x.shape[1]
    kept = _kept(frame_index, limit)
    line = with_room(cache, length, kept)
    if line is None:
        line = torch.cat([cache, x.to(cache.dtype)], dim=1)
    else:
        line[:, cached:] = x
    return line, _newest(line, limit) if _even(cache, kept) else _lane_by_lane(cache, x, kept, limit)


def _even(cache: Tensor, kept: Sequence[int]) -> bool:
    """Whether every lane fills the cache."""
    return all(count == cache.shape[1] for count in kept)


def _lane_by_lane(cache: Tensor, x: Tensor, kept: Sequence[int], limit: int | None) -> Tensor:
    """The cache after the call for lanes that end at different places: of each lane the frames that stay,
    the new frames, and zeros; in one copy."""
    new = x.to(cache.dtype)
    totals = [count + x.shape[1] for count in kept]
    longest = max(totals) if limit is None else min(max(totals), limit)
    pieces: list[Tensor] = []
    for lane, (count, total) in enumerate(zip(kept, totals, strict=True)):
        dropped = max(total - longest, 0)
        pieces += [cache[lane, min(dropped, count) : count], new[lane, max(dropped - count, 0) :]]
        pieces.append(cache.new_zeros(longest - (total - dropped), *cache.shape[2:]))
    return torch.cat(pieces).unflatten(0, (len(kept), longest))


def _newest(line: Tensor, limit: int | None) -> Tensor:
    """The last `limit` places, still a view of their room."""
    if limit is None or line.shape[1] <= limit:
        return line
    place: _Place | None = getattr(line, _PLACE, None)
    return line[:, -limit:] if place is None else place.room.view(place.stop - limit, place.stop)


def visible_in_cache(
    frame_index: Sequence[int], length: int, cached: int, limit: int | None = None
) -> Tensor:
    """Which places of cache (t) and call (l) in one line are at or before each frame of the call: (b, l,
    t + l). With a limit, only the newest `limit` frames, the present one included."""
    kept = torch.tensor(_kept(frame_index, limit))[:, None]
    slots, frames = torch.arange(cached).expand(len(kept), cached), kept + torch.arange(length)
    slots = torch.where(slots < kept, slots, kept + length)  # empty places count as the future
    ages = frames[..., None] - torch.cat([slots, frames], dim=1)[:, None]
    return ages >= 0 if limit is None else (ages >= 0) & (ages < limit)


def _kept(frame_index: Sequence[int], limit: int | None) -> list[int]:
    """How many frames of each lane the cache holds."""
    return [seen if limit is None else min(seen, limit) for seen in frame_index]


class AttentionConfig(RecognizerConfig):
    """Settings of a recognizer with attention heads; derived classes set the defaults."""

    d_model: Positive
    n_heads: Positive

    @model_validator(mode="after")
    def _check_heads(self) -> "AttentionConfig":
        if self.d_model % self.n_heads:
            problem = f"n_heads={self.n_heads} does not divide d_model={self.d_model}"
            raise ValueError(f"{problem}; heads share the width evenly.")
        return self


def mask_of(visible: Tensor, like: Tensor) -> Tensor:
    """The mask that is added to scores, the same for all layers: 0 where visible, else -inf. In the dtype of
    `like`."""
    return torch.zeros_like(visible, dtype=like.dtype).masked_fill_(~visible, -torch.inf)


class CachedAttention(nn.Module):
    """Multi-head attention from frames (b, l, d) to frames of the past (b, t, 2 d: each head's key and value)
    and of this call."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor, past: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """mask (b, l, t + l), from `mask_of`. Returns the output (b, l, d) and the keys and values (b, l,
        2 d) of `source` to keep. A past of t + l frames has room for them: they are written there."""
        new = self.key_value(source)
        if past.shape[1] == mask.shape[2]:
            past[:, -new.shape[1] :] = new
            line = past.to(new.dtype)
        else:
            line = torch.cat([past.to(new.dtype), new], dim=1)
        key, value = self._heads(line).chunk(2, dim=-1)
        y = F.scaled_dot_product_attention(self._heads(self.query(x)), key, value, mask[:, None])
        return self.out(y.transpose(1, 2).flatten(2)), new

    def weights(self, x: Tensor, source: Tensor, past: Tensor, mask: Tensor) -> Tensor:
        """The attention weights, mean over heads: (b, l, t + l)."""
        new = self.key_value(source)
        key, _ = self._heads(torch.cat([past.to(new.dtype), new], dim=1)).chunk(2, dim=-1)
        scores = self._heads(self.query(x)) @ key.transpose(-1, -2) / key.shape[-1] ** 0.5
        return (scores + mask[:, None]).softmax(-1).mean(1)

    def _heads(self, packed: Tensor) -> Tensor:
        """(b, t, h c) -> (b, h, t, c)."""
        return packed.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)


class TransformerLayer(nn.Module):
    """Self-attention, cross-attention to a second line if `crosses`, and a feed-forward layer; each added,
    then normalised.

    It keeps `memory_width` numbers per frame: keys and values, of both lines if `crosses`."""

    def __init__(
        self, width: int, n_heads: int, d_hidden: int, dropout: float, crosses: bool = False
    ) -> None:
        super().__init__()
        self.memory_width = (4 if crosses else 2) * width
        self.attention = CachedAttention(width, n_heads)
        self.norm = nn.LayerNorm(width)
        self.cross = CachedAttention(width, n_heads) if crosses else None
        self.cross_norm = nn.LayerNorm(width) if crosses else nn.Identity()
        self.feed_forward = nn.Sequential(
            nn.Linear(width, d_hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_hidden, width)
        )
        self.last_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, source: Tensor, past: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """x and source (b, l, d), past (b, t, memory_width), mask (b, l, t + l) -> x (b, l, d) and the keys
        and values of these frames. A layer that does not cross ignores `source`."""
        past_x, past_source = past.split([2 * x.shape[-1], past.shape[-1] - 2 * x.shape[-1]], dim=-1)
        y, new = self.attention(x, x, past_x, mask)
        x = self.norm(x + self.dropout(y))
        if self.cross is not None:
            y, new_source = self.cross(x, source, past_source, mask)
            x = self.cross_norm(x + self.dropout(y))
            new = torch.cat([new, new_source], dim=-1)
        return self.last_norm(x + self.dropout(self.feed_forward(x))), new


def attend_to_all(
    layers: nn.ModuleList, x: Tensor, cache: Tensor, frame_index: Sequence[int], mask: Tensor
) -> tuple[Tensor, Tensor]:
    """x (b, l, d) through layers that see all frames so far, and the cache (b, t, n_layers, memory_width)
    with these frames added."""
    roomy = with_room(cache, x.shape[1], frame_index)
    added = []
    for layer, past in zip(layers, (cache if roomy is None else roomy).unbind(2), strict=True):
        x, new = layer(x, x, past, mask)
        added.append(full(new))
    return x, append(cache, torch.stack(added, dim=2), frame_index) if roomy is None else roomy


@dataclass(frozen=True)
class LayerTail(TensorRecord):
    """Keys and values of the last frames, for one layer."""

    tail: Tensor  # (b, window - 1, memory_width)


LocalState = tuple[LayerTail, ...]


class LocalTransformer(nn.Module):
    """The local part of LoViT and SKiT: self-attention layers over `source`, then self- and cross-attention
    layers over `target`, which attend to the encoded source.

    As published, both encode a whole window again for every new frame and use the output at its end. Here
    every layer sees the window through kept keys and values; each frame is encoded once, when it arrives, and
    never sees a later one. So a clip is trained in one pass and a live frame costs one token. Through several
    layers a frame depends on more than one window."""

    def __init__(
        self, width: int, window: int, n_layers: int, n_heads: int, d_hidden: int, dropout: float
    ) -> None:
        super().__init__()
        self.window = window
        self.encoder = nn.ModuleList(
            TransformerLayer(width, n_heads, d_hidden, dropout) for _ in range(n_layers)
        )
        self.decoder = nn.ModuleList(
            TransformerLayer(width, n_heads, d_hidden, dropout, crosses=True) for _ in range(n_layers)
        )

    def initial_state(self, like: Tensor) -> LocalState:
        """like (b, ...): gives the number of lanes, device and dtype of the state."""
        layers = [*self.encoder, *self.decoder]
        return tuple(
            LayerTail(like.new_zeros(like.shape[0], self.window - 1, layer.memory_width)) for layer in layers
        )

    def forward(
        self, source: Tensor, target: Tensor, state: LocalState, frame_index: Sequence[int]
    ) -> tuple[Tensor, LocalState]:
        """source and target (b, l, d) -> (b, l, d) and the state after them."""
        visible = visible_in_line(frame_index, source.shape[1], self.window, source.device)
        unseen = max(self.window - 1 - max(frame_index), 0)  # places that no lane has filled: left out
        mask = mask_of(visible[:, :, unseen:], source)
        after = []
        for layer, memory in zip([*self.encoder, *self.decoder], state, strict=True):
            if layer.cross is None:
                source, new = layer(source, source, memory.tail[:, unseen:], mask)
            else:
                target, new = layer(target, source, memory.tail[:, unseen:], mask)
            after.append(LayerTail(join_window(memory.tail, full(new))[1]))
        return target, tuple(after)
