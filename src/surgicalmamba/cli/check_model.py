"""`surgicalmamba check --model`: whether a recognizer keeps the contract of streaming."""

import json as json_module
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from surgicalmamba.model.recognizer import AnyRecognizer


def check_model(model: str, settings: list[str], frames: int, json: bool) -> None:
    """Print a line per check; exit 1 when one fails. What the network itself prints goes to stderr."""
    from surgicalmamba.peers.conformance import conformance

    results = sys.stdout
    with redirect_stdout(sys.stderr):
        network = _open(model, settings)
        findings = []
        if not json:
            n_weights = sum(p.numel() for p in network.parameters())
            typer.echo(f"{model}: {type(network).__name__}, {n_weights:,} weights, memory {network.memory}", file=results)
        for finding in conformance(network, frames):
            findings.append(finding)
            if not json:
                typer.echo(finding.text(), file=results)
    ok = all(finding.ok for finding in findings)
    if json:
        typer.echo(json_module.dumps({"model": model, "ok": ok, "checks": [f.as_dict() for f in findings]}, indent=2))
    if not ok:
        raise typer.Exit(1)


def _open(model: str, settings: list[str]) -> "AnyRecognizer":
    """A checkpoint or run folder, a name of the registry, or module:Class with settings of its own."""
    import torch

    from surgicalmamba.config import override
    from surgicalmamba.errors import ConfigError
    from surgicalmamba.model.checkpoint import load
    from surgicalmamba.model.registry import build, import_network, register
    from surgicalmamba.peers.conformance import FEATURE_WIDTH, N_PHASES, stir

    folder = Path(model)
    if not model.strip():
        raise typer.BadParameter("--model is empty; give a checkpoint, a peer's name, or module:Class.")
    if folder.is_dir():
        if settings:
            raise typer.BadParameter("--settings are for a network with fresh weights; a checkpoint has its own.")
        return load(folder)
    if ":" not in model and len(folder.parts) > 1:
        raise ConfigError(f"{model} is no folder; give a checkpoint or run folder, a peer's name, or module:Class.")
    if ":" not in model and folder.with_suffix(".py").is_file():
        raise ConfigError(f"{model} is a file of Python; name the class in it too, {folder.stem}:Class.")
    name = register(import_network(model)).name if ":" in model else model
    given = {"d_feature": FEATURE_WIDTH, "n_phases": N_PHASES, **override({}, settings)}
    width, n_phases = given.pop("d_feature"), given.pop("n_phases")
    if not isinstance(width, int) or not isinstance(n_phases, int):
        raise typer.BadParameter("d_feature and n_phases are whole numbers.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same call says the same
        return stir(build(name, width, n_phases, **given))
