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
    """One for each block; empty where the model does not rotate."""
    chunk_len: int
    state_rows: IntArray
    """Samples after which the state was kept."""
    states: Tensor
    """(points, h, p, n) of the block that was asked for."""


@dataclass
class _Watched:
    """What one block's slow path did, call by call."""

    decays: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def __call__(self, path: nn.Module, inputs: tuple[Tensor, PathState, Sequence[int]], output: PathOutput) -> None:
        assert isinstance(path, SSMPath)
        u, state, _ = inputs
        self.decays.append(path.decay(u, state)[0].cpu())
        self.outputs.append(output.y[0].cpu())


@torch.inference_mode()
def trace_video(model: SurgicalMamba, video: PreparedVideo, device: torch.device, block: int) -> Trace:
    """Run the video from its first sample to its last, in calls so short that the state can be seen after each."""
    slow = [_slow_path(part) for part in model.blocks]
    watched = [_Watched() for _ in slow]
    hooks = [path.register_forward_hook(watch) for path, watch in zip(slow, watched, strict=True)]
    stride = min(model.config.clip_len, -(-video.n_samples // MOST_STATES))
    logits, intensities, rows, states = [], [], [], []
    memory = model.initial_state(1)
    try:
        for clip in range(0, video.n_samples, model.config.clip_len):
            features = features_of(model, video, clip, min(clip + model.config.clip_len, video.n_samples), device)
            for piece in features.split(stride, dim=1):
                output = model.forward_features(piece, memory)
                memory = output.state
                logits.append(output.logits[0].cpu())
                intensities += [] if output.intensity_logits is None else [torch.sigmoid(output.intensity_logits[0].double()).cpu()]
                rows.append(memory.frame_index[0] - 1)
                states.append(memory.blocks[block].slow.ssm[0].cpu())
    finally:
        for hook in hooks:
            hook.remove()
    return Trace(
        torch.cat(logits).argmax(-1).numpy(),
        torch.cat(intensities).numpy() if intensities else None,
        torch.stack([torch.cat(watch.decays) for watch in watched], dim=1).double().numpy(),
        tuple(_planes(path, torch.cat(watch.outputs)) for path, watch in zip(slow, watched, strict=True) if path.rotator is not None),
        model.config.block.slow.chunk_len,
        np.array(rows),
        torch.stack(states),
    )


def _slow_path(block: nn.Module) -> SSMPath:
    path = block.slow
    assert isinstance(path, SSMPath)
    return path


def _planes(path: SSMPath, outputs: Tensor) -> Planes:
    """The rotator asked again for every finished chunk, with the mean of the chunk's outputs (t, d_inner), eq. (phi)."""
    assert path.rotator is not None
    chunk_len = path.config.chunk_len
    n_chunks = len(outputs) // chunk_len
    whole = outputs[: n_chunks * chunk_len].unflatten(-1, (path.n_heads, -1)).unflatten(0, (n_chunks, chunk_len))
    device = path.A_log.device
    U, V, theta = path.rotator.factors(whole.mean(1).to(device))
    return Planes(U.cpu(), V.cpu(), theta.cpu())


def without_rotation(model: SurgicalMamba) -> SurgicalMamba:
    """The same weights with every Z left out. Not an ablation, which would be trained this way, but the same model without its turns."""
    config: ModelConfig = model.config.with_paths(rotation=None)
    bare = SurgicalMamba(config)
    bare.load_state_dict({name: value for name, value in model.state_dict().items() if ".rotator." not in name})
    return bare.to(next(model.parameters()).device).eval()
