"""Reports of `bench stream --json` as tables for docs/performance.md: `python -m surgicalmamba_lab.bench.stream_page REPORT.json ...`."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def tables(report: Mapping[str, Any]) -> list[str]:
    """The Markdown of one report, whichever of the three measurements it holds."""
    rows = report["engines"]
    if rows and "logit_drift" in rows[0]:
        return _long(rows)
    if rows and "agreeing" in rows[0]:
        return _agreement(rows)
    return [*_frames(rows), "", *_pools(rows)]


def _frames(rows: list[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| engine | backbone, ms | temporal, ms | frame, ms | p95 | p99 | frame at a chunk's end, ms | over ordinary | x eager | peak MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        frame, memory = row["ordinary"], row["memory"]
        lines.append(
            f"| {row['engine']} | {row['backbone']['median_ms']:.1f} | {row['temporal']['median_ms']:.1f} | {frame['median_ms']:.1f} "
            f"| {frame['p95_ms']:.1f} | {frame['p99_ms']:.1f} | {row['boundary']['median_ms']:.1f} | {row['boundary_over_ordinary']:.2f} "
            f"| {row['speedup']:.2f} | {'' if memory is None else format(memory['peak_mb'], '.0f')} |"
        )
    return lines


def _pools(rows: list[Mapping[str, Any]]) -> list[str]:
    lines = ["| engine | streams of 1 fps held | p95 of that round, ms | when all end a chunk at once, ms |", "|---|---|---|---|"]
    for row in rows:
        for pool in row["pool"]:
            if pool["streams"] == row["streams_held"]:
                lines.append(f"| {row['engine']} | {pool['streams']} | {pool['p95_ms']:.0f} | {pool['chunk_ends_ms']:.0f} |")
    return lines


def _long(rows: list[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| engine | frames | median, frames 1,000 to 2,000, ms | last 1,000, ms | ratio | memory grown, MB | logits off the clip form |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['engine']} | {row['frames']:,} | {row['early_median_ms']:.2f} | {row['late_median_ms']:.2f} "
            f"| {row['late_over_early']:.3f} | {row['resident_growth_mb']:.1f} | {row['logit_drift']:.1e} |"
        )
    return lines


def _agreement(rows: list[Mapping[str, Any]]) -> list[str]:
    lines = ["| engine | frames | same phase as the model | largest difference of a probability |", "|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['engine']} | {row['frames']:,} | {100 * row['share']:.2f} % | {row['largest_probability_difference']:.3f} |")
    return lines


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print("\n".join(tables(json.loads(Path(name).read_text(encoding="utf-8")))), end="\n\n")
