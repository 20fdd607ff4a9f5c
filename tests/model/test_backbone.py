"""The ConvNeXt encoder: sizes, freezing, memory savers, and weights in other people's naming."""

import re

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import surgicalmamba as sm
from surgicalmamba.data.transforms import normalise
from surgicalmamba.errors import CheckpointError, ConfigError, InputError
from surgicalmamba.model.backbone import BackboneConfig, ConvNeXt, to_timm_names
from surgicalmamba.model.surgical_mamba import ModelConfig

SMALL = BackboneConfig(
    depths=(1, 1, 2, 1), widths=(8, 16, 24, 32), image_size=64, frozen_stages=0, micro_batch=3
)


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    net = ConvNeXt(SMALL).eval()
    for name, parameter in net.named_parameters():
        torch.nn.init.normal_(
            parameter, std=0.3, mean=1.0 if name.endswith(("gamma", "norm.weight")) else 0.0
        )
    return net


def reference_forward(weights, x):
    """ConvNeXt straight from its definition, with functional calls and timm's names."""

    def norm(x, prefix):
        return F.layer_norm(x, x.shape[-1:], weights[prefix + ".weight"], weights[prefix + ".bias"], 1e-6)

    def conv(x, prefix, **options):  # channels last in and out
        return F.conv2d(
            x.movedim(-1, 1), weights[prefix + ".weight"], weights[prefix + ".bias"], **options
        ).movedim(1, -1)

    x = norm(conv(x.movedim(1, -1), "stem.0", stride=4), "stem.1")
    for stage, depth in enumerate(SMALL.depths):
        here = f"stages.{stage}"
        if stage:
            x = conv(norm(x, f"{here}.downsample.0"), f"{here}.downsample.1", stride=2)
        for block in range(depth):
            b = f"{here}.blocks.{block}"
            y = norm(conv(x, f"{b}.conv_dw", padding=3, groups=x.shape[-1]), f"{b}.norm")
            y = F.gelu(F.linear(y, weights[f"{b}.mlp.fc1.weight"], weights[f"{b}.mlp.fc1.bias"]))
            x = x + weights[f"{b}.gamma"] * F.linear(
                y, weights[f"{b}.mlp.fc2.weight"], weights[f"{b}.mlp.fc2.bias"]
            )
    return x.mean((1, 2))


def test_it_computes_convnext_and_averages_the_last_stage_without_a_final_norm(backbone):
    frames = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(
            backbone(frames), reference_forward(backbone.state_dict(), frames), rtol=1e-4, atol=1e-4
        )


def test_convnext_tiny_has_timms_names_and_sizes():
    with torch.device("meta"):
        names = dict(ConvNeXt(BackboneConfig()).named_parameters())
    assert (
        sum(p.numel() for p in names.values()) == 27_820_128 - 1_536
    )  # without the classifier's norm, which no feature uses
    assert names["stages.2.blocks.8.mlp.fc1.weight"].shape == (1536, 384)
    assert names["stages.3.downsample.1.weight"].shape == (768, 384, 2, 2)
    assert names["stem.0.weight"].shape == (96, 3, 4, 4)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (64, 96), (224, 160)])
def test_any_multiple_of_32_will_do(backbone, height, width):
    assert backbone(torch.randn(1, 3, height, width)).shape == (1, 32)


def test_other_sizes_are_refused_with_the_shape_in_the_message(backbone):
    with pytest.raises(InputError, match=r"\(1, 3, 100, 64\).*multiples of 32"):
        backbone(torch.randn(1, 3, 100, 64))
    with pytest.raises(ConfigError, match="image_size=230 is not a multiple of 32; the nearest one is 224"):
        BackboneConfig(image_size=230)


def test_stem_and_bottom_two_stages_are_frozen_by_default():
    with torch.device("meta"):
        net = ConvNeXt(BackboneConfig())
    frozen = {name for name, p in net.named_parameters() if not p.requires_grad}
    assert frozen == {
        name for name, _ in net.named_parameters() if name.startswith(("stem.", "stages.0.", "stages.1."))
    }
    assert sum(p.numel() for p in net.parameters() if not p.requires_grad) == 4_896 + 237_888 + 992_256


def test_micro_batches_and_recomputation_change_neither_features_nor_gradients(backbone):
    frames = torch.randn(7, 3, 64, 64)
    gradients = []
    for micro_batch, recompute in ((3, True), (7, False), (2, False)):
        net = ConvNeXt(SMALL.with_(micro_batch=micro_batch, checkpoint=recompute)).train()
        net.load_state_dict(backbone.state_dict())
        features = net(frames)
        (features * torch.arange(32)).sum().backward()
        gradients.append([features.detach(), *(p.grad for p in net.parameters())])
    for other in gradients[1:]:
        for ours, reference in zip(other, gradients[0], strict=True):
            torch.testing.assert_close(
                ours, reference, rtol=1e-4, atol=1e-4 * float(reference.abs().max() + 1)
            )


