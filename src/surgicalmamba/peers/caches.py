"""All frames so far, of lanes that may have begun at different times: what networks that look back to the beginning carry along.

A cache (b, t, ...) holds a lane from its first frame on, and zeros where a shorter lane has ended. With a limit it holds the newest
`limit` frames of each lane."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_PLACE = "surgicalmamba_place"
"""Attribute of a cache that lies in a room: where. It is lost with any change, and the next call then copies."""


class _Room:
    """A buffer (b, capacity, ...) in which a cache grows without being copied for every frame.

    A state sees its own stretch of it. Only the one that ends where the used part ends may go on in it; another, such as a state that
    was gone on with before, is copied. So no state ever sees a change."""

    def __init__(self, buffer: Tensor, used: int) -> None:
        self.buffer, self.used, self.lock = buffer, used, threading.Lock()

    def claim(self, stop: int, length: int) -> bool:
        """Are the `length` places from `stop` on free? They are the caller's from now on."""
        if self.buffer.is_inference() and not torch.is_inference_mode_enabled():
            return False
        with self.lock:
            free = stop == self.used and stop + length <= self.buffer.shape[1]
            self.used += length if free else 0
            return free

    def stretch(self, start: int, stop: int) -> Tensor:
        view = self.buffer[:, start:stop]
        setattr(view, _PLACE, _Place(self, stop))
        return view


@dataclass(frozen=True)
class _Place:
    room: _Room
    stop: int

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copied or pickled cache lies in no room; its own copy is made by the next call."""
        return type(None), ()


def with_room(cache: Tensor, length: int, frame_index: Sequence[int]) -> Tensor | None:
    """The cache with `length` places behind it to write to: (b, t + l, ...). None where gradients are kept, which forbid writing, and
    where lanes end at different places."""
    cached = cache.shape[1]
    if torch.is_grad_enabled() or not _even(cache, frame_index):
        return None
    place: _Place | None = getattr(cache, _PLACE, None)
    if place is None or not place.room.claim(place.stop, length):
        needed = cached + length
        buffer = cache.new_empty(cache.shape[0], needed + needed // 2, *cache.shape[2:])
        buffer[:, :cached] = cache
        place = _Place(_Room(buffer, needed), cached)
    return place.room.stretch(place.stop - cached, place.stop + length)


def append(cache: Tensor, x: Tensor, frame_index: Sequence[int], limit: int | None = None) -> Tensor:
    """The cache with the frames x (b, l, ...) behind each lane's own. frame_index counts the frames before the call."""
    kept = _kept(frame_index, limit)
    return join(cache, x, frame_index, limit)[1] if _even(cache, kept) else _lane_by_lane(cache, x, kept, limit)


def join(cache: Tensor, x: Tensor, frame_index: Sequence[int], limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Cache and call in one line (b, t + l, ...), as `visible_in_cache` numbers them; and the cache after the call, as of `append`."""
    cached, length = cache.shape[1], x.shape[1]
    kept = _kept(frame_index, limit)
    line = with_room(cache, length, kept)
    if line is None:
        line = torch.cat([cache, x.to(cache.dtype)], dim=1)
    else:
        line[:, cached:] = x
    return line, _newest(line, limit) if _even(cache, kept) else _lane_by_lane(cache, x, kept, limit)


def _even(cache: Tensor, kept: Sequence[int]) -> bool:
    """Does every lane fill the cache?"""
    return all(count == cache.shape[1] for count in kept)


def _lane_by_lane(cache: Tensor, x: Tensor, kept: Sequence[int], limit: int | None) -> Tensor:
    """The cache after the call for lanes that end at different places: of each what stays, what is new, and zeros, all by one copy."""
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
    """The last `limit` places, still in their room."""
    if limit is None or line.shape[1] <= limit:
        return line
    place: _Place | None = getattr(line, _PLACE, None)
    return line[:, -limit:] if place is None else place.room.stretch(place.stop - limit, place.stop)


def visible_in_cache(frame_index: Sequence[int], length: int, cached: int, limit: int | None = None) -> Tensor:
    """(b, l, t + l): which places of cache (t) and call (l) in one line lie at or before each frame of the call.

    With a limit, only the newest `limit` frames, the present one included."""
    kept = torch.tensor(_kept(frame_index, limit))[:, None]
    slots, frames = torch.arange(cached).expand(len(kept), cached), torch.arange(length)
    place = torch.cat([torch.where(slots < kept, slots, kept + length), kept + frames], dim=1)  # empty places lie in the future
    ages = (kept + frames)[..., None] - place[:, None]
    return ages >= 0 if limit is None else (ages >= 0) & (ages < limit)


def _kept(frame_index: Sequence[int], limit: int | None) -> list[int]:
    """How many frames of each lane the cache holds."""
    return [seen if limit is None else min(seen, limit) for seen in frame_index]
