"""The authors' released checkpoints: sizes read from shapes, their parameter names mapped to ours."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from surgicalmamba.errors import CheckpointError, ConfigError
from surgicalmamba.model.backbone import BackboneConfig
from surgicalmamba.model.checkpoint import fit, read_weights
from surgicalmamba.model.surgical_mamba import ModelConfig, PathConfig, SurgicalMamba

# Their name -> ours, applied in order. Keys that no rule matches are reported as unexpected.
_PATH_PARTS = {
    "A_log": "A_log",
    "D": "D",
    "conv1d": "conv",
    "x_proj": "select_proj",
    "dt_proj": "dt_proj",
    "UV_mlp": "rotator.planes",
    "S_mlp": "rotator.angles",
}
_RULES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"^extractor\.backbone\.(stem|stages)\.", r"backbone.\1."),
    (r"^visual_proj\.", "projector."),
    (r"^frame_norm\.", "norm."),
    (r"^output_head\.head\.", "head.classifier."),
    (r"^output_head\.blocks\.0\.", "head.block."),
    (r"\.norm_mamba\.", ".norm."),
    (r"\.mamba\.in_proj_slow\.", ".slow.in_proj."),
    (r"\.mamba\.in_proj\.", ".fast.in_proj."),
    (r"\.mamba\.intensity_net\.0\.", ".slow.intensity.up."),
    (r"\.mamba\.intensity_net\.2\.", ".slow.intensity.out."),
    (r"\.mamba\.scale_(slow|fast)$", r".\1_scale"),
    *((rf"\.mamba\.{theirs}_(slow|fast)\b", rf".\1.{ours}") for theirs, ours in _PATH_PARTS.items()),
    (r"\.mamba\.(out_proj|norm_pre_out)\.", r".\1."),
    (r"^head\.block\.in_proj\.", "head.block.slow.in_proj."),
    *((rf"^head\.block\.{theirs}\b", f"head.block.slow.{ours}") for theirs, ours in _PATH_PARTS.items()),
    (r"\.norm_pre_out\.", ".out_norm."),
    (r"\.(W|b)([12])$", lambda match: f".{match[1].lower()}{match[2]}"),
)
# Buffers and a norm that their forward pass does not read.
_UNUSED = re.compile(r"(\._T_identity$|^extractor\.backbone\.(head|norm_pre)\.)")


def load_release(
    path: str | Path, clip_len: int = 128, chunk_len: int = 64, head_chunk_len: int = 32
) -> SurgicalMamba:
    """A model from the authors' `{"model": state_dict}` file.

    The file has no clip and chunk lengths. Cholec80: 128, 64, 32; M2CAI16 and AutoLaparo: 128, 32, 32."""
    weights = read_weights(Path(path))
    try:
        config = infer_config(weights, clip_len, chunk_len, head_chunk_len)
    except KeyError as error:
        raise CheckpointError(f"{path} is no SurgicalMamba release file: no {error.args[0]!r}.") from None
    except (ConfigError, IndexError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(f"{path} holds weights that form no SurgicalMamba model: {error}") from None
    model = SurgicalMamba(config)
    fit(model, to_our_names(weights), str(path))
    return model.eval()


def to_our_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the release's parameters, drop unused ones, and reshape kernels to (d, k), per-head weights to
    (h, in, out)."""
    renamed = {}
    for key, value in weights.items():
        if _UNUSED.search(key):
            continue
        name = key
        for pattern, target in _RULES:
            name = re.sub(pattern, target, name)
        if name.endswith(".conv.weight") and value.dim() == 3:
            value = value[:, 0]
        elif name.endswith((".w1", ".w2")) and value.dim() == 3:
            value = value.transpose(1, 2)
        renamed[name] = value
    return renamed


def infer_config(
    weights: Mapping[str, Tensor], clip_len: int, chunk_len: int, head_chunk_len: int
) -> ModelConfig:
    """Every size of a release model, from the shapes of its weights."""
    d_model, d_feature = weights["visual_proj.0.weight"].shape
    n_blocks = 1 + max((int(m[1]) for key in weights if (m := re.match(r"blocks\.(\d+)\.", key))), default=-1)
    if not n_blocks:
        raise KeyError("blocks.0")
    gammas = [re.fullmatch(r"extractor\.backbone\.stages\.(\d)\.blocks\.\d+\.gamma", key) for key in weights]
    stages = [int(match[1]) for match in gammas if match]
    widths = tuple(weights[f"extractor.backbone.stages.{i}.blocks.0.gamma"].shape[0] for i in range(4))
    depths = tuple(stages.count(i) for i in range(4))
    block, head = "blocks.0.mamba.", "output_head.blocks.0."
    hidden = weights[block + "intensity_net.0.weight"].shape[0]
    d_inner = weights[block + "conv1d_slow.weight"].shape[0]
    release = ModelConfig.preset("release")

    def path(prefix: str, suffix: str, chunk: int, like: PathConfig) -> PathConfig:
        n_heads, d_hidden, d_head = weights[f"{prefix}UV_mlp{suffix}.W1"].shape
        dt_rank = weights[f"{prefix}dt_proj{suffix}.weight"].shape[1]
        rank = weights[f"{prefix}S_mlp{suffix}.W2"].shape[1]
        assert like.rotation is not None
        return like.with_(
            chunk_len=chunk,
            d_state=(weights[f"{prefix}x_proj{suffix}.weight"].shape[0] - dt_rank) // (2 * n_heads),
            d_head=d_head,
            expand=d_inner // d_model,
            d_conv=weights[f"{prefix}conv1d{suffix}.weight"].shape[-1],
            dt_rank=dt_rank,
            rotation=like.rotation.with_(rank=rank, d_hidden=d_hidden),
        )

    assert release.block.fast is not None and release.block.slow.intensity is not None
    slow = path(block, "_slow", chunk_len, release.block.slow)
    slow = slow.with_(intensity=release.block.slow.intensity.with_(reduction=d_inner // hidden))
    fast = path(block, "_fast", chunk_len, release.block.fast)
    head_path = path(head, "", head_chunk_len, release.head.path)
    ffn_ratio, head_ffn_ratio = (
        weights[f"{prefix}ffn.fc1.weight"].shape[0] // d_model for prefix in ("blocks.0.", head)
    )
    return release.with_(
        n_phases=weights["output_head.head.weight"].shape[0],
        d_model=d_model,
        n_blocks=n_blocks,
        clip_len=clip_len,
        backbone=BackboneConfig(depths=depths, widths=widths) if d_feature == widths[-1] else None,
        block=release.block.with_(slow=slow, fast=fast, ffn_ratio=ffn_ratio),
        head=release.head.with_(path=head_path, ffn_ratio=head_ffn_ratio),
    )
