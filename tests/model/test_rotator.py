"""The networks behind the rotation."""

import pytest
import torch
import torch.nn.functional as F

from surgicalmamba.config import ModelConfig, RotationConfig
from surgicalmamba.model.rotator import PerHeadMLP, Rotator
from surgicalmamba.model.surgical_mamba import SurgicalMamba


def test_every_head_has_its_own_network():
    mlp = PerHeadMLP(n_heads=3, d_in=4, d_hidden=5, d_out=6).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    y = mlp(x)
    for h in range(3):
        expected = F.silu(x[:, h] @ mlp.w1[h] + mlp.b1[h]) @ mlp.w2[h] + mlp.b2[h]
        torch.testing.assert_close(y[:, h], expected)


def test_planes_have_unit_columns_and_angles_are_positive():
    rotator = Rotator(n_heads=2, d_head=8, d_state=6, config=RotationConfig(rank=3, d_hidden=16))
    U, V, theta = rotator.factors(torch.randn(4, 2, 8))
    assert U.shape == V.shape == (4, 2, 6, 3) and theta.shape == (4, 2, 3)
    torch.testing.assert_close(U.norm(dim=-2), torch.ones(4, 2, 3))
    torch.testing.assert_close(V.norm(dim=-2), torch.ones(4, 2, 3))
    assert (theta >= 0).all()


def test_the_summary_is_normalised_so_its_scale_and_offset_do_not_matter():
    rotator = Rotator(n_heads=2, d_head=8, d_state=6, config=RotationConfig(rank=3)).double()
    summary = torch.randn(1, 2, 8, dtype=torch.float64) * 10
    for ours, reference in zip(rotator.factors(3 * summary + 5), rotator.factors(summary), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-6)  # layer norm's eps of 1e-5 leaves a trace


@pytest.mark.parametrize("theta_init", [0.01, 1.0])
def test_mean_angle_at_the_start_is_the_configured_one(theta_init):
    torch.manual_seed(0)
    rotator = Rotator(n_heads=16, d_head=64, d_state=64, config=RotationConfig(theta_init=theta_init))
    theta = rotator.factors(torch.randn(32, 16, 64))[2]
    assert float(theta.detach().mean()) == pytest.approx(theta_init, rel=0.2)


def test_both_forms_are_the_same_module_with_the_same_weights():
    torch.manual_seed(0)
    low = Rotator(2, 8, 12, RotationConfig(rank=3, theta_init=1.0, form="low-rank")).double()
    dense = Rotator(2, 8, 12, RotationConfig(rank=3, theta_init=1.0, form="dense")).double()
    dense.load_state_dict(low.state_dict())
    state, summary = torch.randn(1, 2, 8, 12, dtype=torch.float64), torch.randn(1, 2, 8, dtype=torch.float64)
    torch.testing.assert_close(low(state, summary), dense(state, summary))


@pytest.mark.parametrize("preset", ["tiny", "paper"])
def test_an_untrained_model_equals_the_same_model_without_rotation(preset):
    torch.manual_seed(0)
    config = ModelConfig.preset(preset, backbone=None, d_feature=32)
    model, plain = SurgicalMamba(config), SurgicalMamba(config.variant("without-z"))
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "rotator" not in name})
    features = torch.randn(1, 300, 32)
    with torch.no_grad():
        difference = (model.forward_features(features).logits - plain.forward_features(features).logits).abs().max()
    assert 0 < difference < 1e-3
