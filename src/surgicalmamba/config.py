"""Every setting, once: its default, its unit, its source. Absent parts are None, so an ablation builds no module.

Section names below ("section 3.3", "appendix Implementation") refer to the paper; "release" is the authors' public code."""

import difflib
import math
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from surgicalmamba.errors import ConfigError

S = TypeVar("S", bound="Section")
R = TypeVar("R", bound="RecognizerConfig")
Positive = Annotated[int, Field(gt=0)]

_inside_validation: ContextVar[bool] = ContextVar("inside_validation", default=False)


class Section(BaseModel):
    """A frozen group of settings. Mistakes raise ConfigError in one line; unknown names suggest the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    if not TYPE_CHECKING:

        def __init__(self, **values: object) -> None:
            if _inside_validation.get():  # a nested section: the outermost one reports, with the full path
                super().__init__(**values)
                return
            token = _inside_validation.set(True)
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError(_one_line(type(self), error)) from None
            finally:
                _inside_validation.reset(token)

    def with_(self: S, **changes: object) -> S:
        """A copy with some settings changed and everything checked again."""
        return type(self)(**{**dict(self), **changes})


def _one_line(section: type[Section], error: ValidationError) -> str:
    """The first problem of a pydantic error as one sentence, with the dotted name of the setting."""
    problem = error.errors(include_url=False)[0]
    path = [str(part) for part in problem["loc"]]
    name = ".".join(path) or section.__name__
    if problem["type"] == "extra_forbidden":
        known = _known_names(section, path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known settings: {', '.join(known)}."
        return f"unknown setting {name!r}: {hint}"
    if problem["type"] == "missing":
        return f"setting {name!r} is missing in {section.__name__}."
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{message}" if not path else f"{name}: {message}"
    return f"{name}={problem['input']!r}: {message}."


def _known_names(section: type[Section], path: Sequence[str]) -> list[str]:
    """The setting names of the section found by following `path` from `section`."""
    for part in path:
        annotation = section.model_fields[part].annotation if part in section.model_fields else None
        inner = [t for t in (annotation, *get_args(annotation)) if isinstance(t, type) and issubclass(t, Section)]
        if not inner:
            return []
        section = inner[0]
    return list(section.model_fields)


def load_config(section: type[S], path: Path, overrides: Sequence[str] = ()) -> S:
    """Read a YAML file into a section and apply `key.sub=value` overrides."""
    values = load_mapping(path)
    try:
        return section(**override(values, overrides))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def load_mapping(path: Path) -> dict[str, object]:
    """The settings of a YAML file, unchecked."""
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, Mapping):
        raise ConfigError(f"config {path} must be a mapping of settings, not {type(values).__name__}.")
    return dict(values)


def override(values: dict[str, object], overrides: Sequence[str]) -> dict[str, object]:
    """Apply `key.sub=value` strings to a nested mapping; values are read as YAML, so `null`, `3` and `[1, 2]` work."""
    import yaml

    for text in overrides:
        key, found, raw = text.partition("=")
        if not found or not key:
            raise ConfigError(f"override {text!r} is not of the form key.sub=value.")
        *parents, leaf = key.split(".")
        place = values
        for part in parents:
            inner = place.get(part)
            inner = dict(inner) if isinstance(inner, Mapping) else {}
            place[part] = inner
            place = inner
        place[leaf] = yaml.safe_load(raw)
    return values


def save_config(config: Section, path: Path) -> None:
    """Write every setting, defaults included, as YAML that `load_config` reads back to an equal section."""
    import yaml

    Path(path).write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), encoding="utf-8")


class RotationConfig(Section):
    """State regramming: the content-conditioned rotation of the carried state at chunk boundaries (section 3.5)."""

    rank: Positive = Field(16, description="Rotation planes r per head. Paper: 16.")
    d_hidden: Positive = Field(128, description="Hidden width of the two per-head networks. Paper: not given; release: 128.")
    kind: Literal["content", "pairs", "constant"] = Field(
        "content",
        description="What a chunk decides: planes and angles (paper), the angles of fixed coordinate pairs, or nothing (one learned Z). "
        "The last two are controls.",
    )
    init: Literal["paper", "release"] = Field(
        "paper",
        description="Start of training. Both begin with planes and angles that depend on content. paper: angles near 0, so that training "
        "starts from plain SSD; release: angles about 1.",
    )
    theta_init: float | None = Field(
        None, gt=0, description="Angle at the start for a neutral summary, radians; null is 0.005 for init paper, 0.854 for release."
    )
    form: Literal["auto", "low-rank", "dense"] = Field(
        "auto", description="Solve the 2r x 2r (Woodbury) or the N x N system. 'auto' takes the one measured faster for these sizes."
    )

    @property
    def start_angle(self) -> float:
        """The angle of a neutral summary before training, radians. The release sets the bias before the softplus to 0.3."""
        return self.theta_init or {"paper": 0.005, "release": math.log1p(math.exp(0.3))}[self.init]


class IntensityConfig(Section):
    """Intensity-modulated stepping: the network that raises the slow path's step at phase boundaries (section 3.3)."""

    reduction: Positive = Field(16, description="Hidden width is d_inner divided by this. Paper: 'a small MLP'; release: 16.")
    d_hidden_min: Positive = Field(1, description="Least hidden width, for small models. Paper: not given; release: 8.")
    memory: tuple[Annotated[int, Field(ge=2)], ...] = Field(
        (),
        description="Frames over which running means of its input are given to the network too, such as [8, 32, 128]. Paper: none, so "
        "that the first block sees the four frames of the convolution.",
    )
    intensity_init: float = Field(
        0.02, gt=0, lt=1, description="Intensity at the start of training. Paper: near 0 inside phases; release: 0.5."
    )


