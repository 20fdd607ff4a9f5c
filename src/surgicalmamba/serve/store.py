"""The record on disk: one SQLite file in write-ahead mode. One connection writes groups of changes; readers open their own.

A group is written or not written, never half. Estimates have the key (session, row): a row that is there already stays as it is."""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from surgicalmamba.errors import DataError
from surgicalmamba.serve.records import Ending, Row, Segment, SessionInfo, Snapshot, Unfinished

SCHEMA_VERSION = 1
_SCHEMA = """
create table sessions (
  id text primary key, name text not null, created_s real not null, fps text not null, phases text not null, model text not null,
  when_behind text not null, source text, metadata text not null, durable integer not null default -1,
  finished_s real, note text, n_rows integer, dropped integer not null default 0, segments text
) strict;
create index sessions_by_time on sessions (created_s);
create table estimates (
  session text not null references sessions (id) on delete cascade, row integer not null, frame integer not null, time_s real not null,
  phase integer not null, probabilities blob not null, intensity real, quality text not null, fed text not null,
  primary key (session, row)
) strict, without rowid;
create table snapshots (
  session text primary key references sessions (id) on delete cascade, frame integer not null, n_rows integer not null,
  row_offset integer not null, blob blob not null
) strict;
create table drops (
  session text not null references sessions (id) on delete cascade, frame integer not null, primary key (session, frame)
) strict, without rowid;
"""


@dataclass(frozen=True)
class Stored:
    """A session as listed: what was created, how far it is on record, and how it ended."""

    info: SessionInfo
    durable: int
    ending: Ending | None


@dataclass(frozen=True)
class Change:
    """News of one session for the record; what is None or empty did not change. `durable` is the last frame it accounts for."""

    session: str
    created: SessionInfo | None = None
    rows: tuple[Row, ...] = ()
    drops: tuple[int, ...] = ()
    durable: int | None = None
    snapshot: Snapshot | None = None
    ending: Ending | None = None
    deleted: bool = False

    def on(self, stored: Stored | None) -> Stored | None:
        """A session with this change, which is not on disk yet: its last frame on disk stays the one it was."""
        if self.deleted:
            return None
        if stored is None and self.created is not None:
            stored = Stored(self.created, -1, None)
        if stored is None:
            return None
        return replace(stored, ending=self.ending or stored.ending)


class Store:
    """Owns the writing connection for as long as the server runs; `write` is called from one thread at a time."""

    def __init__(self, folder: Path, busy_ms: int = 100) -> None:
        self.path = folder / "record.sqlite3"
        self._busy_ms = busy_ms
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = self._connect("rwc")
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise DataError(f"cannot open the record {self.path}: {error}. Give a folder that can be written with --data.") from None

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=self._busy_ms / 1000)
        connection.execute("pragma foreign_keys = on")
        return connection

    def _prepare(self) -> None:
        (version,) = self._writer.execute("pragma user_version").fetchone()
        if version not in (0, SCHEMA_VERSION):
            raise DataError(f"{self.path} has version {version}; this program reads {SCHEMA_VERSION}. Use the version that wrote it.")
        self._writer.execute("pragma journal_mode = wal")
        self._writer.execute("pragma synchronous = full")
        if version == 0:
            self._writer.executescript(f"begin immediate; {_SCHEMA} pragma user_version = {SCHEMA_VERSION}; commit;")

    def write(self, changes: Iterable[Change]) -> None:
        """All changes in one transaction. Raises sqlite3.Error, and then nothing has changed."""
        db = self._writer
        db.execute("begin immediate")
        try:
            for change in changes:
                _apply(db, change)
            db.execute("commit")
        except BaseException:
            if db.in_transaction:
                db.execute("rollback")
            raise

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        connection = self._connect("ro")
        try:
            connection.execute("begin")  # one consistent view for all queries of a call
            yield connection
        finally:
            connection.close()

    def session(self, session: str) -> Stored | None:
        with self._reading() as db:
            found = db.execute(f"select {_COLUMNS} from sessions where id = ?", (session,)).fetchone()
        return None if found is None else _stored(found)

    def finished(self, limit: int, before_s: float | None) -> list[Stored]:
        """Finished sessions, newest first, created before a moment."""
        where = "finished_s is not null" + ("" if before_s is None else " and created_s < ?")
        values = (limit,) if before_s is None else (before_s, limit)
        with self._reading() as db:
            found = db.execute(f"select {_COLUMNS} from sessions where {where} order by created_s desc limit ?", values).fetchall()
        return [_stored(values) for values in found]

    def rows(self, session: str, after: int = -1, limit: int = -1) -> list[Row]:
        """Estimates of a session beyond row `after`, in order; a limit of -1 is none."""
        with self._reading() as db:
            return _rows(db, "session = ? and row > ? order by row limit ?", (session, after, limit))

    def unfinished(self) -> list[Unfinished]:
        """What to go on with after a start."""
        with self._reading() as db:
            found = db.execute(f"select {_COLUMNS} from sessions where finished_s is null order by created_s").fetchall()
            return [self._resume(db, _stored(values)) for values in found]

    def _resume(self, db: sqlite3.Connection, stored: Stored) -> Unfinished:
        key = stored.info.id
        frozen = db.execute("select frame, n_rows, row_offset, blob from snapshots where session = ?", (key,)).fetchone()
        snapshot = None if frozen is None else Snapshot(*frozen)
        frame, n_rows = (-1, 0) if snapshot is None else (snapshot.frame, snapshot.rows)
        later = _rows(db, "session = ? and row >= ? order by row", (key, n_rows))
        drops = {int(f) for (f,) in db.execute("select frame from drops where session = ? and frame > ?", (key, frame))}
        (n_dropped,) = db.execute("select count(*) from drops where session = ?", (key,)).fetchone()
        times = db.execute("select phase, time_s from estimates where session = ? order by row", (key,)).fetchall()
        return Unfinished(stored.info, snapshot, tuple(later), stored.durable, frozenset(drops), int(n_dropped), segments_of(times))

    def expired(self, before_s: float) -> list[str]:
        """Finished sessions that ended before a moment."""
        with self._reading() as db:
            return [key for (key,) in db.execute("select id from sessions where finished_s < ?", (before_s,))]

    def close(self) -> None:
        self._writer.close()


