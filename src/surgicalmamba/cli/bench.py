"""`surgicalmamba bench WHAT`: measurements, one per subcommand. Each prints a table, or JSON with --json."""

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

bench = typer.Typer(no_args_is_help=True, help="Measure speed and size on this machine: medians, 95th percentiles, ratios in one run.")


@bench.command("data")
def data(
    video: Annotated[Path | None, typer.Option(help="A recording to decode. Default: generated 720p patterns.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Timed runs of each way.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a table.")] = False,
) -> None:
    """Decoding speed against the ffmpeg command line on the same file, bytes per hour of surgery, and prepared frames to training.

    Example: surgicalmamba bench data --runs 1
    """
    from surgicalmamba.bench.decode import measure_decode, measure_patterns
    from surgicalmamba.bench.loading import measure_loading, report_lines
    from surgicalmamba.bench.timing import machine

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
