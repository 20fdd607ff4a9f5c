"""`surgicalmamba stream`: phase estimates from a camera, a file or a network stream."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

if TYPE_CHECKING:
    from fractions import Fraction

_ON_SERVER = (
    "--server runs the model there; only --fps, --source-fps, --name, --token and --out FILE.csv apply."
)


def stream(
    source: Annotated[
        str,
        Argument(help="A video file, an image folder, rtsp://..., http://..., device:0, or - for a pipe."),
    ],
    model: Annotated[
        str | None, Option(help="Checkpoint, run or export folder, or Hub id. Default: the demo model.")
    ] = None,
    engine: Annotated[str | None, Option(help="auto, or the name of an engine. Default: auto.")] = None,
    realtime: Annotated[
        bool, Option("--realtime", help="Play a recording at its own speed; late frames are dropped.")
    ] = False,
    out: Annotated[
        list[Path] | None,
        Option(help="FILE.jsonl (line by line) or FILE.csv (for evaluate); repeatable."),
    ] = None,
    overlay: Annotated[
        Path | None, Option(help="Write a video with the phase ribbon, such as OUT.mp4.")
    ] = None,
    fps: Annotated[str | None, Option(help="Samples per second. Default: the model's.")] = None,
    source_fps: Annotated[
        str | None, Option(help="Images per second of an image folder. Default: one sample each.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        Option(
            help="hold, skip or advance for all bad frames, or KIND=ACTION such as black=hold; repeatable."
        ),
    ] = None,
    output_stage: Annotated[
        Path | None, Option(help="Calibration and filter, written by predict --fit-output.")
    ] = None,
    device: Annotated[str | None, Option(help="auto, cpu, cuda or mps. Default: auto.")] = None,
    server: Annotated[
        str | None,
        Option(help="Recognize on a server instead, such as http://127.0.0.1:8571."),
    ] = None,
    token: Annotated[
        str | None, Option(envvar="SURGICALMAMBA_TOKEN", help="Bearer token for --server.")
    ] = None,
    name: Annotated[
        str | None, Option(help="Name of the session on the server. Default: the source's.")
    ] = None,
    json: Annotated[bool, Option("--json", help="Print a JSON object instead of text.")] = False,
) -> None:
    """Recognize phases as the frames arrive. Ctrl-C ends a session and completes its files.

    A file, folder or pipe is read without loss. A live source, or a file with --realtime, does not wait: the
    newest frame is always the next one, and ticks whose frame was dropped are counted as late.

    Example: surgicalmamba stream synthetic/video01.mp4 --model runs/tiny --out video01.jsonl
    """
    files = out or []
    for file in files:
        if file.suffix.lower() not in (".jsonl", ".csv"):
            raise typer.BadParameter(f"{file}: --out takes a .jsonl or a .csv file.")
    if overlay is not None and overlay.suffix.lower() not in (".mp4", ".mkv", ".mov"):
        raise typer.BadParameter(f"{overlay}: --overlay takes a .mp4, .mkv or .mov file.")
    if server is not None:
        local_only = (model, engine, device, overlay, realtime, policy, output_stage)
        if any(local_only) or any(file.suffix.lower() == ".jsonl" for file in files):
            raise typer.BadParameter(_ON_SERVER)

    from surgicalmamba.data.records import parse_fps
    from surgicalmamba.errors import ConfigError
    from surgicalmamba.live.app import StreamJob, parse_policy

    try:
        rate, image_rate = (None if text is None else parse_fps(text) for text in (fps, source_fps))
        chosen = parse_policy(policy or [])
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    if server is not None:
        _stream_to(server, token, source, name, rate, image_rate, files, json)
        return

    from surgicalmamba.devices import pick_device
    from surgicalmamba.live.sinks import TerminalSink

    place = pick_device(device or "auto")
    job = StreamJob.open(
        source, model, engine or "auto", rate, image_rate, chosen, output_stage, place, _notify
    )
    with TerminalSink(job.history, job.source.duration_s, source) as watch:
        result = job.run(files, overlay, realtime, watch)
    typer.echo(json_module.dumps(result.as_dict(), indent=2) if json else result.text())


def _notify(text: str) -> None:
    typer.echo(text, err=True)


def _stream_to(
    server: str,
    token: str | None,
    source: str,
    name: str | None,
    fps: "Fraction | None",
    image_fps: "Fraction | None",
    files: list[Path],
    json: bool,
) -> None:
    """Send the source to a server and show the estimates it returns."""
    import re

    from rich.console import Console
    from rich.status import Status

    from surgicalmamba.files import write_atomic
    from surgicalmamba.server.client import Client, stream_to_server

    client = Client(server, token)
    title = name or re.sub(r"[^\w .:#/+-]", " ", Path(source).stem).strip()[:64] or "stream"
    with Status("connecting", console=Console(stderr=True)) as status:
        summary, remote = stream_to_server(
            client, source, title, fps, image_fps, lambda e: status.update(f"{e.time_s:.0f} s  {e.name}")
        )
    for file in files:
        write_atomic(file, remote.export_csv())
    written = "".join(f"\nwrote {file}" for file in files)
    typer.echo(json_module.dumps(vars(summary), indent=2) if json else summary.text() + written)