class PathConfig(Section):
    """One SSD path: slow path, fast path and head are three instances of it."""

    chunk_len: Positive = Field(64, description="Frames between two rotations. Paper: 64.")
    d_state: Positive = Field(64, description="State width N. Paper: 64.")
    d_head: Positive = Field(64, description="Head width P. Release: 64.")
    expand: Positive = Field(2, description="Inner width over model width. Release: 2.")
    d_conv: Annotated[int, Field(ge=2)] = Field(4, description="Taps of the causal depthwise convolution, frames. Release: 4.")
    dt_rank: Positive | None = Field(None, description="Rank of the step projection; None is ceil(d_model / 16), as in the release.")
    dt_min: float = Field(0.001, gt=0, description="Smallest initial step. Mamba's usual range.")
    dt_max: float = Field(0.1, gt=0, description="Largest initial step. Mamba's usual range.")
    dt_shift: float = Field(0.0, description="Added to the step's bias at the start. Paper: not mentioned; release: -2 in the slow path.")
    a_min: float = Field(1.0, gt=0, description="Smallest decay rate |A| at the start, uniform over heads. Mamba-2: 1; release: 1.")
    a_max: float = Field(16.0, gt=0, description="Largest decay rate |A| at the start. Mamba-2: 16; release: d_state.")
    rotation: RotationConfig | None = Field(RotationConfig(), description="State regramming; None leaves the carried state unrotated.")
    intensity: IntensityConfig | None = Field(None, description="Intensity-modulated stepping; the slow path only (section 3.3).")
    rotary: bool = Field(
        False, description="Control: every frame turns B and C by angles accumulated from content, as in Mamba-3, in half of the state."
    )

    @model_validator(mode="after")
    def _check(self) -> "PathConfig":
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min={self.dt_min} is larger than dt_max={self.dt_max}; swap them.")
        if self.a_min > self.a_max:
            raise ValueError(f"a_min={self.a_min} is larger than a_max={self.a_max}; swap them.")
        if self.rotation is not None and self.rotation.rank > self.d_state:
            raise ValueError(f"rotation.rank={self.rotation.rank} exceeds d_state={self.d_state}; use a rank of at most d_state.")
        if self.rotation is not None and self.rotation.kind == "pairs" and 2 * self.rotation.rank > self.d_state:
            raise ValueError(
                f"rotation.rank={self.rotation.rank} needs {2 * self.rotation.rank} coordinates for its fixed pairs, but d_state is "
                f"{self.d_state}; use a rank of at most {self.d_state // 2}."
            )
        if self.rotary and self.d_state < 4:
            raise ValueError(f"rotary turns pairs in half of the state, so d_state={self.d_state} must be at least 4.")
        return self

    @property
    def n_rotary_pairs(self) -> int:
        """Coordinate pairs that a rotary path turns: half of the state."""
        return self.d_state // 4 if self.rotary else 0


