"""The network, part by part: convolution, rotator, path, dropout, layout, and the whole."""

import pytest
import torch
import torch.nn.functional as F

import surgicalmamba as sm
from surgicalmamba.core.rotation import cayley, generator
from surgicalmamba.core.state import BlockState
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.backbone import BackboneConfig
from surgicalmamba.model.surgical_mamba import (
    VARIANTS,
    BlockConfig,
    CausalConv,
    Grid,
    HeadConfig,
    IntensityConfig,
    IntensityNet,
    ModelConfig,
    PathConfig,
    PerHeadMLP,
    RotationConfig,
    Rotator,
    SSMPath,
    SurgicalMamba,
    empty_state,
    rotation_grids,
)
from surgicalmamba.train.losses import transition_loss


def test_the_convolution_equals_a_left_padded_depthwise_one():
    conv = CausalConv(width=5, d_conv=4).double()
    x = torch.randn(2, 9, 5, dtype=torch.float64)
    y, tail = conv(x, torch.zeros(2, 3, 5, dtype=torch.float64))
    reference = F.conv1d(
        F.pad(x.transpose(1, 2), (3, 0)), conv.weight[:, None], conv.bias, groups=5
    ).transpose(1, 2)
    torch.testing.assert_close(y, reference)
    assert torch.equal(tail, x[:, -3:])


def test_calls_shorter_than_the_kernel_keep_what_the_next_call_needs():
    conv = CausalConv(width=2, d_conv=4).double()
    x = torch.randn(1, 8, 2, dtype=torch.float64)
    whole, _ = conv(x, torch.zeros(1, 3, 2, dtype=torch.float64))
    tail, pieces = torch.zeros(1, 3, 2, dtype=torch.float64), []
    for part in (slice(0, 1), slice(1, 2), slice(2, 4), slice(4, 8)):
        y, tail = conv(x[:, part], tail)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)


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
        torch.testing.assert_close(
            ours, reference, rtol=1e-4, atol=1e-6
        )  # layer norm's eps of 1e-5 leaves a trace


PAPER_SIZE = {"n_heads": 24, "d_head": 64, "d_state": 64}


def start_of(init, n_chunks=64, **settings):
    """Factors of unrelated chunk summaries by an untrained rotator of the paper's size."""
    torch.manual_seed(0)
    rotator = Rotator(**PAPER_SIZE, config=RotationConfig(init=init, **settings))
    with torch.no_grad():
        return rotator.factors(torch.randn(n_chunks, 24, 64))


@pytest.mark.parametrize(
    ("init", "settings", "median"),
    [("paper", {}, 0.005), ("paper", {"theta_init": 0.3}, 0.3), ("release", {}, 0.854)],
)
def test_the_median_angle_at_the_start_is_the_configured_one(init, settings, median):
    theta = start_of(init, **settings)[2]
    assert float(theta.median()) == pytest.approx(median, rel=0.1)


def test_the_releases_start_has_the_angles_and_the_content_dependence_measured_in_the_release():
    U, V, theta = start_of("release")
    assert float(theta.mean()) == pytest.approx(1.0, abs=0.05) and float(theta.std()) == pytest.approx(
        0.7, abs=0.05
    )
    assert plane_cosine(U) == pytest.approx(0.74, abs=0.02) and plane_cosine(V) == pytest.approx(
        0.74, abs=0.02
    )
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
    return float(
        (first - second).square().mean().sqrt() / (Z - torch.eye(Z.shape[-1])).square().mean().sqrt()
    )


def test_a_constant_rotation_is_the_same_after_every_chunk_and_learns():
    rotator = Rotator(2, 8, 6, RotationConfig(rank=3, kind="constant", theta_init=0.5))
    U, V, theta = rotator.factors(torch.randn(4, 2, 8))
    for factor in (U, V, theta):
        torch.testing.assert_close(factor[0], factor[3])
    rotator(torch.randn(4, 2, 8, 6), torch.randn(4, 2, 8)).square().sum(0).exp().sum().backward()
    assert {name for name, p in rotator.named_parameters() if p.grad is not None} == {
        "planes.b2",
        "angles.b2",
    }


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
    plain.load_state_dict(
        {name: value for name, value in model.state_dict().items() if "rotator" not in name}
    )
    features = torch.randn(1, 300, 32)
    with torch.no_grad():
        difference = (
            (model.forward_features(features).logits - plain.forward_features(features).logits).abs().max()
        )
    assert 0 < difference < 1e-3


