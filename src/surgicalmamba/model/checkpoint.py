"""Save and load. A checkpoint is a folder with config.json and model.safetensors; no code in it is run."""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from surgicalmamba.errors import CheckpointError, ConfigError
from surgicalmamba.files import atomic_path
from surgicalmamba.model.backbone import to_timm_names
from surgicalmamba.model.registry import DEFAULT, network_of
from surgicalmamba.version import __version__

if TYPE_CHECKING:
    from surgicalmamba.model.recognizer import AnyRecognizer

FORMAT = 1
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"


@dataclass(frozen=True)
class Mismatch:
    """How a set of weights differs from those of a model. Truthy when there is any difference."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshapen: tuple[str, ...]

    @classmethod
    def between(cls, needed: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> "Mismatch":
        misshapen = [
            f"{name} is {tuple(weights[name].shape)}, expected {tuple(value.shape)}"
            for name, value in needed.items()
            if name in weights and weights[name].shape != value.shape
        ]
        missing = (name for name in needed if name not in weights)
        return cls(tuple(missing), tuple(name for name in weights if name not in needed), tuple(misshapen))

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.misshapen)

    def __str__(self) -> str:
        parts = []
        groups = {"missing": self.missing, "unexpected": self.unexpected, "mis-shaped": self.misshapen}
        for label, items in groups.items():
            if items:
                more = f" and {len(items) - 3} more" if len(items) > 3 else ""
                parts.append(f"{len(items)} {label} ({', '.join(items[:3])}{more})")
        return "; ".join(parts)


def save(model: "AnyRecognizer", folder: Path, provenance: Mapping[str, object] | None = None) -> None:
    """Write a checkpoint folder. Each file is written whole or not at all; config.json comes last."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "format": FORMAT,
        "surgicalmamba": __version__,
        "recognizer": model.name,
        "model": model.config.model_dump(mode="json"),
        "provenance": dict(provenance or {}),
    }
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    with atomic_path(folder / CONFIG_FILE) as about_file, atomic_path(folder / WEIGHTS_FILE) as weights_file:
        about_file.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        save_file(weights, weights_file, metadata={"format": "pt"})
        shutil.copymode(about_file, weights_file)  # save_file makes the file readable by its owner only


def load(path_or_hub_id: str | Path) -> "AnyRecognizer":
    """A trained model of any kind from a checkpoint folder, a run folder or a Hub id such as `owner/name`."""
    folder = checkpoint_folder(path_or_hub_id)
    about = read_about(folder)
    try:
        network = network_of(str(about.get("recognizer", DEFAULT)))
        model = network(network.config_class(**about["model"]))
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{folder / CONFIG_FILE}: {error}") from None
    fit(model, read_weights(folder / WEIGHTS_FILE), str(folder / WEIGHTS_FILE))
    return model.eval()


