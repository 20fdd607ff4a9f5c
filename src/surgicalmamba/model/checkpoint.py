"""Save and load. A checkpoint is a folder with config.json and model.safetensors: loading it needs no flags and runs no code."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from surgicalmamba.errors import CheckpointError, ConfigError
from surgicalmamba.model.registry import DEFAULT, network_of
from surgicalmamba.version import __version__

if TYPE_CHECKING:
    from surgicalmamba.model.recognizer import AnyRecognizer

FORMAT = 1
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"


@dataclass(frozen=True)
class Mismatch:
    """How a set of weights differs from what a model needs. Truthy when there is any difference."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshapen: tuple[str, ...]

    @classmethod
    def between(cls, needed: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> "Mismatch":
        wrong = [
            f"{key} is {tuple(given[key].shape)}, expected {tuple(value.shape)}"
            for key, value in needed.items()
            if key in given and given[key].shape != value.shape
        ]
        return cls(tuple(k for k in needed if k not in given), tuple(k for k in given if k not in needed), tuple(wrong))

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.misshapen)

    def __str__(self) -> str:
        parts = []
        for label, items in (("missing", self.missing), ("unexpected", self.unexpected), ("mis-shaped", self.misshapen)):
            if items:
                more = f" and {len(items) - 3} more" if len(items) > 3 else ""
                parts.append(f"{len(items)} {label} ({', '.join(items[:3])}{more})")
        return "; ".join(parts)


def fit(model: torch.nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Put weights into a module, all of them and nothing else, or raise with a report."""
    mismatch = Mismatch.between(model.state_dict(), weights)
    if mismatch:
        raise CheckpointError(f"{source} does not fit the model: {mismatch}.")
    model.load_state_dict(dict(weights))


def save(model: "AnyRecognizer", folder: Path, provenance: Mapping[str, object] | None = None) -> None:
    """Write a checkpoint folder. Each file appears whole or not at all; config.json comes last and marks it complete."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "format": FORMAT,
        "surgicalmamba": __version__,
        "recognizer": model.name,
        "model": model.config.model_dump(mode="json"),
        "provenance": dict(provenance or {}),
    }
    weights = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    weights_part, config_part = (folder / f"{name}.part" for name in (WEIGHTS_FILE, CONFIG_FILE))
    config_part.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    save_file(weights, weights_part, metadata={"format": "pt"})
    shutil.copymode(config_part, weights_part)  # save_file lets nobody but the owner read
    os.replace(weights_part, folder / WEIGHTS_FILE)
    os.replace(config_part, folder / CONFIG_FILE)


def load(path_or_hub_id: str | Path) -> "AnyRecognizer":
    """A trained model from a checkpoint folder, a run folder or a Hugging Face Hub id such as `owner/name`: SurgicalMamba, or whichever
    it is."""
    folder = checkpoint_folder(path_or_hub_id)
    about = read_about(folder)
    try:
        network = network_of(str(about.get("recognizer", DEFAULT)))
        model = network(network.config_class(**about["model"]))
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{folder / CONFIG_FILE}: {error}") from None
    fit(model, read_weights(folder / WEIGHTS_FILE), str(folder / WEIGHTS_FILE))
    return model.eval()


def load_fitting(model: "AnyRecognizer", path_or_hub_id: str | Path) -> Mismatch:
    """Load every weight of a checkpoint that fits the model by name and shape; the model's other weights keep their values.

    Returns what does not fit. Raises when nothing fits."""
    file = checkpoint_folder(path_or_hub_id) / WEIGHTS_FILE
    needed, weights = model.state_dict(), read_weights(file)
    mismatch = Mismatch.between(needed, weights)
    fitting = {name: value for name, value in weights.items() if name in needed and needed[name].shape == value.shape}
    if not fitting:
        raise CheckpointError(f"no weight of {file} fits the model: {mismatch}.")
    model.load_state_dict(fitting, strict=False)
    return mismatch


def checkpoint_folder(path_or_hub_id: str | Path) -> Path:
    """The local folder of a checkpoint, the best one of a training run, or a download from the Hub."""
    folder = Path(best_of(path_or_hub_id))
    if not folder.exists() and looks_like_hub_id(str(path_or_hub_id)):
        folder = fetch(str(path_or_hub_id), CONFIG_FILE).parent
        fetch(str(path_or_hub_id), WEIGHTS_FILE)
    return folder


def best_of(place: str | Path) -> str | Path:
    """The best model where `place` is the folder of a training run; any other place as it is."""
    best = Path(place) / "best"
    return best if best.is_dir() else place


