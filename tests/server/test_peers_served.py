"""A peer behind the server's lanes and in a pool: a stream's numbers do not depend on its neighbours, to the
last bit."""

import numpy as np
import pytest
import torch

import surgicalmamba as sm
from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba.engines.export import export
from surgicalmamba.engines.select import open_engine
from surgicalmamba.errors import EngineError, SessionError
from surgicalmamba.model.registry import build, network_of
from surgicalmamba.server.rooms import FixedLanes

SMALL = {
    "opera": {"d_model": 8, "n_layers": 2, "d_hidden": 8},
    "tecno": {"n_layers": 3, "n_maps": 8},
    "lstm": {"d_hidden": 8},
}


def peer(name):
    torch.manual_seed(0)
    return build(name, 4, 3, **SMALL[name]).eval()


@pytest.mark.parametrize("name", SMALL)
def test_streams_of_a_peer_in_the_servers_lanes_give_what_each_gives_alone(name):
    model, rng = peer(name), np.random.default_rng(0)
    rows = rng.standard_normal((2, 12, 4)).astype(np.float32)
    pool = sm.SessionPool(FixedLanes(EagerEngine(model), 4), capacity=4)
    pool.open("early")
    said = {"early": [], "late": []}
    for tick in range(12):
        if tick == 5:  # a second stream begins while the first is under way
            pool.open("late")
        pool.push_features("early", rows[0, tick])
        if tick >= 5:
            pool.push_features("late", rows[1, tick - 5])
        for key, estimate in pool.tick().estimates.items():
            said[key].append(estimate)
    for key, given in (("early", rows[0]), ("late", rows[1][:7])):
        alone = sm.SessionPool(FixedLanes(EagerEngine(model), 4), capacity=1)
        alone.open("only")
        for row, estimate in zip(given, said[key], strict=True):
            alone.push_features("only", row)
            assert alone.tick().estimates["only"] == estimate


def test_a_peer_runs_on_eager_and_every_other_engine_says_so(tmp_path):
    model = peer("tecno")
    assert open_engine(model).name == "eager"
    with pytest.raises(SessionError, match="the onnx engine runs SurgicalMamba only; tecno runs on eager"):
        open_engine(model, "onnx")
    with pytest.raises(EngineError, match="only SurgicalMamba can be exported; tecno"):
        export(model, tmp_path / "export")


def test_a_peer_with_a_backbone_takes_pictures_live():
    backbone = {"depths": (1, 1, 1, 1), "widths": (4, 8, 8, 8), "image_size": 32, "frozen_stages": 0}
    network = network_of("lstm")
    model = network(network.config_class(backbone=backbone, n_phases=3, d_hidden=8))
    session = sm.Session(model)
    estimate = session.push(np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8))
    assert estimate.quality == "ok" and len(estimate.probabilities) == 3 and estimate.intensity is None
