"""One video through one model, with what happens inside: decay, intensity, rotation planes and the carried state of the slow paths."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from surgicalmamba.config import ModelConfig
from surgicalmamba.core.state import PathState
from surgicalmamba.data.store import PreparedVideo
from surgicalmamba.eval.pairs import FloatArray, IntArray
from surgicalmamba.model.path import PathOutput, SSMPath
from surgicalmamba.model.surgical_mamba import SurgicalMamba
from surgicalmamba.train.inside import Planes
from surgicalmamba.train.look_inside import Inside, look_inside
from surgicalmamba.train.predict import features_of

MOST_STATES = 400
"""Points of the carried state that are kept of a video; a long one is sampled more coarsely."""


@dataclass(frozen=True, eq=False)
class Trace:
    """A model's way through a video of t samples."""

    predicted: IntArray
    intensity: FloatArray | None
    """(t, n_blocks), or None where the model has no intensity."""
    decay: FloatArray
    """(t, n_blocks, h): the share of its state that each head keeps over the sample."""
    planes: tuple[Planes, ...]
    """Of the slow paths, one for each block; empty where the model does not rotate, or no chunk is full."""
    inside: Inside
    """All paths and blocks, for the measures."""
    chunk_len: int
    state_rows: IntArray
    """Samples after which the state was kept."""
    states: Tensor
    """(points, h, p, n) of the block that was asked for."""


@dataclass
class _Watched:
    """The decay of one block's slow path, call by call."""

    decays: list[Tensor] = field(default_factory=list)

    def __call__(self, path: nn.Module, inputs: tuple[Tensor, PathState, Sequence[int]], output: PathOutput) -> None:
        assert isinstance(path, SSMPath)
        u, state, _ = inputs
        self.decays.append(path.decay(u, state)[0].cpu())


@torch.inference_mode()
def trace_video(model: SurgicalMamba, video: PreparedVideo, device: torch.device, block: int) -> Trace:
    """Run the video from its first sample to its last, in calls so short that the state can be seen after each."""
    slow = [_slow_path(part) for part in model.blocks]
    watched = [_Watched() for _ in slow]
    hooks = [path.register_forward_hook(watch) for path, watch in zip(slow, watched, strict=True)]
    stride = min(model.config.clip_len, -(-video.n_samples // MOST_STATES))
    logits, rows, states = [], [], []
    memory = model.initial_state(1)
    try:
        with look_inside(model, most_chunks=None) as inside:
            for clip in range(0, video.n_samples, model.config.clip_len):
                features = features_of(model, video, clip, min(clip + model.config.clip_len, video.n_samples), device)
                for piece in features.split(stride, dim=1):
                    output = model.forward_features(piece, memory)
                    inside.observe(output)
                    memory = output.state
                    logits.append(output.logits[0].cpu())
                    rows.append(memory.frame_index[0] - 1)
                    states.append(memory.blocks[block].slow.ssm[0].cpu())
    finally:
        for hook in hooks:
            hook.remove()
    return Trace(
        torch.cat(logits).argmax(-1).numpy(),
        torch.sigmoid(torch.cat(inside.logits)).numpy() if inside.logits else None,
        torch.stack([torch.cat(watch.decays) for watch in watched], dim=1).double().numpy(),
        tuple(planes for name, planes in inside.planes().items() if name.startswith("slow")),
        inside,
        model.config.block.slow.chunk_len,
        np.array(rows),
        torch.stack(states),
    )


def _slow_path(block: nn.Module) -> SSMPath:
    path = block.slow
    assert isinstance(path, SSMPath)
    return path


def without_rotation(model: SurgicalMamba) -> SurgicalMamba:
    """The same weights with every Z left out. Not an ablation, which would be trained this way, but the same model without its turns."""
    config: ModelConfig = model.config.with_paths(rotation=None)
    bare = SurgicalMamba(config)
    bare.load_state_dict({name: value for name, value in model.state_dict().items() if ".rotator." not in name})
    return bare.to(next(model.parameters()).device).eval()
