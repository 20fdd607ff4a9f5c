"""A session on the terminal: the timeline in place, or plain lines where there is no terminal."""

from types import TracebackType
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from surgicalmamba.data.records import Gap
    from surgicalmamba.live.sinks import Seen, Timeline

_LINE_EVERY_S = 60.0


class Watch:
    """A sink that draws on stderr. Without a terminal: a line per phase change and per minute of the operation."""

    def __init__(self, timeline: "Timeline", total_s: float | None, title: str) -> None:
        from rich.console import Console

        self._timeline, self._total_s, self._title = timeline, total_s, title
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._phase: int | None = None
        self._line_s = 0.0

    def __enter__(self) -> "Watch":
        from rich.live import Live

        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._picture, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def _picture(self) -> "RenderableType":
        from surgicalmamba.live.sinks import render

        return render(self._timeline, min(self._console.width, 100), self._total_s, self._title)

    def estimate(self, seen: "Seen") -> None:
        """Print a line where the picture cannot be drawn."""
        from surgicalmamba.live.sinks import line

        estimate = seen.estimate
        if self._live is None and (estimate.phase != self._phase or estimate.time_s >= self._line_s + _LINE_EVERY_S):
            typer.echo(line(self._timeline), err=True)
            self._line_s = estimate.time_s
        self._phase = estimate.phase

    def gap(self, gap: "Gap") -> None:
        """Say that the source was away."""
        self._console.print(f"no pictures from {gap.start_s:.0f} s to {gap.end_s:.0f} s: {gap.reason} ({gap.attempts} attempts)")

    def close(self) -> None:
        """The picture stays on the screen as it is."""
