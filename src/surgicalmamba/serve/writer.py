"""The thread that writes the record. It gathers what happens for a moment and commits it as one group.

When the disk is full or the database is locked, nothing is lost and nothing waits: changes stay in memory, the state is `degraded`, and
the group is tried again until it is written."""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from surgicalmamba.serve.store import Change, Store

log = logging.getLogger("surgicalmamba.serve")
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
