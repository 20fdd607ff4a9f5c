"""`surgicalmamba bench WHAT`: measurements, one per subcommand. Each prints a table, or JSON with --json."""

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

bench = typer.Typer(no_args_is_help=True, help="Measure speed and size on this machine: medians, 95th percentiles, ratios in one run.")

Runs = Annotated[int, typer.Option(min=1, help="Timed repetitions of each way.")]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a table.")]
Threads = Annotated[int | None, typer.Option(help="Torch threads; by default all cores.")]


@bench.command()
def model(
    preset: Annotated[str, typer.Option(help="paper, release or tiny.")] = "paper",
    runs: Runs = 5,
    threads: Threads = None,
    quick: Annotated[bool, typer.Option("--quick", help="One chunk instead of a whole clip.")] = False,
    json: Json = False,
) -> None:
    """Parameters, multiply-accumulates, state, clip against frame-by-frame, rotation in both forms, boundary frame.

    Example: surgicalmamba bench model --preset tiny --runs 3
    """
    from surgicalmamba_lab.bench.model import bench_model

    result = bench_model(preset, runs, threads, quick)
    typer.echo(json_module.dumps(asdict(result), indent=2) if json else "\n".join(result.lines()))


@bench.command()
def rotation(
    device: Annotated[str, typer.Option(help="cpu, cuda, mps ...")] = "cpu",
    runs: Runs = 50,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Both forms of the state rotation over sizes: is the one that `form: auto` takes the faster one on this device?

    Example: surgicalmamba bench rotation --runs 10
    """
    from surgicalmamba_lab.bench.rotation import bench_rotation, lines

    results = bench_rotation(device, runs, threads)
    typer.echo(json_module.dumps([asdict(result) for result in results], indent=2) if json else "\n".join(lines(results)))


@bench.command("evaluate")
def bench_evaluate(
    rows: Annotated[list[int] | None, typer.Option(help="Sizes to grow through; repeatable. Default: 100 000, 1 and 10 million.")] = None,
    runs: Runs = 3,
    labels: Annotated[Path | None, typer.Option(help="Cholec80 labels to time the command on, instead of made-up ones.")] = None,
    predictions: Annotated[Path | None, typer.Option(help="Predictions that belong to --labels.")] = None,
    json: Json = False,
) -> None:
    """Time scoring: the whole command over a test set of 39 videos, and reading and scoring up to 10 million rows.

    Example: surgicalmamba bench evaluate --rows 100000 --rows 1000000
    """
    if (labels is None) != (predictions is None):
        raise typer.BadParameter("--labels and --predictions go together.")

    from surgicalmamba_lab.bench.evaluate import measure

    result = measure(rows or [100_000, 1_000_000, 10_000_000], runs, labels, predictions)
    typer.echo(json_module.dumps(result.as_dict(), indent=2) if json else "\n".join(result.lines()))


@bench.command("data")
def data(
    video: Annotated[Path | None, typer.Option(help="A recording to decode. Default: generated 720p patterns.")] = None,
    runs: Runs = 3,
    json: Json = False,
) -> None:
    """Decoding speed against the ffmpeg command line on the same file, bytes per hour of surgery, and prepared frames to training.

    Example: surgicalmamba bench data --runs 1
    """
    from surgicalmamba_lab.bench.decode import measure_decode, measure_patterns
    from surgicalmamba_lab.bench.loading import measure_loading, report_lines
    from surgicalmamba_lab.bench.timing import machine

    reports = measure_patterns(runs=runs) if video is None else [measure_decode(video, runs)]
    loading = measure_loading(runs)
    if json:
        result = {"machine": machine(), "decode": [asdict(report) for report in reports], "training": asdict(loading)}
        typer.echo(json_module.dumps(result, indent=2))
        return
    for report in reports:
        size = "x".join(str(n) for n in reversed(report.size_hw))
        typer.echo(f"{report.file}: {report.codec}, {size}, {report.fps:g} fps, {report.duration_s:.1f} s; baseline {report.baseline}")
        for row in report.rows:
            ratio = "" if row.ratio is None else f"  x{row.ratio:.2f}"
            typer.echo(f"  {row.way:<28} {row.source_s_per_s:8.1f} source s/s  median {row.timing.median_ms:8.1f} ms{ratio}")
        equal = "equal to" if report.frames_equal else "DIFFERENT FROM"
        typer.echo(f"  decoded {report.frames_decoded} of {report.frames} frames; pixels {equal} decoding all")
        typer.echo(f"  {report.jpeg_bytes_per_hour / 1e6:.0f} MB per hour as prepared images")
    typer.echo("\n".join(report_lines(loading)))


@bench.command("train")
def bench_train(
    preset: Annotated[str, typer.Option(help="paper, release or tiny.")] = "paper",
    features: Annotated[bool, typer.Option("--features", help="Only training on stored features, not from pixels.")] = False,
    runs: Runs = 3,
    threads: Threads = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short clips: shows that it runs, not how fast.")] = False,
    json: Json = False,
) -> None:
    """An optimizer step: frames per second, peak memory of a fresh process, and the shares of loader, backbone, temporal model, optimizer.

    Example: surgicalmamba bench train --preset tiny --features
    """
    from surgicalmamba_lab.bench.train import bench_train as measure

    result = measure(preset, features, runs, threads, quick)
    typer.echo(json_module.dumps(asdict(result), indent=2) if json else "\n".join(result.lines()))


@bench.command()
def stream(
    preset: Annotated[str, typer.Option(help="paper, release or tiny.")] = "paper",
    engines: Annotated[str, typer.Option(help="Comma-separated: eager, compiled, onnx, onnx-int8.")] = "eager,compiled,onnx,onnx-int8",
    runs: Runs = 30,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch and of ONNX Runtime.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="Three runs, no memory and no pools.")] = False,
    long: Annotated[bool, typer.Option("--long", help="Instead: 36,000 frames through the tiny preset; constant cost and drift.")] = False,
    frames: Annotated[int | None, typer.Option(min=1, help="Frames of --long, or at most of each video with --checkpoint.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Instead: agreement of a trained model's engines with the model itself.")] = None,
    data: Annotated[Path | None, typer.Option(help="Prepared dataset for --checkpoint.")] = None,
    split: Annotated[str, typer.Option(help="Its videos: train, val, test or all.")] = "test",
    plot: Annotated[Path | None, typer.Option(help="Also draw the figure into this PNG file.")] = None,
    json: Json = False,
) -> None:
    """One live frame in each engine, backbone and temporal part, ordinary and at the end of a chunk; memory; how many streams at once.

    Example: surgicalmamba bench stream --preset tiny --engines eager --quick
    """
    if (checkpoint is None) != (data is None):
        raise typer.BadParameter("--checkpoint and --data go together.")
    if plot is not None and (long or checkpoint is not None):
        raise typer.BadParameter("--plot draws the main measurement; leave out --long and --checkpoint.")
    names = [name.strip() for name in engines.split(",") if name.strip()]

    from surgicalmamba_lab.bench.timing import machine

    if long or checkpoint is not None:
        if checkpoint is not None and data is not None:
            from surgicalmamba_lab.bench.stream_agreement import bench_agreement

            reports = [bench_agreement(checkpoint, data, split, name, frames, threads) for name in names if name != "eager"]
        else:
            from surgicalmamba_lab.bench.stream_long import bench_long

            reports = [bench_long(name, frames or 36_000, threads) for name in names]  # type: ignore[misc]
        result = {"machine": machine(), "engines": [report.as_dict() for report in reports]}
        typer.echo(json_module.dumps(result, indent=2) if json else "\n".join(line for report in reports for line in report.lines()))
        return

    from surgicalmamba_lab.bench.stream import bench_stream

    measured = bench_stream(preset, names, 3 if quick else runs, threads, memory=not quick, pool=not quick)
    if plot is not None:
        from surgicalmamba_lab.bench.stream_plot import plot_stream

        plot_stream(measured.as_dict(), plot)
    typer.echo(json_module.dumps(measured.as_dict(), indent=2) if json else "\n".join(measured.lines()))


@bench.command("serve")
def bench_serve_command(
    streams: Annotated[list[int] | None, typer.Option(min=1, help="Rooms at once; repeatable. Default: 16 and 64.")] = None,
    minutes: Annotated[float, typer.Option(min=0.01, help="Length of each load run.")] = 10.0,
    fps: Annotated[float, typer.Option(min=0.1, help="Frames per second of each room.")] = 1.0,
    kills: Annotated[int, typer.Option(min=0, help="Also kill -9 the server this often under load and compare the records.")] = 0,
    malformed: Annotated[int, typer.Option(min=0, help="Also send this many malformed messages.")] = 0,
    load: Annotated[bool, typer.Option("--load/--no-load", help="Leave the load runs out with --no-load.")] = True,
    seed: Annotated[int, typer.Option(help="Of kill moments and malformed messages.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="16 streams for half a minute.")] = False,
    json: Json = False,
) -> None:
    """The live server on loopback with the tiny model: latency, drops and memory of many rooms; kill -9; malformed messages.

    Example: surgicalmamba bench serve --quick
    """
    from rich.console import Console

    from surgicalmamba_lab.bench.serve import bench_serve

    console = Console(stderr=True)
    counts = [] if not load else [16] if quick and not streams else streams or [16, 64]
    result = bench_serve(counts, 0.5 if quick else minutes, fps, kills, malformed, seed, console.print)
    typer.echo(json_module.dumps(result.as_dict(), indent=2) if json else "\n".join(result.lines()))
    broken = (result.kills is not None and not result.kills.is_clean) or (result.malformed is not None and result.malformed.unanswered > 0)
    if broken:
        raise typer.Exit(1)
