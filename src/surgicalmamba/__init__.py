"""Online surgical phase recognition with SurgicalMamba. Research software, not a medical device.

Public names are imported on first use, so that `import surgicalmamba` and the command line stay fast."""

from importlib import import_module
from typing import TYPE_CHECKING

from surgicalmamba.version import __version__

if TYPE_CHECKING:
    from surgicalmamba.config import ModelConfig as ModelConfig
    from surgicalmamba.core.state import ModelState as ModelState
    from surgicalmamba.model.checkpoint import load as load
    from surgicalmamba.model.checkpoint import load_backbone as load_backbone
    from surgicalmamba.model.recognizer import Output as Output
    from surgicalmamba.model.release import load_release as load_release
    from surgicalmamba.model.surgical_mamba import SurgicalMamba as SurgicalMamba
    from surgicalmamba.train import losses as losses

_HOME = {
    "ModelConfig": "surgicalmamba.config",
    "ModelState": "surgicalmamba.core.state",
    "Output": "surgicalmamba.model.recognizer",
    "SurgicalMamba": "surgicalmamba.model.surgical_mamba",
    "load": "surgicalmamba.model.checkpoint",
    "load_backbone": "surgicalmamba.model.checkpoint",
    "load_release": "surgicalmamba.model.release",
}
_MODULES = {
    "losses": "surgicalmamba.train.losses",
}

__all__ = ["__version__", *sorted(_HOME), *sorted(_MODULES)]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        value: object = import_module(_MODULES[name])
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'surgicalmamba' has no attribute {name!r}; public names: {', '.join(__all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
