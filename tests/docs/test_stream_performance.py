"""The part of docs/performance.md on engines quotes the measurements in benchmarks/ and nothing else."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
REPORTS = sorted((ROOT / "benchmarks").glob("*-stream*.json"))

# A table per measurement of `bench stream --json`: its columns, each with the format of its cells.
FRAMES = {
    "engine": "{engine}",
    "backbone, ms": "{backbone[median_ms]:.1f}",
    "temporal, ms": "{temporal[median_ms]:.1f}",
    "frame, ms": "{ordinary[median_ms]:.1f}",
    "p95": "{ordinary[p95_ms]:.1f}",
    "p99": "{ordinary[p99_ms]:.1f}",
    "frame at a chunk's end, ms": "{boundary[median_ms]:.1f}",
    "over ordinary": "{boundary_over_ordinary:.2f}",
    "x eager": "{speedup:.2f}",
    "peak MB": "{memory[peak_mb]:.0f}",
}
POOLS = {
    "engine": "{engine}",
    "streams of 1 fps held": "{streams}",
    "p95 of that round, ms": "{p95_ms:.0f}",
    "when all end a chunk at once, ms": "{chunk_ends_ms:.0f}",
}
LONG = {
    "engine": "{engine}",
    "frames": "{frames:,}",
    "median, frames 1,000 to 2,000, ms": "{early_median_ms:.2f}",
    "last 1,000, ms": "{late_median_ms:.2f}",
    "ratio": "{late_over_early:.3f}",
    "memory grown, MB": "{resident_growth_mb:.1f}",
    "logits off the clip form": "{logit_drift:.1e}",
}
AGREEMENT = {
    "engine": "{engine}",
    "frames": "{frames:,}",
    "same phase as the model": "{share:.2%}",
    "largest difference of a probability": "{largest_probability_difference:.3f}",
}


def table(columns, rows):
    lines = [
        " | ".join(columns),
        *(" | ".join(columns.values()).format(**row).replace("%", " %") for row in rows),
    ]
    return [f"| {line} |" for line in lines]


def tables(file):
    """The lines that the page must have of a report."""
    rows = json.loads(file.read_text(encoding="utf-8"))["engines"]
    if "logit_drift" in rows[0]:
        return table(LONG, rows)
    if "agreeing" in rows[0]:
        return table(AGREEMENT, rows)
    held = [{**pool, **row} for row in rows for pool in row["pool"] if pool["streams"] == row["streams_held"]]
    return table(FRAMES, rows) + table(POOLS, held)


def test_every_report_is_on_the_page_as_it_was_measured():
    assert len(REPORTS) >= 3
    for file in REPORTS:
        for line in tables(file):
            assert line in TEXT.splitlines(), f"{file.name}: {line}"


def test_the_page_has_no_engine_figures_that_no_report_holds():
    rows = re.findall(r"^\| (?:eager|compiled|onnx|onnx-int8) \|.*$", TEXT, re.MULTILINE)
    assert len(rows) >= 8 and set(rows) <= {line for file in REPORTS for line in tables(file)}
