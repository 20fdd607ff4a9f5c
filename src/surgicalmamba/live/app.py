"""One call of `surgicalmamba stream`: everything is opened and checked before the first picture, and summed up after the last."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import get_args

import numpy as np
import torch

from surgicalmamba.data.records import Frame, Gap
from surgicalmamba.engines.engine import Engine
from surgicalmamba.engines.onnx import EXPORT_FILE
from surgicalmamba.engines.select import Say, open_engine, open_exported
from surgicalmamba.errors import ConfigError
from surgicalmamba.live.estimate import Counts, PhaseEstimate
from surgicalmamba.live.output import OutputStage
from surgicalmamba.live.session import SessionPool
from surgicalmamba.live.sinks import CsvSink, JsonLinesSink, OverlaySink, Seen, Sink, Timeline, clock_text, counts_text
from surgicalmamba.live.sources import Source, open_pictures
from surgicalmamba.live.track import Action, Policy
from surgicalmamba.model.checkpoint import demo_model_path, load

# The loop behind `surgicalmamba stream`: pictures from a source, through a session, to the sinks.
#
# A source that waits (a file, a folder, a pipe) is read frame by frame and nothing is lost. A live source, or a recording played in real
# time, is read by a thread of its own into a queue of one: the newest picture is always the next one, and ticks whose picture had to
# be dropped are counted as late and follow the policy.


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


def parse_policy(texts: Sequence[str]) -> Policy:
    """`hold` for every kind, or `black=hold`; later ones win."""
    policy = Policy()
    for text in texts:
        kind, equals, action = text.rpartition("=")
        if action not in get_args(Action):
            raise ConfigError(f"policy {text!r}: the action is one of {', '.join(get_args(Action))}.")
        policy = policy.with_(**{kind: action}) if equals else Policy.everywhere(action)  # type: ignore[arg-type]
    return policy


@dataclass(frozen=True)
class Summary:
    """What a session gave."""

    source: str
    engine: str
    estimates: int
    phases: dict[str, float]
    """Seconds per phase that occurred, in order of their ids."""
    counts: Counts
    latency_ms: dict[str, float]
    """Median and 95th percentile over the whole session; empty without an estimate."""
    errors: int
    files: list[str]
    was_interrupted: bool

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**vars(self), "counts": vars(self.counts)}

    def text(self) -> str:
        """For people."""
        ended = "stopped by the user" if self.was_interrupted else "ended"
        lines = [f"{self.source}: {ended} after {self.estimates} estimates (engine {self.engine})"]
        width = max((len(name) for name in self.phases), default=0)
        lines += [f"  {name:{width}}  {clock_text(seconds):>8}" for name, seconds in self.phases.items()]
        if self.latency_ms:
            lines.append(f"latency: median {self.latency_ms['median']:.1f} ms, p95 {self.latency_ms['p95']:.1f} ms")
        if counted := counts_text(self.counts):
            lines.append(f"not ordinary: {counted}")
        if self.errors:
            lines.append(f"{self.errors} frames failed in the engine")
        return "\n".join([*lines, *(f"wrote {file}" for file in self.files)])


class _Tally:
    """A sink that feeds the timeline first, so that those after it can draw it, and keeps every latency."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.latencies_ms: list[float] = []

    def estimate(self, seen: Seen) -> None:
        self.latencies_ms.append(seen.latency_ms)
        self.timeline.add(seen.estimate, seen.latency_ms)

    def gap(self, gap: object) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Job:
    """A model, a source and how they meet."""

    engine: Engine
    source: Source
    fps: Fraction
    policy: Policy
    stage: OutputStage | None
    timeline: Timeline

    @classmethod
    def open(
        cls,
        source: str,
        model: str | None,
        engine: str,
        fps: Fraction | None,
        image_fps: Fraction | None,
        policy: Policy,
        stage: Path | None,
        device: torch.device,
        say: Say | None = None,
    ) -> "Job":
        """Load the model (the demo model if none is named), or the export it is, and open the source. `say` hears what takes long."""
        place = Path(demo_model_path() if model is None else model)
        if (place / EXPORT_FILE).is_file():
            chosen = open_exported(place)
        else:
            loaded = load(place if model is None else model)
            chosen = open_engine(loaded.to(device), engine, say=say)
        config = chosen.config
        rate = fps or config.preprocess.rate
        pictures = open_pictures(source, config.preprocess.sampling, rate, image_fps)
        names = config.phases or tuple(str(number) for number in range(config.n_phases))
        return cls(chosen, pictures, rate, policy, None if stage is None else OutputStage.load(stage), Timeline(names, float(rate)))

    def run(self, files: Sequence[Path], overlay: Path | None, realtime: bool, watch: Sink) -> Summary:
        """Stream until the source ends or the user stops it."""
        paced = realtime or self.source.is_paced
        pool = SessionPool(self.engine, capacity=1, queue_len=1 if paced else 64)
        pool.open(KEY, self.fps, self.policy, self.stage)
        tally = _Tally(self.timeline)
        sinks: list[Sink] = [tally, watch, *(self._file(file) for file in files)]
        if overlay is not None:
            sinks.append(OverlaySink(overlay, self.timeline, self.source.duration_s))
        runner = Runner(pool, self.source, sinks, realtime)
        counts = runner.run()
        latency = tally.latencies_ms
        return Summary(
            source=self.source.name,
            engine=self.engine.name,
            estimates=len(latency),
            phases={self.timeline.names[phase]: self.timeline.elapsed_s[phase] for phase in sorted(self.timeline.elapsed_s)},
            counts=counts,
            latency_ms={"median": float(np.median(latency)), "p95": float(np.percentile(latency, 95))} if latency else {},
            errors=runner.errors,
            files=[str(file) for file in (*files, *([] if overlay is None else [overlay])) if file.exists()],
            was_interrupted=runner.was_interrupted,
        )

    def _file(self, path: Path) -> Sink:
        if path.suffix.lower() == ".csv":
            return CsvSink(path, self.engine.config, float(self.fps))
        about: dict[str, object] = {
            "source": self.source.name,
            "engine": self.engine.name,
            "fps": str(self.fps),
            "phases": list(self.timeline.names),
            "policy": self.policy.model_dump(mode="json"),
            "output_stage": None if self.stage is None else self.stage.model_dump(mode="json"),
        }
        return JsonLinesSink(path, about)

