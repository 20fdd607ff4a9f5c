"""ConvNeXt frame encoder with timm's parameter names. A frame's feature is the mean of its last stage.

ImageNet weights load in the naming of timm, torchvision, Hugging Face or the original authors."""

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from surgicalmamba.config import Positive, Section
from surgicalmamba.errors import CheckpointError, InputError

NORM_EPS = 1e-6
FourSizes = tuple[Positive, Positive, Positive, Positive]
Rgb = tuple[float, float, float]


class BackboneConfig(Section):
    """A ConvNeXt frame encoder. The defaults are ConvNeXt-Tiny."""

    depths: FourSizes = Field((3, 3, 9, 3), description="Blocks per stage.")
    widths: FourSizes = Field((96, 192, 384, 768), description="Channels per stage.")
    image_size: Positive = Field(224, description="Side of a frame, pixels; a multiple of 32. Paper: 224.")
    frozen_stages: Annotated[int, Field(ge=0, le=4)] = Field(
        2, description="Stages from the bottom, with the stem, that are not trained; 0 trains all. Paper: 2."
    )
    layer_scale_init: float = Field(
        1e-6, gt=0, description="Initial residual weight. ConvNeXt: 1e-6; small nets learn faster from 0.1."
    )
    micro_batch: Positive = Field(32, description="Frames encoded at once: bounds memory, changes no value.")
    checkpoint: bool = Field(True, description="Recompute activations in the backward pass to save memory.")
    mean_rgb: Rgb = Field((0.485, 0.456, 0.406), description="ImageNet mean, for frames scaled to 0..1.")
    std_rgb: Rgb = Field((0.229, 0.224, 0.225), description="ImageNet deviation, for frames scaled to 0..1.")

    @model_validator(mode="after")
    def _check(self) -> "BackboneConfig":
        if self.image_size % 32:
            near = max(32, round(self.image_size / 32) * 32)
            found = f"image_size={self.image_size} is not a multiple of 32"
            raise ValueError(f"{found}; the nearest one is {near}.")
        return self