def read_about(folder: Path) -> dict[str, dict[str, object]]:
    """What config.json of a checkpoint says: model, version, provenance."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise CheckpointError(f"{folder} is no checkpoint: there is no {CONFIG_FILE} in it. Give a folder written by save() or a Hub id.")
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None
    if not isinstance(about, dict) or not isinstance(about.get("model"), dict) or not isinstance(about.get("format"), int):
        raise CheckpointError(f"{file} was not written by surgicalmamba: 'format' and 'model' are expected in it.")
    if about["format"] > FORMAT:
        raise CheckpointError(f"{file} has format {about['format']}, this version reads up to {FORMAT}; upgrade surgicalmamba.")
    return about


def fingerprint(model: "AnyRecognizer") -> str:
    """SHA-256 over config and weights: equal for models that give the same answers, whatever files they came from."""
    digest = hashlib.sha256(json.dumps(model.config.model_dump(mode="json"), sort_keys=True).encode())
    digest.update(b"" if model.name == DEFAULT else model.name.encode())
    for name, value in sorted(model.state_dict().items()):
        array = value.detach().cpu().contiguous()
        digest.update(f"{name}:{array.dtype}:{tuple(array.shape)}".encode())
        digest.update(array.view(torch.uint8).numpy().data if array.dim() else array.numpy().tobytes())
    return digest.hexdigest()


def demo_model_path() -> Path:
    """The trained model that ships with the package, for somebody with none of their own."""
    folder = Path(__file__).parents[1] / "assets" / "demo"
    if not (folder / CONFIG_FILE).is_file():
        raise CheckpointError("no demo model ships with this version; give a checkpoint folder or a Hub id with --model.")
    return folder


def looks_like_hub_id(text: str) -> bool:
    """owner/name, and nothing that reads as a local path."""
    owner, slash, name = text.partition("/")
    return bool(slash and owner and name) and "/" not in name and not text.startswith((".", "~")) and "\\" not in text


def fetch(hub_id: str, file: str) -> Path:
    """One file of a Hub repository, from the local cache or the network."""
    import logging

    from huggingface_hub import hf_hub_download

    hub_log = logging.getLogger("huggingface_hub")
    level = hub_log.level
    hub_log.setLevel(logging.ERROR)  # its retries are not the user's concern; the outcome is
    try:
        return Path(hf_hub_download(hub_id, file))
    except Exception as error:  # the library raises many unrelated classes for absent, private, offline
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(
            f"there is no folder {hub_id!r} here, and {file} of a Hub repository of that name cannot be had ({reason}). "
            f"Check the path or the id and the network, or download the repository and give its folder."
        ) from None
    finally:
        hub_log.setLevel(level)


def read_weights(file: Path) -> dict[str, Tensor]:
    """Tensors of a .safetensors file, or of a torch file that holds nothing but tensors. Code in a file is never run."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not file.is_file():
        raise CheckpointError(f"weights {file} do not exist; check the path.")
    if file.suffix == ".safetensors":
        try:
            return load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is not a readable safetensors file (truncated or damaged): {error}") from None
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a foreign file can fail in any way inside the reader
        raise CheckpointError(f"{file} {_why_unreadable(file, error)}") from None
    return _state_dict_in(content, file)


def _why_unreadable(file: Path, error: Exception) -> str:
    text = str(error)
    if "weights_only" in text or "Unsupported global" in text or "Unsupported operand" in text:
        return "holds Python objects besides tensors; it is refused, because opening it could run code. Re-save its state_dict alone."
    if file.stat().st_size == 0:
        return "is empty; download it again."
    with file.open("rb") as stream:
        starts_as_zip = stream.read(2) == b"PK"
    if starts_as_zip:
        return "is truncated or damaged; download it again."
    return "is not a torch weights file; give a .pth/.pt file saved by torch or a .safetensors file."


def _state_dict_in(content: object, file: Path) -> dict[str, Tensor]:
    """The state dict itself or the one under "model" or "state_dict", without a data-parallel prefix."""
    for wrapper in ("model", "state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise CheckpointError(f"{file} holds no state dict; expected tensors by name, alone or under 'model'.")
    return {str(key).removeprefix("module."): value for key, value in content.items()}


def load_backbone(model: "AnyRecognizer", path_or_hub_id: str | Path) -> None:
    """Put weights into a model's backbone: ImageNet's from a file or Hub id, in any naming `to_timm_names` knows, or those of a checkpoint
    of this package (a folder), such as one trained on other videos."""
    from surgicalmamba.model.backbone import to_timm_names

    if model.backbone is None:
        raise CheckpointError("this model has no backbone to load weights into (config.backbone is null).")
    file = Path(path_or_hub_id)
    if file.is_dir():
        file = file / WEIGHTS_FILE
    elif not file.exists() and looks_like_hub_id(str(path_or_hub_id)):
        file = fetch(str(path_or_hub_id), WEIGHTS_FILE)
    weights = read_weights(file)
    own = {name.removeprefix("backbone."): value for name, value in weights.items() if name.startswith("backbone.")}
    fit(model.backbone, own or to_timm_names(weights), str(file))
