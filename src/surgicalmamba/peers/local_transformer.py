"""The local part that LoViT and SKiT share: an encoder and a decoder over the last frames.

Published, both re-encode a window of frames for every new frame and use the answer at its end. Here every layer sees the frames of the
window through kept keys and values, each frame is encoded once, when it comes, and never sees a later one. So a clip is trained in one
pass and a live frame costs one token; through several layers a frame hears of more than one window."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from surgicalmamba.core.precision import full
from surgicalmamba.core.state import TensorRecord
from surgicalmamba.peers.attention import TransformerLayer, mask_of
from surgicalmamba.peers.windows import join, visible_in_line


@dataclass(frozen=True)
class LayerTail(TensorRecord):
    """Keys and values that a layer keeps of the last frames."""

    tail: Tensor  # (b, window - 1, memory_width)


LocalState = tuple[LayerTail, ...]


class LocalTransformer(nn.Module):
    """Self-attention layers over `source`; then self- and cross-attention layers over `target`, which look at the encoded source."""

    def __init__(self, width: int, window: int, n_layers: int, n_heads: int, d_hidden: int, dropout: float) -> None:
        super().__init__()
        self.window = window
        self.encoder = nn.ModuleList(TransformerLayer(width, n_heads, d_hidden, dropout) for _ in range(n_layers))
        self.decoder = nn.ModuleList(TransformerLayer(width, n_heads, d_hidden, dropout, crosses=True) for _ in range(n_layers))

    def initial_state(self, like: Tensor) -> LocalState:
        """like (b, ...): the lanes, and where and in which precision memory lives."""
        layers = [*self.encoder, *self.decoder]
        return tuple(LayerTail(like.new_zeros(like.shape[0], self.window - 1, layer.memory_width)) for layer in layers)

    def forward(self, source: Tensor, target: Tensor, state: LocalState, frame_index: Sequence[int]) -> tuple[Tensor, LocalState]:
        """source and target (b, l, d) -> (b, l, d) and what to remember."""
        visible = visible_in_line(frame_index, source.shape[1], self.window, source.device)
        unseen = max(self.window - 1 - max(frame_index), 0)  # places of the tail that no lane has filled yet: left out
        mask = mask_of(visible[:, :, unseen:], source)
        after = []
        for layer, memory in zip([*self.encoder, *self.decoder], state, strict=True):
            if layer.cross is None:
                source, new = layer(source, source, memory.tail[:, unseen:], mask)
            else:
                target, new = layer(target, source, memory.tail[:, unseen:], mask)
            after.append(LayerTail(join(memory.tail, full(new))[1]))
        return target, tuple(after)
