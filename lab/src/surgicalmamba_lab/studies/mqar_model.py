"""The recall model: embedding, single-path blocks without feed-forward layer, as in Mamba-2, and the embedding again as the output."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surgicalmamba.core.state import BlockState
from surgicalmamba.model.surgical_mamba import DualPathBlock, PathConfig


class RecallModel(nn.Module):
    """Layers of the project's own path. Without rotation in `path` it is the baseline; nothing else differs."""

    def __init__(self, vocabulary: int, d_model: int, n_layers: int, path: PathConfig, length: int, embedding_std: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, d_model)
        nn.init.normal_(self.embedding.weight, std=embedding_std)
        self.layers = nn.ModuleList(
            DualPathBlock(d_model, path, None, ffn_ratio=None, clip_len=length, slow_carries=True) for _ in range(n_layers)
        )
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """tokens (b, T), places (b, m) -> logits (b, m, vocabulary): only where something is asked, which is what costs."""
        x = self.embedding(tokens)
        start = [0] * len(tokens)
        for layer in self.layers:
            assert isinstance(layer, DualPathBlock)
            state = layer.slow.initial_state(len(tokens), x.dtype, x.device)
            x, _, _ = layer(x, BlockState(state, None), start)
        asked = torch.take_along_dim(x, places[..., None], dim=1)  # (b, m, d)
        return F.linear(self.norm(asked), self.embedding.weight)
