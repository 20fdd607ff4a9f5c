"""The loop behind `surgicalmamba stream`: pictures from a source, through a Session, to the sinks.

A source that waits (a file, a folder, a pipe) is read frame by frame and nothing is lost. A live source, or a
recording played in real time, is read by its own thread, which submits every picture to the session: the
newest picture is always the next one, and ticks whose picture was dropped count as late and follow the
policy."""

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
from surgicalmamba.engines.engine import Engine, is_export
from surgicalmamba.engines.select import Notify, open_engine, open_exported
from surgicalmamba.errors import ConfigError
from surgicalmamba.live.estimate import Counts, PhaseEstimate
from surgicalmamba.live.output import OutputStage
from surgicalmamba.live.session import Session
from surgicalmamba.live.sinks import (
    CsvSink,
    EstimateSink,
    JsonLinesSink,
    OverlaySink,
    PhaseHistory,
    Seen,
    clock_text,
    counts_text,
)
from surgicalmamba.live.sources import Source, open_source
from surgicalmamba.live.track import Action, Policy
from surgicalmamba.model.checkpoint import demo_model_path, load

_POLL_S = 0.05
_JOIN_S = 5.0
"""Timeout to join the reader. One that wakes up while the interpreter shuts down aborts the process."""


@dataclass
class Interrupt:
    """SIGINT and SIGTERM: waiting for a picture is interrupted, anything else is finished first."""

    is_set: bool = False
    is_waiting: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
        if self.is_waiting:
            raise KeyboardInterrupt

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals inside the block. Only the main thread can; in others nothing is installed."""
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
        """A block that may be interrupted without loss."""
        self.is_waiting = True
        try:
            if self.is_set:
                raise KeyboardInterrupt
            yield
        finally:
            self.is_waiting = False


@dataclass
class Runner:
    """One source through one session. `run` returns when the source ends or the user interrupts it."""

    session: Session
    source: Source
    sinks: Sequence[EstimateSink]
    realtime: bool = False
    now_s: Callable[[], float] = time.monotonic
    was_interrupted: bool = False
    errors: int = 0
    """Frames on which the engine failed."""
    _waiting: dict[int, tuple[Frame, float]] = field(default_factory=dict)
    """Tick -> the frame submitted for it, and when."""
    _gaps: list[Gap] = field(default_factory=list)
    _failure: Exception | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: threading.Event = field(default_factory=threading.Event)
    """Ends the reader."""

    def run(self) -> Counts:
        """Until the end. Sinks are closed in any case; an error is raised afterwards."""
        interrupt = Interrupt()
        is_paced = self.realtime or self.source.is_paced
        with interrupt.installed():
            try:
                with suppress(KeyboardInterrupt):
                    (self._run_paced if is_paced else self._run_waiting)(interrupt)
            finally:
                self.was_interrupted = interrupt.is_set
                for sink in self.sinks:
                    sink.close()
        if self._failure is not None:
            raise self._failure
        return self.session.counts

    def _run_waiting(self, interrupt: Interrupt) -> None:
        frames = iter(self.source.frames)
        while True:
            with interrupt.waiting():
                item = next(frames, None)
            if item is None:
                return
            self._submit(item)
            while self.session.has_work:
                self._step()

    def _run_paced(self, interrupt: Interrupt) -> None:
        reader = threading.Thread(target=self._read, name="reader", daemon=True)
        reader.start()
        try:
            while not interrupt.is_set:
                is_over = not reader.is_alive()  # before has_work: the last picture may come between the two
                if self.session.has_work:
                    self._step()
                elif is_over:
                    return
                else:
                    with interrupt.waiting():
                        time.sleep(_POLL_S / 10)
        finally:
            self._stopped.set()
            reader.join(_JOIN_S)

    def _read(self) -> None:
        """Submit pictures as they come; those of a recording wait for their time."""
        begun_s = self.now_s()
        try:
            for item in self.source.frames:
                if isinstance(item, Frame) and not self.source.is_paced:
                    due_s = begun_s + item.time_s
                    while (left_s := due_s - self.now_s()) > 0 and not self._stopped.wait(
                        min(left_s, _POLL_S)
                    ):
                        pass
                if self._stopped.is_set():
                    return
                self._submit(item)
        except Exception as error:  # raised again on the main thread
            self._failure = error

    def _submit(self, item: Frame | Gap) -> None:
        if isinstance(item, Gap):
            self._gaps.append(item)
            return
        with self._lock:  # the frame is known before its estimate is delivered
            tick = self.session.submit(item.rgb, None if self.source.is_sampled else item.time_s)
            if tick is not None:
                self._waiting[tick] = (item, self.now_s())

    def _step(self) -> None:
        estimate = None
        try:
            estimate = self.session.step()
        except Exception:  # engines are foreign code; a failed frame is counted and the stream continues
            self.errors += 1
        while self._gaps:
            gap = self._gaps.pop(0)
            for sink in self.sinks:
                sink.gap(gap)
        if estimate is not None:
            self._deliver(estimate)

    def _deliver(self, estimate: PhaseEstimate) -> None:
        with self._lock:
            frame, submitted_s = self._waiting.get(estimate.tick, (None, self.now_s()))
            for tick in [tick for tick in self._waiting if tick <= estimate.tick]:
                del self._waiting[tick]
        if frame is not None and self.source.is_sampled:
            estimate = replace(estimate, time_s=frame.time_s)
        seen = Seen(estimate, frame, 1000 * (self.now_s() - submitted_s))
        for sink in self.sinks:
            sink.estimate(seen)


def parse_policy(texts: Sequence[str]) -> Policy:
    """`hold` for every kind, or `black=hold`; later ones win."""
    policy = Policy()
    for text in texts:
        kind, equals, action = text.rpartition("=")
        if action not in get_args(Action):
            raise ConfigError(f"policy {text!r}: the action is one of {', '.join(get_args(Action))}.")
        everywhere = Policy.everywhere(action)  # type: ignore[arg-type]
        policy = policy.with_(**{kind: action}) if equals else everywhere
    return policy


@dataclass(frozen=True)
class Summary:
    """The result of a session."""

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
            lines.append(
                f"latency: median {self.latency_ms['median']:.1f} ms, p95 {self.latency_ms['p95']:.1f} ms"
            )
        if counted := counts_text(self.counts):
            lines.append(f"not ordinary: {counted}")
        if self.errors:
            lines.append(f"{self.errors} frames failed in the engine")
        return "\n".join([*lines, *(f"wrote {file}" for file in self.files)])


@dataclass(frozen=True)
class StreamJob:
    """A model and a source, opened and checked before the first picture."""

    engine: Engine
    source: Source
    fps: Fraction
    policy: Policy
    stage: OutputStage | None
    history: PhaseHistory

    @classmethod
    def open(
        cls,
        source: str,
        model: str | None = None,
        engine: str = "auto",
        fps: Fraction | None = None,
        image_fps: Fraction | None = None,
        policy: Policy | None = None,
        stage: Path | None = None,
        device: torch.device | None = None,
        notify: Notify | None = None,
    ) -> "StreamJob":
        """Load a model (by default the demo model) or an export, and open the source."""
        place = demo_model_path() if model is None else model
        if is_export(place):
            opened = open_exported(place)
        else:
            opened = open_engine(load(place).to(device or torch.device("cpu")), engine, notify=notify)
        config = opened.config
        rate = fps or config.preprocess.rate
        pictures = open_source(source, config.preprocess.sampling, rate, image_fps)
        names = config.phases or tuple(str(number) for number in range(config.n_phases))
        output_stage = None if stage is None else OutputStage.load(stage)
        return cls(opened, pictures, rate, policy or Policy(), output_stage, PhaseHistory(names, float(rate)))

    def run(
        self, files: Sequence[Path], overlay: Path | None, realtime: bool, watch: EstimateSink
    ) -> Summary:
        """Stream until the source ends or the user stops it."""
        session = Session(self.engine, fps=self.fps, policy=self.policy, output_stage=self.stage)
        history = self.history
        sinks: list[EstimateSink] = [history, watch, *(self._file(file) for file in files)]
        if overlay is not None:
            sinks.append(OverlaySink(overlay, history, self.source.duration_s))
        runner = Runner(session, self.source, sinks, realtime)
        counts = runner.run()
        latency = history.latencies_ms
        percentiles = np.percentile(latency, (50, 95)).tolist() if latency else []
        return Summary(
            source=self.source.name,
            engine=self.engine.name,
            estimates=len(latency),
            phases={history.names[phase]: history.elapsed_s[phase] for phase in sorted(history.elapsed_s)},
            counts=counts,
            latency_ms=dict(zip(("median", "p95"), percentiles, strict=False)),
            errors=runner.errors,
            files=[str(file) for file in (*files, overlay) if file is not None and file.exists()],
            was_interrupted=runner.was_interrupted,
        )

    def _file(self, path: Path) -> EstimateSink:
        if path.suffix.lower() == ".csv":
            config = self.engine.config
            names = config.phases or tuple(f"phase {number}" for number in range(config.n_phases))
            return CsvSink(path, names, float(self.fps))
        about: dict[str, object] = {
            "source": self.source.name,
            "engine": self.engine.name,
            "fps": str(self.fps),
            "phases": list(self.history.names),
            "policy": self.policy.model_dump(mode="json"),
            "output_stage": None if self.stage is None else self.stage.model_dump(mode="json"),
        }
        return JsonLinesSink(path, about)
