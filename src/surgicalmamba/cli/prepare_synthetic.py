"""`surgicalmamba prepare synthetic`: render operations with known answers, as a folder that `prepare custom` reads."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer


def synthetic(
    out: Annotated[Path | None, typer.Option(help="Folder for videos and labels: a new one, or one that the same call began.")] = None,
    videos: Annotated[int, typer.Option(min=1, max=9999, help="Operations to render.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 0,
    short: Annotated[bool, typer.Option("--short", help="About 4 minutes an operation instead of 35, in proportion.")] = False,
    fps: Annotated[int, typer.Option(min=1, max=60, help="Frames per second of the videos.")] = 5,
    workers: Annotated[int, typer.Option(min=1, help="Processes; each renders one operation at a time.")] = 1,
    contact_sheet: Annotated[Path | None, typer.Option(metavar="FILE", help="Also, or only, write a PNG of frames by phase.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of lines.")] = False,
) -> None:
    """A synthetic operating room: cholecystectomies of 7 phases, rendered here, as mp4 files with labels. See docs/synthetic.md.

    Example: surgicalmamba prepare synthetic --out synthetic --videos 2 --short
    """
    if out is None and contact_sheet is None:
        raise typer.BadParameter("say where to write: --out DIR, --contact-sheet FILE, or both.")
    from surgicalmamba.data.synthetic import operation, write_contact_sheet

    result: dict[str, object] = {"seed": seed}
    if contact_sheet is not None:
        write_contact_sheet(contact_sheet, seed)
        result["contact_sheet"] = str(contact_sheet)
    if out is not None:
        files = _write(out, videos, seed, short, fps, workers)
        frames = [operation(seed, number, short, fps).procedure.n_frames for number in range(videos)]
        result |= {"out": str(out), "videos": [file.name for file in files], "frames": frames, "fps": fps, "seconds": sum(frames) / fps}
    if json:
        typer.echo(json_module.dumps(result, indent=2))
        return
    if contact_sheet is not None:
        typer.echo(f"{contact_sheet}: frames of five operations, a column per phase")
    if out is not None:
        minutes = sum(frames) / fps / 60
        typer.echo(f"{out}: {videos} operations, {minutes:.1f} minutes, {sum(frames)} frames at {fps} per second, labels and phases.yaml")
        typer.echo(f"next: surgicalmamba prepare custom --source {out} --out {out}-prepared")


def _write(out: Path, videos: int, seed: int, short: bool, fps: int, workers: int) -> list[Path]:
    """Render with a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from surgicalmamba.data.synthetic import write_dataset
    from surgicalmamba.data.synthetic.recording import total_frames

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("synthetic", total=total_frames(videos, seed, short, fps))
        return write_dataset(out, videos, seed, short, fps, workers, lambda frames: progress.advance(bar, frames))
