"""The figure of `bench stream`: what a frame costs in each engine, and how many streams each holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BACKBONE, TEMPORAL, CHUNK_END = "#0072B2", "#E69F00", "#999999"  # Okabe and Ito: told apart by colour-blind readers
LINES = ("#000000", "#0072B2", "#D55E00", "#009E73")
MARKS = ("o", "s", "^", "D")


def plot_stream(report: Mapping[str, Any], file: Path) -> None:
    """Draw a report of `bench stream --json` as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    pools = [row for row in report["engines"] if row["pool"]]
    axes = figure.subplots(1, 2 if pools else 1, squeeze=False)[0]
    _frames(axes[0], report["engines"])
    if pools:
        _pools(axes[1], pools)
    about = report["machine"]
    figure.suptitle(f"{report['preset']} model, {about['threads']} threads, {about['machine']}, {report['runs']} runs", fontsize=10)
    part = file.with_name(f".{file.name}.part")
    figure.savefig(part, dpi=150, format="png")
    part.replace(file)


def _frames(axes: Any, rows: list[Mapping[str, Any]]) -> None:
    names = [row["engine"] for row in rows]
    places = range(len(rows))
    left = [0.0] * len(rows)
    parts = (
        ("backbone", BACKBONE, [row["backbone"]["median_ms"] for row in rows]),
        ("temporal part", TEMPORAL, [row["temporal"]["median_ms"] for row in rows]),
        ("more at the end of a chunk", CHUNK_END, [row["temporal_boundary"]["median_ms"] - row["temporal"]["median_ms"] for row in rows]),
    )
    for label, colour, values in parts:
        axes.barh(places, values, left=left, color=colour, label=label, height=0.6)
        left = [a + b for a, b in zip(left, values, strict=True)]
    for place, row, end in zip(places, rows, left, strict=True):
        axes.text(end, place, f"  {row['ordinary']['median_ms']:.0f} ms, x{row['speedup']:.2f}", va="center", fontsize=9)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * max(left))
    axes.set_xlabel("ms per frame, median (beside the bar: an ordinary frame)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=8, frameon=False)


def _pools(axes: Any, rows: list[Mapping[str, Any]]) -> None:
    for number, row in enumerate(rows):
        streams = [pool["streams"] for pool in row["pool"]]
        seconds = [pool["p95_ms"] / 1e3 for pool in row["pool"]]
        label = f"{row['engine']}: {row['streams_held']} streams"
        axes.plot(streams, seconds, color=LINES[number % 4], marker=MARKS[number % 4], label=label)
    axes.axhline(1.0, color="#555555", linestyle="--", linewidth=1)
    axes.set_xlabel("streams of one frame per second")
    axes.set_ylabel("seconds per round, 95th percentile")
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="lower right", fontsize=8)