class BlockConfig(Section):
    """One dual-path block. Without `fast` it is a single-path block whose slow path also emits the gate."""

    slow: PathConfig = Field(PathConfig(intensity=IntensityConfig()), description="Carries its state across clips.")
    fast: PathConfig | None = Field(PathConfig(), description="Starts anew every clip, conditioned on the slow path.")
    ffn_ratio: Positive = Field(4, description="Feed-forward width over model width. Release: 4.")

    @model_validator(mode="after")
    def _check(self) -> "BlockConfig":
        if self.fast is not None and self.fast.intensity is not None:
            raise ValueError("fast.intensity must be null: the time warp is confined to the slow path (section 3.3 of the paper).")
        if self.fast is not None and (self.fast.expand, self.fast.d_head) != (self.slow.expand, self.slow.d_head):
            raise ValueError("slow and fast paths are summed, so expand and d_head must be equal in both.")
        return self


class HeadConfig(Section):
    """The output head: a single-path block that starts anew every clip, and the classifier (section 3.6)."""

    path: PathConfig = Field(
        PathConfig(chunk_len=32), description="The head's SSD path. Its chunk length is not in the paper; release: 32."
    )
    ffn_ratio: Positive = Field(4, description="Feed-forward width over model width. Release: 4.")

    @model_validator(mode="after")
    def _check(self) -> "HeadConfig":
        if self.path.intensity is not None:
            raise ValueError("path.intensity must be null: the time warp is confined to the slow path (section 3.3 of the paper).")
        return self


class BackboneConfig(Section):
    """A ConvNeXt frame encoder. The defaults are ConvNeXt-Tiny."""

    depths: tuple[Positive, Positive, Positive, Positive] = Field((3, 3, 9, 3), description="Blocks per stage.")
    widths: tuple[Positive, Positive, Positive, Positive] = Field((96, 192, 384, 768), description="Channels per stage.")
    image_size: Positive = Field(224, description="Height and width of a frame, pixels; a multiple of 32. Paper: 224.")
    frozen_stages: Annotated[int, Field(ge=0, le=4)] = Field(
        2, description="Stages, from the bottom, that are not trained; the stem is frozen with them. Paper: 2. 0 trains everything."
    )
    layer_scale_init: float = Field(
        1e-6, gt=0, description="Weight of a block's residual branch at the start. ConvNeXt: 1e-6; small nets learn faster from 0.1."
    )
    micro_batch: Positive = Field(32, description="Frames encoded at once: bounds memory on long clips, changes no value.")
    checkpoint: bool = Field(True, description="Recompute trainable stages in the backward pass instead of storing activations.")
    mean_rgb: tuple[float, float, float] = Field((0.485, 0.456, 0.406), description="ImageNet mean, for frames scaled to 0..1.")
    std_rgb: tuple[float, float, float] = Field((0.229, 0.224, 0.225), description="ImageNet deviation, for frames scaled to 0..1.")

    @model_validator(mode="after")
    def _check(self) -> "BackboneConfig":
        if self.image_size % 32:
            near = max(32, round(self.image_size / 32) * 32)
            raise ValueError(f"image_size={self.image_size} is not a multiple of 32; the nearest one is {near}.")
        return self


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


