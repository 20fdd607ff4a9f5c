"""The contract of every recognizer: features and a state in, logits and a state out, any number of frames.

To add a network, derive from `Recognizer`, put its settings in a `RecognizerConfig` and all of its memory in
a frozen dataclass derived from `LaneState`, and write two methods: `initial_state` and `temporal`. Training,
prediction, streaming, snapshots and serving then work. `surgicalmamba check --model` tests the contract."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from surgicalmamba.config import Positive, Section
from surgicalmamba.core.ssd import full_dtype
from surgicalmamba.core.state import LaneState
from surgicalmamba.errors import ConfigError, InputError, NonFiniteError
from surgicalmamba.model.backbone import BACKBONES, BackboneConfig, ConvNeXt

if TYPE_CHECKING:
    from surgicalmamba.model.surgical_mamba import Rotator, SurgicalMamba

R = TypeVar("R", bound="RecognizerConfig")
StateT = TypeVar("StateT", bound=LaneState)
Memory = Literal["O(1)", "O(W)", "O(T)"]
"""How the state grows: a fixed recurrent state, a fixed window of the past, or all of the past."""


class PreprocessConfig(Section):
    """What `prepare` did to the pictures of the training videos, so that a live session does the same.

    The defaults are those of `prepare`; a training run stores the values its dataset was prepared with."""

    box: Literal["inclusive", "exclusive", "all-columns", "none"] = Field(
        "inclusive", description="How the dark margin is cut."
    )
    size: Annotated[int, Field(ge=16)] = Field(250, description="Side of a stored frame, pixels.")
    jpeg_quality: Annotated[int, Field(ge=1, le=100)] | None = Field(
        95, description="Stored frames are JPEG; a live frame gets the same loss. null: no JPEG, no loss."
    )
    fps: str = Field("1", description="Samples per second, an exact fraction such as 1, 1/2 or 30000/1001.")
    sampling: Literal["auto", "index", "time"] = Field("auto", description="How video frames become samples.")

    @model_validator(mode="after")
    def _check(self) -> "PreprocessConfig":
        try:
            if self.rate <= 0:
                raise ValueError
        except (ValueError, ZeroDivisionError):
            message = f"fps={self.fps!r} is no positive number; write 1, 0.5 or a fraction like 30000/1001."
            raise ValueError(message) from None
        return self

    @property
    def rate(self) -> Fraction:
        """Samples per second."""
        return Fraction(self.fps)


class RecognizerConfig(Section):
    """The settings every recognizer has: phases, width of the features, and how pictures become features."""

    n_phases: Positive = Field(7, description="Number of phases.")
    phases: tuple[str, ...] | None = Field(None, description="Phase names in id order; null: unknown.")
    d_feature: Positive | None = Field(None, description="Width of the features; without a backbone.")
    standardise: bool = Field(
        False, description="Scale each feature to mean 0 and deviation 1 on the training videos."
    )
    backbone: BackboneConfig | None = Field(None, description="Frame encoder; null: none.")
    preprocess: PreprocessConfig = Field(PreprocessConfig(), description="How pictures are prepared.")
    clip_len: Positive = Field(256, description="Frames per call in training and prediction.")

    @model_validator(mode="after")
    def _check_inputs(self: R) -> R:
        if self.phases is not None and len(self.phases) != self.n_phases:
            found = f"phases has {len(self.phases)} names but n_phases={self.n_phases}"
            raise ValueError(f"{found}; give one name per phase.")
        if self.backbone is None and self.d_feature is None:
            raise ValueError("d_feature is needed when backbone is null: the width of your features.")
        width = None if self.backbone is None else self.backbone.widths[-1]
        if width is not None and self.d_feature not in (None, width):
            found = f"d_feature={self.d_feature} contradicts the backbone, which gives {width}"
            raise ValueError(f"{found}; leave it out.")
        if self.standardise and self.backbone is not None:
            raise ValueError("standardise must be false with a backbone, whose features change in training.")
        return self

    @property
    def feature_width(self) -> int:
        """Width of one frame's feature vector, from the backbone or from d_feature."""
        if self.backbone is not None:
            return self.backbone.widths[-1]
        assert self.d_feature is not None
        return self.d_feature

    @classmethod
    def preset_settings(cls, name: str) -> dict[str, object]:
        """The settings that a preset of this name stands for: of any recognizer its frame encoder."""
        if name not in BACKBONES:
            raise ConfigError(f"unknown preset {name!r}; presets: {', '.join(BACKBONES)}.")
        return {"backbone": BACKBONES[name].model_dump()}

    @property
    def snapshot_frames(self) -> int:
        """Frames between two snapshots of a live session: about a minute at one frame per second."""
        return 64

    def closes_after(self, frames_seen: int) -> bool:
        """Whether a lane has extra work after this many frames; such lanes are computed separately."""
        return False

    def variant(self: R, name: str) -> R:
        """The config with parts left out under a name; a recognizer without variants has `full` alone."""
        if name != "full":
            reason = "is a variant of SurgicalMamba, and this network has none"
            raise ConfigError(f"variant={name} {reason}; leave it out.")
        return self