def test_more_fixed_pairs_than_the_state_has_coordinates_are_refused():
    with pytest.raises(ConfigError, match="at most 2"):
        PathConfig(d_state=5, rotation=RotationConfig(rank=3, kind="pairs"))


def test_the_transition_loss_trains_the_intensity_networks_and_nothing_else(build, features):
    model, x = build(), features(60).requires_grad_()
    output = model.forward_features(x)
    target, labels = torch.rand(1, 60, dtype=x.dtype), torch.zeros(1, 60, dtype=torch.long)
    # only the first block's logits: what the second block reads was shaped by the first block's warp, as it
    # must be
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
        (gradient,) = torch.autograd.grad(
            output.intensity_logits[..., block].sum(), convolved, retain_graph=True, allow_unused=True
        )
        assert gradient is None


def test_a_single_path_model_without_rotation_and_intensity_is_linear_ssd(build):
    model = build("vanilla-mamba2")
    names = {name for name, _ in model.named_modules()}
    assert not any("rotator" in n or "intensity" in n or ".fast" in n for n in names)


@pytest.mark.parametrize(
    ("variant", "absent"),
    [("without-z", "rotator"), ("without-lambda", "intensity"), ("without-fast", ".fast")],
)
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
    shifted = SSMPath(
        512, PathConfig(d_head=4, rotation=None, dt_shift=-2.0), None, conditioned=False, emits_gate=False
    )
    assert torch.nn.functional.softplus(shifted.dt_proj.bias.detach()).median() == pytest.approx(
        0.00135, rel=0.35
    )


def test_intensity_starts_near_its_configured_value(build, features):
    torch.manual_seed(0)
    net = IntensityNet(128, IntensityConfig(intensity_init=0.02))
    assert float(torch.sigmoid(net(torch.randn(1, 500, 128))[0]).detach().mean()) == pytest.approx(
        0.02, abs=0.01
    )


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
    config = reference.config.with_paths(
        rotation=RotationConfig(rank=2, d_hidden=8, theta_init=0.7, form=form)
    )
    model = SurgicalMamba(config).double()
    model.load_state_dict(reference.state_dict())
    x = features(120)
    with torch.no_grad():
        torch.testing.assert_close(
            model.forward_features(x).logits, reference.forward_features(x).logits, rtol=1e-9, atol=1e-9
        )


def test_rotary_paths_equal_a_state_that_is_turned_every_frame():
    """Slow reference: h <- exp(dt A) R(tanh(W x) pi dt) h + dt x B, read by the C of the frame, nothing
    accumulated."""
    torch.manual_seed(0)
    path = SSMPath(
        8, PathConfig(d_state=6, d_head=4, rotation=None, rotary=True, dt_max=0.9), None, False, False
    ).double()
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
            turn[:2, :2] = torch.stack(
                [torch.cos(angle), -torch.sin(angle), torch.sin(angle), torch.cos(angle)]
            ).reshape(2, 2)
            decay = torch.exp(-dt[0, t, h] * path.A_log[h].exp())
            state[h] = (
                decay * state[h] @ turn.T.inverse() + dt[0, t, h] * heads[0, t, h][:, None] * B[0, t, h]
            )
        expected.append(torch.einsum("hpn,hn->hp", state, C[0, t]) + path.D[:, None] * heads[0, t])
    torch.testing.assert_close(output.y[0].unflatten(-1, (4, 4)), torch.stack(expected))


def test_rotary_needs_a_pair_in_half_of_the_state():
    with pytest.raises(ConfigError, match="at least 4"):
        PathConfig(d_state=2, rotary=True, rotation=None)


def test_decay_rates_begin_uniform_between_their_bounds():
    path = SSMPath(
        2048,
        PathConfig(d_head=4, rotation=None, a_min=2.0, a_max=64.0),
        None,
        conditioned=False,
        emits_gate=False,
    )
    rates = path.A_log.detach().exp()
    assert 2.0 <= float(rates.min()) < 3.5 and 62.5 < float(rates.max()) <= 64.0
    assert float(rates.mean()) == pytest.approx(33, abs=2)
    with pytest.raises(ConfigError, match=r"a_min=9.0 is larger than a_max=3.0; swap them"):
        PathConfig(a_min=9.0, a_max=3.0)


@pytest.mark.parametrize(("d_inner", "hidden"), [(1536, 96), (128, 8), (64, 8), (32, 8)])
def test_the_intensity_network_has_a_least_width_as_in_the_release(d_inner, hidden):
    assert IntensityNet(d_inner, IntensityConfig(d_hidden_min=8)).up.out_features == hidden
    assert IntensityNet(d_inner, IntensityConfig()).up.out_features == d_inner // 16


