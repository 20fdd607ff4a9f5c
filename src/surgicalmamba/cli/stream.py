"""`surgicalmamba stream`: a camera, a file or a network stream becomes phase estimates."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer


def stream(
    source: Annotated[str, typer.Argument(help="A video file, an image folder, rtsp://..., http://..., device:0, or - for a pipe.")],
    model: Annotated[str | None, typer.Option(help="Checkpoint folder, run folder or Hub id. Default: the demo model.")] = None,
    engine: Annotated[str, typer.Option(help="auto, or the name of an engine.")] = "auto",
    realtime: Annotated[bool, typer.Option("--realtime", help="Play a recording at its own pace; what is late is dropped.")] = False,
    out: Annotated[list[Path] | None, typer.Option(help="FILE.jsonl (line by line) or FILE.csv (for evaluate); repeatable.")] = None,
    overlay: Annotated[Path | None, typer.Option(help="Write a video with the phase ribbon, such as OUT.mp4.")] = None,
    fps: Annotated[str | None, typer.Option(help="Samples per second. Default: the model's.")] = None,
    source_fps: Annotated[str | None, typer.Option(help="Images per second of an image folder. Default: one sample each.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="hold, skip or advance for all bad frames, or KIND=ACTION such as black=hold; repeatable.")
    ] = None,
    output_stage: Annotated[Path | None, typer.Option(help="Calibration and filter, written by predict --fit-output.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of text.")] = False,
) -> None:
    """Recognize phases as the pictures come. Ctrl-C ends a session and completes its files.

    A file, folder or pipe is read without loss. A live source, or a file with --realtime, is never waited for: the newest picture is
    always the next one, and ticks whose picture was dropped are counted as late.

    Example: surgicalmamba stream synthetic/video01.mp4 --model runs/tiny --out video01.jsonl --overlay video01.mp4
    """
    files = out or []
    for file in files:
        if file.suffix.lower() not in (".jsonl", ".csv"):
            raise typer.BadParameter(f"{file}: --out takes a .jsonl or a .csv file.")
    if overlay is not None and overlay.suffix.lower() not in (".mp4", ".mkv", ".mov"):
        raise typer.BadParameter(f"{overlay}: --overlay takes a .mp4, .mkv or .mov file.")

    from surgicalmamba.data.sampling import parse_fps
    from surgicalmamba.errors import ConfigError
    from surgicalmamba.stream.job import Job, parse_policy

    try:
        rates = [None if text is None else parse_fps(text) for text in (fps, source_fps)]
        chosen = parse_policy(policy or [])
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None

    from surgicalmamba.cli.watch import Watch
    from surgicalmamba.train.distributed import pick_device

    job = Job.open(source, model, engine, rates[0], rates[1], chosen, output_stage, pick_device(device))
    with Watch(job.timeline, job.source.duration_s, source) as watch:
        result = job.run(files, overlay, realtime, watch)
    if json:
        typer.echo(json_module.dumps(result.as_dict(), indent=2))
    else:
        typer.echo(result.text())
