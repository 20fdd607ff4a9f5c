"""SurgicalMamba: backbone, projector, K dual-path blocks, output head. One call serves clips, whole videos and single frames."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from surgicalmamba.config import ModelConfig
from surgicalmamba.core.chunks import chunk_segments
from surgicalmamba.core.precision import full_dtype
from surgicalmamba.core.state import Group, ModelState
from surgicalmamba.errors import InputError, NonFiniteError
from surgicalmamba.model.backbone import ConvNeXt
from surgicalmamba.model.dual_path import DualPathBlock
from surgicalmamba.model.head import PhaseHead
from surgicalmamba.model.layout import empty_state, rotation_grids
from surgicalmamba.model.path import SSMPath
from surgicalmamba.model.recognizer import Output
from surgicalmamba.model.standardise import Standardise


class SurgicalMamba(nn.Module):
    """The paper's recognizer. All of its memory is in the ModelState it returns, so any way of cutting a procedure into calls
    gives the same logits. Fast paths and head start anew every `clip_len` frames of a procedure, however it is cut."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = None if config.backbone is None else ConvNeXt(config.backbone)
        self.standardise = Standardise(config.feature_width) if config.standardise else None
        self.projector = nn.Sequential(nn.Linear(config.feature_width, config.d_model), nn.LayerNorm(config.d_model))
        block = config.block
        self.blocks = nn.ModuleList(
            DualPathBlock(config.d_model, block.slow, block.fast, block.ffn_ratio, config.clip_len, slow_carries=True)
            for _ in range(config.n_blocks)
        )
        self.norm = nn.LayerNorm(config.d_model)
        self.head = PhaseHead(config.d_model, config.n_phases, config.head, config.clip_len)

    def _blocks(self) -> Iterable[DualPathBlock]:
        return cast(Iterable[DualPathBlock], self.blocks)

    @property
    def n_phases(self) -> int:
        return self.config.n_phases

    @property
    def feature_width(self) -> int:
        return self.config.feature_width

    def initial_state(self, n_lanes: int) -> ModelState:
        """The memory before the first frame of `n_lanes` procedures."""
        weight = self.head.classifier.weight
        return empty_state(self.config, n_lanes, weight.dtype, weight.device)

    def forward(self, frames: Tensor, state: ModelState | None = None) -> Output[ModelState]:
        """frames (b, l, 3, H, W), ImageNet-normalised, H and W multiples of 32; l may be anything from one frame up."""
        if self.backbone is None:
            raise InputError("this model has no backbone (config.backbone is null); call forward_features with feature vectors.")
        if frames.dim() != 5 or frames.shape[2] != 3:
            raise InputError(f"frames have shape {tuple(frames.shape)}; expected (batch, frames, 3, height, width).")
        self._check_tensor("frames", frames, state)
        features = self.encode(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
        return self.forward_features(features, state)

    def encode(self, frames: Tensor) -> Tensor:
        """Frames (n, 3, H, W), ImageNet-normalised -> features (n, d_feature); each frame by itself."""
        if self.backbone is None:
            raise InputError("this model has no backbone (config.backbone is null), so it cannot encode frames.")
        features: Tensor = self.backbone(frames)
        return features

    def forward_features(self, features: Tensor, state: ModelState | None = None) -> Output[ModelState]:
        """features (b, l, d_feature) -> logits of every frame from that frame and the past alone, for any l."""
        if features.dim() != 3 or features.shape[-1] != self.feature_width:
            raise InputError(f"features have shape {tuple(features.shape)}; expected (batch, frames, {self.feature_width}).")
        self._check_tensor("features", features, state)
        before = state if state is not None else self.initial_state(features.shape[0])
        output = self.advance(features, before)
        if not torch.isfinite(output.logits).all():
            raise self._locate_non_finite(features, before)
        return output

    def advance(self, features: Tensor, state: ModelState) -> Output[ModelState]:
        """`forward_features` without its checks. From clip end to clip end; fast paths and head start anew there."""
        logits, intensities = [], []
        for piece in chunk_segments(features.shape[1], state.frame_index, self.config.clip_len):
            piece_logits, piece_intensity, state = self._advance(features[:, piece.start : piece.stop], state)
            state = state.reset_clip(piece.closing)
            logits.append(piece_logits)
            intensities += [] if piece_intensity is None else [piece_intensity]
        return Output(torch.cat(logits, dim=1), torch.cat(intensities, dim=1) if intensities else None, state)

    def _advance(self, features: Tensor, state: ModelState) -> tuple[Tensor, Tensor | None, ModelState]:
        """Frames that share a clip, through every block. Chunks close inside; clips do not."""
        x = self.projector(features if self.standardise is None else self.standardise(features))
        blocks, intensities = [], []
        for block, block_state in zip(self._blocks(), state.blocks, strict=True):
            x, intensity_logit, block_state = block(x, block_state, state.frame_index)
            blocks.append(block_state)
            intensities.append(intensity_logit)
        logits, head_state = self.head(self.norm(x), state.head, state.frame_index)
        intensity = None if intensities[0] is None else torch.stack(intensities, dim=-1)
        state = replace(state, blocks=tuple(blocks), head=head_state)
        return logits, intensity, state.advance(features.shape[1])

    def advance_within_chunk(self, features: Tensor, state: ModelState) -> Output[ModelState]:
        """One frame (b, d_feature) of every lane with nothing opened, closed or checked, and clocks left alone.

        What engines capture. A chunk's end only turns what is carried on, so `close_chunks` after it, then `reset_clip`, make the
        same frame as `forward_features`."""
        logits, intensity, after = self._advance(features[:, None], state.at(()))
        return Output(logits[:, 0], None if intensity is None else intensity[:, 0], after.at(state.frame_index))

    def rotating_paths(self) -> dict[Group, tuple[SSMPath, ...]]:
        """The paths that close chunks, by group; a group closes at the same frames."""
        fast = (block.fast for block in self._blocks())
        groups: dict[Group, tuple[SSMPath, ...]] = {
            "slow": tuple(block.slow for block in self._blocks()),
            "fast": tuple(path for path in fast if path is not None),
            "head": (self.head.block.slow,),
        }
        return {name: groups[name] for name in rotation_grids(self.config)}

    def _check_tensor(self, name: str, values: Tensor, state: ModelState | None) -> None:
        """One-line refusals at the door: type, emptiness, device, lanes, non-finite values."""
        weight = self.head.classifier.weight
        if weight.dtype != full_dtype(weight.dtype):
            raise InputError(f"the model's weights are {weight.dtype}; keep them float32 and use torch.autocast for speed.")
        if not values.is_floating_point():
            raise InputError(f"{name} are {values.dtype}; expected floating point (scale images to 0..1, then normalise).")
        if values.dtype != weight.dtype and not torch.is_autocast_enabled(values.device.type):
            raise InputError(f"{name} are {values.dtype} but the model is {weight.dtype}; convert with {name}.to({weight.dtype}).")
        if values.device != weight.device:
            raise InputError(f"{name} are on {values.device} but the model is on {weight.device}; move one of them.")
        if values.shape[0] == 0 or values.shape[1] == 0:
            raise InputError(f"{name} are empty, shape {tuple(values.shape)}; give at least one frame of one procedure.")
        if state is not None and state.n_lanes != values.shape[0]:
            raise InputError(f"{name} have {values.shape[0]} lanes but the state has {state.n_lanes}; pass the state of these procedures.")
        finite = torch.isfinite(values.flatten(2)).all(-1)
        if not finite.all():
            lane, frame = (int(i) for i in (~finite).nonzero()[0])
            seen = state.frame_index[lane] if state is not None else 0
            raise NonFiniteError(f"{name} hold a NaN or infinity at lane {lane}, frame {seen + frame}; check the input there.", lane)

    @torch.no_grad()
    def _locate_non_finite(self, features: Tensor, state: ModelState) -> NonFiniteError:
        """Repeat a failed call lane by lane and frame by frame, and name the first place that is not finite."""
        bad = [name for name, value in self.named_parameters() if not torch.isfinite(value).all()]
        if bad:
            return NonFiniteError(f"{len(bad)} weights hold a NaN or infinity, the first is {bad[0]!r}; load an earlier checkpoint.")
        blocks = [f"block {index}" for index in range(len(self.blocks))]
        broken: list[str] = []

        def watch(name: str) -> Callable[[nn.Module, object, tuple[Tensor, ...]], None]:
            return lambda _module, _inputs, outputs: None if torch.isfinite(outputs[0]).all() else broken.append(name)

        named = zip([*blocks, "the head"], [*self.blocks, self.head], strict=True)
        hooks = [module.register_forward_hook(watch(name)) for name, module in named]
        try:
            for lane, seen in enumerate(state.frame_index):
                memory = state.select([lane])
                for name, block_state in zip(blocks, memory.blocks, strict=True):
                    if not all(torch.isfinite(tensor).all() for tensor in block_state.tensors()):
                        message = f"the state given is not finite in {name}, lane {lane}, before frame {seen}; start anew."
                        return NonFiniteError(message, lane)
                for frame in range(features.shape[1]):
                    memory = self.advance(features[lane : lane + 1, frame : frame + 1], memory).state
                    if broken:
                        return NonFiniteError(f"{broken[0]} gives a NaN or infinity at lane {lane}, frame {seen + frame}.", lane)
        finally:
            for hook in hooks:
                hook.remove()
        return NonFiniteError("the logits hold a NaN or infinity that single frames do not reproduce; check the precision settings.")

    def save(self, folder: str | Path, provenance: dict[str, object] | None = None) -> None:
        """Write config.json and model.safetensors, both or neither. `surgicalmamba.load` reads them back."""
        from surgicalmamba.model.checkpoint import save

        save(self, Path(folder), provenance)
