"""One call of `surgicalmamba stream`: everything is opened and checked before the first picture, and summed up after the last."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from surgicalmamba.errors import ConfigError
from surgicalmamba.model.checkpoint import demo_model_path, load
from surgicalmamba.stream.engine import Engine
from surgicalmamba.stream.engines import Say, open_engine, open_exported
from surgicalmamba.stream.estimate import Counts
from surgicalmamba.stream.exported import EXPORT_FILE
from surgicalmamba.stream.output import OutputStage
from surgicalmamba.stream.overlay import OverlaySink
from surgicalmamba.stream.policy import Action, Policy
from surgicalmamba.stream.pool import SessionPool
from surgicalmamba.stream.run import KEY, Runner
from surgicalmamba.stream.sinks import CsvSink, JsonLinesSink, Seen, Sink
from surgicalmamba.stream.sources import Source, open_pictures
from surgicalmamba.stream.timeline import Timeline, clock_text, counts_text


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
        pictures = open_pictures(source, config.preprocess, rate, image_fps)
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
