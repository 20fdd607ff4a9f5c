"""Settings of a training run. Where the paper is silent the authors' released value is the default, and the description says so."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import Field, field_validator, model_validator

from surgicalmamba.config import Positive, Section
from surgicalmamba.data.transforms import AugmentConfig
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.recognizer import RecognizerConfig
from surgicalmamba.model.registry import DEFAULT, network_of, settings_of
from surgicalmamba.model.surgical_mamba import PRESETS, ModelConfig

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]


class DataSettings(Section):
    """Which videos, and how they come."""

    path: str | None = Field(None, description="A prepared dataset (a folder with dataset.json).")
    split: str | None = Field(None, description="Split to train and validate on; null is the dataset's first. Test is never touched.")
    n_lanes: Positive = Field(4, description="Procedures that advance in parallel. Release: 1.")
    workers: Positive = Field(2, description="Threads that read ahead.")
    feature_dropout: Share = Field(
        0.0, description="Share of feature values set to 0 in training, anew every epoch; for presence features, such as tools."
    )
    feature_jitter: NotNegative = Field(
        0.0, description="Every feature of a procedure scaled and moved at random by so many deviations in training; for measured signals."
    )
    feature_grain: NotNegative = Field(0.0, description="Noise on every feature value in training, in deviations over its procedure.")
    augment: AugmentConfig | None = Field(AugmentConfig(), description="Image augmentation; null for none. Feature datasets have none.")
    allow_overlap: bool = Field(
        False, description="Accept a published split with validation videos inside training; the epoch kept is then chosen on seen videos."
    )


class LossSettings(Section):
    """The clip loss of section 3.6."""

    label_smoothing: Share = Field(0.1, description="Paper: 'with label smoothing', no value; release: 0.1.")
    smooth_weight: NotNegative = Field(0.15, description="w_sm. Paper: 0.15; release: 1.0. 0 leaves the smoothness loss out.")
    transition_weight: NotNegative = Field(0.5, description="w_trans. Paper: 0.5; release: 1.0.")
    rise_s: float = Field(2.0, gt=0, description="sigma_L of the transition target, seconds. Paper: 2.")
    fall_s: float = Field(12.0, gt=0, description="sigma_R of the transition target, seconds. Paper: 12.")
    target_scope: Literal["video", "clip"] = Field(
        "video",
        description="Transition target of the whole video, as in the paper; or of each clip by itself in the release's form: peak on "
        "the old phase's last frame, cut at 3 sigma, boundaries between clips lost.",
    )
    class_weights: Literal["none", "inverse-sqrt", "median-frequency"] = Field(
        "none", description="Weigh phases by the inverse root of their training frames, or by the median share over their own (TeCNO)."
    )


class OptimSettings(Section):
    """AdamW with warm-up and cosine decay."""

    lr: float = Field(1e-4, gt=0, description="Learning rate of the temporal model. Paper: not given; release: 1e-4.")
    backbone_lr: float = Field(5e-5, gt=0, description="Learning rate of the backbone. Release: 5e-5.")
    backbone_lr_decay: float = Field(
        1.0, gt=0, le=1, description="Layer-wise rates: each backbone stage below the last learns slower by this factor; 1 for none."
    )
    weight_decay: NotNegative = Field(0.01, description="AdamW's decay. Release: 0.01.")
    decay_on: Literal["matrices", "all"] = Field(
        "matrices", description="What is decayed: matrices only (no norms, biases, scales), or all but A and D as in the release."
    )
    eps: float = Field(
        1e-18,
        gt=0,
        description="AdamW's eps. Release: 1e-8, which freezes the rotation while its angles are small: at the paper's size its gradients "
        "lie near 1e-11.",
    )
    clip_norm: float = Field(1.0, gt=0, description="Largest gradient norm. Release: 1.0.")
    lr_step: Literal["update", "video"] = Field(
        "update", description="What moves the learning rate along its schedule: every update, or every finished video as in the release."
    )
    warmup_epochs: NotNegative = Field(2.0, description="Epochs of linear warm-up. Release: 10 of 50.")
    final_lr_share: Share = Field(0.01, description="Learning rate at the end, as a share of the peak. Release: 0.1.")
    clips_per_update: Positive = Field(1, description="TBPTT window: clips per update. Paper: 1, gradients stop there; release: 6.")
    average_decay: Share = Field(0.0, description="Exponential moving average of the weights, per update; 0 for none.")


class NetworkSettings(Section):
    """Which network is trained."""

    name: str = Field(DEFAULT, description="surgicalmamba, or a peer such as tecno (docs/peers.md).")
    settings: dict[str, Any] = Field({}, description="Settings of a peer, over its defaults; SurgicalMamba's are under model.")


_RELEASE_AUGMENT = {"resize": 264, "scale": 0.05, "saturation": 0.0, "hue_deg": 0.0, "rgb_shift": 15.0, "probability": 0.5, "draw": "frame"}
RELEASE_TRAINING: dict[str, object] = {
    "data": {"n_lanes": 1, "augment": _RELEASE_AUGMENT},
    "loss": {"smooth_weight": 1.0, "transition_weight": 1.0, "target_scope": "clip"},
    "optim": {"lr_step": "video", "warmup_epochs": 10, "final_lr_share": 0.1, "clips_per_update": 6, "decay_on": "all", "eps": 1e-8},
    "precision": "bf16",
    "select_by": "accuracy",
}
"""What the authors' released recipe does otherwise than the defaults, beside the model; preset `release` fills it in."""

