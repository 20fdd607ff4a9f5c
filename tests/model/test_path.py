"""What a path and a block are made of, and where the time warp reaches."""

import pytest
import torch

from surgicalmamba.errors import ConfigError
from surgicalmamba.model.surgical_mamba import (
    BlockConfig,
    HeadConfig,
    IntensityConfig,
    IntensityNet,
    PathConfig,
    RotationConfig,
    SSMPath,
    SurgicalMamba,
)
from surgicalmamba.train.losses import transition_loss


def test_the_transition_loss_trains_the_intensity_networks_and_nothing_else(build, features):
    model, x = build(), features(60).requires_grad_()
    output = model.forward_features(x)
    target, labels = torch.rand(1, 60, dtype=x.dtype), torch.zeros(1, 60, dtype=torch.long)
    # only the first block's logits: what the second block reads was shaped by the first block's warp, as it must be
    transition_loss(output.intensity_logits[..., :1], target, labels).backward()
    assert x.grad is None or (x.grad == 0).all()
    touched = {name for name, p in model.named_parameters() if p.grad is not None and (p.grad != 0).any()}
    assert touched and all(name.startswith("blocks.0.slow.intensity.") for name in touched)


def test_no_block_sends_the_transition_loss_into_its_own_features(build, features):
    model, x = build(), features(40)
    inputs = []
    for block in model.blocks:
        block.slow.intensity.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    output = model.forward_features(x)
    assert len(inputs) == 2
    for block, convolved in enumerate(inputs):
        (gradient,) = torch.autograd.grad(output.intensity_logits[..., block].sum(), convolved, retain_graph=True, allow_unused=True)
        assert gradient is None


def test_a_single_path_model_without_rotation_and_intensity_is_linear_ssd(build):
    model = build("vanilla-mamba2")
    names = {name for name, _ in model.named_modules()}
    assert not any("rotator" in n or "intensity" in n or ".fast" in n for n in names)


@pytest.mark.parametrize(("variant", "absent"), [("without-z", "rotator"), ("without-lambda", "intensity"), ("without-fast", ".fast")])
def test_an_ablated_part_is_not_built(build, variant, absent):
    model = build(variant)
    assert not any(absent in name for name, _ in model.named_parameters())
    assert any(absent in name for name, _ in build("full").named_parameters())


def test_z_only_has_rotations_in_its_one_path(build):
    names = [name for name, _ in build("z-only").named_parameters()]
    assert any("blocks.0.slow.rotator" in n for n in names)
    assert not any("intensity" in n or ".fast" in n for n in names)


def test_the_fast_path_may_not_have_an_intensity(build):
    with pytest.raises(ConfigError, match="confined to the slow path"):
        BlockConfig(fast=PathConfig(intensity=IntensityConfig()))
    with pytest.raises(ConfigError, match="confined to the slow path"):
        HeadConfig(path=PathConfig(intensity=IntensityConfig()))


def test_steps_at_the_start_are_log_uniform_in_the_configured_range():
    torch.manual_seed(0)
    path = SSMPath(512, PathConfig(d_head=4, rotation=None), None, conditioned=False, emits_gate=False)
    dt = torch.nn.functional.softplus(path.dt_proj.bias.detach())
    assert dt.min() >= 0.001 * 0.99 and dt.max() <= 0.1 * 1.01
    assert dt.median() == pytest.approx(0.01, rel=0.35)
    shifted = SSMPath(512, PathConfig(d_head=4, rotation=None, dt_shift=-2.0), None, conditioned=False, emits_gate=False)
    assert torch.nn.functional.softplus(shifted.dt_proj.bias.detach()).median() == pytest.approx(0.00135, rel=0.35)


def test_intensity_starts_near_its_configured_value(build, features):
    torch.manual_seed(0)
    net = IntensityNet(128, IntensityConfig(intensity_init=0.02))
    assert float(torch.sigmoid(net(torch.randn(1, 500, 128))[0]).detach().mean()) == pytest.approx(0.02, abs=0.01)


