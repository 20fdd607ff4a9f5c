"""`surgicalmamba bench WHAT`: measurements, one per subcommand. Each prints a table, or JSON with --json."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

bench = typer.Typer(no_args_is_help=True, help="Measure speed and size on this machine: medians, 95th percentiles, ratios in one run.")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Threads = Annotated[int | None, typer.Option(help="Torch threads; by default all cores.")]


@bench.command()
def model(
    preset: Annotated[str, typer.Option(help="paper, release or tiny.")] = "paper",
    runs: Annotated[int, typer.Option(min=1, help="Repetitions of the clip and of the step loop.")] = 5,
    threads: Threads = None,
    quick: Annotated[bool, typer.Option("--quick", help="One chunk instead of a whole clip.")] = False,
    json: Json = False,
) -> None:
    """Parameters, multiply-accumulates, state, clip against frame-by-frame, rotation in both forms, boundary frame.

    Example: surgicalmamba bench model --preset tiny --runs 3
    """
    from surgicalmamba.bench.model import bench_model

    result = bench_model(preset, runs, threads, quick)
    if json:
        typer.echo(json_module.dumps(result.as_json(), indent=2))
        return
    typer.echo(f"{result.preset}: {result.machine}")
    for name, n_parameters in result.parameters.items():
        typer.echo(f"  parameters, {name:<20} {n_parameters:>14,}")
    for name, macs in result.macs_per_frame.items():
        typer.echo(f"  multiply-accumulates, {name:<10} {macs:>14,} per frame")
    typer.echo(f"  state {result.state_bytes:>42,} bytes")
    for title, timings in (
        (f"forward, {result.clip_frames} frames", result.forward),
        (f"forward and backward, {result.clip_frames} frames", result.forward_backward),
        ("rotation of one path", result.rotation),
        ("one frame", result.frame),
    ):
        typer.echo(f"  {title}")
        for name, timing in timings.items():
            typer.echo(f"    {name:<12} median {timing.median_ms:>10.2f} ms   p95 {timing.p95_ms:>10.2f} ms   ({timing.runs} runs)")
    typer.echo(f"  clip over steps: forward {result.forward_speedup:.1f} x, forward and backward {result.forward_backward_speedup:.1f} x")
    typer.echo(f"  rotation form in use: {result.rotation_form};  boundary over ordinary frame: {result.boundary_over_ordinary:.2f}")


@bench.command()
def rotation(
    device: Annotated[str, typer.Option(help="cpu, cuda, mps ...")] = "cpu",
    runs: Annotated[int, typer.Option(min=1, help="Repetitions per size and form.")] = 50,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Both forms of the state rotation over sizes: is the one that `form: auto` takes the faster one on this device?

    Example: surgicalmamba bench rotation --runs 10
    """
    from dataclasses import asdict

    from surgicalmamba.bench.rotation import bench_rotation

    results = bench_rotation(device, runs, threads)
    if json:
        typer.echo(json_module.dumps([asdict(result) for result in results], indent=2))
        return
    typer.echo("state  rank   low-rank ms      dense ms   dense/low-rank  auto takes")
    for r in results:
        note = "" if r.chosen == r.measured_faster else "  (the other form was faster here: set rotation.form)"
        times = f"{r.low_rank.median_ms:>13.3f} {r.dense.median_ms:>13.3f} {r.dense_over_low_rank:>16.2f}"
        typer.echo(f"{r.d_state:>5} {r.rank:>5} {times}  {r.chosen}{note}")


@bench.command("evaluate")
def bench_evaluate(
    rows: Annotated[list[int] | None, typer.Option(help="Sizes to grow through; repeatable. Default: 100 000, 1 and 10 million.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 3,
    labels: Annotated[Path | None, typer.Option(help="Cholec80 labels to time the command on, instead of made-up ones.")] = None,
    predictions: Annotated[Path | None, typer.Option(help="Predictions that belong to --labels.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a table.")] = False,
) -> None:
    """Time scoring: the whole command over a test set of 39 videos, and reading and scoring up to 10 million rows.

    Example: surgicalmamba bench evaluate --rows 100000 --rows 1000000
    """
    if (labels is None) != (predictions is None):
        raise typer.BadParameter("--labels and --predictions go together.")

    from surgicalmamba.bench.evaluate import measure

    result = measure(rows or [100_000, 1_000_000, 10_000_000], runs, labels, predictions)
    typer.echo(json_module.dumps(result.as_dict(), indent=2) if json else "\n".join(result.lines()))
