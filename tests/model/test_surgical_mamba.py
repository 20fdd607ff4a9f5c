"""The whole network: its size, its doors, and what it says when something is wrong."""

import pytest
import torch

import surgicalmamba as sm
from surgicalmamba.errors import InputError, NonFiniteError
from surgicalmamba.model.backbone import BackboneConfig
from surgicalmamba.model.surgical_mamba import VARIANTS, ModelConfig


def count(module, trainable_only=False):
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable_only)


@pytest.fixture(scope="module")
def paper_model():
    with torch.device("meta"):
        return sm.SurgicalMamba(ModelConfig())


def test_the_papers_model_has_198_56_million_parameters_for_seven_phases(paper_model):
    assert count(paper_model) == 198_554_867  # the release's 198,556,403 less a final norm of 1,536 that it never uses
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
    backbone = BackboneConfig(depths=(1, 1, 1, 1), widths=(4, 8, 12, 16), image_size=32, frozen_stages=0, micro_batch=5)
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


DOOR = {
    "(1, 6, 10); expected (batch, frames, 192)": lambda m: m.forward_features(torch.zeros(1, 6, 10)),
    "(6, 192); expected (batch, frames, 192)": lambda m: m.forward_features(torch.zeros(6, 192)),
    "frames have shape (2, 3, 32, 32); expected (batch, frames, 3, height, width)": lambda m: m(torch.zeros(2, 3, 32, 32)),
    "multiples of 32": lambda m: m(torch.zeros(1, 1, 3, 40, 40)),
    "frames are torch.uint8; expected floating point": lambda m: m(torch.zeros(1, 1, 3, 32, 32, dtype=torch.uint8)),
    "features are torch.float64 but the model is torch.float32; convert": lambda m: m.forward_features(torch.zeros(1, 1, 192).double()),
    "give at least one frame": lambda m: m.forward_features(torch.zeros(1, 0, 192)),
    "2 lanes but the state has 1": lambda m: m.forward_features(torch.zeros(2, 1, 192), m.initial_state(1)),
    "on meta but the model is on cpu": lambda m: m.forward_features(torch.zeros(1, 1, 192, device="meta")),
}


@pytest.mark.parametrize("message", DOOR)
def test_a_wrong_input_is_refused_in_one_line_that_names_it(message):
    model = sm.SurgicalMamba(ModelConfig.preset("tiny"))
    with pytest.raises(InputError) as caught:
        DOOR[message](model)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_without_a_backbone_says_so_when_given_frames():
    model = sm.SurgicalMamba(ModelConfig.preset("tiny", backbone=None, d_feature=7))
    with pytest.raises(InputError, match=r"no backbone.*forward_features"):
        model(torch.zeros(1, 1, 3, 32, 32))
    with pytest.raises(InputError, match="no backbone"):
        model.encode(torch.zeros(1, 3, 32, 32))


def test_half_precision_weights_are_refused_with_the_right_way():
    model = sm.SurgicalMamba(ModelConfig.preset("tiny", backbone=None, d_feature=7)).bfloat16()
    with pytest.raises(InputError, match=r"keep them float32 and use torch\.autocast"):
        model.forward_features(torch.zeros(1, 1, 7).bfloat16())


def test_a_nan_in_the_input_is_named_by_lane_and_frame_of_the_procedure(build, features):
    model = build()
    state = model.forward_features(features(30, lanes=2)).state
    x = features(20, lanes=2)
    x[1, 4, 3] = float("nan")
    with pytest.raises(NonFiniteError, match="features hold a NaN or infinity at lane 1, frame 34"):
        model.forward_features(x, state)
    frames = torch.zeros(1, 3, 3, 32, 32)
    frames[0, 2, 1, 5, 5] = float("inf")
    tiny = sm.SurgicalMamba(ModelConfig.preset("tiny"))
    with pytest.raises(NonFiniteError, match="frames hold a NaN or infinity at lane 0, frame 2"):
        tiny(frames)


def test_a_nan_in_the_weights_names_the_weight(build, features):
    model = build()
    with torch.no_grad():
        model.blocks[1].ffn.fc1.weight[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"'blocks\.1\.ffn\.fc1\.weight'"):
        model.forward_features(features(10))


def test_a_nan_in_the_state_names_block_and_lane(build, features):
    model = build()
    state = model.forward_features(features(30, lanes=2)).state
    state.blocks[1].slow.ssm[1] = float("nan")
    with pytest.raises(NonFiniteError, match="state given is not finite in block 1, lane 1, before frame 30"):
        model.forward_features(features(5, lanes=2), state)


def test_a_block_that_overflows_is_named_with_the_frame(build, features):
    model = build(dtype=torch.float32)
    x = features(60).float()
    x[0, 52] *= 1e30
    with torch.no_grad():
        model.projector[1] = torch.nn.Identity()
        model.blocks[0].norm = torch.nn.Identity()
    with pytest.raises(NonFiniteError, match="block 0 gives a NaN or infinity at lane 0, frame 52"):
        model.forward_features(x)


def test_full_and_unmodulated_models_differ_only_by_the_warp(build, features):
    # with the intensity at zero the full model is the model without lambda
    model, x = build(), features(80)
    for block in model.blocks:
        torch.nn.init.zeros_(block.slow.intensity.out.weight)
        torch.nn.init.constant_(block.slow.intensity.out.bias, -1e4)
    plain = sm.SurgicalMamba(model.config.variant("without-lambda")).double()
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "intensity" not in name})
    with torch.no_grad():
        torch.testing.assert_close(model.forward_features(x).logits, plain.forward_features(x).logits, rtol=1e-12, atol=1e-12)


def test_full_intensity_is_the_unmodulated_model_at_twice_the_step(build, features):
    model, x = build(), features(80)
    for block in model.blocks:
        torch.nn.init.zeros_(block.slow.intensity.out.weight)
        torch.nn.init.constant_(block.slow.intensity.out.bias, 1e4)
    plain = sm.SurgicalMamba(model.config.variant("without-lambda")).double()
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "intensity" not in name})
    for block in plain.blocks:  # dt -> 2 dt, by making the softplus of the slow path's step count twice
        block.slow.A_log.data += torch.log(torch.tensor(2.0, dtype=torch.float64))
        width = block.slow.n_heads * block.slow.config.d_state
        block.slow.select_proj.weight.data[block.slow.dt_rank : block.slow.dt_rank + width] *= 2  # B carries dt in the write
    with torch.no_grad():
        torch.testing.assert_close(model.forward_features(x).logits, plain.forward_features(x).logits, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_of_every_variant_is_used(variant):
    model = sm.SurgicalMamba(ModelConfig.preset("tiny", backbone=None, d_feature=8).variant(variant))
    model.forward_features(torch.randn(2, 70, 8)).logits.sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
