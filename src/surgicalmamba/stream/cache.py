"""What engines keep between two starts in the user's cache folder: the choice `auto` made, and exported graphs.

Everything here can be deleted at any time. A file that cannot be read, or that says something unexpected, is ignored."""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from surgicalmamba.version import __version__


def cache_folder() -> Path:
    """SURGICALMAMBA_CACHE, or a folder of ours where the system keeps caches."""
    named = os.environ.get("SURGICALMAMBA_CACHE")
    if named:
        return Path(named)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "surgicalmamba"


def setting_key(model_fingerprint: str, device: str, threads: int) -> str:
    """What a measurement depends on: the model, the machine, the versions, the threads."""
    parts = [model_fingerprint, device, str(threads), platform.node(), platform.machine(), platform.processor(), str(os.cpu_count())]
    return hashlib.blake2b("\n".join(parts + _versions()).encode(), digest_size=16).hexdigest()


def export_key(model_fingerprint: str) -> str:
    """What exported graphs depend on."""
    return hashlib.blake2b("\n".join([model_fingerprint, *_versions()]).encode(), digest_size=16).hexdigest()


def _versions() -> list[str]:
    found = [f"surgicalmamba {__version__}", f"python {platform.python_version()}"]
    for name in ("torch", "onnx", "onnxruntime", "onnxscript"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} absent")
    return found


def read_choice(key: str, allowed: tuple[str, ...]) -> str | None:
    """The engine chosen before under this key; None when nothing usable is kept."""
    try:
        kept = json.loads((cache_folder() / f"engine-{key}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    engine = kept.get("engine") if isinstance(kept, dict) else None
    return engine if engine in allowed else None


def write_choice(key: str, engine: str, frame_ms: Mapping[str, float]) -> None:
    """Keep a choice with the figures behind it. A cache that cannot be written costs time at the next start, nothing else."""
    file = cache_folder() / f"engine-{key}.json"
    part = file.with_suffix(f".{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"engine": engine, "frame_ms": dict(frame_ms)}, indent=2) + "\n", encoding="utf-8")
        os.replace(part, file)
    except OSError:
        part.unlink(missing_ok=True)
