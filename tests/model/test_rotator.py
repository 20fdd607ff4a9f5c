"""The networks behind the rotation."""

import pytest
import torch
import torch.nn.functional as F

from surgicalmamba.core.rotation import cayley, generator
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.surgical_mamba import ModelConfig, PathConfig, PerHeadMLP, RotationConfig, Rotator, SurgicalMamba


def test_every_head_has_its_own_network():
    mlp = PerHeadMLP(n_heads=3, d_in=4, d_hidden=5, bias=torch.randn(3, 6)).double()
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


PAPER_SIZE = {"n_heads": 24, "d_head": 64, "d_state": 64}


def start_of(init, n_chunks=64, **settings):
    """Factors of unrelated chunk summaries by an untrained rotator of the paper's size."""
    torch.manual_seed(0)
    rotator = Rotator(**PAPER_SIZE, config=RotationConfig(init=init, **settings))
    with torch.no_grad():
        return rotator.factors(torch.randn(n_chunks, 24, 64))


@pytest.mark.parametrize(
    ("init", "settings", "median"), [("paper", {}, 0.005), ("paper", {"theta_init": 0.3}, 0.3), ("release", {}, 0.854)]
)
def test_the_median_angle_at_the_start_is_the_configured_one(init, settings, median):
    theta = start_of(init, **settings)[2]
    assert float(theta.median()) == pytest.approx(median, rel=0.1)


def test_the_releases_start_has_the_angles_and_the_content_dependence_measured_in_the_release():
    U, V, theta = start_of("release")
    assert float(theta.mean()) == pytest.approx(1.0, abs=0.05) and float(theta.std()) == pytest.approx(0.7, abs=0.05)
    assert plane_cosine(U) == pytest.approx(0.74, abs=0.02) and plane_cosine(V) == pytest.approx(0.74, abs=0.02)
    assert dependence_on_content(U, V, theta) == pytest.approx(1.06, abs=0.02)


def test_the_papers_start_turns_little_and_depends_on_content_from_the_first_update():
    U, V, theta = start_of("paper")
    assert float(theta.quantile(0.9)) < 0.03
    assert plane_cosine(U) < 0.75  # 0.97 with a bias that outweighs what the content adds
    assert dependence_on_content(U, V, theta) > 1.0  # 0.42 with such a bias


def plane_cosine(planes):
    """Mean cosine of matching columns of two unrelated chunks."""
    first, second = planes.chunk(2)
    return float((first * second).sum(-2).abs().mean())


def dependence_on_content(U, V, theta):
    """|Z_c - Z_c'| / |Z - I|, root mean squares over pairs of chunks and heads."""
    Z = cayley(generator(U, V, theta))
    first, second = Z.chunk(2)
    return float((first - second).square().mean().sqrt() / (Z - torch.eye(Z.shape[-1])).square().mean().sqrt())


def test_a_constant_rotation_is_the_same_after_every_chunk_and_learns():
    rotator = Rotator(2, 8, 6, RotationConfig(rank=3, kind="constant", theta_init=0.5))
    U, V, theta = rotator.factors(torch.randn(4, 2, 8))
    for factor in (U, V, theta):
        torch.testing.assert_close(factor[0], factor[3])
    rotator(torch.randn(4, 2, 8, 6), torch.randn(4, 2, 8)).square().sum(0).exp().sum().backward()
    assert {name for name, p in rotator.named_parameters() if p.grad is not None} == {"planes.b2", "angles.b2"}


def test_fixed_pairs_turn_their_two_coordinates_by_an_angle_of_the_content():
    rotator = Rotator(1, 8, 5, RotationConfig(rank=2, kind="pairs", theta_init=0.5)).double()
    summary, state = torch.randn(1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 3, 5, dtype=torch.float64)
    theta = rotator.factors(summary)[2][0, 0]
    expected = state.clone()
    for pair in range(2):  # the Cayley transform of a plane's generator turns by 2 atan(theta / 2)
        angle = 2 * torch.atan(theta[pair] / 2)
        a, b = state[..., 2 * pair], state[..., 2 * pair + 1]
        expected[..., 2 * pair] = torch.cos(angle) * a - torch.sin(angle) * b
        expected[..., 2 * pair + 1] = torch.sin(angle) * a + torch.cos(angle) * b
    torch.testing.assert_close(rotator(state, summary), expected)
    assert not torch.allclose(theta, rotator.factors(torch.randn(1, 1, 8, dtype=torch.float64))[2][0, 0])


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


def test_more_fixed_pairs_than_the_state_has_coordinates_are_refused():
    with pytest.raises(ConfigError, match="at most 2"):
        PathConfig(d_state=5, rotation=RotationConfig(rank=3, kind="pairs"))
