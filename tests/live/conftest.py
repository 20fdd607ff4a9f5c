"""Small recognizers for live sessions: one that takes pictures, one that takes vectors. Every part of them
matters."""

import numpy as np
import pytest
import torch

from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba.model.surgical_mamba import (
    BlockConfig,
    HeadConfig,
    IntensityConfig,
    ModelConfig,
    PathConfig,
    RotationConfig,
    SurgicalMamba,
)

PHASES = ("setup", "work", "close")


def build(seed=0, **changes):
    """Clips of 20 frames; chunks of 8, 6 and 5."""
    sizes = {
        "d_state": 6,
        "d_head": 8,
        "rotation": RotationConfig(rank=2, d_hidden=8, theta_init=0.7),
        "dt_min": 0.003,
        "dt_max": 0.05,
    }
    slow = PathConfig(chunk_len=8, intensity=IntensityConfig(intensity_init=0.4, memory=(3, 20)), **sizes)
    block = BlockConfig(slow=slow, fast=PathConfig(chunk_len=6, **sizes))
    base = {"n_phases": 3, "phases": PHASES, "d_model": 16, "n_blocks": 2, "clip_len": 20, "block": block}
    head = HeadConfig(path=PathConfig(chunk_len=5, **sizes))
    config = ModelConfig(**{**base, "head": head, "backbone": None, "d_feature": 5, **changes})
    torch.manual_seed(seed)
    return SurgicalMamba(config).eval()


@pytest.fixture(scope="session")
def feature_model():
    return build()


@pytest.fixture(scope="session")
def picture_model():
    backbone = {"depths": (1, 1, 1, 1), "widths": (8, 12, 16, 24), "image_size": 64}
    return build(backbone=backbone, d_feature=None)


@pytest.fixture(scope="session")
def other_model():
    """The same shapes, other weights."""
    return build(seed=1)


@pytest.fixture(scope="session")
def engine(feature_model):
    return EagerEngine(feature_model)


@pytest.fixture
def vectors():
    """vectors(n, seed) -> (n, 5) float32."""
    return lambda n, seed=0: np.random.default_rng(seed).standard_normal((n, 5)).astype(np.float32)


@pytest.fixture
def pictures():
    """pictures(n) -> n coloured pictures that differ, bright in the middle, dark at the margin."""

    def make(n, seed=0, size_hw=(72, 96)):
        rng = np.random.default_rng(seed)
        frames = np.zeros((n, *size_hw, 3), np.uint8)
        frames[:, 8:-8, 12:-12] = rng.integers(30, 250, (n, size_hw[0] - 16, size_hw[1] - 24, 3))
        return frames

    return make
