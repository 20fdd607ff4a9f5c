"""The last W frames of every frame, for any number of frames per call: what networks that look back through a window carry along."""

from collections.abc import Sequence

import torch
from torch import Tensor


def join(tail: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The tail (b, w, d) and the frames x (b, l, d) after it in one line (b, w + l, d), and the tail for the next call."""
    line = torch.cat([tail.to(x.dtype), x], dim=1)
    return line, line[:, x.shape[1] :].to(tail.dtype)


def windows(x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    """x (b, l, d) after tail (b, W - 1, d) -> for every frame its window (b, l, W, d), oldest first, and the new tail.

    Before the first frame of a procedure the tail is zero; `seen_in_window` tells such places from frames."""
    line, after = join(tail, x)
    return line.unfold(1, tail.shape[1] + 1, 1).transpose(-1, -2), after


def seen_in_window(frame_index: Sequence[int], length: int, size: int, device: torch.device | None = None) -> Tensor:
    """Which places of each window hold a frame of the procedure: (b, l, W) bool. frame_index counts the frames before the call."""
    before = torch.tensor(list(frame_index), device=device)[:, None]  # (b, 1)
    n_seen = before + torch.arange(1, length + 1, device=device)  # (b, l): frames seen once frame t is in
    place = torch.arange(size, device=device)
    return place >= size - n_seen[..., None]


def visible_in_line(frame_index: Sequence[int], length: int, size: int, device: torch.device | None = None) -> Tensor:
    """Which places of a line (b, W - 1 + l), tail first, lie in the window of W frames that ends at each frame: (b, l, W - 1 + l)."""
    place = torch.arange(size - 1 + length, device=device)
    ages = place[size - 1 :, None] - place  # (l, W - 1 + l); negative is the future
    position = torch.tensor(list(frame_index), device=device)[:, None] + torch.arange(length, device=device)
    return (ages >= 0) & (ages < size) & (ages <= position[..., None])
