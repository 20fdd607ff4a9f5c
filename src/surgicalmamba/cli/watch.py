"""A session on the terminal: the history drawn in place, or plain lines where there is no terminal."""

from types import TracebackType

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from surgicalmamba.data.records import Gap
from surgicalmamba.live.sinks import EstimateSink, PhaseHistory, Seen, line, render

_LINE_EVERY_S = 60.0


class Watch(EstimateSink):
    """Draws on stderr. Without a terminal: a line per phase change and per minute of the operation."""

    def __init__(self, history: PhaseHistory, total_s: float | None, title: str) -> None:
        self._history, self._total_s, self._title = history, total_s, title
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._phase: int | None = None
        self._line_s = 0.0

    def __enter__(self) -> "Watch":
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._picture, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _picture(self) -> RenderableType:
        return render(self._history, min(self._console.width, 100), self._total_s, self._title)

    def estimate(self, seen: Seen) -> None:
        estimate = seen.estimate
        is_due = estimate.phase != self._phase or estimate.time_s >= self._line_s + _LINE_EVERY_S
        if self._live is None and is_due:
            typer.echo(line(self._history), err=True)
            self._line_s = estimate.time_s
        self._phase = estimate.phase

    def gap(self, gap: Gap) -> None:
        lost = f"no pictures from {gap.start_s:.0f} s to {gap.end_s:.0f} s"
        self._console.print(f"{lost}: {gap.reason} ({gap.attempts} attempts)")
