"""The record of the server's sessions: what is stored, the database, and the thread that writes to it.

The database is one SQLite file in write-ahead mode. One connection writes groups of changes; readers open
connections of their own. A group is written whole or not at all. Estimates have the key (session, row): a row
that exists is never changed."""

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from surgicalmamba.errors import DataError
from surgicalmamba.live.estimate import DATABASE_COLUMNS, ServedEstimate, from_row, to_row

log = logging.getLogger("surgicalmamba.server")
WhenBehind = Literal["wait", "drop"]
"""wait   frames are read no faster than they are processed; nothing is lost (a recording)
drop   a full queue drops its oldest waiting frame, so that estimates stay current (a camera)"""
Segment = tuple[int, float, float]
"""A phase id, and the seconds at which it starts and stops."""
SCHEMA_VERSION = 2
"""Version 1 had the columns `row` to `fed` of the estimates; those it lacks are added when it is opened."""
_SCHEMA = """
create table sessions (
  id text primary key, name text not null, created_s real not null, fps text not null, phases text not null,
  model text not null, when_behind text not null, source text, metadata text not null,
  durable integer not null default -1,
  finished_s real, note text, n_rows integer, dropped integer not null default 0, segments text
) strict;
create index sessions_by_time on sessions (created_s);
create table estimates (
  session text not null references sessions (id) on delete cascade, row integer not null,
  primary key (session, row)
) strict, without rowid;
create table snapshots (
  session text primary key references sessions (id) on delete cascade, frame integer not null,
  n_rows integer not null, row_offset integer not null, blob blob not null
) strict;
create table drops (
  session text not null references sessions (id) on delete cascade, frame integer not null,
  primary key (session, frame)
) strict, without rowid;
"""
_ESTIMATE_COLUMNS = ", ".join(DATABASE_COLUMNS)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0


@dataclass(frozen=True)
class SessionInfo:
    """A session as it was created."""

    id: str
    name: str
    created_s: float
    """Seconds since 1970."""
    fps: str
    """The rate of the model's clock, as a fraction."""
    phases: tuple[str, ...]
    model: str
    """Fingerprint of the model."""
    when_behind: WhenBehind
    source: str | None
    """The name of a source that the server reads itself; None where a client pushes frames."""
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """How a session ended."""

    finished_s: float
    note: str
    rows: int
    dropped: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Snapshot:
    """The state of the model after a client's frame."""

    frame: int
    rows: int
    """Estimates up to and including that frame."""
    offset: int
    """Rows among them that came from frames the state has not seen."""
    blob: bytes


@dataclass(frozen=True)
class Stored:
    """A session on record: its creation, its last frame in the database, and its end."""

    info: SessionInfo
    durable: int = -1
    ending: Ending | None = None


@dataclass(frozen=True)
class Unfinished:
    """A session that was open when the server stopped."""

    info: SessionInfo
    snapshot: Snapshot | None
    later_rows: tuple[ServedEstimate, ...]
    """On record after the snapshot: computing them again must give the same."""
    durable: int
    """The last frame whose estimates are in the database."""
    drops: frozenset[int]
    """Frames after the snapshot that were dropped."""
    n_dropped: int
    segments: tuple[Segment, ...]

    @property
    def n_rows(self) -> int:
        return (self.snapshot.rows if self.snapshot else 0) + len(self.later_rows)


@dataclass(frozen=True)
class Change:
    """An update of one session; None or empty fields are unchanged. `durable` is the last frame it covers."""

    session: str
    created: SessionInfo | None = None
    rows: tuple[ServedEstimate, ...] = ()
    drops: tuple[int, ...] = ()
    durable: int | None = None
    snapshot: Snapshot | None = None
    ending: Ending | None = None
    deleted: bool = False

    def on(self, stored: Stored | None) -> Stored | None:
        """A session with this change, which is not in the database yet: `durable` does not move."""
        if stored is None and self.created is not None:
            stored = Stored(self.created)
        if stored is None or self.deleted:
            return None
        return replace(stored, ending=self.ending or stored.ending)

    def then(self, later: "Change") -> "Change":
        """Both changes of one session as one: the newest snapshot, all rows, the last mark."""
        return Change(
            self.session,
            created=later.created or self.created,
            rows=self.rows + later.rows,
            drops=self.drops + later.drops,
            durable=self.durable if later.durable is None else later.durable,
            snapshot=later.snapshot or self.snapshot,
            ending=later.ending or self.ending,
            deleted=later.deleted or self.deleted,
        )


def merge(changes: Iterable[Change]) -> list[Change]:
    """The same changes with one entry per session, in order of first mention."""
    merged: dict[str, Change] = {}
    for change in changes:
        before = merged.get(change.session)
        merged[change.session] = change if before is None else before.then(change)
    return list(merged.values())


