"""Transformer layers over frames whose past is kept as keys and values, for any number of frames per call.

Which of the past a frame may see is the caller's choice (peers/windows.py): the last frames, or all of them. Each frame is projected
once, when it comes; that is what makes one pass over a clip and a step per frame the same function."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import model_validator
from torch import Tensor, nn

from surgicalmamba.config import Positive, RecognizerConfig
from surgicalmamba.core.precision import full
from surgicalmamba.peers.caches import append, with_room


class AttentionConfig(RecognizerConfig):
    """Settings of a recognizer with attention heads; whoever derives gives the defaults."""

    d_model: Positive
    n_heads: Positive

    @model_validator(mode="after")
    def _check_heads(self) -> "AttentionConfig":
        if self.d_model % self.n_heads:
            raise ValueError(f"n_heads={self.n_heads} does not divide d_model={self.d_model}; heads share the width evenly.")
        return self


def mask_of(visible: Tensor, like: Tensor) -> Tensor:
    """What is added to scores: 0 where a frame may look, -inf where not; made once for all layers. In the precision of `like`."""
    return torch.zeros_like(visible, dtype=like.dtype).masked_fill_(~visible, -torch.inf)


class CachedAttention(nn.Module):
    """Multi-head attention from frames (b, l, d) to frames of the past (b, t, 2 d: each head's key and value) and of this call."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor, past: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """mask (b, l, t + l), of `mask_of`. Returns the answer (b, l, d) and the keys and values of `source` (b, l, 2 d) to
        remember. A past of t + l frames has room for these: they are written there."""
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
        """How much each frame attends to which, mean over heads: (b, l, t + l)."""
        new = self.key_value(source)
        key, _ = self._heads(torch.cat([past.to(new.dtype), new], dim=1)).chunk(2, dim=-1)
        scores = self._heads(self.query(x)) @ key.transpose(-1, -2) / key.shape[-1] ** 0.5
        return (scores + mask[:, None]).softmax(-1).mean(1)

    def _heads(self, packed: Tensor) -> Tensor:
        """(b, t, h c) -> (b, h, t, c)."""
        return packed.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)


class TransformerLayer(nn.Module):
    """Self-attention, attention to a second line where it crosses, and a feed-forward layer; each added, then normalised.

    It remembers `memory_width` numbers per frame: keys and values, of both lines where it crosses."""

    def __init__(self, width: int, n_heads: int, d_hidden: int, dropout: float, crosses: bool = False) -> None:
        super().__init__()
        self.memory_width = (4 if crosses else 2) * width
        self.attention = CachedAttention(width, n_heads)
        self.norm = nn.LayerNorm(width)
        self.cross = CachedAttention(width, n_heads) if crosses else None
        self.cross_norm = nn.LayerNorm(width) if crosses else nn.Identity()
        self.feed_forward = nn.Sequential(nn.Linear(width, d_hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_hidden, width))
        self.last_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, source: Tensor, past: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """x and source (b, l, d), past (b, t, memory_width), mask (b, l, t + l) -> x (b, l, d) and what to remember of these frames.

        A layer that does not cross takes no notice of `source`."""
        own, other = past.split([2 * x.shape[-1], past.shape[-1] - 2 * x.shape[-1]], dim=-1)
        y, new = self.attention(x, x, own, mask)
        x = self.norm(x + self.dropout(y))
        if self.cross is not None:
            y, new_source = self.cross(x, source, other, mask)
            x = self.cross_norm(x + self.dropout(y))
            new = torch.cat([new, new_source], dim=-1)
        return self.last_norm(x + self.dropout(self.feed_forward(x))), new


def attend_to_all(layers: nn.ModuleList, x: Tensor, cache: Tensor, frame_index: Sequence[int], mask: Tensor) -> tuple[Tensor, Tensor]:
    """x (b, l, d) through layers that see all frames so far, and the cache (b, t, n_layers, memory_width) with these frames added."""
    roomy = with_room(cache, x.shape[1], frame_index)
    learned = []
    for layer, past in zip(layers, (cache if roomy is None else roomy).unbind(2), strict=True):
        x, new = layer(x, x, past, mask)
        learned.append(full(new))
    return x, append(cache, torch.stack(learned, dim=2), frame_index) if roomy is None else roomy
