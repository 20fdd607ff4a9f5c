"""`surgicalmamba check`: find faults in a source folder, a prepared dataset or a recognizer."""

import json as json_module
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from surgicalmamba.cli.prepare import Tolerance, progress_bar

if TYPE_CHECKING:
    from surgicalmamba.data.check import CheckReport, VideoCheck
    from surgicalmamba.model.recognizer import AnyRecognizer


def check(
    folder: Annotated[Path | None, Argument(help="A dataset as downloaded, or a prepared one.")] = None,
    dataset: Annotated[str | None, Option(help="Dataset of a source folder. Default: by its files.")] = None,
    source: Annotated[Path | None, Option(help="Source of a prepared dataset: check if it is stale.")] = None,
    tolerance: Tolerance = 2,
    model: Annotated[str | None, Option(help="Check a checkpoint, a peer by name, or module:Class.")] = None,
    settings: Annotated[list[str] | None, Option(help="With --model: key=value for a new network.")] = None,
    frames: Annotated[int, Option(min=10, help="With --model: length of the test sequences, frames.")] = 150,
    json: Annotated[bool, Option("--json", help="Print a JSON object instead of a table.")] = False,
) -> None:
    """List the videos with their frames and labels, and every error: absent phases, unlabelled stretches,
    duplicates, overlap of splits.

    With --model: check that a recognizer keeps the streaming contract (docs/peers.md), one line per check.
    The exit code is 1 if there is an error.

    Example: surgicalmamba check PREPARED
    """
    if (folder is None) == (model is None):
        raise typer.BadParameter("give a folder to check, or --model to check a recognizer.")
    if folder is None:
        _check_model(model or "", settings or [], frames, json)
        return
    from surgicalmamba.data.check import check as check_data

    with progress_bar("checking") as progress:
        report = check_data(folder, dataset, source, tolerance, progress)
    if json:
        typer.echo(json_module.dumps(asdict(report) | {"ok": not report.has_errors}, indent=2))
    else:
        _print(report)
    if report.has_errors:
        raise typer.Exit(1)


def _print(report: "CheckReport") -> None:
    """A plain table, at full width even when piped."""
    typer.echo(f"{report.folder}: {report.dataset}, {report.state}, {len(report.videos)} videos")
    header = ("video", "frames", "fps", "samples", "labelled", "off by", "unlabelled", "absent phases")
    rows: list[tuple[str, ...]] = [header, *map(_cells, report.videos)] if report.videos else []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *middle, _ = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join([row[0].ljust(len(first)), *middle, row[-1]]).rstrip())
    for problem in sorted(report.problems, key=lambda p: p.level):
        typer.echo(f"{problem.level}: {problem.message}")
    n_errors = sum(problem.level == "error" for problem in report.problems)
    typer.echo(f"{n_errors} errors, {len(report.problems) - n_errors} warnings")


def _cells(video: "VideoCheck") -> tuple[str, ...]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    gaps = video.unlabelled_s
    lost_s = f"{len(gaps)} x, from {gaps[0][0]:g} s" if gaps else ""
    counts = (video.frames, video.fps, video.samples, video.labelled, video.mismatch)
    return (video.id, *(number(value) for value in counts), lost_s, ", ".join(video.absent_phases))


def _check_model(model: str, settings: list[str], frames: int, json: bool) -> None:
    """Print a line per check; exit with 1 if one fails. Output of the network itself is sent to stderr."""
    from surgicalmamba.peers.conformance import conformance

    results = sys.stdout
    with redirect_stdout(sys.stderr):
        network = _open(model, settings)
        findings = []
        if not json:
            n_weights = sum(p.numel() for p in network.parameters())
            kind = type(network).__name__
            typer.echo(f"{model}: {kind}, {n_weights:,} weights, memory {network.memory}", file=results)
        for finding in conformance(network, frames):
            findings.append(finding)
            if not json:
                typer.echo(finding.text(), file=results)
    ok = all(finding.ok for finding in findings)
    if json:
        document = {"model": model, "ok": ok, "checks": [finding.as_dict() for finding in findings]}
        typer.echo(json_module.dumps(document, indent=2))
    if not ok:
        raise typer.Exit(1)


def _open(model: str, settings: list[str]) -> "AnyRecognizer":
    """Load a checkpoint or run folder, or build a network by its registered name or module:Class."""
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
            raise typer.BadParameter("--settings are for a new network; a checkpoint contains its own.")
        return load(folder)
    if ":" not in model and len(folder.parts) > 1:
        raise ConfigError(f"{model} is not a folder; give a checkpoint, a peer's name, or module:Class.")
    if ":" not in model and folder.with_suffix(".py").is_file():
        raise ConfigError(f"{model} is a Python file; also name the class, as {folder.stem}:Class.")
    name = register(import_network(model)).name if ":" in model else model
    values = {"d_feature": FEATURE_WIDTH, "n_phases": N_PHASES, **override({}, settings)}
    width, n_phases = values.pop("d_feature"), values.pop("n_phases")
    if not isinstance(width, int) or not isinstance(n_phases, int):
        raise typer.BadParameter("d_feature and n_phases are whole numbers.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same command prints the same result
        return stir(build(name, width, n_phases, **values))
