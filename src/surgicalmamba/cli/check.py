"""`surgicalmamba check`: look over a source folder or a prepared dataset, or a recognizer."""

import json as json_module
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from surgicalmamba.model.recognizer import AnyRecognizer
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    from surgicalmamba.data.check import CheckReport, VideoCheck


# `surgicalmamba check --model`: whether a recognizer keeps the contract of streaming.


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


def check(
    folder: Annotated[Path | None, typer.Argument(help="A dataset as downloaded, your own folder, or a prepared dataset.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Which dataset a source folder holds. Default: found out by its files.")] = None,
    source: Annotated[Path | None, typer.Option(help="For a prepared dataset: its source, to tell whether it is stale.")] = None,
    tolerance: Annotated[int, typer.Option(min=0, help="Samples by which a video and its labels may differ in length.")] = 2,
    model: Annotated[str | None, typer.Option(help="Check a recognizer instead: a checkpoint, a peer's name, or module:Class.")] = None,
    settings: Annotated[list[str] | None, typer.Option(help="With --model: key=value for a network built anew; repeatable.")] = None,
    frames: Annotated[int, typer.Option(min=10, help="With --model: frames of the sequences compared.")] = 150,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a table.")] = False,
) -> None:
    """Show per video what is there and what is wrong: frames, labels, absent phases, unlabelled stretches, duplicates, split overlap.

    With --model: whether a recognizer keeps the contract of streaming (docs/peers.md), one line per check. Exits 1 when something is
    wrong.

    Example: surgicalmamba check PREPARED
    """
    if (folder is None) == (model is None):
        raise typer.BadParameter("give a folder to look over, or --model to check a recognizer.")
    if model is not None:
        check_model(model, settings or [], frames, json)
        return
    assert folder is not None
    from rich.console import Console
    from rich.progress import Progress

    from surgicalmamba.data.check import check as look_over

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("checking", total=None)
        report = look_over(folder, dataset, source, tolerance, lambda done, total: progress.update(bar, completed=done, total=total))
    if json:
        fields = asdict(report) | {"ok": not report.has_errors}
        typer.echo(json_module.dumps(fields, indent=2))
    else:
        _print(report)
    if report.has_errors:
        raise typer.Exit(1)


def _print(report: "CheckReport") -> None:
    """A table without colour codes when nobody watches, full width when piped."""
    typer.echo(f"{report.folder}: {report.dataset}, {report.state}, {len(report.videos)} videos")
    rows: list[tuple[str, ...]] = [("video", "frames", "fps", "samples", "labelled", "off by", "unlabelled", "absent phases")]
    rows += [_cells(video) for video in report.videos]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows if len(rows) > 1 else []:
        padded = [cell.ljust(w) if i in (0, 7) else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        typer.echo("  ".join(padded).rstrip())
    for problem in sorted(report.problems, key=lambda p: p.level):
        typer.echo(f"{problem.level}: {problem.message}")
    n_errors = sum(problem.level == "error" for problem in report.problems)
    typer.echo(f"{n_errors} errors, {len(report.problems) - n_errors} warnings")


def _cells(video: "VideoCheck") -> tuple[str, ...]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    lost_s = "" if not video.unlabelled_s else f"{len(video.unlabelled_s)} x, from {video.unlabelled_s[0][0]:g} s"
    counts = (video.frames, video.fps, video.samples, video.labelled, video.mismatch)
    return (video.id, *(number(value) for value in counts), lost_s, ", ".join(video.absent_phases))