def with_dropout(build, share):
    return build(config=build().config.with_(dropout=share))


def test_dropout_is_off_by_default_and_then_training_draws_nothing(build, features):
    model = build().train()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model.forward_features(features(20))
    assert torch.equal(torch.get_rng_state(), before)


def test_in_evaluation_a_model_with_dropout_is_the_model_without_it_however_a_procedure_is_cut(
    build, features
):
    plain, model, x = build().eval(), with_dropout(build, 0.5).eval(), features(120)
    model.load_state_dict(plain.state_dict())  # no weights of its own
    whole = plain.forward_features(x).logits
    assert torch.equal(model.forward_features(x).logits, whole)
    pieces, state = [], None
    for piece in x.split(7, dim=1):
        output = model.forward_features(piece, state)
        pieces, state = [*pieces, output.logits], output.state
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-9, atol=1e-9)


def test_in_training_the_same_seed_drops_the_same_values_and_another_seed_others(build, features):
    model, x = with_dropout(build, 0.3).train(), features(30)

    def logits(seed):
        torch.manual_seed(seed)
        return model.forward_features(x).logits

    assert torch.equal(logits(1), logits(1)) and not torch.equal(logits(1), logits(2))


def test_dropout_falls_on_what_path_and_feed_forward_add_in_every_block_and_on_the_heads_input(
    build, features
):
    """With almost everything dropped only the residual stream is left: blocks pass x on, and the head
    classifies zeros."""
    model, x = with_dropout(build, 1 - 1e-12).double().train(), features(30)
    stream = model.projector(x)
    for block, state in zip(model.blocks, model.initial_state(1).blocks, strict=True):
        assert torch.equal(block(stream, state, (0,))[0], stream)
    head = model.head
    assert torch.equal(head.block(stream, BlockState(model.initial_state(1).head, None), (0,))[0], stream)
    logits, _ = head(stream, model.initial_state(1).head, (0,))
    assert torch.equal(logits, head.classifier.bias.expand_as(logits))


def test_the_values_that_stay_are_scaled_so_that_the_mean_is_kept(build, features):
    model, x = with_dropout(build, 0.25).train(), features(1)
    torch.manual_seed(0)
    block, stream, state = model.blocks[0], model.projector(x), model.initial_state(1).blocks[0]
    block.ffn_norm = block.ffn = None  # one branch alone
    added = block.eval()(stream, state, (0,))[0] - stream
    dropped = block.train()(stream, state, (0,))[0] - stream
    stays = dropped != 0
    torch.testing.assert_close(dropped[stays], added[stays] / 0.75)
    assert 0 < int(stays.sum()) < stays.numel()


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_outside_zero_to_one_is_refused(share):
    with pytest.raises(ConfigError, match="dropout"):
        ModelConfig(dropout=share)


@pytest.mark.parametrize("variant", VARIANTS)
def test_grids_and_memory_are_those_of_the_built_paths(build, features, variant):
    model = build(variant)
    grids = rotation_grids(model.config)
    assert grids == {
        group: Grid(paths[0].config.chunk_len, paths[0].clip_len)
        for group, paths in model.rotating_paths().items()
    }
    every_path = [path for block in model.blocks for path in (block.slow, block.fast) if path is not None]
    assert any(path.rotator is not None for path in [*every_path, model.head.block.slow]) == bool(grids)
    with torch.no_grad():
        after = model.forward_features(features(3)).state
    assert [t.shape for t in empty_state(model.config, 1).tensors()] == [t.shape for t in after.tensors()]
    assert empty_state(model.config, 3).frame_index == (0, 0, 0)


def test_memory_is_float32_for_half_precision_weights_and_float64_for_double(build):
    config = build().config
    assert empty_state(config, 1, torch.bfloat16).head.ssm.dtype == torch.float32
    assert empty_state(config, 1, torch.float64).head.ssm.dtype == torch.float64


def count(module, trainable_only=False):
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable_only)


@pytest.fixture(scope="module")
def paper_model():
    with torch.device("meta"):
        return sm.SurgicalMamba(ModelConfig())


def test_the_papers_model_has_198_56_million_parameters_for_seven_phases(paper_model):
    assert (
        count(paper_model) == 198_554_867
    )  # the release's 198,556,403 less a final norm of 1,536 that it never uses
    assert count(paper_model, trainable_only=True) == 197_319_827


