"""One very small model with every part, and one export of it: tracing graphs is the slow part of these
tests."""

import shutil

import pytest
import torch

from surgicalmamba.engines.export import export
from surgicalmamba.model.backbone import BackboneConfig
from surgicalmamba.model.surgical_mamba import (
    BlockConfig,
    HeadConfig,
    IntensityConfig,
    ModelConfig,
    PathConfig,
    RotationConfig,
    SurgicalMamba,
)


def live_config(**changes):
    """Clips of 22 frames; chunks of 8, 6 and 5: ends of chunks and clips fall together and apart within a few
    dozen frames."""
    sizes = {
        "d_state": 5,
        "d_head": 8,
        "rotation": RotationConfig(rank=2, d_hidden=8, theta_init=0.7),
        "dt_min": 0.003,
        "dt_max": 0.05,
    }
    config = ModelConfig(
        n_phases=4,
        d_model=16,
        n_blocks=1,
        clip_len=22,
        backbone=BackboneConfig(depths=(1, 1, 1, 1), widths=(8, 8, 8, 10), image_size=32, frozen_stages=0),
        block=BlockConfig(
            slow=PathConfig(
                chunk_len=8, intensity=IntensityConfig(intensity_init=0.4, memory=(3, 20)), **sizes
            ),
            fast=PathConfig(chunk_len=6, **sizes),
        ),
        head=HeadConfig(path=PathConfig(chunk_len=5, **sizes)),
    )
    return config.with_(**changes)


def live_model(**changes):
    torch.manual_seed(0)
    model = SurgicalMamba(live_config(**changes)).eval()
    if model.backbone is not None:
        for name, value in model.backbone.named_parameters():
            if name.endswith("gamma"):
                torch.nn.init.constant_(
                    value, 0.3
                )  # as after training; the start value would hide every block of the backbone
    return model


@pytest.fixture(scope="session")
def model():
    return live_model()


@pytest.fixture(scope="session")
def exported(model, tmp_path_factory):
    """The folder of a float32 export. Read it, do not change it."""
    folder = tmp_path_factory.mktemp("export") / "fp32"
    export(model, folder, provenance={"trained on": "nothing"})
    return folder


@pytest.fixture(scope="session")
def exported_int8(model, exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "int8"
    export(model, folder, int8=True, graphs_from=exported)
    return folder


@pytest.fixture
def damaged(exported, tmp_path):
    """A copy of the export that a test may break."""
    return shutil.copytree(exported, tmp_path / "damaged")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads or fills the user's cache."""
    monkeypatch.setenv("SURGICALMAMBA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run_beside_eager(engine, eager, start, n_frames, seed=0):
    """The largest difference of logits, and of the final state, when both engines see the same features."""
    generator = torch.Generator().manual_seed(seed)
    state = reference = eager.initial_state(len(start)).at(start)
    largest = 0.0
    for _ in range(n_frames):
        features = torch.randn(len(start), engine.config.feature_width, generator=generator)
        ours, expected = engine.advance(features, state), eager.advance(features, reference)
        state, reference = ours.state, expected.state
        largest = max(largest, float((ours.logits - expected.logits).abs().max()))
        if expected.intensity_logits is not None:
            largest = max(largest, float((ours.intensity_logits - expected.intensity_logits).abs().max()))
        assert state.frame_index == reference.frame_index
    difference = max(
        float((a - b).abs().max()) for a, b in zip(state.tensors(), reference.tensors(), strict=True)
    )
    return largest, difference
