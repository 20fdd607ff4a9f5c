"""All frames so far, of lanes that may have begun at different times: what networks that look back to the beginning carry along.

A cache (b, t, ...) holds a lane from its first frame on, and zeros where a shorter lane has ended. With a limit it holds the newest
`limit` frames of each lane."""

from collections.abc import Sequence

import torch
from torch import Tensor


def append(cache: Tensor, x: Tensor, frame_index: Sequence[int], limit: int | None = None) -> Tensor:
    """The cache with the frames x (b, l, ...) behind each lane's own. frame_index counts the frames before the call."""
    cached, length = cache.shape[1], x.shape[1]
    line = torch.cat([cache, x.to(cache.dtype)], dim=1)
    kept = _kept(frame_index, limit)
    if all(count == cached for count in kept) and (limit is None or cached + length <= limit):
        return line
    total = torch.tensor(kept, device=x.device)[:, None] + length
    dropped = torch.zeros_like(total) if limit is None else (total - limit).clamp(min=0)
    wanted = dropped + torch.arange(int((total - dropped).max()), device=x.device)  # (b, t'): place in the lane, 0 the oldest it had
    source = torch.where(wanted < total - length, wanted, wanted - (total - length) + cached)
    chosen = line[torch.arange(len(kept), device=x.device)[:, None], source.clamp(max=cached + length - 1)]
    return chosen * (wanted < total).reshape(*wanted.shape, *(1,) * (cache.dim() - 2))


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
