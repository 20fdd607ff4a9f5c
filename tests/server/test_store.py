"""The record: whole groups, no doubles, and what a start finds."""

import sqlite3

import pytest

from surgicalmamba.errors import DataError
from surgicalmamba.live.estimate import PhaseEstimate, ServedEstimate
from surgicalmamba.server.record import Change, Ending, SessionInfo, Snapshot, Store, merge, segments_of

INFO = SessionInfo("a" * 16, "Room 1", 100.0, "1", ("x", "y"), "f" * 64, "drop", None, {"room": "1"})


def row(n, phase=0, share=0.75):
    made = PhaseEstimate(n, n, float(n), phase, "xy"[phase], (share, 1 - share), 0.5, "frozen", "held")
    return ServedEstimate.of(made, row=n, frame=n)


@pytest.fixture
def store(tmp_path):
    found = Store(tmp_path)
    yield found
    found.close()


def test_a_session_reads_back_as_it_was_written(store):
    rows = [row(n) for n in range(3)]
    store.write([Change(INFO.id, created=INFO, rows=tuple(rows), durable=2)])
    assert store.session(INFO.id).info == INFO
    assert store.rows(INFO.id) == rows
    assert store.rows(INFO.id, after=0, limit=1) == rows[1:2]


def test_a_row_that_is_there_stays_as_it_is(store):
    store.write([Change(INFO.id, created=INFO, rows=(row(0, share=0.75),))])
    store.write([Change(INFO.id, rows=(row(0, share=0.9), row(1)))])
    assert store.rows(INFO.id) == [row(0, share=0.75), row(1)]


def test_a_group_that_fails_leaves_nothing_behind(store):
    store.write([Change(INFO.id, created=INFO)])
    with pytest.raises(sqlite3.Error):
        store.write([Change(INFO.id, rows=(row(0),)), Change("unknown", rows=(row(0),))])
    assert store.rows(INFO.id) == []


def test_a_start_finds_snapshot_later_rows_and_drops(store):
    store.write(
        [
            Change(
                INFO.id, created=INFO, rows=(row(0), row(1)), durable=1, snapshot=Snapshot(1, 2, 0, b"memory")
            )
        ]
    )
    store.write([Change(INFO.id, rows=(row(2, phase=1),), drops=(3,), durable=3)])
    [past] = store.unfinished()
    assert (past.snapshot, past.later_rows, past.drops, past.durable) == (
        Snapshot(1, 2, 0, b"memory"),
        (row(2, phase=1),),
        {3},
        3,
    )
    assert past.segments == ((0, 0.0, 2.0), (1, 2.0, 2.0))


def test_a_finished_session_keeps_no_snapshot_and_is_not_gone_on_with(store):
    store.write([Change(INFO.id, created=INFO, snapshot=Snapshot(1, 2, 0, b"memory"))])
    ending = Ending(200.0, "", 2, 1, ((0, 0.0, 5.0),))
    store.write([Change(INFO.id, ending=ending)])
    assert store.unfinished() == []
    assert store.finished(10, None)[0].ending == ending
    assert store._writer.execute("select count(*) from snapshots").fetchone() == (0,)


def test_deleting_a_session_deletes_all_of_it(store):
    store.write([Change(INFO.id, created=INFO, rows=(row(0),), drops=(1,), snapshot=Snapshot(0, 1, 0, b"m"))])
    store.write([Change(INFO.id, deleted=True)])
    counts = [
        store._writer.execute(f"select count(*) from {t}").fetchone()[0]
        for t in ("sessions", "estimates", "snapshots", "drops")
    ]
    assert counts == [0, 0, 0, 0]


def test_expired_are_finished_sessions_that_ended_before(store):
    store.write([Change(INFO.id, created=INFO, ending=Ending(200.0, "", 0, 0, ()))])
    assert store.expired(199.0) == [] and store.expired(201.0) == [INFO.id]


def test_a_file_that_is_no_record_is_refused_in_one_line(tmp_path):
    (tmp_path / "record.sqlite3").write_bytes(b"not a database" * 100)
    with pytest.raises(DataError, match="cannot open the record") as error:
        Store(tmp_path)
    assert "\n" not in str(error.value)


def test_a_record_of_another_version_is_refused(tmp_path):
    store = Store(tmp_path)
    store._writer.execute("pragma user_version = 99")
    store.close()
    with pytest.raises(DataError, match="version 99"):
        Store(tmp_path)


def test_segments_are_runs_that_last_until_the_next_begins():
    assert segments_of([(0, 0.0), (0, 1.0), (2, 2.0), (0, 3.5)]) == (
        (0, 0.0, 2.0),
        (2, 2.0, 3.5),
        (0, 3.5, 3.5),
    )
    assert segments_of([]) == ()


def test_merged_changes_say_the_same_with_the_newest_snapshot():
    merged = merge(
        [
            Change("a", created=INFO, rows=(row(0),), durable=0, snapshot=Snapshot(0, 1, 0, b"old")),
            Change("b", durable=5),
            Change("a", rows=(row(1),), drops=(2,), durable=2, snapshot=Snapshot(1, 2, 0, b"new")),
        ]
    )
    wanted = Change("a", INFO, (row(0), row(1)), (2,), 2, Snapshot(1, 2, 0, b"new"))
    assert merged == [wanted, Change("b", durable=5)]
