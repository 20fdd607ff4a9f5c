"""A small model, its checkpoint, pictures, and servers: real processes where it matters, in this process where it does not."""

import pytest
import torch

from surgicalmamba.data.synthetic import PHASE_NAMES
from surgicalmamba.model.backbone import BackboneConfig
from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba
from surgicalmamba_lab.bench.serving import ServerProcess, make_pictures


@pytest.fixture(scope="session")
def model():
    """Chunks of 8 and clips of 32, so that a short test crosses many boundaries."""
    torch.manual_seed(0)
    backbone = BackboneConfig(depths=(1, 1, 1, 1), widths=(8, 16, 24, 32), image_size=32, frozen_stages=0)
    config = ModelConfig.preset("tiny", n_phases=7, phases=PHASE_NAMES, d_model=32, n_blocks=1, backbone=backbone)
    return SurgicalMamba(config.with_paths(chunk_len=8, d_state=8, d_head=16).with_(clip_len=32)).eval()


@pytest.fixture(scope="session")
def checkpoint(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "small"
    model.save(folder)
    return folder


@pytest.fixture(scope="session")
def pictures():
    return make_pictures(40)


@pytest.fixture(scope="module")
def server(checkpoint, tmp_path_factory):
    """A server process of its own, without tokens, with the demo."""
    folder = tmp_path_factory.mktemp("data")
    with ServerProcess(checkpoint, folder, ("demo=true", "limits.requests_per_s=2000", "commit_ms=20")) as running:
        yield running