class ModelConfig(RecognizerConfig):
    """SurgicalMamba. `ModelConfig()` is the paper's model for seven phases."""

    d_model: Positive = Field(768, description="Width of the temporal model. Release: 768.")
    n_blocks: Positive = Field(4, description="Dual-path blocks K. Paper: 4.")
    clip_len: Positive = Field(256, description="Frames L after which fast path and head start anew, in training and live. Paper: 256.")
    backbone: BackboneConfig | None = Field(BackboneConfig(), description="Frame encoder; null when features are given.")
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of values dropped in training: path and feed-forward of every block and of the head's, and the head's input. "
        "Paper: not mentioned; release: 0.1.",
    )
    block: BlockConfig = Field(BlockConfig(), description="Every one of the K blocks.")
    head: HeadConfig = Field(HeadConfig(), description="The output head.")

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        for name, path in self.paths().items():
            d_inner = path.expand * self.d_model
            if d_inner % path.d_head:
                raise ValueError(f"{name}.d_head={path.d_head} does not divide the inner width {d_inner} (expand x d_model).")
            if name != "block.slow" and path.rotation is not None and path.chunk_len >= self.clip_len:
                raise ValueError(
                    f"{name}.chunk_len={path.chunk_len} is not below clip_len={self.clip_len}: the path starts anew before it could "
                    f"rotate. Use a chunk_len of at most {max(1, self.clip_len // 2)} or set {name}.rotation to null."
                )
        return self

    def paths(self) -> dict[str, PathConfig]:
        """The SSD paths that exist, by their dotted setting name."""
        named = {"block.slow": self.block.slow, "block.fast": self.block.fast, "head.path": self.head.path}
        return {name: path for name, path in named.items() if path is not None}

    def with_paths(self, **changes: object) -> "ModelConfig":
        """A copy with the same change made to every SSD path, such as `with_paths(d_state=16)`."""
        fast = self.block.fast
        block = self.block.with_(slow=self.block.slow.with_(**changes), fast=None if fast is None else fast.with_(**changes))
        return self.with_(block=block, head=self.head.with_(path=self.head.path.with_(**changes)))

    @classmethod
    def preset(cls, name: str, **changes: object) -> "ModelConfig":
        """A named configuration: `paper`, `release` or `tiny`; `changes` replace top-level settings."""
        if name not in PRESETS:
            raise ConfigError(f"unknown preset {name!r}; presets: {', '.join(PRESETS)}.")
        return PRESETS[name].with_(**changes)

    def variant(self, name: str) -> "ModelConfig":
        """A row of the paper's component ablation, made by leaving parts out (see VARIANTS)."""
        if name not in VARIANTS:
            raise ConfigError(f"unknown variant {name!r}; variants: {', '.join(VARIANTS)}.")
        without = VARIANTS[name]
        block = self.block
        if "fast" in without:
            block = block.with_(fast=None)
        if "intensity" in without:
            block = block.with_(slow=block.slow.with_(intensity=None))
        config = self.with_(block=block)
        if "rotation" in without:
            return config.with_paths(rotation=None, rotary=name in ROTARY)
        return config.with_rotation(kind=CONTROLS[name]) if name in CONTROLS else config

    def with_rotation(self, **changes: object) -> "ModelConfig":
        """A copy with the same change made to the rotation of every path that has one, such as `with_rotation(rank=4)`."""

        def turned(path: PathConfig) -> PathConfig:
            return path if path.rotation is None else path.with_(rotation=path.rotation.with_(**changes))

        fast = self.block.fast
        block = self.block.with_(slow=turned(self.block.slow), fast=None if fast is None else turned(fast))
        return self.with_(block=block, head=self.head.with_(path=turned(self.head.path)))


VARIANTS: dict[str, frozenset[str]] = {
    "full": frozenset(),
    "vanilla-mamba2": frozenset({"fast", "intensity", "rotation"}),
    "z-only": frozenset({"fast", "intensity"}),
    "without-z": frozenset({"rotation"}),
    "without-lambda": frozenset({"intensity"}),
    "without-fast": frozenset({"fast"}),
    "constant-z": frozenset(),
    "pairs-z": frozenset(),
    "rotary": frozenset({"rotation"}),
}
"""What each row of the paper's table "Component ablation" leaves out; the smoothness loss is a training setting. The last three
are controls of the rotation: one learned Z for all chunks, angles of the content in fixed planes, and B and C turned every frame."""
CONTROLS: dict[str, Literal["constant", "pairs"]] = {"constant-z": "constant", "pairs-z": "pairs"}
ROTARY = frozenset({"rotary"})


def _release() -> ModelConfig:
    rotation = RotationConfig(init="release")
    path = PathConfig(a_max=64.0, rotation=rotation)  # d_state
    slow = path.with_(dt_shift=-2.0, intensity=IntensityConfig(d_hidden_min=8, intensity_init=0.5))
    head = HeadConfig(path=path.with_(chunk_len=32))
    return ModelConfig(clip_len=128, dropout=0.1, block=BlockConfig(slow=slow, fast=path), head=head)


def _tiny() -> ModelConfig:
    config = ModelConfig(
        d_model=128,
        n_blocks=2,
        backbone=BackboneConfig(
            depths=(2, 2, 3, 1), widths=(24, 48, 96, 192), image_size=96, frozen_stages=0, layer_scale_init=0.1, micro_batch=64
        ),
    )
    return config.with_paths(d_state=32, d_head=32, rotation=RotationConfig(rank=4, d_hidden=32))


PRESETS: dict[str, ModelConfig] = {"paper": ModelConfig(), "release": _release(), "tiny": _tiny()}


def default_dt_rank(d_model: int) -> int:
    """Rank of the low-rank step projection when none is given: ceil(d_model / 16)."""
    return math.ceil(d_model / 16)
