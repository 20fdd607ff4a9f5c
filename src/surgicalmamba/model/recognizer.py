"""What every recognizer is: features and a state in, logits and a state out, for any number of frames per call.

A recognizer of its own derives from `Recognizer`, names its settings in a `RecognizerConfig`, keeps all of its memory in a frozen
dataclass derived from `LaneState`, and writes two methods: `initial_state` and `temporal`. Training, prediction, streaming, snapshots
and the server then work with it; `surgicalmamba check --model` tells whether it keeps the contract."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from surgicalmamba.config import Positive, Section
from surgicalmamba.core.ssd import full_dtype
from surgicalmamba.core.state import LaneState
from surgicalmamba.errors import InputError, NonFiniteError
from surgicalmamba.model.backbone import BackboneConfig, ConvNeXt

R = TypeVar("R", bound="RecognizerConfig")


class PreprocessConfig(Section):
    """From a camera's picture to the model's: what `prepare` did to the training videos, so that a live session does the same.

    The defaults are those of `prepare`; a training run writes down what its dataset was prepared with."""

    box: Literal["inclusive", "exclusive", "all-columns", "none"] = Field("inclusive", description="How the dark margin is cut.")
    size: Annotated[int, Field(ge=16)] = Field(250, description="Side of a stored frame, pixels.")
    jpeg_quality: Annotated[int, Field(ge=1, le=100)] | None = Field(
        95, description="Stored frames are JPEG; a live frame goes through the same loss. None stores no picture, so nothing is lost."
    )
    fps: str = Field("1", description="Samples per second, an exact fraction such as 1, 1/2 or 30000/1001.")
    sampling: Literal["auto", "index", "time"] = Field("auto", description="How frames of a recording become samples.")

    @model_validator(mode="after")
    def _check(self) -> "PreprocessConfig":
        try:
            if self.rate <= 0:
                raise ValueError
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"fps={self.fps!r} is no positive number; write 1, 0.5 or a fraction such as 30000/1001.") from None
        return self

    @property
    def rate(self) -> Fraction:
        """Samples per second."""
        return Fraction(self.fps)


class RecognizerConfig(Section):
    """What every recognizer has: phases, the width of its features, and the pictures they are made from. Its own settings come on top."""

    n_phases: Positive = Field(7, description="Number of phases.")
    phases: tuple[str, ...] | None = Field(None, description="Phase names in id order; None when only ids are known.")
    d_feature: Positive | None = Field(None, description="Width of the frame features; needed only when there is no backbone.")
    standardise: bool = Field(
        False, description="Give every feature mean 0 and deviation 1 over the training videos; for raw signals such as kinematics."
    )
    backbone: BackboneConfig | None = Field(None, description="Frame encoder; null when features are given.")
    preprocess: PreprocessConfig = Field(PreprocessConfig(), description="How pictures are made ready, in training and live.")
    clip_len: Positive = Field(256, description="Frames per call in training and prediction; the memory is carried on from call to call.")

    @model_validator(mode="after")
    def _check_inputs(self: R) -> R:
        if self.phases is not None and len(self.phases) != self.n_phases:
            raise ValueError(f"phases has {len(self.phases)} names but n_phases={self.n_phases}; give one name per phase.")
        if self.backbone is None and self.d_feature is None:
            raise ValueError("d_feature is needed when backbone is null; set it to the width of your features.")
        if self.backbone is not None and self.d_feature not in (None, self.backbone.widths[-1]):
            raise ValueError(f"d_feature={self.d_feature} contradicts the backbone, which gives {self.backbone.widths[-1]}; leave it out.")
        if self.standardise and self.backbone is not None:
            raise ValueError("standardise is for features given from outside; a backbone's features change as it learns. Set it to false.")
        return self

    @property
    def feature_width(self) -> int:
        """Width of one frame's feature vector, from the backbone or from d_feature."""
        if self.backbone is not None:
            return self.backbone.widths[-1]
        assert self.d_feature is not None
        return self.d_feature


