"""Online surgical phase recognition with SurgicalMamba. Research software, not a medical device.

Public names are imported on first use, so that `import surgicalmamba` and the command line stay fast."""

from importlib import import_module
from typing import TYPE_CHECKING

from surgicalmamba.version import __version__

if TYPE_CHECKING:
    from surgicalmamba import data, peers
    from surgicalmamba.core.state import LaneState, ModelState
    from surgicalmamba.eval import metrics
    from surgicalmamba.eval.protocols import score
    from surgicalmamba.live.estimate import PhaseEstimate
    from surgicalmamba.live.session import Session, SessionPool
    from surgicalmamba.live.track import Policy
    from surgicalmamba.model.checkpoint import load, load_backbone
    from surgicalmamba.model.recognizer import Output, Recognizer, RecognizerConfig
    from surgicalmamba.model.registry import build, register
    from surgicalmamba.model.release import load_release
    from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba
    from surgicalmamba.server.client import Client
    from surgicalmamba.train import losses

_NAMES = {
    "core.state": ("LaneState", "ModelState"),
    "data": ("data",),
    "eval.metrics": ("metrics",),
    "eval.protocols": ("score",),
    "live.estimate": ("PhaseEstimate",),
    "live.session": ("Session", "SessionPool"),
    "live.track": ("Policy",),
    "model.checkpoint": ("load", "load_backbone"),
    "model.recognizer": ("Output", "Recognizer", "RecognizerConfig"),
    "model.registry": ("build", "register"),
    "model.release": ("load_release",),
    "model.surgical_mamba": ("ModelConfig", "SurgicalMamba"),
    "peers": ("peers",),
    "server.client": ("Client",),
    "train.losses": ("losses",),
}
_HOME = {name: f"surgicalmamba.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [
    "Client", "LaneState", "ModelConfig", "ModelState", "Output", "PhaseEstimate", "Policy", "Recognizer",
    "RecognizerConfig", "Session", "SessionPool", "SurgicalMamba", "__version__", "build", "data", "load",
    "load_backbone", "load_release", "losses", "metrics", "peers", "register", "score",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _HOME:
        public = ", ".join(__all__)
        raise AttributeError(f"module 'surgicalmamba' has no attribute {name!r}; public names: {public}")
    module = import_module(_HOME[name])
    value = module if _HOME[name].endswith(f".{name}") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
