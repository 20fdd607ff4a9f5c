"""One estimate, many forms: each is written and read back without loss, and old forms are read with
defaults."""

import json
import sqlite3
import struct
from dataclasses import fields

import numpy as np
import pytest

from surgicalmamba.live.estimate import (
    DATABASE_COLUMNS,
    Counts,
    PhaseEstimate,
    ServedEstimate,
    from_columns,
    from_row,
    to_columns,
    to_prediction,
    to_row,
)

PHASES = ("rest", "cut", "close")
PLAIN = PhaseEstimate(
    4, 6, 3.5, 1, "cut", (0.1, 0.7, 0.2), 0.25, "frozen", "held", Counts(frozen=2, skipped=1)
)
SERVED = ServedEstimate.of(PLAIN, row=9, frame=30)
WITHOUT_INTENSITY = ServedEstimate.of(
    PhaseEstimate(0, 0, 0.0, 2, "close", (0.0, 0.0, 1.0), None), row=0, frame=0
)


def test_a_json_line_is_read_back_as_the_estimate_it_was():
    line = json.dumps({"type": "estimate", **PLAIN.as_dict(), "latency_ms": 3.0})
    assert PhaseEstimate.from_dict(json.loads(line)) == PLAIN


@pytest.mark.parametrize("estimate", [SERVED, WITHOUT_INTENSITY])
def test_a_message_a_row_and_columns_are_read_back_as_the_estimate_they_were(estimate):
    assert ServedEstimate.from_dict(json.loads(json.dumps(estimate.as_dict()))) == estimate
    assert from_row(to_row(estimate), PHASES) == estimate
    assert from_columns(json.loads(json.dumps(to_columns([estimate]))), PHASES) == [estimate]


def test_every_form_has_every_field():
    names = {field.name for field in fields(ServedEstimate)}
    assert set(SERVED.as_dict()) == names
    assert set(DATABASE_COLUMNS) == set(to_columns([SERVED])) == names - {"name"}


def test_columns_without_rows_are_no_estimates():
    assert from_columns(to_columns([]), PHASES) == []


def test_a_column_that_an_old_database_lacks_gets_the_default_of_its_field():
    old = ("row", "frame", "time_s", "phase", "probabilities", "intensity", "quality", "fed")
    db = sqlite3.connect(":memory:")
    db.execute(
        f"create table estimates ({', '.join(f'{name} {DATABASE_COLUMNS[name]}' for name in old)}) strict"
    )
    values = (5, 8, 2.0, 0, struct.pack("<3d", 0.5, 0.25, 0.25), None, "black", "input")
    db.execute(f"insert into estimates values ({', '.join('?' * len(old))})", values)
    for name in DATABASE_COLUMNS.keys() - set(old):
        db.execute(f"alter table estimates add column {name} {DATABASE_COLUMNS[name]}")
    [row] = db.execute(f"select {', '.join(DATABASE_COLUMNS)} from estimates").fetchall()
    read = from_row(row, PHASES)
    made = PhaseEstimate(5, 5, 2.0, 0, "rest", (0.5, 0.25, 0.25), None, "black")
    assert read == ServedEstimate.of(made, row=5, frame=8)


def test_a_message_of_an_old_server_is_read_with_defaults():
    document = {
        key: value for key, value in SERVED.as_dict().items() if key not in ("frame_index", "tick", "counts")
    }
    read = ServedEstimate.from_dict({"type": "estimate", "session": "s", **document})
    assert (read.frame_index, read.tick, read.counts) == (9, 9, Counts())
    assert (read.quality, read.fed, read.probabilities) == ("frozen", "held", PLAIN.probabilities)


def test_a_repeated_estimate_is_compared_in_what_every_record_holds():
    old = ServedEstimate.of(PhaseEstimate(9, 9, *list(vars(PLAIN).values())[2:-1]), row=9, frame=30)
    assert SERVED.repeats(SERVED) and SERVED.repeats(old)
    nearly = PhaseEstimate(4, 6, 3.5, 1, "cut", (0.1, np.nextafter(0.7, 1), 0.2), 0.25, "frozen", "held")
    assert not ServedEstimate.of(nearly, row=9, frame=30).repeats(SERVED)


def test_a_prediction_file_has_intensity_only_where_every_estimate_has_it():
    both = to_prediction([0, 1], [PLAIN, PLAIN], 3)
    assert both.intensity is not None and both.intensity.tolist() == [0.25, 0.25]
    assert to_prediction([0, 1], [PLAIN, WITHOUT_INTENSITY], 3).intensity is None
    assert to_prediction([], [], 3).probabilities.shape == (0, 3)


def test_counts_add_up():
    assert Counts(black=1, held=2) + Counts(black=3, late=1) == Counts(black=4, held=2, late=1)
