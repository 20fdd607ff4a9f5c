"""Online surgical phase recognition with SurgicalMamba. Research software, not a medical device.

Public names are imported on first use, so that `import surgicalmamba` and the command line stay fast."""

from importlib import import_module
from typing import TYPE_CHECKING

from surgicalmamba.version import __version__

if TYPE_CHECKING:
    from surgicalmamba import data as data
    from surgicalmamba import peers as peers
    from surgicalmamba.core.state import LaneState as LaneState
    from surgicalmamba.core.state import ModelState as ModelState
    from surgicalmamba.eval import metrics as metrics
    from surgicalmamba.eval.protocols import score as score
    from surgicalmamba.live.estimate import PhaseEstimate as PhaseEstimate
    from surgicalmamba.live.session import Session as Session
    from surgicalmamba.live.session import SessionPool as SessionPool
    from surgicalmamba.live.track import Policy as Policy
    from surgicalmamba.model.checkpoint import load as load
    from surgicalmamba.model.checkpoint import load_backbone as load_backbone
    from surgicalmamba.model.recognizer import Output as Output
    from surgicalmamba.model.recognizer import Recognizer as Recognizer
    from surgicalmamba.model.recognizer import RecognizerConfig as RecognizerConfig
    from surgicalmamba.model.registry import build as build
    from surgicalmamba.model.registry import register as register
    from surgicalmamba.model.release import load_release as load_release
    from surgicalmamba.model.surgical_mamba import ModelConfig as ModelConfig
    from surgicalmamba.model.surgical_mamba import SurgicalMamba as SurgicalMamba
    from surgicalmamba.server.client import Client as Client
    from surgicalmamba.train import losses as losses

_HOME = {
    "Client": "surgicalmamba.server.client",
    "ModelConfig": "surgicalmamba.model.surgical_mamba",
    "ModelState": "surgicalmamba.core.state",
    "Output": "surgicalmamba.model.recognizer",
    "PhaseEstimate": "surgicalmamba.live.estimate",
    "Policy": "surgicalmamba.live.track",
    "Recognizer": "surgicalmamba.model.recognizer",
    "RecognizerConfig": "surgicalmamba.model.recognizer",
    "Session": "surgicalmamba.live.session",
    "SessionPool": "surgicalmamba.live.session",
    "SurgicalMamba": "surgicalmamba.model.surgical_mamba",
    "LaneState": "surgicalmamba.core.state",
    "build": "surgicalmamba.model.registry",
    "data": "surgicalmamba.data",
    "load": "surgicalmamba.model.checkpoint",
    "load_backbone": "surgicalmamba.model.checkpoint",
    "load_release": "surgicalmamba.model.release",
    "losses": "surgicalmamba.train.losses",
    "metrics": "surgicalmamba.eval.metrics",
    "peers": "surgicalmamba.peers",
    "register": "surgicalmamba.model.registry",
    "score": "surgicalmamba.eval.protocols",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'surgicalmamba' has no attribute {name!r}; public names: {', '.join(__all__)}")
    home = import_module(_HOME[name])
    value = home if _HOME[name].endswith(f".{name}") else getattr(home, name)  # a public module is its own home
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