def extend_segments(segments: list[Segment], phase: int, time_s: float) -> None:
    """Add an estimate to the runs of one phase. A run lasts until the next begins or to its last estimate."""
    if segments:
        segments[-1] = (*segments[-1][:2], time_s)
    if not segments or segments[-1][0] != phase:
        segments.append((phase, time_s, time_s))


def segments_of(times: Iterable[tuple[int, float]]) -> tuple[Segment, ...]:
    """The segments of estimates (phase, time in seconds), in order."""
    segments: list[Segment] = []
    for phase, time_s in times:
        extend_segments(segments, phase, time_s)
    return tuple(segments)


class Store:
    """Owns the writing connection while the server runs; `write` is called from one thread at a time."""

    def __init__(self, folder: Path, busy_ms: int = 100) -> None:
        self.path = folder / "record.sqlite3"
        self._busy_ms = busy_ms
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = self._connect("rwc")
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            remedy = "Choose a folder that can be written with --data."
            raise DataError(f"cannot open the record {self.path}: {error}. {remedy}") from None

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri, timeout_s = f"{self.path.absolute().as_uri()}?mode={mode}", self._busy_ms / 1000
        connection = sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, timeout=timeout_s
        )
        connection.execute("pragma foreign_keys = on")
        return connection

    def _prepare(self) -> None:
        db = self._writer
        (version,) = db.execute("pragma user_version").fetchone()
        if version > SCHEMA_VERSION:
            remedy = f"this program reads {SCHEMA_VERSION}. Use the version that wrote it."
            raise DataError(f"{self.path} has version {version}; {remedy}")
        setup = ["pragma journal_mode = wal", "pragma synchronous = full", "begin immediate"]
        for statement in [*setup, *(_SCHEMA.split(";") if version == 0 else ())]:
            db.execute(statement)
        present = {name for _, name, *_ in db.execute("pragma table_info(estimates)")}
        for name, kind in DATABASE_COLUMNS.items():
            if name not in present:
                db.execute(f"alter table estimates add column {name} {kind}")
        db.execute(f"pragma user_version = {SCHEMA_VERSION}")
        db.execute("commit")

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
            return next(iter(_sessions(db, "id = ?", session)), None)

    def finished(self, limit: int, before_s: float | None) -> list[Stored]:
        """Finished sessions, newest first, created before a time."""
        where = "finished_s is not null and created_s < ? order by created_s desc limit ?"
        with self._reading() as db:
            return _sessions(db, where, float("inf") if before_s is None else before_s, limit)

    def rows(self, session: str, after: int = -1, limit: int = -1) -> list[ServedEstimate]:
        """Estimates of a session after row `after`, in order; a limit of -1 is none."""
        with self._reading() as db:
            return _rows(db, session, after, limit)

    def unfinished(self) -> list[Unfinished]:
        """The sessions to resume when the server starts."""
        with self._reading() as db:
            return [_resume(db, stored) for stored in _sessions(db, "finished_s is null order by created_s")]

    def expired(self, before_s: float) -> list[str]:
        """Finished sessions that ended before a time."""
        with self._reading() as db:
            return [key for (key,) in db.execute("select id from sessions where finished_s < ?", (before_s,))]

    def close(self) -> None:
        self._writer.close()


def _sessions(db: sqlite3.Connection, where: str, *values: object) -> list[Stored]:
    names = [field.name for field in fields(SessionInfo)]
    columns = ", ".join([*names, "durable, finished_s, note, n_rows, dropped, segments"])
    found = []
    for row in db.execute(f"select {columns} from sessions where {where}", values):
        plain = dict(zip(names, row, strict=False))
        phases, metadata = tuple(json.loads(plain.pop("phases"))), json.loads(plain.pop("metadata"))
        info = SessionInfo(**plain, phases=phases, metadata=metadata)
        durable, finished_s, note, n_rows, dropped, runs = row[len(names) :]
        if finished_s is None:
            found.append(Stored(info, durable))
        else:
            segments = tuple((phase, start, stop) for phase, start, stop in json.loads(runs))
            found.append(Stored(info, durable, Ending(finished_s, note, n_rows, dropped, segments)))
    return found


def _rows(db: sqlite3.Connection, session: str, after: int, limit: int = -1) -> list[ServedEstimate]:
    names = db.execute("select phases from sessions where id = ?", (session,)).fetchone()
    where = "session = ? and row > ? order by row limit ?"
    found = db.execute(f"select {_ESTIMATE_COLUMNS} from estimates where {where}", (session, after, limit))
    phases = json.loads(names[0]) if names else ()
    return [from_row(values, phases) for values in found]


