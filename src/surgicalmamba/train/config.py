"""Settings of a training run, as models whose descriptions are the documentation (`setting_rows`).

Where the paper gives no value, the default is that of the authors' release, and the description says so."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import yaml
from pydantic import Field, SerializationInfo, ValidationError, model_serializer, model_validator

from surgicalmamba.config import Positive, Section, one_line, override
from surgicalmamba.data.transforms import AugmentConfig
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.recognizer import RecognizerConfig
from surgicalmamba.model.registry import DEFAULT, network_of, settings_of

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]


class DataSettings(Section):
    """Which videos are used, and how they are loaded."""

    path: str | None = Field(None, description="A prepared dataset (a folder with dataset.json).")
    split: str | None = Field(
        None,
        description="Split to train and validate on; null is the dataset's first. Test is never used.",
    )
    n_lanes: Positive = Field(4, description="Procedures that advance in parallel. Release: 1.")
    workers: Positive = Field(2, description="Threads that load clips in advance.")
    feature_dropout: Share = Field(
        0.0,
        description="Share of feature values set to 0 in training, drawn again every epoch; for presence "
        "features, such as tools.",
    )
    feature_jitter: NotNegative = Field(
        0.0,
        description="Every feature of a procedure is scaled and shifted at random by this many deviations in "
        "training; for measured signals.",
    )
    feature_grain: NotNegative = Field(
        0.0, description="Noise on every feature value in training, in deviations over its procedure."
    )
    augment: AugmentConfig | None = Field(
        AugmentConfig(), description="Image augmentation; null for none. Feature datasets have none."
    )
    allow_overlap: bool = Field(
        False,
        description="Accept a published split with validation videos inside training; the best epoch is then "
        "chosen on videos of the training set.",
    )


class LossSettings(Section):
    """The clip loss of section 3.6."""

    label_smoothing: Share = Field(0.1, description="Paper: 'with label smoothing', no value; release: 0.1.")
    smooth_weight: NotNegative = Field(
        0.15, description="w_sm. Paper: 0.15; release: 1.0. 0 leaves the smoothness loss out."
    )
    transition_weight: NotNegative = Field(0.5, description="w_trans. Paper: 0.5; release: 1.0.")
    rise_s: float = Field(2.0, gt=0, description="sigma_L of the transition target, seconds. Paper: 2.")
    fall_s: float = Field(12.0, gt=0, description="sigma_R of the transition target, seconds. Paper: 12.")
    target_scope: Literal["video", "clip"] = Field(
        "video",
        description="Transition target of the whole video, as in the paper; or of each clip by itself, as in "
        "the release: peak on the old phase's last frame, cut at 3 sigma, boundaries between clips lost.",
    )
    class_weights: Literal["none", "inverse-sqrt", "median-frequency"] = Field(
        "none",
        description="Weight phases by the inverse root of their training frames, or by the median share over "
        "their own share (TeCNO).",
    )


class OptimSettings(Section):
    """AdamW with warm-up and cosine decay."""

    lr: float = Field(
        1e-4, gt=0, description="Learning rate of the temporal model. Paper: not given; release: 1e-4."
    )
    backbone_lr: float = Field(5e-5, gt=0, description="Learning rate of the backbone. Release: 5e-5.")
    backbone_lr_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Layer-wise rates: each backbone stage below the last has its rate multiplied by this; "
        "1 for none.",
    )
    weight_decay: NotNegative = Field(0.01, description="AdamW's decay. Release: 0.01.")
    decay_on: Literal["matrices", "all"] = Field(
        "matrices",
        description="What is decayed: matrices only (no norms, biases, scales), or all but A and D as in the "
        "release.",
    )
    eps: float = Field(
        1e-18,
        gt=0,
        description="AdamW's eps. Release: 1e-8, which freezes the rotation while its angles are small: at "
        "the paper's size its gradients are near 1e-11.",
    )
    clip_norm: float = Field(1.0, gt=0, description="Largest gradient norm. Release: 1.0.")
    lr_step: Literal["update", "video"] = Field(
        "update",
        description="When the learning rate moves along its schedule: at every update, or at every finished "
        "video as in the release.",
    )
    warmup_epochs: NotNegative = Field(2.0, description="Epochs of linear warm-up. Release: 10 of 50.")
    final_lr_share: Share = Field(
        0.01, description="Learning rate at the end, as a share of the peak. Release: 0.1."
    )
    clips_per_update: Positive = Field(
        1, description="TBPTT window: clips per update. Paper: 1, gradients stop there; release: 6."
    )
    average_decay: Share = Field(
        0.0, description="Exponential moving average of the weights, per update; 0 for none."
    )


class RecognizerSettings(Section):
    """Which network is trained. The fields of its config class stand beside `name`, `preset` and `variant`:
    `{name: lstm, d_hidden: 64}`. They override those of the preset."""

    name: str = Field(DEFAULT, description="surgicalmamba, or a peer such as tecno (docs/peers.md).")
    preset: str = Field(
        "paper",
        description="Settings to start from: paper, release (model and recipe) or tiny. A peer takes its "
        "backbone from it.",
    )
    variant: str = Field(
        "full",
        description="Row of the ablation table, such as full or without-z (VARIANTS); peers have none.",
    )
    network: RecognizerConfig

    @model_validator(mode="before")
    @classmethod
    def _read_network(cls, values: object) -> object:
        """Build the network's config from the settings beside its name."""
        if not isinstance(values, Mapping) or "network" in values:
            return values
        choice = {key: values[key] for key in ("name", "preset", "variant") if key in values}
        settings = {key: value for key, value in values.items() if key not in choice}
        name = str(choice.get("name", DEFAULT))
        config_class = network_of(name).config_class
        base = {**config_class.preset_settings(str(choice.get("preset", "paper"))), **settings_of(name)}
        if settings.get("d_feature") is not None and "backbone" not in settings:
            base["backbone"] = None  # features replace the preset's backbone
        try:
            return {**choice, "network": config_class(**merge(base, settings))}
        except ValidationError as error:
            raise ConfigError(one_line(config_class, error, "recognizer.")) from None

    @model_validator(mode="after")
    def _check(self) -> "RecognizerSettings":
        if not isinstance(self.network, network_of(self.name).config_class):
            raise ValueError(
                f"the settings are a {type(self.network).__name__}, which {self.name} does not take."
            )
        return self

    @model_serializer
    def _flat(self, info: SerializationInfo) -> dict[str, object]:
        choice: dict[str, object] = {"name": self.name, "preset": self.preset, "variant": self.variant}
        return {**choice, **self.network.model_dump(mode=info.mode)}