def test_state_and_logit_of_the_intensity_stay_float32_under_autocast(build, features):
    model = build(dtype=torch.float32)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        output = model.forward_features(features(40).float())
    assert {t.dtype for t in output.state.tensors()} == {torch.float32}
    with torch.no_grad():
        exact = model.forward_features(features(40).float())
    assert (output.logits.float() - exact.logits).abs().max() < 0.1


@pytest.mark.parametrize("form", ["low-rank", "dense"])
def test_the_form_of_the_solve_changes_no_logit(build, features, form):
    reference = build()
    config = reference.config.with_paths(rotation=RotationConfig(rank=2, d_hidden=8, theta_init=0.7, form=form))
    model = SurgicalMamba(config).double()
    model.load_state_dict(reference.state_dict())
    x = features(120)
    with torch.no_grad():
        torch.testing.assert_close(model.forward_features(x).logits, reference.forward_features(x).logits, rtol=1e-9, atol=1e-9)


def test_rotary_paths_equal_a_state_that_is_turned_every_frame():
    """Slow reference: h <- exp(dt A) R(tanh(W x) pi dt) h + dt x B, read by the C of the frame, nothing accumulated."""
    torch.manual_seed(0)
    path = SSMPath(8, PathConfig(d_state=6, d_head=4, rotation=None, rotary=True, dt_max=0.9), None, False, False).double()
    u = torch.randn(1, 30, 8, dtype=torch.float64)
    output = path(u, path.initial_state(1, u.dtype, u.device), [0])
    x, _, _ = path._convolve(u, path.initial_state(1, u.dtype, u.device))
    dt, B, C, _, _ = path._select(x, None, output.state)
    rate = torch.pi * torch.tanh(path.turn_proj(x))[..., 0]
    assert path.turn_proj.out_features == 1  # half of six coordinates holds one pair
    heads = x.unflatten(-1, (4, 4))
    state, expected = torch.zeros(4, 4, 6, dtype=torch.float64), []
    for t in range(30):
        for h in range(4):
            angle = dt[0, t, h] * rate[0, t]
            turn = torch.eye(6, dtype=torch.float64)
            turn[:2, :2] = torch.stack([torch.cos(angle), -torch.sin(angle), torch.sin(angle), torch.cos(angle)]).reshape(2, 2)
            decay = torch.exp(-dt[0, t, h] * path.A_log[h].exp())
            state[h] = decay * state[h] @ turn.T.inverse() + dt[0, t, h] * heads[0, t, h][:, None] * B[0, t, h]
        expected.append(torch.einsum("hpn,hn->hp", state, C[0, t]) + path.D[:, None] * heads[0, t])
    torch.testing.assert_close(output.y[0].unflatten(-1, (4, 4)), torch.stack(expected))


def test_rotary_needs_a_pair_in_half_of_the_state():
    with pytest.raises(ConfigError, match="at least 4"):
        PathConfig(d_state=2, rotary=True, rotation=None)


def test_decay_rates_begin_uniform_between_their_bounds():
    path = SSMPath(2048, PathConfig(d_head=4, rotation=None, a_min=2.0, a_max=64.0), None, conditioned=False, emits_gate=False)
    rates = path.A_log.detach().exp()
    assert 2.0 <= float(rates.min()) < 3.5 and 62.5 < float(rates.max()) <= 64.0
    assert float(rates.mean()) == pytest.approx(33, abs=2)
    with pytest.raises(ConfigError, match=r"a_min=9.0 is larger than a_max=3.0; swap them"):
        PathConfig(a_min=9.0, a_max=3.0)


@pytest.mark.parametrize(("d_inner", "hidden"), [(1536, 96), (128, 8), (64, 8), (32, 8)])
def test_the_intensity_network_has_a_least_width_as_in_the_release(d_inner, hidden):
    assert IntensityNet(d_inner, IntensityConfig(d_hidden_min=8)).up.out_features == hidden
    assert IntensityNet(d_inner, IntensityConfig()).up.out_features == d_inner // 16
