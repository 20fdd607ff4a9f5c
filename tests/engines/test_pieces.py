"""What engines capture, run as it is: pieces without boundaries, then the boundaries, make the model's frames
in every variant."""

import pytest
import torch

from engines.conftest import live_config, run_beside_eager
from surgicalmamba.core.rotation import solve_by_blocks
from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba.engines.pieces import ClosePiece, EncodePiece, PieceEngine, StepPiece
from surgicalmamba.errors import InputError
from surgicalmamba.model.surgical_mamba import VARIANTS, SurgicalMamba


class PlainEngine(PieceEngine):
    """The pieces called directly; counts how often the rotation networks are touched."""

    name = "plain"

    def __init__(self, model):
        super().__init__(model.config)
        self.model, self.closed = model, []

    def initial_state(self, n_lanes):
        return self.model.initial_state(n_lanes)

    def _encode(self, frames):
        return EncodePiece(self.model)(frames)

    def _step(self, features, state):
        return StepPiece(self.model)(features, state)

    def _close(self, group, ssm, chunk_sum):
        self.closed.append((group, len(ssm[0])))
        return ClosePiece(self.model, group, solve_by_blocks)(ssm, chunk_sum)


def build(variant, **changes):
    torch.manual_seed(0)
    return SurgicalMamba(
        live_config(n_blocks=2, backbone=None, d_feature=10, **changes).variant(variant)
    ).eval()


@pytest.mark.parametrize("variant", VARIANTS)
def test_pieces_and_boundaries_make_the_models_frames(variant):
    model = build(variant)
    logits, state = run_beside_eager(PlainEngine(model), EagerEngine(model), [0, 5, 19, 7], n_frames=50)
    assert logits < 2e-6 and state < 2e-6


def test_only_lanes_at_the_end_of_a_chunk_touch_the_rotation_networks():
    engine = PlainEngine(build("full"))
    state = engine.initial_state(3).at([0, 2, 7])
    for _ in range(5):
        state = engine.advance(torch.randn(3, 10), state).state
    # chunks of 8, 6 and 5 frames: lane 2 closes slow after its first frame; lane 1 closes the head after
    # three and fast after four; lane 2 closes the head after three, at frame 10, and fast after five, at
    # frame 12; lane 0 closes the head after five
    assert engine.closed == [("slow", 1), ("head", 2), ("fast", 1), ("fast", 1), ("head", 1)]


def test_a_model_without_a_backbone_takes_no_pictures():
    with pytest.raises(InputError, match="push feature vectors"):
        PlainEngine(build("full")).encode(torch.zeros(1, 32, 32, 3, dtype=torch.uint8))
