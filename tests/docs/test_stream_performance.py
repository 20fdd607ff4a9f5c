"""The part of docs/performance.md on engines quotes the measurements in benchmarks/ and nothing else."""

import json
import re
from pathlib import Path

import pytest

from surgicalmamba_lab.bench.stream_page import tables

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
REPORTS = sorted((ROOT / "benchmarks").glob("*-stream*.json"))


@pytest.mark.skipif(not REPORTS, reason="no report of `bench stream` is in benchmarks/ yet")
def test_every_report_is_on_the_page_as_it_was_measured():
    for file in REPORTS:
        for line in tables(json.loads(file.read_text(encoding="utf-8"))):
            assert line in TEXT, f"{file.name}: {line}"


def test_the_page_has_no_engine_figures_that_no_report_holds():
    rows = re.findall(r"^\| (?:eager|compiled|onnx|onnx-int8) \|.*$", TEXT, re.MULTILINE)
    measured = {line for file in REPORTS for line in tables(json.loads(file.read_text(encoding="utf-8")))}
    assert set(rows) <= measured


def spread(ms):
    return {"median_ms": ms, "p95_ms": ms + 1, "p99_ms": ms + 2}


def test_a_report_becomes_a_table():
    pool = [{"streams": 4, "median_ms": 200.0, "p95_ms": 250.4, "chunk_ends_ms": 300.0, "holds": True}]
    parts = {"backbone": spread(40.0), "temporal": spread(10.0), "ordinary": spread(50.0), "boundary": spread(60.0)}
    row = {"engine": "onnx", **parts, "boundary_over_ordinary": 1.2, "speedup": 2.4, "pool": pool, "streams_held": 4}
    lines = tables({"engines": [{**row, "memory": {"peak_mb": 812.3}}]})
    assert "| onnx | 40.0 | 10.0 | 50.0 | 51.0 | 52.0 | 60.0 | 1.20 | 2.40 | 812 |" in lines
    assert "| onnx | 4 | 250 | 300 |" in lines
    same = {"engine": "onnx-int8", "frames": 2000, "agreeing": 1995, "share": 0.9975, "largest_probability_difference": 0.1}
    assert tables({"engines": [same]})[-1] == "| onnx-int8 | 2,000 | 99.75 % | 0.100 |"
