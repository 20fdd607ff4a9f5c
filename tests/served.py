"""A small model and a server process that serves it: fixtures for tests/server and tests/chaos, and the
record that a session must end with."""

import pytest
import torch

from surgicalmamba.data.pictures import decode_jpeg
from surgicalmamba.data.synthetic import PHASE_NAMES
from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba.live.estimate import ServedEstimate
from surgicalmamba.live.session import SessionPool
from surgicalmamba.model.backbone import BackboneConfig
from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba
from surgicalmamba.server.config import ServeConfig
from surgicalmamba.server.rooms import FixedLanes
from surgicalmamba_lab.bench.serve import ServerProcess, make_pictures


@pytest.fixture(scope="session")
def model():
    """Chunks of 8 and clips of 32, so that a short test crosses many boundaries."""
    torch.manual_seed(0)
    backbone = BackboneConfig(depths=(1, 1, 1, 1), widths=(8, 16, 24, 32), image_size=32, frozen_stages=0)
    config = ModelConfig.preset(
        "tiny", n_phases=7, phases=PHASE_NAMES, d_model=32, n_blocks=1, backbone=backbone
    )
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
    """A server process without tokens, with the demo."""
    folder = tmp_path_factory.mktemp("data")
    with ServerProcess(
        checkpoint, folder, ("demo=true", "limits.requests_per_s=2000", "commit_ms=20")
    ) as running:
        yield running


def uninterrupted_record(model, pictures, fps):
    """The rows a session must have: the same frames through the recognizer alone, with no server and no
    other session."""
    pool = SessionPool(FixedLanes(EagerEngine(model), ServeConfig().lanes), capacity=1, queue_len=2)
    pool.open("alone", fps)
    rows = []
    for index, picture in enumerate(pictures):
        pool.push("alone", decode_jpeg(picture), index / fps)
        while pool.is_busy("alone"):
            rows += [
                ServedEstimate.of(e, row=e.frame_index, frame=index) for e in pool.tick().estimates.values()
            ]
    return rows