def test_parameters_are_where_the_release_has_them(paper_model):
    assert count(paper_model.projector) == 592_128
    assert [count(block) for block in paper_model.blocks] == [37_570_129] * 4
    assert count(paper_model.norm) == 1_536
    assert (count(paper_model.head.block), count(paper_model.head.classifier)) == (19_856_712, 5_383)
    rotators = [m for name, m in paper_model.named_modules() if name.endswith("rotator")]
    assert [count(r) for r in rotators] == [6_789_504] * 9


def test_the_tiny_preset_has_a_few_million_parameters():
    assert 1e6 < count(sm.SurgicalMamba(ModelConfig.preset("tiny"))) < 3e6


@pytest.fixture(scope="module")
def pixel_model():
    torch.manual_seed(0)
    backbone = BackboneConfig(
        depths=(1, 1, 1, 1), widths=(4, 8, 12, 16), image_size=32, frozen_stages=0, micro_batch=5
    )
    return sm.SurgicalMamba(ModelConfig.preset("tiny", d_model=32, clip_len=128, backbone=backbone)).eval()


def test_frames_in_pieces_give_the_logits_of_the_whole_video(pixel_model):
    frames = torch.randn(1, 12, 3, 32, 32)
    with torch.no_grad():
        whole = pixel_model(frames)
        state, logits = None, []
        for part in frames.split(1, dim=1):
            output = pixel_model(part, state)
            state = output.state
            logits.append(output.logits)
    torch.testing.assert_close(torch.cat(logits, 1), whole.logits, rtol=1e-4, atol=1e-4)
    assert whole.logits.shape == (1, 12, 7) and whole.intensity_logits.shape == (1, 12, 2)


def test_pixels_and_their_features_give_the_same_logits(pixel_model):
    frames = torch.randn(2, 6, 3, 32, 32)
    with torch.no_grad():
        features = pixel_model.encode(frames.flatten(0, 1)).unflatten(0, (2, 6))
        torch.testing.assert_close(pixel_model.forward_features(features).logits, pixel_model(frames).logits)


def test_any_feature_width_works_without_a_backbone():
    # tool presence (7 inputs) and robot kinematics (14 inputs)
    for width in (7, 14):
        model = sm.SurgicalMamba(ModelConfig.preset("tiny", backbone=None, d_feature=width))
        assert model.forward_features(torch.rand(1, 5, width)).logits.shape == (1, 5, 7)


def test_full_and_unmodulated_models_differ_only_by_the_warp(build, features):
    # with the intensity at zero the full model is the model without lambda
    model, x = build(), features(80)
    for block in model.blocks:
        torch.nn.init.zeros_(block.slow.intensity.out.weight)
        torch.nn.init.constant_(block.slow.intensity.out.bias, -1e4)
    plain = sm.SurgicalMamba(model.config.variant("without-lambda")).double()
    plain.load_state_dict(
        {name: value for name, value in model.state_dict().items() if "intensity" not in name}
    )
    with torch.no_grad():
        torch.testing.assert_close(
            model.forward_features(x).logits, plain.forward_features(x).logits, rtol=1e-12, atol=1e-12
        )


def test_full_intensity_is_the_unmodulated_model_at_twice_the_step(build, features):
    model, x = build(), features(80)
    for block in model.blocks:
        torch.nn.init.zeros_(block.slow.intensity.out.weight)
        torch.nn.init.constant_(block.slow.intensity.out.bias, 1e4)
    plain = sm.SurgicalMamba(model.config.variant("without-lambda")).double()
    plain.load_state_dict(
        {name: value for name, value in model.state_dict().items() if "intensity" not in name}
    )
    for block in plain.blocks:  # dt -> 2 dt, by making the softplus of the slow path's step count twice
        block.slow.A_log.data += torch.log(torch.tensor(2.0, dtype=torch.float64))
        width = block.slow.n_heads * block.slow.config.d_state
        block.slow.select_proj.weight.data[block.slow.dt_rank : block.slow.dt_rank + width] *= (
            2  # B carries dt in the write
        )
    with torch.no_grad():
        torch.testing.assert_close(
            model.forward_features(x).logits, plain.forward_features(x).logits, rtol=1e-10, atol=1e-10
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_of_every_variant_is_used(variant):
    model = sm.SurgicalMamba(ModelConfig.preset("tiny", backbone=None, d_feature=8).variant(variant))
    model.forward_features(torch.randn(2, 70, 8)).logits.sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