BACKBONES: dict[str, BackboneConfig] = {
    "paper": BackboneConfig(),
    "release": BackboneConfig(),
    "tiny": BackboneConfig(
        depths=(2, 2, 3, 1), widths=(24, 48, 96, 192), image_size=96, frozen_stages=0,
        layer_scale_init=0.1, micro_batch=64
    ),
}
"""The frame encoder of every preset, for any recognizer."""


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of an image batch (n, c, y, x)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class FeedForward(nn.Module):
    """Linear, exact GELU, Linear; also that of the temporal blocks."""

    def __init__(self, width: int, ratio: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, ratio * width)
        self.fc2 = nn.Linear(ratio * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """Depthwise 7 x 7 convolution, LayerNorm, channel MLP, layer scale, residual."""

    def __init__(self, width: int, layer_scale_init: float) -> None:
        super().__init__()
        self.gamma: nn.Parameter | None = nn.Parameter(torch.full((width,), layer_scale_init))
        self.conv_dw = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.mlp = FeedForward(width, ratio=4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.mlp(self.norm(self.conv_dw(x).permute(0, 2, 3, 1)))
        scaled = y if self.gamma is None else self.gamma * y
        return x + scaled.permute(0, 3, 1, 2)

    def fold_scale(self) -> None:
        """Move the layer scale into the last product: the same function with one pass over the image less."""
        if self.gamma is not None:
            self.mlp.fc2.weight.mul_(self.gamma[:, None])
            self.mlp.fc2.bias.mul_(self.gamma)
            self.gamma = None


class Stage(nn.Module):
    """A downsampling by two (except in the first stage), then blocks."""

    def __init__(self, width_in: int, width: int, depth: int, layer_scale_init: float) -> None:
        super().__init__()
        shrink: list[nn.Module] = [nn.Identity()]
        if width_in != width:
            shrink = [ChannelNorm(width_in, eps=NORM_EPS), nn.Conv2d(width_in, width, 2, stride=2)]
        self.downsample = nn.Sequential(*shrink)
        self.blocks = nn.Sequential(*(Block(width, layer_scale_init) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.downsample(x))


class ConvNeXt(nn.Module):
    """Frames (n, 3, H, W), ImageNet-normalised, H and W multiples of 32 -> features (n, widths[-1]).

    The classifier's final norm is left out: the temporal model reads the mean of the last stage as it is."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        widths = config.widths
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 4, stride=4), ChannelNorm(widths[0], eps=NORM_EPS))
        sizes = zip((widths[0], *widths[:-1]), widths, config.depths, strict=True)
        self.stages = nn.ModuleList(Stage(*size, config.layer_scale_init) for size in sizes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if config.frozen_stages:
            for module in (self.stem, *self.stages[: config.frozen_stages]):
                module.requires_grad_(False)

    @torch.no_grad()
    def for_pixels(self) -> "ConvNeXt":
        """A copy for raw values of 0 to 255: normalisation and layer scales are folded into the weights."""
        copy = deepcopy(self)
        stem = copy.stem[0]
        assert isinstance(stem, nn.Conv2d) and stem.bias is not None
        rgb = (self.config.mean_rgb, self.config.std_rgb)
        mean, std = (stem.weight.new_tensor(values)[:, None, None] for values in rgb)
        stem.bias.sub_((stem.weight * (mean / std)).sum((1, 2, 3)))
        stem.weight.div_(255 * std)
        for module in copy.modules():
            if isinstance(module, Block):
                module.fold_scale()
        return copy

    def forward(self, frames: Tensor) -> Tensor:
        if frames.dim() != 4 or frames.shape[1] != 3 or frames.shape[-1] % 32 or frames.shape[-2] % 32:
            shape = tuple(frames.shape)
            raise InputError(f"frames have shape {shape}; expected (n, 3, H, W), H and W multiples of 32.")
        return torch.cat([self.encode_batch(part) for part in frames.split(self.config.micro_batch)])

    def encode_batch(self, frames: Tensor) -> Tensor:
        """One micro-batch, unchecked. Trained stages may recompute their activations in the backward pass."""
        x = self.stem(frames)
        recompute = self.config.checkpoint and self.training and torch.is_grad_enabled()
        for index, stage in enumerate(self.stages):
            is_trained = index >= self.config.frozen_stages
            x = checkpoint(stage, x, use_reentrant=False) if recompute and is_trained else stage(x)
        return x.mean((-2, -1))


# Names of published files, rewritten to timm's: one table per convention, tried in order on every key.
_HF, _HF_STAGE = r"^(?:convnext\.)?embeddings\.", r"^(?:convnext\.)?encoder\.stages\.(\d+)\."
_RENAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "timm": ((r"^(stem\.|stages\.\d+\.(?:downsample|blocks)\.)(.*)$", r"\1\2"),),
    "torchvision": (
        (r"^features\.0\.([01])\.(.*)$", r"stem.\1.\2"),
        (r"^features\.([246])\.([01])\.(weight|bias)$", r"stages.{half}.downsample.\2.\3"),
        (r"^features\.([1357])\.(\d+)\.block\.0\.(.*)$", r"stages.{half}.blocks.\2.conv_dw.\3"),
        (r"^features\.([1357])\.(\d+)\.block\.2\.(.*)$", r"stages.{half}.blocks.\2.norm.\3"),
        (r"^features\.([1357])\.(\d+)\.block\.3\.(.*)$", r"stages.{half}.blocks.\2.mlp.fc1.\3"),
        (r"^features\.([1357])\.(\d+)\.block\.5\.(.*)$", r"stages.{half}.blocks.\2.mlp.fc2.\3"),
        (r"^features\.([1357])\.(\d+)\.layer_scale$", r"stages.{half}.blocks.\2.gamma"),
    ),
    "Hugging Face": (
        (_HF + r"patch_embeddings\.(.*)$", r"stem.0.\1"),
        (_HF + r"layernorm\.(.*)$", r"stem.1.\1"),
        (_HF_STAGE + r"downsampling_layer\.([01])\.(.*)$", r"stages.\1.downsample.\2.\3"),
        (_HF_STAGE + r"layers\.(\d+)\.dwconv\.(.*)$", r"stages.\1.blocks.\2.conv_dw.\3"),
        (_HF_STAGE + r"layers\.(\d+)\.layernorm\.(.*)$", r"stages.\1.blocks.\2.norm.\3"),
        (_HF_STAGE + r"layers\.(\d+)\.pwconv([12])\.(.*)$", r"stages.\1.blocks.\2.mlp.fc\3.\4"),
        (_HF_STAGE + r"layers\.(\d+)\.layer_scale_parameter$", r"stages.\1.blocks.\2.gamma"),
    ),
    "original": (
        (r"^downsample_layers\.0\.([01])\.(.*)$", r"stem.\1.\2"),
        (r"^downsample_layers\.([123])\.([01])\.(.*)$", r"stages.\1.downsample.\2.\3"),
        (r"^stages\.(\d+)\.(\d+)\.dwconv\.(.*)$", r"stages.\1.blocks.\2.conv_dw.\3"),
        (r"^stages\.(\d+)\.(\d+)\.norm\.(.*)$", r"stages.\1.blocks.\2.norm.\3"),
        (r"^stages\.(\d+)\.(\d+)\.pwconv([12])\.(.*)$", r"stages.\1.blocks.\2.mlp.fc\3.\4"),
        (r"^stages\.(\d+)\.(\d+)\.gamma$", r"stages.\1.blocks.\2.gamma"),
    ),
}
# The classifier and its norm, which every published file has and no frame feature needs.
_CLASSIFIER = re.compile(r"^(head\.|norm\.|classifier\.|(convnext\.)?layernorm\.|norm_pre\.)")


def to_timm_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a ConvNeXt state dict to timm's names and drop the classifier. Raises for an unknown naming."""
    for rules in _RENAMES.values():
        names = {key: _rename(key, rules) for key in weights if not _CLASSIFIER.match(key)}
        if names and None not in names.values():
            renamed = {name: weights[key] for key, name in names.items() if name is not None}
            # torchvision stores gamma as (c, 1, 1)
            return {name: v.reshape(-1) if name.endswith("gamma") else v for name, v in renamed.items()}
    known, keys = ", ".join(_RENAMES), ", ".join(list(weights)[:3])
    raise CheckpointError(f"these weights are no ConvNeXt in a known naming ({known}); first keys: {keys}.")


def _rename(key: str, rules: tuple[tuple[str, str], ...]) -> str | None:
    for pattern, target in rules:
        match = re.match(pattern, key)
        if match:
            # torchvision has one list: 1, 3, 5, 7 are stages 0 to 3; 2, 4, 6 downsample before stages 1 to 3.
            half = int(match[1]) // 2 if "{half}" in target else 0
            return match.expand(target.replace("{half}", str(half)))
    return None