def merge(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """Nested settings `base`, with those of `over` in their place."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = (
            merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
        )
    return merged


OF_ANY_NETWORK = ("preset", "variant", "backbone", "d_feature", "standardise")
"""Settings of `recognizer` that stay when an override names another network; all others belong to the
previous network."""


def merge_recognizer(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """`merge` for the section `recognizer`, where `over` may name another network."""
    before = base.get("name", DEFAULT)
    if over.get("name", before) != before:
        base = {key: value for key, value in base.items() if key in OF_ANY_NETWORK}
    return merge(base, over)


def in_one_section(values: Mapping[str, object]) -> dict[str, object]:
    """Settings with everything about the network under `recognizer`.

    A name alone is accepted as a section. Version 0.1 had other places: `preset` and `variant` at the top,
    SurgicalMamba's settings under `model`, those of a peer under `recognizer.settings`. A peer took from
    `model` the settings that every network has."""
    model, recognizer = values.get("model") or {}, values.get("recognizer") or {}
    model = dict(model) if isinstance(model, RecognizerConfig) else model
    recognizer = {"name": recognizer} if isinstance(recognizer, str) else recognizer
    if not isinstance(model, Mapping) or not isinstance(recognizer, Mapping):
        raise ConfigError("recognizer must be the name of a network or a mapping of settings.")
    old = {**{key: values[key] for key in ("preset", "variant") if key in values}, **model}
    new = {key: value for key, value in recognizer.items() if key != "settings"}
    merged = merge_recognizer(old, {**new, **(recognizer.get("settings") or {})})
    rest = {
        key: value for key, value in values.items() if key not in ("preset", "variant", "model", "recognizer")
    }
    return {**({"recognizer": merged} if merged else {}), **rest}


RELEASE_TRAINING: dict[str, object] = {
    "data": {
        "n_lanes": 1,
        "augment": {
            "resize": 264,
            "scale": 0.05,
            "saturation": 0.0,
            "hue_deg": 0.0,
            "rgb_shift": 15.0,
            "probability": 0.5,
            "draw": "frame",
        },
    },
    "loss": {"smooth_weight": 1.0, "transition_weight": 1.0, "target_scope": "clip"},
    "optim": {
        "lr_step": "video",
        "warmup_epochs": 10,
        "final_lr_share": 0.1,
        "clips_per_update": 6,
        "decay_on": "all",
        "eps": 1e-8,
    },
    "precision": "bf16",
    "select_by": "accuracy",
}
"""Where the authors' released recipe differs from the defaults, apart from the model. Preset `release` fills
it in."""

RELEASE_DIFFERENCES: dict[str, str] = {
    "windows": "a window of six clips continues into the next video; theirs ends with its video.",
    "loss of a window": "a mean over its labelled frames; theirs is the mean of its clips' means.",
    "first video": "trains at one step of the warm-up; theirs has a learning rate of 0.",
    "brightness and contrast": "factors, contrast about mid-grey, up to 0.2; theirs adds up to 0.2 of white "
    "and scales about black.",
    "datasets": "the values are those of Cholec80. M2CAI16 and AutoLaparo have chunks of 32 in the blocks, "
    "AutoLaparo also windows of 12 clips and 100 epochs.",
    "split": "the dataset's own unless `data.split=release data.allow_overlap=true` selects theirs, as "
    "`configs/release.yaml` does.",
}
"""Where a run with preset `release` still differs from the authors' code: topic, and what ours does."""


class TrainConfig(Section):
    """A whole run. The recognizer's preset fills in the network, preset `release` also the recipe; explicit
    settings override both."""

    recognizer: RecognizerSettings = Field(
        default_factory=lambda: RecognizerSettings.model_validate({}),
        description="The network to train, a name alone or with settings; phases and feature width come from "
        "the dataset.",
    )
    init: str | None = Field(
        None,
        description="Checkpoint or run to fine-tune from, a folder or Hub id: every weight of it that fits "
        "the network by name and shape. backbone_weights are loaded after it.",
    )
    backbone_weights: str | None = Field(
        None, description="ImageNet weights for the backbone: a file or Hub id; null starts from scratch."
    )
    allow_random_frozen: bool = Field(
        False,
        description="Accept frozen backbone stages without backbone_weights: they stay at random values. For "
        "tests.",
    )
    data: DataSettings = Field(DataSettings(), description="The prepared dataset.")
    loss: LossSettings = Field(LossSettings(), description="The objectives.")
    optim: OptimSettings = Field(OptimSettings(), description="The optimizer.")
    epochs: Positive = Field(50, description="Passes over the training videos. Release: 50 (AutoLaparo 100).")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Of initialisation, order and augmentation.")
    precision: Literal["float32", "bf16"] = Field(
        "float32", description="bf16 runs projections under autocast; state and solves stay float32."
    )
    device: str = Field("auto", description="auto, cpu, cuda or mps.")
    distributed: Literal["replicate", "shard"] = Field(
        "replicate",
        description="With several processes: a whole model in each, or weights, gradients and moments split "
        "over them (FSDP).",
    )
    save_every: Positive = Field(
        200, description="Updates between two saved training states; one is saved after every epoch too."
    )
    validate_every: Positive | None = Field(
        1,
        description="Epochs between two validations; the last epoch always has one. null: no validation, the "
        "last epoch is kept.",
    )
    protocol: str = Field("strict", description="Protocol by which the best epoch is chosen.")
    select_by: Literal["jaccard", "accuracy"] = Field(
        "jaccard", description="Metric by which the best epoch is chosen. Release: accuracy."
    )
    run: str = Field("runs/train", description="Folder of the run.")

    @property
    def network(self) -> RecognizerConfig:
        """The config of the network that is trained."""
        return self.recognizer.network

    def with_network(self, network: RecognizerConfig) -> "TrainConfig":
        """A copy with other settings of the same network."""
        return self.with_(recognizer=self.recognizer.with_(network=network))

    def with_variant(self, variant: str) -> "TrainConfig":
        return self.with_(recognizer=self.recognizer.with_(variant=variant))

    def for_network(self, name: str, **settings: object) -> "TrainConfig":
        """The same recipe for another network."""
        return self.with_(
            recognizer=merge_recognizer(self.recognizer.model_dump(), {"name": name, **settings})
        )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_recipe(cls, values: object) -> object:
        """Fill in the recipe of preset `release` where the settings leave it open."""
        if not isinstance(values, Mapping) or isinstance(values.get("recognizer"), RecognizerSettings):
            return values
        values = in_one_section(values)
        recognizer = values.get("recognizer", {})
        is_release = isinstance(recognizer, Mapping) and recognizer.get("preset") == "release"
        return merge(RELEASE_TRAINING, values) if is_release else values

    @classmethod
    def overridden(cls, values: dict[str, object], overrides: Sequence[str]) -> dict[str, object]:
        """Apply overrides. Those of `recognizer` are merged into its settings, and may select another
        network; others replace the value they name."""
        values = in_one_section(values)
        for text in overrides:
            change = in_one_section(override({}, [text]))
            if "recognizer" in change:
                base, over = values.get("recognizer", {}), change["recognizer"]
                assert isinstance(base, Mapping) and isinstance(over, Mapping)  # in_one_section makes them so
                values["recognizer"] = merge_recognizer(base, over)
            else:
                override(values, [text])
        return values


@dataclass(frozen=True)
class SettingRow:
    """One setting: its dotted name as an override takes it, its default as YAML, what it does."""

    name: str
    default: str
    description: str


def setting_rows(section: Section, prefix: str = "") -> Iterator[SettingRow]:
    """The settings of a section, each followed by those of its parts."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, RecognizerConfig):  # its settings have no prefix of their own
            yield from setting_rows(value, prefix)
            continue
        types = (field.annotation, *get_args(field.annotation))
        if not any(isinstance(t, type) and issubclass(t, Section) for t in types):
            yield SettingRow(prefix + name, _as_yaml(value), field.description or "")
            continue
        text = (field.description or "") + (" May be null." if type(None) in types else "")
        yield SettingRow(prefix + name, "null" if value is None else "as below", text)
        if value is not None:
            yield from setting_rows(value, f"{prefix}{name}.")


def _as_yaml(value: object) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1000).removesuffix("...\n").strip()
