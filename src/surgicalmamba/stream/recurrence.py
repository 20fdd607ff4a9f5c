"""How an engine's error grows along a procedure: both engines fed the same features from the first frame on."""

import torch

from surgicalmamba.stream.engine import Engine
from surgicalmamba.stream.parity import FRAMES_AFTER, model_config

LONGEST = 80
"""Frames compared at most: past the first rotation of every path of the paper's model, and still a few seconds' work."""


@torch.inference_mode()
def logit_error(engine: Engine, reference: Engine) -> float:
    """Root mean square difference of the logits over that of the reference's own, over the first frames of a procedure."""
    config = model_config(engine)
    chunk_lens = [path.chunk_len for path in config.paths().values() if path.rotation is not None]
    n_frames = min(LONGEST, max(chunk_lens, default=0) + FRAMES_AFTER)
    features = torch.randn(n_frames, 1, config.feature_width, generator=torch.Generator().manual_seed(0))
    state, reference_state = engine.initial_state(1), reference.initial_state(1)
    error = scale = 0.0
    for vector in features:
        output, expected = engine.advance(vector, state), reference.advance(vector, reference_state)
        state, reference_state = output.state, expected.state
        error += float((output.logits - expected.logits).square().sum())
        scale += float(expected.logits.square().sum())
    return (error / scale) ** 0.5 if scale else error**0.5
