"""The operation so far as a picture for the terminal: phase, confidence, intensity, ribbon, time per phase, latency.

A Timeline collects estimates; `render` turns it into something rich can print, with no clock and no terminal of its own."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from surgicalmamba.report.colours import colour
from surgicalmamba.stream.estimate import Counts, PhaseEstimate

_LATENCIES = 200
_BAR = 12


@dataclass(frozen=True)
class Span:
    """A stretch of one phase, in source seconds."""

    phase: int
    start_s: float
    stop_s: float


@dataclass
class Timeline:
    """What was said so far. Memory grows with the number of phase changes, not with time."""

    names: Sequence[str]
    fps: float
    """Ticks per second: an estimate stands for one tick of time."""
    spans: list[Span] = field(default_factory=list)
    elapsed_s: dict[int, float] = field(default_factory=dict)
    last: PhaseEstimate | None = None
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))

    def add(self, estimate: PhaseEstimate, latency_ms: float | None = None) -> bool:
        """Take in an estimate; True where a phase begins."""
        stop_s = estimate.time_s + 1 / self.fps
        begins = not self.spans or self.spans[-1].phase != estimate.phase
        if begins:
            self.spans.append(Span(estimate.phase, estimate.time_s, stop_s))
        else:
            self.spans[-1] = replace(self.spans[-1], stop_s=stop_s)
        self.elapsed_s[estimate.phase] = self.elapsed_s.get(estimate.phase, 0.0) + 1 / self.fps
        self.last = estimate
        if latency_ms is not None:
            self.latencies_ms.append(latency_ms)
        return begins


def clock_text(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def counts_text(counts: Counts) -> str:
    """The counters that are not zero, in words; empty where all is well."""
    shown = [f"{value} {name}" for name, value in vars(counts).items() if value]
    return ", ".join(shown)


def line(timeline: Timeline) -> str:
    """The newest estimate as one line of plain text."""
    estimate = timeline.last
    if estimate is None:
        return "waiting for the first picture"
    parts = [clock_text(estimate.time_s), f"{estimate.name} {estimate.confidence:.0%}"]
    if estimate.intensity is not None:
        parts.append(f"intensity {estimate.intensity:.2f}")
    if timeline.latencies_ms:
        parts.append(f"{np.median(timeline.latencies_ms):.0f} ms")
    if counted := counts_text(estimate.counts):
        parts.append(counted)
    return "  ".join(parts)


def ribbon(timeline: Timeline, width: int, total_s: float | None = None) -> Text:
    """`width` cells from the first picture to the end (of the recording, or so far), each in the colour of the phase at its middle."""
    text = Text()
    if not timeline.spans:
        return Text("·" * width, style="dim")
    start_s = timeline.spans[0].start_s
    stop_s = max(timeline.spans[-1].stop_s, start_s + (total_s or 0.0))
    spans = iter(timeline.spans)
    span = next(spans)
    for cell in range(width):
        middle_s = start_s + (cell + 0.5) * (stop_s - start_s) / width
        while middle_s >= span.stop_s and (following := next(spans, None)) is not None:
            span = following
        inside = span.start_s <= middle_s < span.stop_s
        text.append("█" if inside else "·", style=colour(span.phase) if inside else "dim")
    return text


def _bar(share: float, style: str) -> Text:
    filled = round(min(max(share, 0.0), 1.0) * _BAR)
    return Text.assemble(("█" * filled, style), ("░" * (_BAR - filled), "dim"))


def render(timeline: Timeline, width: int = 80, total_s: float | None = None, title: str = "surgicalmamba") -> RenderableType:
    """The whole picture, `width` columns wide."""
    inner = width - 4
    estimate = timeline.last
    if estimate is None:
        return Panel(Text("waiting for the first picture", style="dim"), title=title, width=width)
    head = Table.grid(expand=True)
    head.add_column(ratio=1)
    head.add_column(justify="right")
    time = clock_text(estimate.time_s) + (f" / {clock_text(total_s)}" if total_s else "")
    head.add_row(Text(f"■ {estimate.name}", style=f"bold {colour(estimate.phase)}"), Text(time, style="bold"))
    measures = Table.grid(padding=(0, 1))
    measures.add_row("confidence", _bar(estimate.confidence, colour(estimate.phase)), f"{estimate.confidence:6.1%}")
    if estimate.intensity is not None:
        measures.add_row("intensity", _bar(estimate.intensity, "white"), f"{estimate.intensity:6.2f}")
    parts: list[RenderableType] = [head, measures, Text(), ribbon(timeline, inner, total_s), Text(), _phases(timeline, estimate)]
    foot = []
    if timeline.latencies_ms:
        median, high = np.percentile(timeline.latencies_ms, [50, 95])
        foot.append(f"latency {median:.0f} ms, p95 {high:.0f} ms")
    if counted := counts_text(estimate.counts):
        foot.append(counted)
    if foot:
        parts += [Text(), Text("   ".join(foot), style="dim")]
    return Panel(Group(*parts), title=title, title_align="left", width=width)


def _phases(timeline: Timeline, estimate: PhaseEstimate) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(ratio=1)
    table.add_column(justify="right")
    table.add_column()
    table.add_column(justify="right")
    for phase, name in enumerate(timeline.names):
        elapsed_s = timeline.elapsed_s.get(phase)
        now = "bold" if phase == estimate.phase else "" if elapsed_s else "dim"
        probability = estimate.probabilities[phase]
        shown = "–" if elapsed_s is None else clock_text(elapsed_s)
        label = Text.assemble(("■ ", colour(phase)), (name, now))
        table.add_row(label, Text(shown, style=now), _bar(probability, colour(phase)), Text(f"{probability:6.1%}", style=now))
    return table
