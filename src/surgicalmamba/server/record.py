"""The thread that writes the record. It gathers what happens for a moment and commits it as one group.

When the disk is full or the database is locked, nothing is lost and nothing waits: changes stay in memory, the state is `degraded`, and
the group is tried again until it is written."""

import json
import logging
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from surgicalmamba.errors import DataError
from surgicalmamba.live.estimate import PhaseEstimate

# What the server keeps about sessions: plain records that the store writes and reads.


WhenBehind = Literal["wait", "drop"]
"""wait   frames are taken no faster than they are worked off; nothing is lost (a recording)
drop   a full queue drops its oldest waiting frame; what is shown is the newest (a camera)"""

Segment = tuple[int, float, float]
"""A phase id and the seconds from which to which it lasted."""


@dataclass(frozen=True)
class SessionInfo:
    """A session as it was created."""

    id: str
    name: str
    created_s: float
    """Seconds since 1970."""
    fps: str
    """The rate the recognizer runs at, as a fraction."""
    phases: tuple[str, ...]
    model: str
    """Fingerprint of the model."""
    when_behind: WhenBehind
    source: str | None
    """The server reads this source itself; None where a client pushes."""
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One estimate on record. Equal rows are equal to the last bit."""

    row: int
    frame: int
    """The client's frame that led to it."""
    time_s: float
    phase: int
    probabilities: bytes
    """Packed 64-bit floats, little-endian."""
    intensity: float | None
    quality: str
    fed: str

    @classmethod
    def of(cls, estimate: PhaseEstimate, frame: int, offset: int) -> "Row":
        """`offset` rows of this session were made of frames that the recognizer's memory does not know (see Room.skip)."""
        packed = struct.pack(f"<{len(estimate.probabilities)}d", *estimate.probabilities)
        row = estimate.frame_index + offset
        return cls(row, frame, estimate.time_s, estimate.phase, packed, estimate.intensity, estimate.quality, estimate.fed)

    def unpacked(self) -> tuple[float, ...]:
        return struct.unpack(f"<{len(self.probabilities) // 8}d", self.probabilities)


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
    """The recognizer's memory after a client's frame."""

    frame: int
    rows: int
    """Estimates up to and including that frame."""
    offset: int
    """Rows among them that the memory does not know."""
    blob: bytes


@dataclass(frozen=True)
class Unfinished:
    """A session that the server was in the middle of when it stopped."""

    info: SessionInfo
    snapshot: Snapshot | None
    later_rows: tuple[Row, ...]
    """On record beyond the snapshot: computing them anew must give the same."""
    durable: int
    """The last frame that is worked off on record."""
    drops: frozenset[int]
    """Frames beyond the snapshot that were dropped, on record."""
    n_dropped: int
    segments: tuple[Segment, ...]


# The record on disk: one SQLite file in write-ahead mode. One connection writes groups of changes; readers open their own.
#
# A group is written or not written, never half. Estimates have the key (session, row): a row that is there already stays as it is.


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


log = logging.getLogger("surgicalmamba.server")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0


class Writer:
    """Owns the pending changes. `add` may be called from any thread; `on_written` is called on the writer's thread after a commit."""

    def __init__(self, store: Store, commit_s: float, on_written: Callable[[Sequence[Change]], None]) -> None:
        self._store, self._commit_s, self._on_written = store, commit_s, on_written
        self._pending: list[Change] = []
        self._lock = threading.Lock()
        self._wake, self._urgent = threading.Event(), threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self.failure: str | None = None
        """Why the last commit failed; None when it did not."""
        self.commits = self.failures = 0
        self.waiting_rows = 0
        self._added = self._written = 0  # changes so far, to know when a flush has done its work

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
        """Write now. False if it could not be done in time; the changes stay pending then."""
        end = time.monotonic() + timeout_s
        with self._lock:
            wanted = self._added
        self._urgent.set()
        self._wake.set()
        while time.monotonic() < end:
            with self._lock:
                if self._written >= wanted:
                    return True
            time.sleep(0.002)
        return False

    def stop(self, timeout_s: float) -> bool:
        """Write what is pending and end. False if something could not be written in time."""
        done = self.flush(timeout_s)
        self._is_stopping = True
        self._urgent.set()
        self._wake.set()
        self._thread.join(timeout_s)
        return done

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._is_stopping:
            self._wake.wait()
            self._wake.clear()
            self._urgent.wait(self._commit_s)
            self._urgent.clear()
            while not self._try_commit() and not self._is_stopping:
                self._urgent.wait(pause_s)
                self._urgent.clear()
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            pause_s = _FIRST_PAUSE_S

    def _try_commit(self) -> bool:
        """Write everything pending as one group. Changes that come meanwhile wait for the next."""
        with self._lock:
            self._pending = merge(self._pending)
            group, added = list(self._pending), self._added
        n = len(group)
        if not n:
            return True
        try:
            self._store.write(group)
        except sqlite3.Error as error:
            self.failures += 1
            if self.failure is None:
                log.warning("record cannot be written", extra={"reason": str(error), "pending": n})
            self.failure = str(error)
            return False
        with self._lock:
            del self._pending[:n]
            self.waiting_rows = sum(len(change.rows) for change in self._pending)
            self._written = added
            self.commits += 1
        if self.failure is not None:
            log.info("record is written again", extra={"changes": n})
        self.failure = None
        self._on_written(group)
        return True


def merge(changes: Sequence[Change]) -> list[Change]:
    """The same changes with one entry per session, in order of first mention: the newest snapshot, all rows, the highest mark."""
    found: dict[str, Change] = {}
    rows: dict[str, list[Change]] = {}
    for change in changes:
        rows.setdefault(change.session, []).append(change)
        before = found.get(change.session, Change(change.session))
        found[change.session] = replace(
            before,
            created=change.created or before.created,
            durable=change.durable if change.durable is not None else before.durable,
            snapshot=change.snapshot or before.snapshot,
            ending=change.ending or before.ending,
            deleted=change.deleted or before.deleted,
        )
    return [
        replace(
            change,
            rows=tuple(row for part in rows[key] for row in part.rows),
            drops=tuple(frame for part in rows[key] for frame in part.drops),
        )
        for key, change in found.items()
    ]

