"""`surgicalmamba bench WHAT`: measurements, one per subcommand. Each prints a table, or JSON with --json."""

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from surgicalmamba_lab.bench.stream_long import Agreement, LongRun

bench = typer.Typer(
    no_args_is_help=True,
    help="Measure speed and size on this machine: medians, 95th percentiles, ratios in one run.",
)

Runs = Annotated[int, typer.Option(min=1, help="Timed repetitions of each way.")]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a table.")]
Threads = Annotated[int | None, typer.Option(help="Torch threads; by default all cores.")]
Preset = Annotated[str, typer.Option(help="paper, release or tiny.")]


@bench.command()
def model(
    preset: Preset = "paper",
    runs: Runs = 5,
    threads: Threads = None,
    quick: Annotated[bool, typer.Option("--quick", help="One chunk instead of a whole clip.")] = False,
    json: Json = False,
) -> None:
    """Parameters, multiply-accumulates, state; clip against frame-by-frame; both forms of the rotation;
    boundary frame.

    Example: surgicalmamba bench model --preset tiny --runs 3
    """
    from surgicalmamba_lab.bench.model import bench_model

    typer.echo(bench_model(preset, runs, threads, quick).text(json))


@bench.command()
def rotation(
    device: Annotated[str, typer.Option(help="cpu, cuda, mps ...")] = "cpu",
    runs: Runs = 50,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Both forms of the state rotation over sizes: does `form: auto` take the faster one on this device?

    Example: surgicalmamba bench rotation --runs 10
    """
    from surgicalmamba_lab.bench.model import bench_rotation, rotation_lines

    results = bench_rotation(device, runs, threads)
    as_json = json_module.dumps([asdict(result) for result in results], indent=2)
    typer.echo(as_json if json else "\n".join(rotation_lines(results)))


@bench.command()
def evaluate(
    rows: Annotated[
        list[int] | None, typer.Option(help="Sizes; repeatable. Default: 100 000, 1 and 10 million.")
    ] = None,
    runs: Runs = 3,
    labels: Annotated[Path | None, typer.Option(help="Cholec80 labels to time the command on.")] = None,
    predictions: Annotated[Path | None, typer.Option(help="Predictions that belong to --labels.")] = None,
    json: Json = False,
) -> None:
    """Time scoring: the whole command over a test set of 39 videos, and reading and scoring up to 10 million
    rows.

    Example: surgicalmamba bench evaluate --rows 100000 --rows 1000000
    """
    if (labels is None) != (predictions is None):
        raise typer.BadParameter("--labels and --predictions go together.")

    from surgicalmamba_lab.bench.evaluate import measure

    typer.echo(measure(rows or [100_000, 1_000_000, 10_000_000], runs, labels, predictions).text(json))


@bench.command()
def data(
    video: Annotated[Path | None, typer.Option(help="A recording. Default: generated 720p patterns.")] = None,
    runs: Runs = 3,
    json: Json = False,
) -> None:
    """Decoding speed against the ffmpeg command line, bytes per hour of surgery, and prepared frames to
    training.

    Example: surgicalmamba bench data --runs 1
    """
    from surgicalmamba_lab.bench.data import bench_data

    typer.echo(bench_data(video, runs).text(json))


@bench.command()
def train(
    preset: Preset = "paper",
    features: Annotated[bool, typer.Option("--features", help="Only from stored features.")] = False,
    runs: Runs = 3,
    threads: Threads = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short clips: that it runs, not how fast.")] = False,
    json: Json = False,
) -> None:
    """An optimizer step: frames per second, peak memory, and the shares of loader, backbone, temporal model,
    optimizer.

    Example: surgicalmamba bench train --preset tiny --features
    """
    from surgicalmamba_lab.bench.train import bench_train

    typer.echo(bench_train(preset, features, runs, threads, quick).text(json))


@bench.command()
def stream(
    preset: Preset = "paper",
    engines: Annotated[
        str, typer.Option(help="Comma-separated: eager, compiled, onnx, onnx-int8.")
    ] = "eager,compiled,onnx,onnx-int8",
    runs: Runs = 30,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch and of ONNX Runtime.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="Three runs, no memory and no pools.")] = False,
    long: Annotated[
        bool,
        typer.Option("--long", help="Instead: 36,000 frames of the tiny preset; constant cost and drift."),
    ] = False,
    frames: Annotated[
        int | None, typer.Option(min=1, help="Frames of --long, or at most of each video with --checkpoint.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Instead: agreement of a trained model's engines with the model itself."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Prepared dataset for --checkpoint.")] = None,
    split: Annotated[str, typer.Option(help="Its videos: train, val, test or all.")] = "test",
    plot: Annotated[Path | None, typer.Option(help="Also draw the figure into this PNG file.")] = None,
    json: Json = False,
) -> None:
    """One live frame in each engine, ordinary and at the end of a chunk; memory; how many streams at once.

    Example: surgicalmamba bench stream --preset tiny --engines eager --quick
    """
    if (checkpoint is None) != (data is None):
        raise typer.BadParameter("--checkpoint and --data go together.")
    if plot is not None and (long or checkpoint is not None):
        raise typer.BadParameter("--plot draws the main measurement; leave out --long and --checkpoint.")
    names = [name.strip() for name in engines.split(",") if name.strip()]

    from surgicalmamba_lab.bench.timing import machine

    if long or checkpoint is not None:
        from surgicalmamba_lab.bench.stream_long import EngineReports, bench_agreement, bench_long

        reports: list[LongRun | Agreement] = []
        for name in names:
            if checkpoint is None or data is None:
                reports.append(bench_long(name, frames or 36_000, threads))
            elif name != "eager":
                reports.append(bench_agreement(checkpoint, data, split, name, frames, threads))
        typer.echo(EngineReports(machine(), reports).text(json))
        return

    from surgicalmamba_lab.bench.stream import bench_stream, plot_stream

    measured = bench_stream(preset, names, 3 if quick else runs, threads, memory=not quick, pool=not quick)
    if plot is not None:
        plot_stream(measured, plot)
    typer.echo(measured.text(json))


@bench.command()
def serve(
    streams: Annotated[list[int] | None, typer.Option(min=1, help="Rooms. Default: 16 and 64.")] = None,
    minutes: Annotated[float, typer.Option(min=0.01, help="Length of each run.")] = 10.0,
    fps: Annotated[float, typer.Option(min=0.1, help="Frames per second of each room.")] = 1.0,
    quick: Annotated[bool, typer.Option("--quick", help="16 streams for half a minute.")] = False,
    json: Json = False,
) -> None:
    """The live server on loopback with the tiny model: latency, drops and memory with many rooms.

    Example: surgicalmamba bench serve --quick
    """
    from rich.console import Console

    from surgicalmamba_lab.bench.serve import bench_serve

    counts = streams or ([16] if quick else [16, 64])
    typer.echo(bench_serve(counts, 0.5 if quick else minutes, fps, Console(stderr=True).print).text(json))
