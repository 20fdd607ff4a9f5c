"""Where estimates go: JSON lines, a prediction file, a video, the terminal."""

import json
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

import cv2
import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from surgicalmamba.data.records import Frame, Gap
from surgicalmamba.errors import DataError
from surgicalmamba.live.estimate import Counts, PhaseEstimate, to_prediction
from surgicalmamba.report.colours import colour

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream


@dataclass(frozen=True)
class Seen:
    """An estimate, its frame of the source (None where a tick was filled) and the time between the two."""

    estimate: PhaseEstimate
    frame: Frame | None
    latency_ms: float

    @property
    def source_frame(self) -> int:
        """The source's own number for the frame; the tick where there is none."""
        return self.estimate.tick if self.frame is None else self.frame.index


class EstimateSink:
    """Receives every estimate and gap; `close` is called once, also after an interruption."""

    def estimate(self, seen: Seen) -> None:
        raise NotImplementedError

    def gap(self, gap: Gap) -> None:
        """The source was lost for a while. Estimates count the missed ticks, so most sinks need not react."""

    def close(self) -> None:
        """Complete the output."""


class JsonLinesSink(EstimateSink):
    """One JSON object per line, on disk before the next frame: a killed process leaves all lines whole,
    except perhaps the last one.

    Lines are of type `session` (first), `estimate`, `gap` and `end` (last, unless the process was killed)."""

    def __init__(self, path: Path, about: dict[str, object]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream: TextIO = path.open("w", encoding="utf-8", newline="\n")
        except OSError as error:
            raise _cannot_write(path, error) from None
        self._n = 0
        self._write("session", about)

    def _write(self, kind: str, content: dict[str, object]) -> None:
        self._stream.write(json.dumps({"type": kind, **content}) + "\n")
        self._stream.flush()

    def estimate(self, seen: Seen) -> None:
        self._n += 1
        measured = {"source_frame": seen.source_frame, "latency_ms": round(seen.latency_ms, 3)}
        self._write("estimate", {**seen.estimate.as_dict(), **measured})

    def gap(self, gap: Gap) -> None:
        self._write("gap", vars(gap))

    def close(self) -> None:
        self._write("end", {"estimates": self._n})
        self._stream.close()


class CsvSink(EstimateSink):
    """The prediction file of one video, written at the end; with a `run.json` where there is none yet."""

    def __init__(self, path: Path, names: Sequence[str], fps: float) -> None:
        self._path, self._names, self._fps = path, tuple(names), fps
        self._rows: list[tuple[int, PhaseEstimate]] = []

    def estimate(self, seen: Seen) -> None:
        self._rows.append((seen.source_frame, seen.estimate))

    def close(self) -> None:
        from surgicalmamba.data.labels import PhaseVocabulary
        from surgicalmamba.eval.files import RUN_FILE, RunInfo, write_predictions, write_run

        if not self._rows:
            return
        frames, estimates = zip(*self._rows, strict=True)
        folder, video = self._path.parent, self._path.stem
        prediction = to_prediction(frames, estimates, len(self._names))
        try:
            write_predictions(folder, video, prediction, PhaseVocabulary(video, self._names))
            if not (folder / RUN_FILE).exists():
                write_run(folder, RunInfo("stream", self._names, self._fps))
        except OSError as error:
            raise _cannot_write(self._path, error) from None


def _cannot_write(path: Path, error: OSError) -> DataError:
    return DataError(f"cannot write {path}: {error.strerror}; choose another place.")


@dataclass(frozen=True)
class PhaseSpan:
    """A stretch of one phase, in source seconds."""

    phase: int
    start_s: float
    stop_s: float


@dataclass
class PhaseHistory(EstimateSink):
    """The operation so far. A sink too: the first one, so that the others can draw it."""

    names: Sequence[str]
    fps: float
    """Ticks per second: an estimate stands for one tick of time."""
    spans: list[PhaseSpan] = field(default_factory=list)
    elapsed_s: dict[int, float] = field(default_factory=dict)
    last: PhaseEstimate | None = None
    latencies_ms: list[float] = field(default_factory=list)

    def estimate(self, seen: Seen) -> None:
        estimate = seen.estimate
        stop_s = estimate.time_s + 1 / self.fps
        if self.spans and self.spans[-1].phase == estimate.phase:
            self.spans[-1] = replace(self.spans[-1], stop_s=stop_s)
        else:
            self.spans.append(PhaseSpan(estimate.phase, estimate.time_s, stop_s))
        self.elapsed_s[estimate.phase] = self.elapsed_s.get(estimate.phase, 0.0) + 1 / self.fps
        self.latencies_ms.append(seen.latency_ms)
        self.last = estimate


def clock_text(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def counts_text(counts: Counts) -> str:
    """The counters that are not zero, in words."""
    return ", ".join(f"{value} {name}" for name, value in vars(counts).items() if value)


# The history on the terminal, without a clock and a terminal of its own.

_LATENCIES = 200
_BAR = 12
_WAITING = "waiting for the first picture"


def line(history: PhaseHistory) -> str:
    """The newest estimate as one line of plain text."""
    estimate = history.last
    if estimate is None:
        return _WAITING
    parts = [clock_text(estimate.time_s), f"{estimate.name} {estimate.confidence:.0%}"]
    if estimate.intensity is not None:
        parts.append(f"intensity {estimate.intensity:.2f}")
    if history.latencies_ms:
        parts.append(f"{np.median(history.latencies_ms[-_LATENCIES:]):.0f} ms")
    if counted := counts_text(estimate.counts):
        parts.append(counted)
    return "  ".join(parts)


def ribbon(history: PhaseHistory, width: int, total_s: float | None = None) -> Text:
    """`width` cells from the first picture to the end, each in the colour of the phase at its middle."""
    if not history.spans:
        return Text("·" * width, style="dim")
    text = Text()
    start_s = history.spans[0].start_s
    stop_s = max(history.spans[-1].stop_s, start_s + (total_s or 0.0))
    spans = iter(history.spans)
    span = next(spans)
    for cell in range(width):
        middle_s = start_s + (cell + 0.5) * (stop_s - start_s) / width
        while middle_s >= span.stop_s and (following := next(spans, None)) is not None:
            span = following
        is_inside = span.start_s <= middle_s < span.stop_s
        text.append("█" if is_inside else "·", style=colour(span.phase) if is_inside else "dim")
    return text


def _bar(share: float, style: str) -> Text:
    filled = round(min(max(share, 0.0), 1.0) * _BAR)
    return Text.assemble(("█" * filled, style), ("░" * (_BAR - filled), "dim"))


def render(
    history: PhaseHistory, width: int = 80, total_s: float | None = None, title: str = "surgicalmamba"
) -> RenderableType:
    """Phase, confidence, intensity, ribbon, time per phase and latency, `width` columns wide."""
    estimate = history.last
    if estimate is None:
        return Panel(Text(_WAITING, style="dim"), title=title, width=width)
    head = Table.grid(expand=True)
    head.add_column(ratio=1)
    head.add_column(justify="right")
    time = clock_text(estimate.time_s) + (f" / {clock_text(total_s)}" if total_s else "")
    name = Text(f"■ {estimate.name}", style=f"bold {colour(estimate.phase)}")
    head.add_row(name, Text(time, style="bold"))
    measures = Table.grid(padding=(0, 1))
    confidence = _bar(estimate.confidence, colour(estimate.phase))
    measures.add_row("confidence", confidence, f"{estimate.confidence:6.1%}")
    if estimate.intensity is not None:
        measures.add_row("intensity", _bar(estimate.intensity, "white"), f"{estimate.intensity:6.2f}")
    foot = []
    if history.latencies_ms:
        median, high = np.percentile(history.latencies_ms[-_LATENCIES:], [50, 95])
        foot.append(f"latency {median:.0f} ms, p95 {high:.0f} ms")
    if counted := counts_text(estimate.counts):
        foot.append(counted)
    parts: list[RenderableType] = [head, measures, Text(), ribbon(history, width - 4, total_s), Text()]
    parts.append(_phases(history, estimate))
    if foot:
        parts += [Text(), Text("   ".join(foot), style="dim")]
    return Panel(Group(*parts), title=title, title_align="left", width=width)


def _phases(history: PhaseHistory, estimate: PhaseEstimate) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(ratio=1)
    table.add_column(justify="right")
    table.add_column()
    table.add_column(justify="right")
    for phase, name in enumerate(history.names):
        elapsed_s = history.elapsed_s.get(phase)
        style = "bold" if phase == estimate.phase else "" if elapsed_s else "dim"
        elapsed = "–" if elapsed_s is None else clock_text(elapsed_s)
        probability = estimate.probabilities[phase]
        table.add_row(
            Text.assemble(("■ ", colour(phase)), (name, style)),
            Text(elapsed, style=style),
            _bar(probability, colour(phase)),
            Text(f"{probability:6.1%}", style=style),
        )
    return table


# The history as a video: the sampled pictures with phase name, confidence, intensity and the ribbon below
# them.

Rgb = tuple[int, int, int]
WIDTH, BAR, RIBBON, MARGIN = 960, 132, 26, 18
_BACK, _INK, _GREY, _FAINT, _EMPTY = (
    (24, 24, 28),
    (240, 240, 240),
    (170, 170, 178),
    (90, 90, 98),
    (52, 52, 58),
)
_FONT = cv2.FONT_HERSHEY_SIMPLEX


def rgb_of(phase: int) -> Rgb:
    """The colour of a phase as three bytes."""
    red, green, blue = bytes.fromhex(colour(phase).removeprefix("#"))
    return red, green, blue


def draw(picture: NDArray[np.uint8], history: PhaseHistory, total_s: float | None) -> NDArray[np.uint8]:
    """The picture at 960 wide above a bar of 132 pixels: the newest estimate, and the ribbon."""
    estimate = history.last
    assert estimate is not None
    height = 2 * round(WIDTH * picture.shape[0] / picture.shape[1] / 2)
    canvas = np.full((height + BAR, WIDTH, 3), _BACK, np.uint8)
    scaling = cv2.INTER_AREA if picture.shape[1] > WIDTH else cv2.INTER_LINEAR
    canvas[:height] = cv2.resize(picture, (WIDTH, height), interpolation=scaling)
    _write_estimate(canvas, height, estimate, total_s)
    top = height + BAR - RIBBON - MARGIN
    start_s, stop_s = history.spans[0].start_s, history.spans[-1].stop_s
    scale = (WIDTH - 2 * MARGIN) / max(stop_s - start_s, total_s or 0.0)
    cv2.rectangle(canvas, (MARGIN, top), (WIDTH - MARGIN, top + RIBBON), _EMPTY, -1)
    for span in history.spans:
        left, right = (round(MARGIN + (s - start_s) * scale) for s in (span.start_s, span.stop_s))
        cv2.rectangle(canvas, (left, top), (max(right - 1, left), top + RIBBON), rgb_of(span.phase), -1)
    now = round(MARGIN + (stop_s - start_s) * scale)
    cv2.line(canvas, (now, top - 4), (now, top + RIBBON + 4), (255, 255, 255), 2)
    return canvas


def _write_estimate(
    canvas: NDArray[np.uint8], height: int, estimate: PhaseEstimate, total_s: float | None
) -> None:
    base = height + 38
    cv2.rectangle(canvas, (MARGIN, base - 19), (MARGIN + 20, base + 1), rgb_of(estimate.phase), -1)
    name = plain(estimate.name)
    (width, _), _ = cv2.getTextSize(name, _FONT, 0.8, 1)
    _text(canvas, name, (MARGIN + 32, base), 0.8 * min(1.0, (WIDTH // 2 - 20) / max(width, 1)))
    _text(canvas, f"{estimate.confidence:.0%}", (WIDTH // 2 + 40, base), 0.7)
    time = clock_text(estimate.time_s) + (f" / {clock_text(total_s)}" if total_s else "")
    (width, _), _ = cv2.getTextSize(time, _FONT, 0.7, 1)
    _text(canvas, time, (WIDTH - MARGIN - width, base), 0.7)
    if estimate.intensity is not None:
        left, right = WIDTH // 2 + 140, WIDTH // 2 + 300
        filled = left + round((right - left) * min(estimate.intensity, 1.0))
        _text(canvas, "intensity", (left, base + 28), 0.5, _GREY)
        cv2.rectangle(canvas, (left, base - 14), (right, base), _FAINT, 1)
        cv2.rectangle(canvas, (left, base - 14), (filled, base), _INK, -1)
    state = "" if estimate.quality == "ok" else f"{estimate.quality}, {estimate.fed}   "
    _text(canvas, plain(state + counts_text(estimate.counts)), (MARGIN + 32, base + 28), 0.5, _GREY)


def _text(
    canvas: NDArray[np.uint8], text: str, place: tuple[int, int], scale: float, ink: Rgb = _INK
) -> None:
    cv2.putText(canvas, text, place, _FONT, scale, ink, 1, cv2.LINE_AA)


def plain(text: str) -> str:
    """The drawing font has ASCII only: accents are dropped, other letters become question marks."""
    letters = unicodedata.normalize("NFKD", text)
    return "".join(
        letter if letter.isascii() else "?" for letter in letters if not unicodedata.combining(letter)
    )


class OverlaySink(EstimateSink):
    """A video of one picture per estimate, shown at its own time, so it runs as long as the operation did.
    Written beside its place and moved there when the session ends."""

    def __init__(self, path: Path, history: PhaseHistory, total_s: float | None) -> None:
        self._path, self._history, self._total_s = path, history, total_s
        self._part = path.with_name(f".{path.stem}.partial{path.suffix}")
        self._container: OutputContainer | None = None
        self._stream: VideoStream | None = None
        self._last: NDArray[np.uint8] | None = None
        self._zero_s = 0.0
        self._pts = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._part.touch()
        except OSError as error:
            raise _cannot_write(path, error) from None

    def estimate(self, seen: Seen) -> None:
        import av

        picture = seen.frame.rgb if seen.frame is not None else self._last
        if picture is None:
            return
        self._last = picture
        canvas = draw(picture, self._history, self._total_s)
        if self._stream is None:
            self._open(canvas.shape[0], seen.estimate.time_s)
        assert self._container is not None and self._stream is not None
        size = (self._stream.width, self._stream.height)
        if canvas.shape[1::-1] != size:  # the source changed its shape; the video cannot
            canvas = np.asarray(cv2.resize(canvas, size), np.uint8)
        frame = av.VideoFrame.from_ndarray(canvas, format="rgb24")
        self._pts = max(self._pts + 1, round(1000 * (seen.estimate.time_s - self._zero_s)))
        frame.pts, frame.time_base = self._pts, Fraction(1, 1000)
        self._container.mux(self._stream.encode(frame))

    def _open(self, height: int, zero_s: float) -> None:
        import av

        self._zero_s = zero_s
        rate = Fraction(self._history.fps).limit_denominator(1001)
        try:
            self._container = av.open(str(self._part), "w")
            self._stream = self._container.add_stream("libx264", rate=rate)
        except (av.FFmpegError, ValueError) as error:
            advice = "give a name that ends in .mp4 or .mkv"
            raise DataError(f"cannot write a video to {self._path} ({error}); {advice}.") from None
        self._stream.width, self._stream.height, self._stream.pix_fmt = WIDTH, height, "yuv420p"
        self._stream.codec_context.time_base = Fraction(1, 1000)
        self._stream.options = {"preset": "veryfast", "crf": "23"}

    def close(self) -> None:
        if self._container is None or self._stream is None:
            self._part.unlink(missing_ok=True)
            return
        self._container.mux(self._stream.encode(None))
        self._container.close()
        self._part.replace(self._path)


_LINE_EVERY_S = 60.0


class TerminalSink(EstimateSink):
    """The session drawn in place on stderr. Without a terminal: a line per phase change and per minute of the
    operation."""

    def __init__(self, history: PhaseHistory, total_s: float | None, title: str) -> None:
        self._history, self._total_s, self._title = history, total_s, title
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._phase: int | None = None
        self._line_s = 0.0

    def __enter__(self) -> "TerminalSink":
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
            print(line(self._history), file=sys.stderr, flush=True)
            self._line_s = estimate.time_s
        self._phase = estimate.phase

    def gap(self, gap: Gap) -> None:
        lost = f"no pictures from {gap.start_s:.0f} s to {gap.end_s:.0f} s"
        self._console.print(f"{lost}: {gap.reason} ({gap.attempts} attempts)")
