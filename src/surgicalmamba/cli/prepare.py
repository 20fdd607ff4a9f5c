"""`surgicalmamba prepare DATASET`: videos and annotations to a prepared dataset. A subcommand per dataset."""

import json as json_module
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from surgicalmamba.data.adapters import ADAPTERS

if TYPE_CHECKING:
    from surgicalmamba.data.prepare import BackboneEncoder, Outcome

_HELP = "Turn a public dataset, or your own folder, into checked training data."
prepare = typer.Typer(no_args_is_help=True, help=_HELP)

Source = Annotated[Path, Option(help="The dataset as downloaded.")]
Out = Annotated[Path, Option(help="The prepared dataset: a new folder, or one to resume.")]
Fps = Annotated[str | None, Option(help="Samples per second, such as 0.5 or 30000/1001. Default: 1.")]
Box = Annotated[str, Option(help="How to cut the dark margin: inclusive, exclusive, all-columns or none.")]
Size = Annotated[int, Option(help="Height and width of the stored images.")]
Tolerance = Annotated[int, Option(min=0, help="Samples by which a video and its labels may differ.")]
Exclude = Annotated[list[str] | None, Option(help="Leave this video out; repeatable.")]
Workers = Annotated[int | None, Option(min=1, help="Processes. Default: one per core.")]
Features = Annotated[str | None, Option(metavar="CHECKPOINT", help="Store its features instead of images.")]
Rebuild = Annotated[bool, Option("--rebuild", help="Delete a dataset made with other settings or videos.")]
Json = Annotated[bool, Option("--json", help="Print a JSON object instead of lines.")]


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float, float], None]]:
    """A progress bar on stderr if that is a terminal. Yields the function that sets it to (done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=max(total, 1))


def _command(dataset: str) -> None:
    def run(
        source: Source,
        out: Out,
        fps: Fps = None,
        box: Box = "inclusive",
        size: Size = 250,
        tolerance: Tolerance = 2,
        exclude: Exclude = None,
        workers: Workers = None,
        features: Features = None,
        rebuild: Rebuild = False,
        json: Json = False,
    ) -> None:
        from surgicalmamba.data.pictures import BoxRule, Preprocess
        from surgicalmamba.data.prepare import Request
        from surgicalmamba.data.prepare import prepare as prepare_dataset
        from surgicalmamba.data.records import parse_fps

        rate = None if fps is None else parse_fps(fps)
        rule: BoxRule = box  # type: ignore[assignment]  # Preprocess rejects anything else
        preprocess, excluded = Preprocess(rule, size), tuple(exclude or ())
        n, encoder = workers or os.cpu_count() or 1, None if features is None else open_encoder(features)
        request = Request(dataset, source, out, rate, preprocess, tolerance, excluded, n, rebuild, encoder)
        with progress_bar(dataset) as progress:
            outcome = prepare_dataset(request, progress)
        _print(outcome, out, json)
        if outcome.failures:
            raise typer.Exit(1)

    example = f"Example: surgicalmamba prepare {dataset} --source DOWNLOAD --out PREPARED"
    _, summary = ADAPTERS[dataset]
    prepare.command(dataset, help=f"{summary} See docs/datasets.md.\n\n{example}", short_help=summary)(run)


for _name in ADAPTERS:
    _command(_name)


def open_encoder(checkpoint: str) -> "BackboneEncoder":
    """The frame encoder of a checkpoint. Its name is the hash of the weights, so that other weights make a
    dataset stale."""
    import surgicalmamba
    from surgicalmamba.data.manifest import fingerprint
    from surgicalmamba.data.prepare import BackboneEncoder
    from surgicalmamba.errors import ConfigError
    from surgicalmamba.model.checkpoint import WEIGHTS_FILE

    model, weights = surgicalmamba.load(checkpoint), Path(checkpoint) / WEIGHTS_FILE
    name = fingerprint(weights).sha256 if weights.is_file() else checkpoint
    backbone = model.config.backbone
    if backbone is None:
        raise ConfigError(f"{checkpoint} has no frame encoder; give a checkpoint whose input is images.")
    return BackboneEncoder(name, model.encode, backbone.image_size, backbone.mean_rgb, backbone.std_rgb)


def _print(outcome: "Outcome", out: Path, json: bool) -> None:
    if json:
        typer.echo(json_module.dumps(vars(outcome), indent=2))
        return
    for warning in outcome.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if outcome.failures:
        width = max(len(video) for video in outcome.failures)
        typer.echo(f"{len(outcome.failures)} of {outcome.n_videos} videos failed; the dataset is unfinished:")
        for video, message in outcome.failures.items():
            typer.echo(f"  {video:<{width}}  {message}")
        typer.echo("Fix them and run the same command again (finished videos are kept), or use --exclude.")
        return
    counts = f"{len(outcome.prepared)} prepared, {len(outcome.kept)} already there"
    typer.echo(f"{out}: {outcome.n_videos} videos ready ({counts})")


@prepare.command(short_help="A synthetic operating room: videos and labels for `prepare custom`.")
def synthetic(
    out: Annotated[Path | None, Option(help="Folder for videos and labels: new, or to resume.")] = None,
    videos: Annotated[int, Option(min=1, max=9999, help="Operations to render.")] = 8,
    seed: Annotated[int, Option(min=0, help="The same seed gives the same bytes.")] = 0,
    short: Annotated[bool, Option("--short", help="About 4 minutes an operation instead of 35.")] = False,
    fps: Annotated[int, Option(min=1, max=60, help="Frames per second of the videos.")] = 5,
    workers: Annotated[int, Option(min=1, help="Processes; each renders one operation at a time.")] = 1,
    contact_sheet: Annotated[Path | None, Option(metavar="FILE", help="A PNG of frames by phase.")] = None,
    json: Json = False,
) -> None:
    """A synthetic operating room: cholecystectomies of 7 phases, rendered here, as mp4 files with labels.
    See docs/synthetic.md.

    Example: surgicalmamba prepare synthetic --out synthetic --videos 2 --short
    """
    if out is None and contact_sheet is None:
        raise typer.BadParameter("nothing to write: give --out DIR, --contact-sheet FILE, or both.")
    from surgicalmamba.data.synthetic import operation, write_contact_sheet, write_dataset

    result: dict[str, object] = {"seed": seed}
    lines = []
    if contact_sheet is not None:
        write_contact_sheet(contact_sheet, seed)
        result["contact_sheet"] = str(contact_sheet)
        lines.append(f"{contact_sheet}: frames of five operations, a column per phase")
    if out is not None:
        frames = [operation(seed, number, short, fps).procedure.n_frames for number in range(videos)]
        n, done = sum(frames), 0
        with progress_bar("synthetic") as progress:

            def advance(n_frames: int) -> None:
                nonlocal done
                done += n_frames
                progress(done, n)

            files = [file.name for file in write_dataset(out, videos, seed, short, fps, workers, advance)]
        result |= {"out": str(out), "videos": files, "frames": frames, "fps": fps, "seconds": n / fps}
        made = f"{videos} operations, {n / fps / 60:.1f} minutes, {n} frames at {fps} per second"
        lines.append(f"{out}: {made}, labels and phases.yaml")
        lines.append(f"next: surgicalmamba prepare custom --source {out} --out {out}-prepared")
    typer.echo(json_module.dumps(result, indent=2) if json else "\n".join(lines))
