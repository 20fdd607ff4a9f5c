"""docs/performance.md quotes the measurements in benchmarks/ and nothing else."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
DATE = re.search(r"Measured on (\d{4}-\d\d-\d\d)", TEXT)[1]


def measured(name):
    return json.loads((ROOT / "benchmarks" / f"{DATE}-{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("preset", ["paper", "tiny"])
def test_the_model_figures_are_those_measured(preset):
    report = measured(f"model-{preset}")
    column = {"paper": 1, "tiny": 2}[preset]
    cells = {
        row.split("|")[1].strip(): row.split("|")[column + 1].strip()
        for row in TEXT.splitlines()
        if row.count("|") == 4
    }
    assert cells["parameters"] == f"{report['parameters']['total']:,}"
    assert cells["ratio, forward"] == f"{report['forward_speedup']:.1f}"
    assert cells["ratio, forward and backward"] == f"{report['forward_backward_speedup']:.1f}"
    assert cells["ratio if a clip were nothing else"] == f"{report['forward_speedup_limit']:.1f}"
    assert cells["boundary over ordinary"] == f"{report['boundary_over_ordinary']:.2f}"


def test_the_rotation_table_is_the_one_measured_and_the_rule_is_right_there():
    for row in measured("rotation"):
        times = f"{row['low_rank']['median_ms']:.2f} | {row['dense']['median_ms']:.2f}"
        assert f"| {row['d_state']} | {row['rank']} | {times} |" in TEXT
        chosen, other = (
            (row["low_rank"], row["dense"])
            if row["chosen"] == "low-rank"
            else (row["dense"], row["low_rank"])
        )
        assert chosen["median_ms"] < 1.1 * other["median_ms"]


def test_data_and_evaluation_figures_are_those_measured():
    data, evaluate = measured("data"), measured("evaluate")
    for row in data["training"]["loading"]:
        assert f"| {row['way']} | {row['frames_per_s']:,.0f} |" in TEXT
    assert f"takes {evaluate['command']['median_ms']:,.0f} ms" in TEXT
    for row in evaluate["growth"]:
        assert (
            f"| {row['rows']:,} | {row['read']['us_per_row']:.2f} | {row['score']['us_per_row']:.2f} |"
            in TEXT
        )


def test_the_training_figures_are_those_measured():
    [step] = measured("train-tiny")["steps"]
    for figure in (
        f"{step['frames_per_s']:,.0f} frames",
        f"step {step['step']['median_ms']:.0f} ms (p95 {step['step']['p95_ms']:.0f})",
        f"takes {step['shares']['temporal']:.0%}".replace("%", " %"),
        f"optimizer {step['shares']['optimizer']:.0%}".replace("%", " %"),
        f"loader {step['shares']['loader']:.1%}".replace("%", " %"),
        f"peak resident memory {step['peak_memory_bytes'] / 1e6:.0f} MB",
    ):
        assert figure in " ".join(TEXT.split()), figure


def test_the_full_size_training_figures_are_those_measured():
    pixels, features = measured("train-paper")["steps"]
    for figure in (
        f"{pixels['frames_per_s']:.2f} frames per second, a step {pixels['step']['median_ms'] / 1e3:.0f} s",
        f"memory {pixels['peak_memory_bytes'] / 2**30:.2f} GiB",
        f"GiB, {100 * pixels['shares']['backbone']:.0f} % of the time in the backbone",
        f"{features['frames_per_s']:.1f} frames per second, {features['peak_memory_bytes'] / 2**30:.2f} GiB",
    ):
        assert figure in " ".join(TEXT.split()), figure


def test_the_server_figures_are_those_measured():
    load, kills, malformed = (
        measured("serve-load")["load"],
        measured("serve-kills")["kills"],
        measured("serve-malformed")["malformed"],
    )
    for row in load:
        latency, durable = row["latency_ms"], row["durable_ms"]
        waits = f"{latency['p50']:,.0f} | {latency['p99']:,.0f} | {durable['p99']:,.0f}"
        memory = f"{row['memory_start_mb']:.0f} | {row['memory_end_mb']:.0f}"
        assert f"| {row['streams']} | {row['frames']:,} | {row['dropped']:,} | {waits} | {memory} |" in TEXT
    text = " ".join(TEXT.split())
    assert (
        f"{kills['kills']} times kill -9" in text
        and f"{kills['frames']:,} frames, {kills['reconnects']} reconnects" in text
    )
    assert (
        f"{kills['lost']} estimates lost, {kills['doubled']} doubled, {kills['different']} different" in text
    )
    assert f"{sum(malformed['refused'].values()):,} of {malformed['sent']:,} malformed messages" in text
    assert f"{malformed['unanswered']} unanswered, {malformed['connections_cut']} connections cut" in text
    assert f"its {malformed['healthy_frames']} estimates" in text and malformed["healthy_is_identical"]
