"""`surgicalmamba stream`: a camera, a file or a network stream becomes phase estimates."""

import json as json_module
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fractions import Fraction


def stream(
    source: Annotated[str, typer.Argument(help="A video file, an image folder, rtsp://..., http://..., device:0, or - for a pipe.")],
    model: Annotated[str | None, typer.Option(help="Checkpoint, run or export folder, or Hub id. Default: the demo model.")] = None,
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
    server: Annotated[str | None, typer.Option(help="Recognize on a server, such as http://127.0.0.1:8571, and not here.")] = None,
    token: Annotated[str | None, typer.Option(envvar="SURGICALMAMBA_TOKEN", help="Bearer token for --server.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the session on the server. Default: the source's.")] = None,
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

    from surgicalmamba.data.records import parse_fps
    from surgicalmamba.errors import ConfigError
    from surgicalmamba.live.app import Job, parse_policy

    try:
        rates = [None if text is None else parse_fps(text) for text in (fps, source_fps)]
        chosen = parse_policy(policy or [])
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None

    if server is not None:
        if model or overlay or realtime or policy or output_stage or any(file.suffix.lower() == ".jsonl" for file in files):
            raise typer.BadParameter("--server recognizes there; only --fps, --source-fps, --name, --token and --out FILE.csv go with it.")
        _stream_to(server, token, source, name, rates, files, json)
        return

    from surgicalmamba.cli.watch import Watch
    from surgicalmamba.devices import pick_device

    job = Job.open(source, model, engine, rates[0], rates[1], chosen, output_stage, pick_device(device), _say)
    with Watch(job.timeline, job.source.duration_s, source) as watch:
        result = job.run(files, overlay, realtime, watch)
    if json:
        typer.echo(json_module.dumps(result.as_dict(), indent=2))
    else:
        typer.echo(result.text())


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _stream_to(
    server: str, token: str | None, source: str, name: str | None, rates: "list[Fraction | None]", files: list[Path], json: bool
) -> None:
    """The same source, recognized on a server."""
    from rich.console import Console
    from rich.status import Status

    from surgicalmamba.files import write_atomic
    from surgicalmamba.server.client import Client, stream_to_server

    client = Client(server, token)
    shown = name or re.sub(r"[^\w .:#/+-]", " ", Path(source).stem).strip()[:64] or "stream"
    with Status("connecting", console=Console(stderr=True)) as status:
        summary, remote = stream_to_server(
            client, source, shown, rates[0], rates[1], lambda estimate: status.update(f"{estimate.time_s:.0f} s  {estimate.name}")
        )
    for file in files:
        write_atomic(file, remote.export_csv().encode())
    typer.echo(json_module.dumps(vars(summary), indent=2) if json else "\n".join([summary.text(), *(f"wrote {file}" for file in files)]))
