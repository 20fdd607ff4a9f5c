"""Online surgical phase recognition with SurgicalMamba. Research software, not a medical device.

Public names are imported on first use, so that `import surgicalmamba` and the command line stay fast."""

from importlib import import_module
from typing import TYPE_CHECKING

from surgicalmamba.version import __version__

if TYPE_CHECKING:
    from surgicalmamba.config import ModelConfig as ModelConfig
    from surgicalmamba.eval import metrics as metrics
    from surgicalmamba.eval.protocols import score as score

_HOME = {
    "ModelConfig": "surgicalmamba.config",
    "metrics": "surgicalmamba.eval.metrics",
    "score": "surgicalmamba.eval.protocols",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'surgicalmamba' has no attribute {name!r}; public names: {', '.join(sorted(_HOME))}")
    home = import_module(_HOME[name])
    value = home if _HOME[name].endswith(f".{name}") else getattr(home, name)  # a public module is its own home
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