# Raw signals to comparable ones: metres, metres per second and radians differ a hundredfold before the first weight sees them.


SMALLEST_SHARE = 1e-6
"""A feature that varies less than this share of the largest one is taken as constant and only centred."""


class Standardise(nn.Module):
    """(x - mean) / scale per feature. Both are measured on the training videos and saved with the weights, so live input gets the same."""

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
        varies = deviation > SMALLEST_SHARE * deviation.max()
        self.mean.copy_(values.mean(0))
        self.scale.copy_(torch.where(varies, deviation, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale


StateT = TypeVar("StateT", bound=LaneState)
Memory = Literal["O(1)", "O(W)", "O(T)"]
"""How the state grows: a fixed recurrent state, a fixed window of the past, or all of the past."""


@dataclass(frozen=True)
class Output(Generic[StateT]):
    """What a recognizer returns for a call of l frames."""

    logits: Tensor  # (b, l, k)
    intensity_logits: Tensor | None  # (b, l, n_blocks); None for a recognizer without intensity
    state: StateT
    auxiliary: Mapping[str, Tensor] = field(default_factory=dict)
    """What `training_loss` needs besides; empty outside training."""


class Recognizer(nn.Module, ABC, Generic[StateT]):
    """Anything that streams: causal, with all of its memory in an explicit state.

    Cutting a procedure into calls in any way gives the same logits. Lanes are independent procedures; each has its own clock in
    `state.frame_index`, and lanes that begin a procedure are zeroed by `state.reset`, so zeros must mean "nothing seen"."""

    name: ClassVar[str]
    """How a checkpoint names the network."""
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
        """Checked and standardised features (b, l, d_feature) -> logits of each frame from that frame and the past alone, for any l.

        The state returned has moved on by l frames (`LaneState.advance`)."""

    def temporal_in_training(self, features: Tensor, state: StateT, n_frames: Tensor) -> Output[StateT]:
        """`temporal` in training mode, on a clip whose lanes have n_frames (b,) frames and padding after them.

        For a network whose training looks ahead within a clip, or draws by its length; the past alone never meets padding."""
        return self.temporal(features, state)

    def training_loss(
        self, output: Output[StateT], labels: Tensor, target: Tensor, class_weights: Tensor | None = None
    ) -> Tensor | None:
        """A loss of this network's own beside the cross-entropy of its logits: one number, a mean over labelled frames, weighted.

        labels (b, l) with -1 where a frame is unlabelled or padding; target (b, l) is the transition target; class_weights (k) are
        those of the cross-entropy, if the recipe has any. None for nothing."""
        return None

    @torch.no_grad()
    def measure(self, features: Sequence[Tensor], labels: Sequence[Tensor]) -> None:
        """Before training: what is measured on the training videos and not learned. Per video features (t, d) and labels (t).

        On pictures there are no features to measure, and `features` is empty."""
        if self.standardise is not None:
            self.standardise.fit(torch.cat(list(features)))

    def remember(self, features: Tensor, state: StateT) -> StateT:
        """The memory after these frames; for a network that can keep frames in mind without the cost of its answers."""
        return self.advance(features, state).state

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
        """A tensor for a state: zeros in full precision, where the weights are."""
        return torch.zeros(*shape, dtype=full_dtype(self.dtype), device=self.device)

    def forward(self, frames: Tensor, state: StateT | None = None) -> Output[StateT]:
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

    def forward_features(self, features: Tensor, state: StateT | None = None, n_frames: Tensor | None = None) -> Output[StateT]:
        """features (b, l, d_feature) -> logits of every frame from that frame and the past alone, for any l.

        n_frames (b,) counts in training alone: how many frames a lane has before padding; all without it."""
        if features.dim() != 3 or features.shape[-1] != self.feature_width:
            raise InputError(f"features have shape {tuple(features.shape)}; expected (batch, frames, {self.feature_width}).")
        self._check_tensor("features", features, state)
        before = state if state is not None else self.initial_state(features.shape[0])
        output = self.advance(features, before, n_frames)
        if not torch.isfinite(output.logits).all():
            raise self._locate_non_finite(features, before)
        return output

    def advance(self, features: Tensor, state: StateT, n_frames: Tensor | None = None) -> Output[StateT]:
        """`forward_features` without its checks."""
        known = features if self.standardise is None else self.standardise(features)
        if not self.training:
            return self.temporal(known, state)
        all_frames = torch.full(known.shape[:1], known.shape[1], device=known.device)
        return self.temporal_in_training(known, state, all_frames if n_frames is None else n_frames)

    def _check_tensor(self, name: str, values: Tensor, state: StateT | None) -> None:
        """One-line refusals at the door: type, emptiness, device, lanes, non-finite values."""
        if self.dtype != full_dtype(self.dtype):
            raise InputError(f"the model's weights are {self.dtype}; keep them float32 and use torch.autocast for speed.")
        if not values.is_floating_point():
            raise InputError(f"{name} are {values.dtype}; expected floating point (scale images to 0..1, then normalise).")
        if values.dtype != self.dtype and not torch.is_autocast_enabled(values.device.type):
            raise InputError(f"{name} are {values.dtype} but the model is {self.dtype}; convert with {name}.to({self.dtype}).")
        if values.device != self.device:
            raise InputError(f"{name} are on {values.device} but the model is on {self.device}; move one of them.")
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
    def _locate_non_finite(self, features: Tensor, state: StateT) -> NonFiniteError:
        """Repeat a failed call lane by lane and frame by frame, and name the first place that is not finite."""
        bad = [name for name, value in self.named_parameters() if not torch.isfinite(value).all()]
        if bad:
            return NonFiniteError(f"{len(bad)} weights hold a NaN or infinity, the first is {bad[0]!r}; load an earlier checkpoint.")
        broken: list[str] = []

        def watch(name: str) -> Callable[[nn.Module, object, object], None]:
            return lambda _module, _inputs, outputs: None if _is_finite(outputs) else broken.append(part_of_name(name))

        parts = {name: part for name, part in self.named_modules() if name.count(".") == (name.startswith("blocks.")) and name != "blocks"}
        hooks = [part.register_forward_hook(watch(name)) for name, part in parts.items() if name]
        try:
            for lane, seen in enumerate(state.frame_index):
                memory = state.select([lane])
                for name, tensor in zip(memory.names(), memory.tensors(), strict=True):
                    if not torch.isfinite(tensor).all():
                        message = f"the state given is not finite in {part_of_name(name)}, lane {lane}, before frame {seen}; start anew."
                        return NonFiniteError(message, lane)
                for frame in range(features.shape[1]):
                    output = self.advance(features[lane : lane + 1, frame : frame + 1], memory)
                    if broken or not _is_finite(output.logits):
                        what = broken[0] if broken else "the network"
                        return NonFiniteError(f"{what} gives a NaN or infinity at lane {lane}, frame {seen + frame}.", lane)
                    memory = output.state
        finally:
            for hook in hooks:
                hook.remove()
        return NonFiniteError("the logits hold a NaN or infinity that single frames do not reproduce; check the precision settings.")

    def save(self, folder: str | Path, provenance: Mapping[str, object] | None = None) -> None:
        """Write config.json and model.safetensors, both or neither. `surgicalmamba.load` reads them back."""
        from surgicalmamba.model.checkpoint import save

        save(self, Path(folder), provenance)


AnyRecognizer = Recognizer[Any]


def part_of_name(name: str) -> str:
    """The part of a network that a parameter or a tensor of the state belongs to, in words: blocks.1.slow.A_log is in block 1."""
    first, *rest = name.split(".")
    return f"block {rest[0]}" if first == "blocks" and rest else f"the {first}"


def _is_finite(value: object) -> bool:
    """Whether a module's output is finite: a tensor, or the first of a tuple."""
    first = value[0] if isinstance(value, tuple) and value else value
    return not isinstance(first, Tensor) or bool(torch.isfinite(first).all())