def test_a_copy_for_pixels_gives_the_features_of_the_normalised_image_and_leaves_the_original_alone(backbone):
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    pixels = torch.randint(0, 256, (2, 64, 96, 3), dtype=torch.uint8)
    with torch.no_grad():
        expected = backbone(normalise(pixels, backbone.config.mean_rgb, backbone.config.std_rgb))
        given = backbone.for_pixels()(pixels.permute(0, 3, 1, 2).float())
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def as_torchvision(name):
    name = re.sub(r"^stem\.([01])\.", r"features.0.\1.", name)
    name = re.sub(r"^stages\.(\d)\.downsample\.", lambda m: f"features.{2 * int(m[1])}.", name)
    name = re.sub(r"^stages\.(\d)\.blocks\.", lambda m: f"features.{2 * int(m[1]) + 1}.", name)
    for theirs, ours in (
        ("block.0", "conv_dw"),
        ("block.2", "norm"),
        ("block.3", "mlp.fc1"),
        ("block.5", "mlp.fc2"),
    ):
        name = name.replace(f".{ours}.", f".{theirs}.")
    return name.replace(".gamma", ".layer_scale")


def as_hugging_face(name):
    name = name.replace("stem.0.", "convnext.embeddings.patch_embeddings.").replace(
        "stem.1.", "convnext.embeddings.layernorm."
    )
    name = re.sub(r"^stages\.(\d)\.downsample\.", r"convnext.encoder.stages.\1.downsampling_layer.", name)
    name = re.sub(r"^stages\.(\d)\.blocks\.", r"convnext.encoder.stages.\1.layers.", name)
    for theirs, ours in (
        ("dwconv", "conv_dw"),
        ("layernorm", "norm"),
        ("pwconv1", "mlp.fc1"),
        ("pwconv2", "mlp.fc2"),
    ):
        name = name.replace(f".{ours}.", f".{theirs}.")
    return name.replace(".gamma", ".layer_scale_parameter")


def as_original(name):
    name = re.sub(r"^stem\.([01])\.", r"downsample_layers.0.\1.", name)
    name = re.sub(r"^stages\.(\d)\.downsample\.", r"downsample_layers.\1.", name)
    name = re.sub(r"^stages\.(\d)\.blocks\.", r"stages.\1.", name)
    return (
        name.replace(".conv_dw.", ".dwconv.")
        .replace(".mlp.fc1.", ".pwconv1.")
        .replace(".mlp.fc2.", ".pwconv2.")
    )


CLASSIFIERS = {
    "timm": ("head.norm.weight", "head.fc.weight"),
    "torchvision": ("classifier.0.weight", "classifier.2.weight"),
    "hugging-face": ("convnext.layernorm.weight", "classifier.weight"),
    "original": ("norm.weight", "head.weight"),
}
NAMINGS = {
    "timm": lambda name: name,
    "torchvision": as_torchvision,
    "hugging-face": as_hugging_face,
    "original": as_original,
}


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_imagenet_weights_load_in_every_known_naming(backbone, tmp_path, naming, kind):
    theirs = {NAMINGS[naming](name): value for name, value in backbone.state_dict().items()}
    if naming == "torchvision":
        theirs = {
            name: value[:, None, None] if name.endswith("layer_scale") else value
            for name, value in theirs.items()
        }
    theirs |= {name: torch.randn(10, 32) for name in CLASSIFIERS[naming]}
    file = tmp_path / ("w.safetensors" if kind == "safetensors" else "w.pth")
    if kind == "safetensors":
        save_file({k: v.contiguous() for k, v in theirs.items()}, file)
    else:
        torch.save({"model": theirs} if naming == "original" else theirs, file)
    model = sm.SurgicalMamba(ModelConfig.preset("tiny", backbone=SMALL))
    sm.load_backbone(model, file)
    for name, value in backbone.state_dict().items():
        assert torch.equal(model.backbone.state_dict()[name], value), name


def test_weights_of_another_network_are_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match=r"no ConvNeXt in a known naming .*layer1\.0\.conv1\.weight"):
        to_timm_names({"layer1.0.conv1.weight": torch.zeros(1)})


def test_weights_of_another_size_are_refused_with_a_report(backbone, tmp_path):
    save_file(backbone.state_dict(), tmp_path / "small.safetensors")
    model = sm.SurgicalMamba(ModelConfig.preset("tiny"))
    with pytest.raises(CheckpointError, match="mis-shaped"):
        sm.load_backbone(model, tmp_path / "small.safetensors")


def test_offline_a_hub_id_gives_one_clear_line(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = sm.SurgicalMamba(ModelConfig.preset("tiny"))
    with pytest.raises(
        CheckpointError, match=r"no folder 'timm/convnext_tiny.in12k_ft_in1k' here.*download the repository"
    ) as caught:
        sm.load_backbone(model, "timm/convnext_tiny.in12k_ft_in1k")
    assert "\n" not in str(caught.value)


def test_the_backbone_of_a_checkpoint_starts_another_model(tmp_path):
    import surgicalmamba as sm

    torch.manual_seed(0)
    first, second = (sm.SurgicalMamba(sm.ModelConfig.preset("tiny", n_phases=n)).eval() for n in (7, 3))
    first.save(tmp_path / "first")
    sm.load_backbone(second, tmp_path / "first")
    frames = torch.randn(2, 3, 96, 96)
    assert torch.equal(first.encode(frames), second.encode(frames))