_COLUMNS = "id, name, created_s, fps, phases, model, when_behind, source, metadata, durable, finished_s, note, n_rows, dropped, segments"


def _stored(values: tuple[object, ...]) -> Stored:
    key, name, created_s, fps, phases, model, when_behind, source, metadata, durable, finished_s, note, n_rows, dropped, segments = values
    info = SessionInfo(
        str(key),
        str(name),
        float(str(created_s)),
        str(fps),
        tuple(json.loads(str(phases))),
        str(model),
        "drop" if when_behind == "drop" else "wait",
        None if source is None else str(source),
        json.loads(str(metadata)),
    )
    ending = None
    if finished_s is not None:
        runs = tuple((int(phase), float(start), float(stop)) for phase, start, stop in json.loads(str(segments)))
        ending = Ending(float(str(finished_s)), str(note), int(str(n_rows)), int(str(dropped)), runs)
    return Stored(info, int(str(durable)), ending)


def _rows(db: sqlite3.Connection, where: str, values: tuple[object, ...]) -> list[Row]:
    columns = "row, frame, time_s, phase, probabilities, intensity, quality, fed"
    return [Row(*found) for found in db.execute(f"select {columns} from estimates where {where}", values)]


def _apply(db: sqlite3.Connection, change: Change) -> None:
    key = change.session
    if change.created is not None:
        info = change.created
        db.execute(
            "insert or ignore into sessions (id, name, created_s, fps, phases, model, when_behind, source, metadata) "
            "values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                key,
                info.name,
                info.created_s,
                info.fps,
                json.dumps(info.phases),
                info.model,
                info.when_behind,
                info.source,
                json.dumps(info.metadata),
            ),
        )
    if change.rows:
        values = [(key, r.row, r.frame, r.time_s, r.phase, r.probabilities, r.intensity, r.quality, r.fed) for r in change.rows]
        db.executemany("insert or ignore into estimates values (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    if change.drops:
        db.executemany("insert or ignore into drops values (?, ?)", [(key, frame) for frame in change.drops])
    if change.durable is not None:
        db.execute("update sessions set durable = max(durable, ?) where id = ?", (change.durable, key))
    if change.snapshot is not None:
        snapshot = change.snapshot
        db.execute("insert or replace into snapshots values (?, ?, ?, ?, ?)", (key, *vars(snapshot).values()))
    if change.ending is not None:
        end = change.ending
        db.execute(
            "update sessions set finished_s = ?, note = ?, n_rows = ?, dropped = ?, segments = ? where id = ?",
            (end.finished_s, end.note, end.rows, end.dropped, json.dumps(end.segments), key),
        )
        db.execute("delete from snapshots where session = ?", (key,))
    if change.deleted:
        db.execute("delete from sessions where id = ?", (key,))


def segments_of(times: Iterable[tuple[int, float]]) -> tuple[Segment, ...]:
    """Runs of one phase. A run lasts until the next begins; the last one until its last estimate."""
    runs: list[list[float]] = []
    for phase, time_s in times:
        if runs:
            runs[-1][2] = time_s
        if not runs or runs[-1][0] != phase:
            runs.append([phase, time_s, time_s])
    return tuple((int(phase), start, stop) for phase, start, stop in runs)