def _resume(db: sqlite3.Connection, stored: Stored) -> Unfinished:
    key = (stored.info.id,)
    query = "select frame, n_rows, row_offset, blob from snapshots where session = ?"
    snapshot = next((Snapshot(*found) for found in db.execute(query, key)), None)
    frame, n_rows = (-1, 0) if snapshot is None else (snapshot.frame, snapshot.rows)
    later = tuple(_rows(db, stored.info.id, n_rows - 1))
    drops = [frame for (frame,) in db.execute("select frame from drops where session = ?", key)]
    times = db.execute("select phase, time_s from estimates where session = ? order by row", key)
    redone = frozenset(dropped for dropped in drops if dropped > frame)
    return Unfinished(stored.info, snapshot, later, stored.durable, redone, len(drops), segments_of(times))


def _apply(db: sqlite3.Connection, change: Change) -> None:
    key = change.session
    if change.created is not None:
        values = asdict(change.created)
        values |= {name: json.dumps(values[name]) for name in ("phases", "metadata")}
        columns, marks = ", ".join(values), ", ".join("?" * len(values))
        db.execute(f"insert or ignore into sessions ({columns}) values ({marks})", tuple(values.values()))
    if change.rows:
        marks = ", ?" * len(DATABASE_COLUMNS)
        insert = f"insert or ignore into estimates (session, {_ESTIMATE_COLUMNS}) values (?{marks})"
        db.executemany(insert, [(key, *to_row(estimate)) for estimate in change.rows])
    if change.drops:
        db.executemany("insert or ignore into drops values (?, ?)", [(key, frame) for frame in change.drops])
    if change.durable is not None:
        db.execute("update sessions set durable = max(durable, ?) where id = ?", (change.durable, key))
    if change.snapshot is not None:
        frozen = (key, *astuple(change.snapshot))
        db.execute("insert or replace into snapshots values (?, ?, ?, ?, ?)", frozen)
    if change.ending is not None:
        *plain, segments = vars(change.ending).values()
        assignments = "finished_s = ?, note = ?, n_rows = ?, dropped = ?, segments = ?"
        db.execute(f"update sessions set {assignments} where id = ?", (*plain, json.dumps(segments), key))
        db.execute("delete from snapshots where session = ?", (key,))
    if change.deleted:
        db.execute("delete from sessions where id = ?", (key,))


class Writer:
    """A thread that collects changes for a moment and commits them as one group. When the disk is full or the
    database is locked, nothing is lost and nothing blocks: changes stay in memory and the group is retried.

    `add` may be called from any thread; `on_written` is called on the writer's thread after a commit."""

    def __init__(self, store: Store, commit_s: float, on_written: Callable[[Sequence[Change]], None]) -> None:
        self._store, self._commit_s, self._on_written = store, commit_s, on_written
        self._pending: list[Change] = []
        self._lock = threading.Lock()
        self._wake, self._urgent = threading.Event(), threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self.failure: str | None = None
        """Why the last commit failed; None when it succeeded."""
        self.commits = self.failures = self.waiting_rows = 0
        self._added = self._written = 0  # changes so far; `flush` compares them

    def start(self) -> None:
        self._thread.start()

    def add(self, change: Change) -> None:
        with self._lock:
            self._pending.append(change)
            self._added += 1
            self.waiting_rows += len(change.rows)
        self._wake.set()

    def pending(self) -> list[Change]:
        """What is not in the database yet, in order."""
        with self._lock:
            return list(self._pending)

    def flush(self, timeout_s: float) -> bool:
        """Write now. False on timeout; the changes stay pending then."""
        end, target = time.monotonic() + timeout_s, self._added
        self._hurry()
        while self._written < target and time.monotonic() < end:
            time.sleep(0.002)
        return self._written >= target

    def stop(self, timeout_s: float) -> bool:
        """Write what is pending and end the thread. False if something could not be written in time."""
        done = self.flush(timeout_s)
        self._is_stopping = True
        self._hurry()
        self._thread.join(timeout_s)
        return done

    def _hurry(self) -> None:
        self._urgent.set()
        self._wake.set()

    def _pause(self, seconds: float) -> None:
        self._urgent.wait(seconds)
        self._urgent.clear()

    def _run(self) -> None:
        while not self._is_stopping:
            self._wake.wait()
            self._wake.clear()
            self._pause(self._commit_s)
            pause_s = _FIRST_PAUSE_S
            while not self._try_commit() and not self._is_stopping:
                self._pause(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _try_commit(self) -> bool:
        """Write everything pending as one group. Changes that arrive meanwhile wait for the next."""
        with self._lock:
            self._pending = merge(self._pending)
            group, added = list(self._pending), self._added
        if not group:
            return True
        try:
            self._store.write(group)
        except sqlite3.Error as error:
            self.failures += 1
            if self.failure is None:
                log.warning("record cannot be written", extra={"reason": str(error), "pending": len(group)})
            self.failure = str(error)
            return False
        with self._lock:
            del self._pending[: len(group)]
            self.waiting_rows = sum(len(change.rows) for change in self._pending)
            self._written = added
        self.commits += 1
        if self.failure is not None:
            log.info("record is written again", extra={"changes": len(group)})
        self.failure = None
        self._on_written(group)
        return True