class Standardise(nn.Module):
    """(x - mean) / scale per feature, for raw signals whose units differ: metres, radians, metres per second.

    Both are measured on the training videos and saved with the weights, so live input gets the same."""

    SMALLEST_SHARE = 1e-6
    """A feature with less than this share of the largest deviation is constant: it is only centred."""
    mean: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    @torch.no_grad()
    def fit(self, features: Tensor) -> None:
        """Measure mean and deviation on features (n, d)."""
        values = features.double()
        deviation = values.std(0, correction=0)
        varies = deviation > self.SMALLEST_SHARE * deviation.max()
        self.mean.copy_(values.mean(0))
        self.scale.copy_(torch.where(varies, deviation, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale


@dataclass(frozen=True)
class Output(Generic[StateT]):
    """What a recognizer returns for a call of l frames."""

    logits: Tensor  # (b, l, k)
    intensity_logits: Tensor | None  # (b, l, n_blocks); None for a recognizer without intensity
    state: StateT
    auxiliary: Mapping[str, Tensor] = field(default_factory=dict)
    """Other tensors that `training_loss` needs; empty outside training."""


class Recognizer(nn.Module, ABC, Generic[StateT]):
    """A causal network with all of its memory in an explicit state.

    Cutting a procedure into calls in any way gives the same logits. Lanes are independent procedures, each
    with its clock in `state.frame_index`. `state.reset` zeroes lanes that start a procedure, so zeros must
    mean "nothing seen"."""

    name: ClassVar[str]
    """The name of the network in a checkpoint."""
    config_class: ClassVar[type[RecognizerConfig]]
    config: RecognizerConfig
    memory: Memory
    lookahead: int = 0
    """Frames after t that the logits of t depend on, outside training."""

    def __init__(self, config: RecognizerConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = None if config.backbone is None else ConvNeXt(config.backbone)
        self.standardise = Standardise(config.feature_width) if config.standardise else None

    @abstractmethod
    def initial_state(self, n_lanes: int) -> StateT:
        """The memory before the first frame of `n_lanes` procedures: zeros on the model's device."""

    @abstractmethod
    def temporal(self, features: Tensor, state: StateT) -> Output[StateT]:
        """Checked, standardised features (b, l, d_feature) -> logits of each frame from it and the past.

        The returned state has advanced by l frames (`LaneState.advance`)."""

    def temporal_in_training(self, features: Tensor, state: StateT, n_frames: Tensor) -> Output[StateT]:
        """`temporal` in training mode, on a clip whose lanes have n_frames (b,) frames, then padding.

        Override it where training looks ahead within a clip or depends on its length."""
        return self.temporal(features, state)

    def training_loss(
        self, output: Output[StateT], labels: Tensor, target: Tensor, class_weights: Tensor | None = None
    ) -> Tensor | None:
        """A loss specific to this network, added to the cross-entropy: a weighted mean over labelled frames.

        labels (b, l) are -1 where a frame is unlabelled or padding; target (b, l) is the transition target;
        class_weights (k) are those of the cross-entropy, if the recipe has any."""
        return None

    @torch.no_grad()
    def measure(self, features: Sequence[Tensor], labels: Sequence[Tensor]) -> None:
        """Before training: measure what is not learned, on features (t, d) and labels (t) of each video.

        On pictures there are no features to measure, and `features` is empty."""
        if self.standardise is not None:
            self.standardise.fit(torch.cat(list(features)))

    def remember(self, features: Tensor, state: StateT) -> StateT:
        """The memory after these frames. Override it where that costs less than the logits."""
        return self.advance(features, state).state

    # What only some networks can do. Engines, sharded training and `inspect` ask here and never for a class.

    def in_pieces(self) -> "SurgicalMamba | None":
        """The network as SurgicalMamba, whose parts engines capture one by one and `inspect` reads.

        None for a network that only the eager engine runs, and of which `inspect` shows only predictions."""
        return None

    def rotators(self) -> "Mapping[str, Rotator]":
        """The networks that rotate a carried state, by the name of their path; a validation measures them."""
        return {}

    def shard_units(self) -> list[nn.Module]:
        """The parts that sharded training gathers one at a time; ConfigError if it cannot be sharded."""
        advice = "train it with distributed=replicate, it is small"
        raise ConfigError(f"distributed=shard cannot split {self.name}; {advice}.")

    @property
    def n_phases(self) -> int:
        return self.config.n_phases

    @property
    def feature_width(self) -> int:
        return self.config.feature_width

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights; float32 without any."""
        return next((parameter.dtype for parameter in self.parameters()), torch.float32)

    @property
    def device(self) -> torch.device:
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    def zeros(self, *shape: int) -> Tensor:
        """A tensor for a state: zeros in full precision, on the model's device."""
        return torch.zeros(*shape, dtype=full_dtype(self.dtype), device=self.device)

    def forward(self, frames: Tensor, state: StateT | None = None) -> Output[StateT]:
        """frames (b, l, 3, H, W), ImageNet-normalised, H and W multiples of 32, l at least 1."""
        if self.backbone is None:
            raise InputError("this model has no backbone (config.backbone is null); call forward_features.")
        if frames.dim() != 5 or frames.shape[2] != 3:
            shape = tuple(frames.shape)
            raise InputError(f"frames have shape {shape}; expected (batch, frames, 3, height, width).")
        self._check_tensor("frames", frames, state)
        features = self.encode(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
        return self.forward_features(features, state)

    def encode(self, frames: Tensor) -> Tensor:
        """Frames (n, 3, H, W), ImageNet-normalised -> features (n, d_feature); each frame by itself."""
        if self.backbone is None:
            raise InputError("this model has no backbone (config.backbone is null); it cannot encode frames.")
        features: Tensor = self.backbone(frames)
        return features

    def forward_features(
        self, features: Tensor, state: StateT | None = None, n_frames: Tensor | None = None
    ) -> Output[StateT]:
        """features (b, l, d_feature) -> logits of every frame from that frame and the past alone, for any l.

        n_frames (b,), in training only: the frames each lane has before padding; default all."""
        if features.dim() != 3 or features.shape[-1] != self.feature_width:
            shape = tuple(features.shape)
            raise InputError(f"features have shape {shape}; expected (batch, frames, {self.feature_width}).")
        self._check_tensor("features", features, state)
        before = state if state is not None else self.initial_state(features.shape[0])
        output = self.advance(features, before, n_frames)
        if not torch.isfinite(output.logits).all():
            raise self._locate_non_finite(features, before)
        return output

    def advance(self, features: Tensor, state: StateT, n_frames: Tensor | None = None) -> Output[StateT]:
        """`forward_features` without its checks."""
        x = features if self.standardise is None else self.standardise(features)
        if not self.training:
            return self.temporal(x, state)
        if n_frames is None:
            n_frames = torch.full(x.shape[:1], x.shape[1], device=x.device)
        return self.temporal_in_training(x, state, n_frames)

    def _check_tensor(self, name: str, values: Tensor, state: StateT | None) -> None:
        """Check type, device, number of lanes, and that values are there and finite."""
        if self.dtype != full_dtype(self.dtype):
            raise InputError(f"weights are {self.dtype}; keep them float32 and use torch.autocast for speed.")
        if not values.is_floating_point():
            raise InputError(f"{name} are {values.dtype}; expected floating point, normalised.")
        if values.dtype != self.dtype and not torch.is_autocast_enabled(values.device.type):
            remedy = f"convert with {name}.to({self.dtype})"
            raise InputError(f"{name} are {values.dtype} but the model is {self.dtype}; {remedy}.")
        if values.device != self.device:
            raise InputError(f"{name} are on {values.device} but the model is on {self.device}; move one.")
        n_lanes, n_frames = values.shape[:2]
        if n_lanes == 0 or n_frames == 0:
            raise InputError(f"{name} are empty, shape {tuple(values.shape)}; give at least one frame.")
        if state is not None and state.n_lanes != n_lanes:
            remedy = "pass the state of these procedures"
            raise InputError(f"{name} have {n_lanes} lanes but the state has {state.n_lanes}; {remedy}.")
        finite = torch.isfinite(values.flatten(2)).all(-1)
        if not finite.all():
            lane, frame = (int(i) for i in (~finite).nonzero()[0])
            frame += state.frame_index[lane] if state is not None else 0
            message = f"{name} hold a NaN or infinity at lane {lane}, frame {frame}; check the input there."
            raise NonFiniteError(message, lane)

    @torch.no_grad()
    def _locate_non_finite(self, features: Tensor, state: StateT) -> NonFiniteError:
        """Repeat a failed call lane by lane and frame by frame to find the first value that is not finite."""
        bad = [name for name, value in self.named_parameters() if not torch.isfinite(value).all()]
        if bad:
            where = f"the first is {bad[0]!r}; load an earlier checkpoint"
            return NonFiniteError(f"{len(bad)} weights hold a NaN or infinity, {where}.")
        broken: list[str] = []

        def watch(name: str) -> Callable[[nn.Module, object, object], None]:
            part = part_of_name(name)
            return lambda _module, _inputs, outputs: None if _is_finite(outputs) else broken.append(part)

        parts = ((n, m) for n, m in self.named_modules() if re.fullmatch(r"(?!blocks$)[^.]+|blocks\.\d+", n))
        hooks = [part.register_forward_hook(watch(name)) for name, part in parts]
        try:
            for lane, seen in enumerate(state.frame_index):
                memory = state.select([lane])
                for name, tensor in zip(memory.names(), memory.tensors(), strict=True):
                    if not torch.isfinite(tensor).all():
                        where = f"{part_of_name(name)}, lane {lane}, before frame {seen}"
                        message = f"the state is not finite in {where}; start from a new state."
                        return NonFiniteError(message, lane)
                for frame in range(features.shape[1]):
                    output = self.advance(features[lane : lane + 1, frame : frame + 1], memory)
                    if broken or not _is_finite(output.logits):
                        part = broken[0] if broken else "the network"
                        message = f"{part} gives a NaN or infinity at lane {lane}, frame {seen + frame}."
                        return NonFiniteError(message, lane)
                    memory = output.state
        finally:
            for hook in hooks:
                hook.remove()
        return NonFiniteError("the logits hold a NaN or infinity, but not frame by frame; check precision.")

    def save(self, folder: str | Path, provenance: Mapping[str, object] | None = None) -> None:
        """Write config.json and model.safetensors, both or neither. `surgicalmamba.load` reads them back."""
        from surgicalmamba.model.checkpoint import save

        save(self, Path(folder), provenance)


AnyRecognizer = Recognizer[Any]


def part_of_name(name: str) -> str:
    """The part of a network that a weight or a tensor of the state is in: block 1 for blocks.1.slow.A_log."""
    first, *rest = name.split(".")
    return f"block {rest[0]}" if first == "blocks" and rest else f"the {first}"


def _is_finite(value: object) -> bool:
    """Whether a module's output is finite: a tensor, or the first of a tuple."""
    first = value[0] if isinstance(value, tuple) and value else value
    return not isinstance(first, Tensor) or bool(torch.isfinite(first).all())