def fit(model: torch.nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load weights into a module, all of them and nothing else, or raise with a report."""
    mismatch = Mismatch.between(model.state_dict(), weights)
    if mismatch:
        raise CheckpointError(f"{source} does not fit the model: {mismatch}.")
    model.load_state_dict(dict(weights))


def load_fitting(model: "AnyRecognizer", path_or_hub_id: str | Path) -> Mismatch:
    """Load every weight of a checkpoint that fits the model by name and shape; the others keep their values.

    Returns what does not fit. Raises when nothing fits."""
    file = checkpoint_folder(path_or_hub_id) / WEIGHTS_FILE
    needed, weights = model.state_dict(), read_weights(file)
    mismatch = Mismatch.between(needed, weights)
    fitting = {name: v for name, v in weights.items() if name in needed and needed[name].shape == v.shape}
    if not fitting:
        raise CheckpointError(f"no weight of {file} fits the model: {mismatch}.")
    model.load_state_dict(fitting, strict=False)
    return mismatch


def load_backbone(model: "AnyRecognizer", path_or_hub_id: str | Path) -> None:
    """Load weights into a model's backbone: ImageNet's from a file or Hub id, in a naming that
    `to_timm_names` reads, or those of a checkpoint of this package, such as one trained on other videos."""
    if model.backbone is None:
        raise CheckpointError("this model has no backbone to load weights into (config.backbone is null).")
    file = Path(path_or_hub_id)
    if file.is_dir():
        file = file / WEIGHTS_FILE
    elif not file.exists() and looks_like_hub_id(str(path_or_hub_id)):
        file = fetch(str(path_or_hub_id), WEIGHTS_FILE)
    weights, prefix = read_weights(file), "backbone."
    ours = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    fit(model.backbone, ours or to_timm_names(weights), str(file))


def checkpoint_folder(path_or_hub_id: str | Path) -> Path:
    """The local folder of a checkpoint, the best one of a training run, or a download from the Hub."""
    folder = Path(best_of(path_or_hub_id))
    if not folder.exists() and looks_like_hub_id(str(path_or_hub_id)):
        folder = fetch(str(path_or_hub_id), CONFIG_FILE).parent
        fetch(str(path_or_hub_id), WEIGHTS_FILE)
    return folder


def best_of(place: str | Path) -> str | Path:
    """The best model if `place` is the folder of a training run; any other place unchanged."""
    best = Path(place) / "best"
    return best if best.is_dir() else place


def demo_model_path() -> Path:
    """The trained model that ships with the package."""
    folder = Path(__file__).parents[1] / "assets" / "demo"
    if not (folder / CONFIG_FILE).is_file():
        raise CheckpointError("no demo model ships with this version; give a folder or Hub id with --model.")
    return folder


def looks_like_hub_id(text: str) -> bool:
    """owner/name, and nothing that reads as a local path."""
    owner, slash, name = text.partition("/")
    is_local = "/" in name or "\\" in text or text.startswith((".", "~"))
    return bool(slash and owner and name) and not is_local


def fetch(hub_id: str, file: str) -> Path:
    """One file of a Hub repository, from the local cache or the network."""
    from huggingface_hub import hf_hub_download

    hub_log = logging.getLogger("huggingface_hub")
    level = hub_log.level
    hub_log.setLevel(logging.ERROR)  # no log line per retry
    try:
        return Path(hf_hub_download(hub_id, file))
    except Exception as error:  # the library raises many unrelated classes for absent, private, offline
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(
            f"there is no folder {hub_id!r} here, and {file} of that Hub repository cannot be loaded "
            f"({reason}). Check the path or the id and the network, or download the repository."
        ) from None
    finally:
        hub_log.setLevel(level)


def read_about(folder: Path) -> dict[str, dict[str, object]]:
    """The content of a checkpoint's config.json: model, version, provenance."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        problem = f"{folder} is no checkpoint: there is no {CONFIG_FILE} in it"
        raise CheckpointError(f"{problem}. Name a folder written by save() or a Hub id.")
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None
    is_ours = isinstance(about, dict) and isinstance(about.get("model"), dict)
    if not is_ours or not isinstance(about.get("format"), int):
        raise CheckpointError(f"{file} was not written by surgicalmamba: it needs 'format' and 'model'.")
    if about["format"] > FORMAT:
        problem = f"{file} has format {about['format']}, this version reads up to {FORMAT}"
        raise CheckpointError(f"{problem}; upgrade surgicalmamba.")
    return about


def read_weights(file: Path) -> dict[str, Tensor]:
    """Tensors of a .safetensors file, or of a torch file of tensors alone. Code in a file is never run."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not file.is_file():
        raise CheckpointError(f"weights {file} do not exist; check the path.")
    if file.suffix == ".safetensors":
        try:
            return load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is truncated or damaged, no safetensors file: {error}") from None
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a foreign file can fail in any way inside the reader
        raise CheckpointError(f"{file} {_why_unreadable(file, str(error))}") from None
    for wrapper in ("model", "state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    values = list(content.values()) if isinstance(content, Mapping) else []
    if not values or not all(isinstance(value, Tensor) for value in values):
        raise CheckpointError(f"{file} holds no state dict: tensors by name, alone or under 'model'.")
    # Data-parallel training puts "module." before every name.
    return {str(name).removeprefix("module."): value for name, value in content.items()}


def _why_unreadable(file: Path, error: str) -> str:
    if any(text in error for text in ("weights_only", "Unsupported global", "Unsupported operand")):
        return "holds Python objects besides tensors, which could run code. Save its state_dict alone."
    with file.open("rb") as stream:
        content = stream.read(2)
    if not content:
        return "is empty; download it again."
    if content == b"PK":  # a zip file, as torch writes
        return "is truncated or damaged; download it again."
    return "is not a torch weights file; give a .pth/.pt file saved by torch or a .safetensors file."


def fingerprint(model: "AnyRecognizer") -> str:
    """SHA-256 over config and weights: equal for models of equal outputs, whatever files they came from."""
    digest = hashlib.sha256(json.dumps(model.config.model_dump(mode="json"), sort_keys=True).encode())
    digest.update(b"" if model.name == DEFAULT else model.name.encode())
    for name, value in sorted(model.state_dict().items()):
        array = value.detach().cpu().contiguous()
        digest.update(f"{name}:{array.dtype}:{tuple(array.shape)}".encode())
        digest.update(array.view(torch.uint8).numpy().data if array.dim() else array.numpy().tobytes())
    return digest.hexdigest()
