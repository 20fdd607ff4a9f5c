"""Online surgical phase recognition with SurgicalMamba. Research software, not a medical device.

Public names are imported on first use, so that `import surgicalmamba` and the command line stay fast."""

from importlib import import_module
from typing import TYPE_CHECKING

from surgicalmamba.version import __version__

if TYPE_CHECKING:
    from surgicalmamba.config import ModelConfig as ModelConfig

_HOME = {
    "ModelConfig": "surgicalmamba.config",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'surgicalmamba' has no attribute {name!r}; public names: {', '.join(sorted(_HOME))}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
