"""The last W frames of every frame, for any number of frames per call: what networks that look back through a window carry along."""

from collections.abc import Sequence

import torch
from torch import Tensor


def windows(x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    """x (b, l, d) after tail (b, W - 1, d) -> for every frame its window (b, l, W, d), oldest first, and the new tail.

    Before the first frame of a procedure the tail is zero; `seen_in_window` tells such places from frames."""
    seen = torch.cat([tail.to(x.dtype), x], dim=1)
    size = tail.shape[1] + 1
    return seen.unfold(1, size, 1).transpose(-1, -2), seen[:, x.shape[1] :].to(tail.dtype)


def seen_in_window(frame_index: Sequence[int], length: int, size: int, device: torch.device | None = None) -> Tensor:
    """Which places of each window hold a frame of the procedure: (b, l, W) bool. frame_index counts the frames before the call."""
    before = torch.tensor(list(frame_index), device=device)[:, None]  # (b, 1)
    n_seen = before + torch.arange(1, length + 1, device=device)  # (b, l): frames seen once frame t is in
    place = torch.arange(size, device=device)
    return place >= size - n_seen[..., None]
