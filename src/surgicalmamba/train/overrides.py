"""Overrides of a command line stand in what is trained: one that something else decides is refused, never dropped."""

from collections.abc import Mapping, Sequence

from surgicalmamba.config import override
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.registry import DEFAULT
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.run import fit_network

SHARED_WITH_PEERS = ("model.backbone", "model.d_feature", "model.standardise")
"""Settings of `model` that count for any network (`fit_model`)."""
FROM_DATASET = ("n_phases", "phases", "d_feature", "preprocess")
"""Settings of a network that its dataset decides (`fit_model`)."""
UNUSED_ON = {
    "features": ("data.augment", "optim.backbone_lr", "optim.backbone_lr_decay"),
    "frames": ("data.feature_dropout", "data.feature_jitter", "data.feature_grain"),
}
"""Settings that mean nothing on a dataset of this kind."""


def flatten(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested settings by their dotted names."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def given_names(overrides: Sequence[str]) -> list[str]:
    """The dotted names of the settings that overrides give, such as data.path; `data={path: x}` names the same."""
    return list(flatten(override({}, overrides)))


def is_below(name: str, part: str) -> bool:
    """Whether a dotted name is this part of the settings, or lies in it."""
    return name == part or name.startswith(f"{part}.")


def refuse_unused(overrides: Sequence[str], config: TrainConfig, dataset: PreparedDataset) -> None:
    """Refuse the first override, of those already put into the config, that training on this dataset would not use.

    null asks for whatever is usual, and is never refused."""
    asked, trained = flatten(config.model_dump()), flatten(fit_network(config, dataset).model_dump())
    for name in given_names(overrides):
        if (value := asked.get(name)) is not None and (why := _why_unused(name, value, trained, config, dataset)) is not None:
            raise ConfigError(f"{name}={value} would not be used: {why}. Leave it out.")


def _why_unused(name: str, value: object, trained: Mapping[str, object], config: TrainConfig, dataset: PreparedDataset) -> str | None:
    network = config.recognizer.name
    if any(is_below(name, part) for part in UNUSED_ON[dataset.kind]):
        return f"{dataset.folder} holds {dataset.kind}"
    if network != DEFAULT and is_below(name, "model"):
        if not any(is_below(name, part) for part in SHARED_WITH_PEERS):
            return f"it is SurgicalMamba's, and recognizer={network} has its own settings under recognizer.settings"
        name = name.replace("model.", "recognizer.settings.", 1)
    if not is_below(name, "model") and not is_below(name, "recognizer.settings"):
        return None
    setting = name.removeprefix("model.").removeprefix("recognizer.settings.")
    if any(is_below(setting, part) for part in FROM_DATASET) and trained.get(name) != value:
        return f"{dataset.folder} decides it ({trained.get(name)})"
    if is_below(setting, "backbone") and name not in trained:
        return f"{dataset.folder} holds {dataset.kind}, so there is no backbone"
    if network == DEFAULT and trained.get(name) != value:
        return f"variant={config.variant} has no such part"
    return None
