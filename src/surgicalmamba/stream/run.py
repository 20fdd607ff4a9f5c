"""The loop behind `surgicalmamba stream`: pictures from a source, through a session, to the sinks.

A source that waits (a file, a folder, a pipe) is read frame by frame and nothing is lost. A live source, or a recording played in real
time, is read by a thread of its own into a queue of one: the newest picture is always the next one, and ticks whose picture had to
be dropped are counted as late and follow the policy."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import FrameType

from surgicalmamba.data.records import Frame, Gap
from surgicalmamba.stream.estimate import Counts, PhaseEstimate
from surgicalmamba.stream.pool import SessionPool
from surgicalmamba.stream.sinks import Seen, Sink
from surgicalmamba.stream.sources import Source

KEY = "stream"
_POLL_S = 0.05
_LEAVE_S = 5.0
"""How long a reader that hangs in a dead link is waited for at the end. One that wakes up while the interpreter is being taken down
aborts the process."""


@dataclass
class Interrupt:
    """Ctrl-C or a polite kill: waiting for a picture is broken off, anything else is finished first."""

    is_set: bool = False
    is_waiting: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
        if self.is_waiting:
            raise KeyboardInterrupt

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM until the end; only the main thread may, others go without."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Where nothing is lost by breaking off."""
        self.is_waiting = True
        try:
            if self.is_set:
                raise KeyboardInterrupt
            yield
        finally:
            self.is_waiting = False


@dataclass
class Runner:
    """One source through one stream of a pool. `run` returns when the source ends or the user has had enough."""

    pool: SessionPool
    source: Source
    sinks: Sequence[Sink]
    realtime: bool = False
    now_s: Callable[[], float] = time.monotonic
    was_interrupted: bool = False
    errors: int = 0
    """Frames that the engine failed on."""
    _waiting: dict[int, tuple[Frame, float]] = field(default_factory=dict)
    """Tick -> the frame that is queued for it and when it came."""
    _gaps: list[Gap] = field(default_factory=list)
    _failure: Exception | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _leaving: threading.Event = field(default_factory=threading.Event)
    """Nothing more is wanted of the reader."""

    @property
    def is_paced(self) -> bool:
        return self.realtime or self.source.is_paced

    def run(self) -> Counts:
        """Until the end. Sinks are closed whatever happens; what went wrong is raised afterwards."""
        interrupt = Interrupt()
        with interrupt.installed():
            try:
                with suppress(KeyboardInterrupt):
                    (self._run_paced if self.is_paced else self._run_waiting)(interrupt)
            finally:
                self.was_interrupted = interrupt.is_set
                for sink in self.sinks:
                    sink.close()
        if self._failure is not None:
            raise self._failure
        return self.pool.counts(KEY)

    def _run_waiting(self, interrupt: Interrupt) -> None:
        frames = iter(self.source.frames)
        while True:
            with interrupt.waiting():
                item = next(frames, None)
            if item is None:
                return
            self._push(item)
            while self.pool.has_work:
                self._tick()

    def _run_paced(self, interrupt: Interrupt) -> None:
        reader = threading.Thread(target=self._read, name="reader", daemon=True)
        reader.start()
        try:
            while not interrupt.is_set:
                is_over = not reader.is_alive()  # asked first: its last picture may come in between
                if self.pool.has_work:
                    self._tick()
                elif is_over:
                    return
                else:
                    with interrupt.waiting():
                        time.sleep(_POLL_S / 10)
        finally:
            self._leaving.set()
            reader.join(_LEAVE_S)

    def _read(self) -> None:
        """Push pictures as they come; a recording's wait for their time."""
        begun_s = self.now_s()
        try:
            for item in self.source.frames:
                if isinstance(item, Frame) and not self.source.is_paced:
                    while (left_s := begun_s + item.time_s - self.now_s()) > 0 and not self._leaving.wait(min(left_s, _POLL_S)):
                        pass
                if self._leaving.is_set():
                    return
                self._push(item)
        except Exception as error:  # raised again where the user sees it
            self._failure = error

    def _push(self, item: Frame | Gap) -> None:
        if isinstance(item, Gap):
            self._gaps.append(item)
            return
        with self._lock:  # no estimate is delivered before its frame is known
            if self.pool.push(KEY, item.rgb, None if self.source.is_sampled else item.time_s):
                self._waiting[self.pool.last_tick(KEY)] = (item, self.now_s())

    def _tick(self) -> None:
        result = self.pool.tick()
        self.errors += len(result.errors)
        while self._gaps:
            gap = self._gaps.pop(0)
            for sink in self.sinks:
                sink.gap(gap)
        for estimate in result.estimates.values():
            self._deliver(estimate)

    def _deliver(self, estimate: PhaseEstimate) -> None:
        with self._lock:
            frame, came_s = self._waiting.get(estimate.tick, (None, self.now_s()))
            for tick in [tick for tick in self._waiting if tick <= estimate.tick]:
                del self._waiting[tick]
        if frame is not None and self.source.is_sampled:
            estimate = replace(estimate, time_s=frame.time_s)
        seen = Seen(estimate, frame, 1000 * (self.now_s() - came_s))
        for sink in self.sinks:
            sink.estimate(seen)
