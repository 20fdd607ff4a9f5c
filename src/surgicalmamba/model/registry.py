"""Recognizers by name. A network is imported when it is asked for, so nothing imports all peers.

A checkpoint may name a network of `BUILT_IN`, one passed to `register`, or a class that the user lists in the
environment as `SURGICALMAMBA_RECOGNIZERS=module:Class,...`. A module that only a checkpoint names is never
imported."""

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
    """Where a network is, as module:Class, and the settings that its name stands for."""

    place: str
    settings: Mapping[str, Any] = field(default_factory=dict)


BUILT_IN: dict[str, Entry] = {
    DEFAULT: Entry("surgicalmamba.model.surgical_mamba:SurgicalMamba"),
    "lstm": Entry("surgicalmamba.peers.lstm:CarriedLSTM"),
    "sv-rcnet": Entry("surgicalmamba.peers.sv_rcnet:SVRCNet"),
    "tecno": Entry("surgicalmamba.peers.tecno:TeCNO"),
    "tecno-9-64": Entry("surgicalmamba.peers.tecno:TeCNO", {"n_layers": 9, "n_maps": 64}),
    "mamba2": Entry("surgicalmamba.peers.mamba2:VanillaMamba2"),
    "mamba2-upstream": Entry(
        "surgicalmamba.peers.mamba2:VanillaMamba2", {"form": "upstream", "d_state": 128}
    ),
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
"""Recognizers of the package. Names of one network differ in settings; checkpoints store `network.name`."""

_registered: dict[str, "type[AnyRecognizer]"] = {}


def register(network: "type[AnyRecognizer]") -> "type[AnyRecognizer]":
    """Add a recognizer under its `name`, to build it and load its checkpoints. Usable as a decorator."""
    if network.name in BUILT_IN:
        remedy = f"give {network.__name__} another name"
        raise ConfigError(f"{network.name!r} is the name of a recognizer of this package; {remedy}.")
    _registered[network.name] = network
    return network


def names() -> list[str]:
    """Every name that `build` and a checkpoint may use."""
    return [*BUILT_IN, *_users_networks()]


def network_of(name: str) -> "type[AnyRecognizer]":
    """The class with this name."""
    if name in BUILT_IN:
        return import_network(BUILT_IN[name].place)
    networks = _users_networks()
    if name not in networks:
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names())}."
        remedy = f"Your own network needs {OWN_RECOGNIZERS}=module:Class."
        raise ConfigError(f"unknown recognizer {name!r}: {hint} {remedy}")
    return networks[name]


def _users_networks() -> "dict[str, type[AnyRecognizer]]":
    """Recognizers that the user has registered or listed in the environment."""
    places = [text.strip() for text in os.environ.get(OWN_RECOGNIZERS, "").split(",") if text.strip()]
    return {network.name: network for network in map(import_network, places)} | _registered


def settings_of(name: str) -> dict[str, Any]:
    """The settings a name stands for, on top of the network's defaults."""
    return dict(BUILT_IN[name].settings) if name in BUILT_IN else {}


def import_network(place: str) -> "type[AnyRecognizer]":
    """The recognizer class at `module:Class`, also from the working folder."""
    from surgicalmamba.model.recognizer import Recognizer

    module_name, colon, class_name = place.partition(":")
    if not colon or not module_name or not class_name:
        raise ConfigError(f"{place!r} names no recognizer; write module:Class, such as my_models:MyNet.")
    if "/" in module_name or module_name.endswith(".py"):
        stem = module_name.rpartition("/")[2].removesuffix(".py")
        where = f"in the folder of {stem}.py, or with it in PYTHONPATH"
        raise ConfigError(f"{place} names a file; write {stem}:{class_name} {where}.")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        network = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{place} cannot be imported ({error}); check name and working folder.") from None
    except (Exception, SystemExit) as error:  # foreign code may do anything when it is imported
        problem = _in_one_line(error)
        raise ConfigError(f"{place} cannot be imported ({problem}); fix {module_name}.") from error
    if not isinstance(network, type) or not issubclass(network, Recognizer):
        raise ConfigError(f"{place} is no recognizer; derive it from surgicalmamba.Recognizer.")
    for attribute in ("name", "config_class", "memory"):
        if not hasattr(network, attribute):
            raise ConfigError(f"{place} has no {attribute!r}; docs/peers.md shows what a recognizer needs.")
    return network


def build(name: str, feature_width: int, n_phases: int, **settings: object) -> "AnyRecognizer":
    """A recognizer with fresh weights for features of this width. `settings` replace those of its config."""
    network = network_of(name)
    inputs = {"backbone": None, **settings_of(name), "d_feature": feature_width, "n_phases": n_phases}
    try:
        return network(network.config_class(**{**inputs, **settings}))
    except SurgicalMambaError:
        raise
    except (Exception, SystemExit) as error:  # a user's network, or settings that only torch rejects
        shown = ", ".join(f"{key}={value}" for key, value in settings.items()) or "its default settings"
        raise ConfigError(f"{name} cannot be built with {shown} ({_in_one_line(error)}).") from error


def _in_one_line(error: BaseException) -> str:
    """The class of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
