"""Recognizers by name. Networks are imported when they are asked for, so nothing here imports a peer.

Names that a checkpoint may bring along are those of `BUILT_IN`, those given to `register`, and the classes that the user lists in the
environment as `SURGICALMAMBA_RECOGNIZERS=module:Class,...`: loading a checkpoint never imports a module that the checkpoint names."""

import difflib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from surgicalmamba.errors import ConfigError, SurgicalMambaError

if TYPE_CHECKING:
    from surgicalmamba.model.recognizer import AnyRecognizer

DEFAULT = "surgicalmamba"
OWN_RECOGNIZERS = "SURGICALMAMBA_RECOGNIZERS"


@dataclass(frozen=True)
class Entry:
    """Where a network is and the settings that its name stands for."""

    place: str
    """module:Class"""
    settings: Mapping[str, Any] = field(default_factory=dict)


BUILT_IN: dict[str, Entry] = {
    DEFAULT: Entry("surgicalmamba.model.surgical_mamba:SurgicalMamba"),
    "lstm": Entry("surgicalmamba.peers.lstm:CarriedLSTM"),
    "sv-rcnet": Entry("surgicalmamba.peers.sv_rcnet:SVRCNet"),
    "tecno": Entry("surgicalmamba.peers.tecno:TeCNO"),
    "tecno-9-64": Entry("surgicalmamba.peers.tecno:TeCNO", {"n_layers": 9, "n_maps": 64}),
    "mamba2": Entry("surgicalmamba.peers.mamba2:VanillaMamba2"),
    "mamba2-upstream": Entry("surgicalmamba.peers.mamba2:VanillaMamba2", {"form": "upstream", "d_state": 128}),
    "tmrnet": Entry("surgicalmamba.peers.tmrnet:TMRNet"),
    "trans-svnet": Entry("surgicalmamba.peers.trans_svnet:TransSVNet"),
    "opera": Entry("surgicalmamba.peers.opera:OperA"),
    "lovit": Entry("surgicalmamba.peers.lovit:LoViT"),
    "skit": Entry("surgicalmamba.peers.skit:SKiT"),
    "surgformer": Entry("surgicalmamba.peers.surgformer:Surgformer"),
    "dacat": Entry("surgicalmamba.peers.dacat:DACAT"),
    "sr-mamba": Entry("surgicalmamba.peers.sr_mamba:SRMamba"),
    "sr-mamba-forward": Entry("surgicalmamba.peers.sr_mamba:SRMambaForward"),
    "mttr-net": Entry("surgicalmamba.peers.mttr_net:MTTRNet"),
    "hmm": Entry("surgicalmamba.peers.hmm:FrameHMM"),
}
"""Every recognizer of the package. Two names of one network differ in their settings; a checkpoint says the network's own name."""

_registered: dict[str, "type[AnyRecognizer]"] = {}


def register(network: "type[AnyRecognizer]") -> "type[AnyRecognizer]":
    """Make a recognizer of your own known by its `name`: to build it, and to load its checkpoints. Usable as a decorator."""
    if network.name in BUILT_IN:
        raise ConfigError(f"{network.name!r} is the name of a recognizer of this package; give {network.__name__} another name.")
    _registered[network.name] = network
    return network


def names() -> list[str]:
    """Every name that `build` and a checkpoint may use."""
    return [*BUILT_IN, *_own()]


def _own() -> "dict[str, type[AnyRecognizer]]":
    """Recognizers the user has registered or listed in the environment."""
    listed = [text.strip() for text in os.environ.get(OWN_RECOGNIZERS, "").split(",") if text.strip()]
    networks = (import_network(place) for place in listed)
    return {**{network.name: network for network in networks}, **_registered}


def network_of(name: str) -> "type[AnyRecognizer]":
    """The class behind a name."""
    if name in BUILT_IN:
        return import_network(BUILT_IN[name].place)
    own = _own()
    if name not in own:
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names())}."
        raise ConfigError(f"unknown recognizer {name!r}: {hint} One of your own is named by {OWN_RECOGNIZERS}=module:Class.")
    return own[name]


def settings_of(name: str) -> dict[str, Any]:
    """The settings a name stands for, on top of the network's defaults."""
    return dict(BUILT_IN[name].settings) if name in BUILT_IN else {}


def import_network(place: str) -> "type[AnyRecognizer]":
    """The recognizer class at `module:Class`. Modules in the working folder count."""
    from surgicalmamba.model.recognizer import Recognizer

    module_name, colon, class_name = place.partition(":")
    if not colon or not module_name or not class_name:
        raise ConfigError(f"{place!r} names no recognizer; write module:Class, such as my_models:MyRecognizer.")
    if "/" in module_name or module_name.endswith(".py"):
        stem = module_name.rpartition("/")[2].removesuffix(".py")
        raise ConfigError(f"{place} names a file; write {stem}:{class_name} in the folder of {stem}.py, or with it in PYTHONPATH.")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        network = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{place} cannot be imported ({error}); check the name and the working folder.") from None
    except (Exception, SystemExit) as error:  # whatever foreign code does when it is imported
        raise ConfigError(f"{place} cannot be imported ({_in_one_line(error)}); mend {module_name}.") from error
    if not isinstance(network, type) or not issubclass(network, Recognizer):
        raise ConfigError(f"{place} is no recognizer; derive it from surgicalmamba.Recognizer.")
    for attribute in ("name", "config_class", "memory"):
        if not hasattr(network, attribute):
            raise ConfigError(f"{place} has no {attribute!r}; docs/peers.md shows what a recognizer states.")
    return network


def build(name: str, feature_width: int, n_phases: int, **settings: object) -> "AnyRecognizer":
    """A recognizer with fresh weights for features of this width. `settings` replace those of its config."""
    network = network_of(name)
    given = {"backbone": None, **settings_of(name), "d_feature": feature_width, "n_phases": n_phases, **settings}
    try:
        return network(network.config_class(**given))
    except SurgicalMambaError:
        raise
    except (Exception, SystemExit) as error:  # a network of the user's own, or settings that only torch refuses
        told = ", ".join(f"{key}={value}" for key, value in settings.items()) or "its own settings"
        raise ConfigError(f"{name} cannot be built with {told} ({_in_one_line(error)}).") from error


def _in_one_line(error: BaseException) -> str:
    """An error of foreign code: its kind and the first line of what it says."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
