"""`surgicalmamba prepare DATASET`: videos and annotations to a prepared dataset. One subcommand per dataset."""

import json as json_module
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from surgicalmamba.data.prepare import Outcome


# `surgicalmamba prepare synthetic`: render operations with known answers, as a folder that `prepare custom` reads.


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


class BackboneEncoder:
    """A checkpoint's backbone as an encoder of prepared pictures. `name` is the hash of its weights, so other weights are told stale."""

    def __init__(self, checkpoint: str) -> None:
        from importlib import import_module

        from surgicalmamba.data.manifest import fingerprint

        self._model = import_module("surgicalmamba").load(checkpoint)
        weights = Path(checkpoint) / "model.safetensors"
        self.name = fingerprint(weights).sha256 if weights.is_file() else checkpoint

    def __call__(self, rgb: "NDArray[np.uint8]") -> "NDArray[np.float32]":
        import numpy as np
        import torch

        from surgicalmamba.data.transforms import WholeFrame, normalise

        backbone = self._model.config.backbone
        pictures = torch.from_numpy(WholeFrame(backbone.image_size).clip(rgb))
        with torch.inference_mode():
            return np.asarray(self._model.encode(normalise(pictures, backbone.mean_rgb, backbone.std_rgb)), np.float32)


prepare = typer.Typer(no_args_is_help=True, help="Turn a public dataset, or your own folder, into checked training data.")

DATASETS = {
    "cholec80": "Cholec80: 80 cholecystectomies, 7 phases.",
    "m2cai16": "M2CAI16-workflow: 41 cholecystectomies, 8 phases.",
    "cataract101": "Cataract-101: 101 cataract operations, 10 phases.",
    "autolaparo": "AutoLaparo task 1: 21 hysterectomies, 7 phases.",
    "heichole": "HeiChole: 24 public cholecystectomies, 7 phases.",
    "heico": "HeiCo: 30 colorectal operations, 14 phases.",
    "grasp": "GraSP: 13 robot-assisted prostatectomies, 11 phases.",
    "custom": "Your own videos with a phases.yaml and a label file per video.",
    "cholec80-tools": "Cholec80's tool presence as 7 inputs, phases as labels (features).",
    "jigsaws": "JIGSAWS kinematics and gestures, leave one user out (features).",
    "features": "Your own .npy or .npz features with labels.",
}

Source = Annotated[Path, typer.Option(help="The dataset as downloaded.")]
Out = Annotated[Path, typer.Option(help="The prepared dataset: a new folder, or one that an earlier call began.")]
Fps = Annotated[str | None, typer.Option(help="Samples per second, such as 1, 0.5 or 30000/1001. Default: 1; features: their own rate.")]
Box = Annotated[str, typer.Option(help="How the dark margin is cut: inclusive, exclusive, all-columns or none.")]
Size = Annotated[int, typer.Option(help="Height and width of the stored images.")]
Tolerance = Annotated[int, typer.Option(min=0, help="Samples by which a video and its labels may differ in length.")]
Exclude = Annotated[list[str] | None, typer.Option(help="Leave this video out; may be given several times.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes. Default: one per core.")]
Features = Annotated[str | None, typer.Option(metavar="CHECKPOINT", help="Store this checkpoint's backbone features instead of images.")]
Rebuild = Annotated[bool, typer.Option("--rebuild", help="Throw away a dataset that was made with other settings or videos.")]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON object instead of lines.")]


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
        from surgicalmamba.data.records import parse_fps

        encoder = None if features is None else BackboneEncoder(features)
        rule: BoxRule = box  # type: ignore[assignment]  # Preprocess refuses anything else
        request = Request(
            dataset,
            source,
            out,
            None if fps is None else parse_fps(fps),
            Preprocess(rule, size),
            tolerance,
            tuple(exclude or ()),
            workers or os.cpu_count() or 1,
            rebuild,
            encoder,
        )
        outcome = _with_progress(request)
        _tell(outcome, out, json)
        if outcome.failures:
            raise typer.Exit(1)

    text = f"{DATASETS[dataset]} See docs/datasets.md.\n\nExample: surgicalmamba prepare {dataset} --source DOWNLOAD --out PREPARED"
    prepare.command(dataset, help=text, short_help=DATASETS[dataset])(run)


for _name in DATASETS:
    _command(_name)
prepare.command("synthetic", short_help="A synthetic operating room, rendered here: videos and labels for `prepare custom`.")(synthetic)


def _with_progress(request: object) -> "Outcome":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from surgicalmamba.data.prepare import Request, prepare

    assert isinstance(request, Request)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(request.dataset, total=None)
        return prepare(request, lambda done, total: progress.update(bar, completed=done, total=max(total, 1.0)))


def _tell(outcome: "Outcome", out: Path, json: bool) -> None:
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
        typer.echo("Mend them and run the same command again (finished videos are kept), or leave them out with --exclude.")
        return
    typer.echo(f"{out}: {outcome.n_videos} videos ready ({len(outcome.prepared)} prepared, {len(outcome.kept)} already there)")

