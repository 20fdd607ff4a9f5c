"""Small models for every row of the ablation table, with awkward lengths on purpose."""

import pytest
import torch

from surgicalmamba.model.surgical_mamba import (
    BlockConfig,
    HeadConfig,
    IntensityConfig,
    ModelConfig,
    PathConfig,
    RotationConfig,
    SurgicalMamba,
)


def small_config(**changes):
    """Clips of 50 frames; chunks of 16, 12 and 7, none of which divides the clip."""
    sizes = {"d_state": 6, "d_head": 8, "rotation": RotationConfig(rank=2, d_hidden=8, theta_init=0.7)}
    config = ModelConfig(
        n_phases=4,
        d_model=16,
        n_blocks=2,
        clip_len=50,
        d_feature=10,
        backbone=None,
        block=BlockConfig(
            slow=PathConfig(
                chunk_len=16, intensity=IntensityConfig(intensity_init=0.4, memory=(3, 20)), **sizes
            ),
            fast=PathConfig(chunk_len=12, **sizes),
        ),
        head=HeadConfig(path=PathConfig(chunk_len=7, **sizes)),
    )
    return config.with_(**changes)


@pytest.fixture
def build():
    """build(variant, dtype) -> a small model in which every part matters: memories from seconds to minutes,
    real rotations."""

    def make(variant="full", dtype=torch.float64, config=None, seed=0):
        torch.manual_seed(seed)
        config = (config or small_config()).variant(variant)
        config = config.with_paths(dt_min=0.003, dt_max=0.05)
        return SurgicalMamba(config).to(dtype)

    return make


@pytest.fixture
def features():
    """features(frames) -> (lanes, frames, 10) in float64."""

    def make(frames, lanes=1, seed=1):
        return torch.randn(
            lanes, frames, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )

    return make
