"""Results as text."""

from dataclasses import replace

import surgicalmamba as sm
from surgicalmamba.eval.compare import Comparison
from surgicalmamba.eval.published import load_published
from surgicalmamba.report.tables import (
    align,
    comparison_note,
    comparison_rows,
    markdown_table,
    number,
    phase_rows,
    published_text,
)


def test_columns_line_up_with_text_to_the_left_and_numbers_to_the_right():
    assert align([["a", "10.0"], ["long name", "5"]]) == ["a          10.0", "long name     5"]


def test_an_undefined_number_is_a_dash():
    assert [number(float("nan")), number(float("inf")), number(1.005, 1)] == ["-", "-", "1.0"]


def test_the_phase_table_has_a_row_per_phase():
    rows = phase_rows(sm.score([0, 0], [0, 0], n_phases=2, names=["Open", "Close"]))
    assert rows == [
        ["phase", "precision", "recall", "f1", "jaccard"],
        ["Open", *["100.00"] * 4],
        ["Close", *["-"] * 4],
    ]


def test_a_comparison_reads_as_a_row():
    result = Comparison(
        videos=3, seeds=(1, 1), difference=1.5, low=0.5, high=2.5, wins=2, ties=0, losses=1, wilcoxon_p=0.5
    )
    assert comparison_rows({"accuracy": result})[1] == [
        "accuracy",
        "+1.50",
        "0.50 to 2.50",
        "2",
        "0",
        "1",
        "0.5",
    ]


def test_a_comparison_says_what_its_interval_is_over():
    one = Comparison(
        videos=3, seeds=(1, 1), difference=1.5, low=0.5, high=2.5, wins=2, ties=0, losses=1, wilcoxon_p=0.5
    )
    note = comparison_note({"accuracy": one})
    assert (
        "over videos alone: with one run of each system it does not show what other seeds would change"
        in note
    )
    note = comparison_note({"accuracy": replace(one, seeds=(5, 3))})
    assert note.startswith("The interval is over seeds and videos (5 and 3 runs). Wilcoxon's test averages")


def test_published_rows_carry_numbered_warnings_and_ones_own_row_stands_below():
    report = sm.score([[0, 1], [0, 1]], [[0, 1], [0, 0]], n_phases=7, protocol="all")
    text = published_text(load_published("autolaparo"), report)
    lines = text.splitlines()
    marked = next(line for line in lines if line.startswith("  DACAT ["))
    note = marked.split("[")[1][0]
    assert any(line.startswith(f"  [{note}] mixes protocols") for line in lines)
    names = [line.split("  ")[1] for line in lines if line.startswith("  ") and "." in line]
    assert names.index("yours, strict-b") > next(
        i for i, name in enumerate(names) if name.startswith("SurgicalMamba")
    )
    own = next(line for line in lines if line.startswith("  yours, strict-b"))
    assert "75.0 ± 35.4" in own  # accuracies 100 and 50


def test_a_number_that_was_not_reported_is_a_double_dash():
    line = next(
        line
        for line in published_text(load_published("cholec80")).splitlines()
        if line.startswith("  EndoNet")
    )
    assert line.split()[-1] == "--"


def test_a_markdown_table_has_its_first_row_as_header_and_numbers_to_the_right_where_asked():
    rows = [["name", "n", "p"], ["a", "1", "0.5"]]
    assert markdown_table(rows) == ["| name | n | p |", "|---|---|---|", "| a | 1 | 0.5 |"]
    assert markdown_table(rows, align_right=True)[1] == "|---|---:|---:|"