RELEASE_DIFFERENCES: dict[str, str] = {
    "windows": "a window of six clips goes on into the next video; theirs ends with its video.",
    "loss of a window": "a mean over its labelled frames; theirs is the mean of its clips' means.",
    "first video": "trains at one step of the warm-up; theirs has a learning rate of 0.",
    "brightness and contrast": "factors, contrast about mid-grey, up to 0.2; theirs adds up to 0.2 of white and scales about black.",
    "datasets": "the values are those of Cholec80. M2CAI16 and AutoLaparo have chunks of 32 in the blocks, AutoLaparo also windows of "
    "12 clips and 100 epochs.",
    "split": "the dataset's own unless `data.split=release data.allow_overlap=true` asks for theirs, as `configs/release.yaml` does.",
}
"""Where a run with preset `release` still differs from the authors' code: topic, and what ours does."""


class TrainConfig(Section):
    """A whole run. `preset` fills in the model, and for `release` the recipe; settings given replace parts of it."""

    preset: str = Field("paper", description="paper, release (model and recipe) or tiny.")
    variant: str = Field("full", description="Row of the ablation table, such as full or without-z (config.VARIANTS).")
    model: ModelConfig = Field(ModelConfig(), description="The network; phases and feature width come from the dataset.")
    recognizer: NetworkSettings = Field(NetworkSettings(), description="The network to train; a name alone will do.")
    init: str | None = Field(
        None,
        description="Checkpoint or run to fine-tune from, a folder or Hub id: every weight of it that fits the network by name and shape. "
        "backbone_weights are loaded after it.",
    )
    backbone_weights: str | None = Field(None, description="ImageNet weights for the backbone: a file or Hub id; null starts from scratch.")
    allow_random_frozen: bool = Field(
        False, description="Accept frozen backbone stages without backbone_weights: they stay at random values. For tests."
    )
    data: DataSettings = Field(DataSettings(), description="The prepared dataset.")
    loss: LossSettings = Field(LossSettings(), description="The objectives.")
    optim: OptimSettings = Field(OptimSettings(), description="The optimizer.")
    epochs: Positive = Field(50, description="Passes over the training videos. Release: 50 (AutoLaparo 100).")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Of initialisation, order and augmentation.")
    precision: Literal["float32", "bf16"] = Field("float32", description="bf16 runs projections under autocast; state and solves stay so.")
    device: str = Field("auto", description="auto, cpu, cuda or mps.")
    distributed: Literal["replicate", "shard"] = Field(
        "replicate", description="With several processes: a whole model in each, or weights, gradients and moments split over them (FSDP)."
    )
    save_every: Positive = Field(200, description="Updates between two saved training states; every epoch ends with one too.")
    validate_every: Positive | None = Field(
        1, description="Epochs between two looks at the validation videos; the last always has one. null: none, the last epoch is kept."
    )
    protocol: str = Field("strict", description="Protocol by which the best epoch is chosen.")
    select_by: Literal["jaccard", "accuracy"] = Field("jaccard", description="Metric by which the best epoch is chosen. Release: accuracy.")
    run: str = Field("runs/train", description="Folder of the run.")

    @field_validator("recognizer", mode="before")
    @classmethod
    def _name_alone(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @property
    def network(self) -> RecognizerConfig:
        """The config of the network that is trained."""
        name, settings = self.recognizer.name, self.recognizer.settings
        if name == DEFAULT:
            if settings:
                raise ConfigError("recognizer.settings are a peer's; SurgicalMamba's are under model.")
            return self.model
        return network_of(name).config_class(**{**settings_of(name), **settings})

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, values: object) -> object:
        """Put the settings given over those of the preset."""
        if not isinstance(values, Mapping) or isinstance(values.get("model"), ModelConfig):
            return values
        name = values.get("preset", "paper")
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}; presets: {', '.join(PRESETS)}.")
        given = values.get("model") or {}
        if not isinstance(given, Mapping):
            raise ValueError("model must be a mapping of settings.")
        recipe = RELEASE_TRAINING if name == "release" else {}
        return _merge(recipe, {**values, "model": _merge(PRESETS[str(name)].model_dump(), given)})


def _merge(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


# Every setting of a run as rows of text, read from the config models: the one source of names, defaults and descriptions.


@dataclass(frozen=True)
class SettingRow:
    """One setting: its dotted name as an override takes it, its default as YAML, what it does."""

    name: str
    default: str
    description: str


def setting_rows(section: Section, prefix: str = "") -> Iterator[SettingRow]:
    """The settings of a section and, below each part of it, the part's own."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        choices = [t for t in (field.annotation, *get_args(field.annotation)) if isinstance(t, type) and issubclass(t, Section)]
        if not choices:
            yield SettingRow(prefix + name, _as_yaml(value), field.description or "")
            continue
        optional = type(None) in get_args(field.annotation)
        text = (field.description or "") + (" May be null." if optional else "")
        yield SettingRow(prefix + name, "null" if value is None else "as below", text)
        if value is not None:
            yield from setting_rows(value, f"{prefix}{name}.")


def _as_yaml(value: object) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1000).removesuffix("...\n").strip()


def markdown_table(rows: Iterator[SettingRow]) -> str:
    """The rows as a Markdown table."""
    lines = ["| Setting | Default | What it is |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| `{row.name}` | {row.default} | {row.description} |" for row in rows)])

