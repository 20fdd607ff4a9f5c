"""A video of what was seen and said: the sampled pictures with phase name, confidence, intensity and the ribbon below them.

One picture per estimate, shown at its own time, so the video runs as long as the operation did."""

import json
import unicodedata
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

import cv2
import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from surgicalmamba.data.labels import PhaseVocabulary
from surgicalmamba.data.records import Frame, Gap
from surgicalmamba.errors import DataError
from surgicalmamba.eval.files import RUN_FILE, RunInfo, write_predictions, write_run
from surgicalmamba.live.estimate import Counts, PhaseEstimate, to_prediction
from surgicalmamba.model.recognizer import RecognizerConfig
from surgicalmamba.report.colours import colour

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream


# Where estimates go: JSON lines as they come, and the prediction file that `evaluate` reads.


@dataclass(frozen=True)
class Seen:
    """An estimate with the source's frame behind it (None where a tick was filled) and the time from picture to estimate."""

    estimate: PhaseEstimate
    frame: Frame | None
    latency_ms: float

    @property
    def source_frame(self) -> int:
        """The source's own number for the frame; the tick where there is none."""
        return self.estimate.tick if self.frame is None else self.frame.index


class Sink(Protocol):
    """Told of every estimate; `close` is called once, also after an interruption."""

    def estimate(self, seen: Seen) -> None: ...
    def gap(self, gap: Gap) -> None: ...
    def close(self) -> None: ...


class JsonLinesSink:
    """One JSON object per line, on disk before the next frame: a killed process leaves all lines but perhaps the last one whole.

    Lines are of type `session` (first), `estimate`, `gap` and `end` (last, if the session ended by itself or by Ctrl-C)."""

    def __init__(self, path: Path, about: dict[str, object]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream: TextIO = path.open("w", encoding="utf-8", newline="\n")
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror}; choose another place.") from None
        self._n = 0
        self._write({"type": "session", **about})

    def _write(self, line: dict[str, object]) -> None:
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()

    def estimate(self, seen: Seen) -> None:
        self._n += 1
        document = {**seen.estimate.as_dict(), "source_frame": seen.source_frame, "latency_ms": round(seen.latency_ms, 3)}
        self._write({"type": "estimate", **document})

    def gap(self, gap: Gap) -> None:
        self._write({"type": "gap", **vars(gap)})

    def close(self) -> None:
        self._write({"type": "end", "estimates": self._n})
        self._stream.close()


class CsvSink:
    """The prediction file of one video, written whole when the session ends; with a `run.json` where the folder has none yet."""

    def __init__(self, path: Path, config: RecognizerConfig, fps: float) -> None:
        self._path, self._fps = path, fps
        names = config.phases or tuple(f"phase {number}" for number in range(config.n_phases))
        self._vocabulary = PhaseVocabulary(path.stem, names)
        self._rows: list[tuple[int, PhaseEstimate]] = []

    def estimate(self, seen: Seen) -> None:
        self._rows.append((seen.source_frame, seen.estimate))

    def gap(self, gap: Gap) -> None:
        """The estimates say what was made of it."""

    def close(self) -> None:
        if not self._rows:
            return
        frames, estimates = zip(*self._rows, strict=True)
        prediction = to_prediction(frames, estimates, len(self._vocabulary))
        try:
            write_predictions(self._path.parent, self._path.stem, prediction, self._vocabulary)
            if not (self._path.parent / RUN_FILE).exists():
                write_run(self._path.parent, RunInfo("stream", self._vocabulary.names, self._fps))
        except OSError as error:
            raise DataError(f"cannot write {self._path}: {error.strerror}; choose another place.") from None


# The operation so far as a picture for the terminal: phase, confidence, intensity, ribbon, time per phase, latency.
#
# A Timeline collects estimates; `render` turns it into something rich can print, with no clock and no terminal of its own.


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


WIDTH, BAR, RIBBON, MARGIN = 960, 132, 26, 18
_BACK, _INK, _FAINT = (24, 24, 28), (240, 240, 240), (90, 90, 98)
Rgb = tuple[int, int, int]


def rgb_of(phase: int) -> Rgb:
    """The colour of a phase as three bytes."""
    code = colour(phase).removeprefix("#")
    return int(code[:2], 16), int(code[2:4], 16), int(code[4:], 16)


def draw(picture: NDArray[np.uint8], timeline: Timeline, total_s: float | None) -> NDArray[np.uint8]:
    """The picture at 960 wide with a bar of 132 pixels below it: what the newest estimate says, and the ribbon up to now."""
    estimate = timeline.last
    assert estimate is not None
    height = 2 * round(WIDTH * picture.shape[0] / picture.shape[1] / 2)
    canvas = np.full((height + BAR, WIDTH, 3), _BACK, np.uint8)
    canvas[:height] = cv2.resize(picture, (WIDTH, height), interpolation=cv2.INTER_AREA if picture.shape[1] > WIDTH else cv2.INTER_LINEAR)
    _write_estimate(canvas, height, estimate, total_s)
    top = height + BAR - RIBBON - MARGIN
    start_s = timeline.spans[0].start_s
    span_s = max(timeline.spans[-1].stop_s - start_s, total_s or 0.0)
    scale = (WIDTH - 2 * MARGIN) / span_s
    cv2.rectangle(canvas, (MARGIN, top), (WIDTH - MARGIN, top + RIBBON), (52, 52, 58), -1)
    for span in timeline.spans:
        left, right = (MARGIN + (s - start_s) * scale for s in (span.start_s, span.stop_s))
        cv2.rectangle(canvas, (round(left), top), (max(round(right) - 1, round(left)), top + RIBBON), rgb_of(span.phase), -1)
    now = round(MARGIN + (timeline.spans[-1].stop_s - start_s) * scale)
    cv2.line(canvas, (now, top - 4), (now, top + RIBBON + 4), (255, 255, 255), 2)
    return canvas


def _write_estimate(canvas: NDArray[np.uint8], height: int, estimate: PhaseEstimate, total_s: float | None) -> None:
    base = height + 38
    cv2.rectangle(canvas, (MARGIN, base - 19), (MARGIN + 20, base + 1), rgb_of(estimate.phase), -1)
    name = plain(estimate.name)
    (width, _), _ = cv2.getTextSize(name, cv2.FONT_HERSHEY_SIMPLEX, 0.8, 1)
    _text(canvas, name, (MARGIN + 32, base), 0.8 * min(1.0, (WIDTH // 2 - 20) / max(width, 1)))
    _text(canvas, f"{estimate.confidence:.0%}", (WIDTH // 2 + 40, base), 0.7)
    of = f" / {clock_text(total_s)}" if total_s else ""
    _text(canvas, f"{clock_text(estimate.time_s)}{of}", (WIDTH - MARGIN, base), 0.7, align_right=True)
    if estimate.intensity is not None:
        left, right = WIDTH // 2 + 140, WIDTH // 2 + 300
        _text(canvas, "intensity", (left, base + 28), 0.5, ink=(170, 170, 178))
        cv2.rectangle(canvas, (left, base - 14), (right, base), _FAINT, 1)
        cv2.rectangle(canvas, (left, base - 14), (left + round((right - left) * min(estimate.intensity, 1.0)), base), _INK, -1)
    note = counts_text(estimate.counts)
    state = "" if estimate.quality == "ok" else f"{estimate.quality}, {estimate.fed}   "
    _text(canvas, plain(state + note), (MARGIN + 32, base + 28), 0.5, ink=(170, 170, 178))


def _text(canvas: NDArray[np.uint8], text: str, place: tuple[int, int], scale: float, ink: Rgb = _INK, align_right: bool = False) -> None:
    font = cv2.FONT_HERSHEY_SIMPLEX
    if align_right:
        (width, _), _ = cv2.getTextSize(text, font, scale, 1)
        place = (place[0] - width, place[1])
    cv2.putText(canvas, text, place, font, scale, ink, 1, cv2.LINE_AA)


def plain(text: str) -> str:
    """The drawing font knows ASCII only: accents are dropped, other letters become question marks."""
    letters = unicodedata.normalize("NFKD", text)
    return "".join(letter if letter.isascii() else "?" for letter in letters if not unicodedata.combining(letter))


class OverlaySink:
    """Writes the video beside its place and moves it there when the session ends."""

    def __init__(self, path: Path, timeline: Timeline, total_s: float | None) -> None:
        self._path, self._timeline, self._total_s = path, timeline, total_s
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
            raise DataError(f"cannot write {path}: {error.strerror}; choose another place.") from None

    def estimate(self, seen: Seen) -> None:
        import av

        picture = seen.frame.rgb if seen.frame is not None else self._last
        if picture is None:
            return
        self._last = picture
        canvas = draw(picture, self._timeline, self._total_s)
        if self._stream is None:
            self._open(canvas.shape[0], seen.estimate.time_s)
        assert self._container is not None and self._stream is not None
        if canvas.shape[:2] != (self._stream.height, self._stream.width):  # the source changed its shape; the video cannot
            canvas = np.asarray(cv2.resize(canvas, (self._stream.width, self._stream.height)), np.uint8)
        frame = av.VideoFrame.from_ndarray(canvas, format="rgb24")
        self._pts = max(self._pts + 1, round(1000 * (seen.estimate.time_s - self._zero_s)))
        frame.pts, frame.time_base = self._pts, Fraction(1, 1000)
        self._container.mux(self._stream.encode(frame))

    def _open(self, height: int, zero_s: float) -> None:
        import av

        self._zero_s = zero_s
        try:
            self._container = av.open(str(self._part), "w")
            self._stream = self._container.add_stream("libx264", rate=Fraction(self._timeline.fps).limit_denominator(1001))
        except (av.FFmpegError, ValueError) as error:
            raise DataError(f"cannot write a video to {self._path} ({error}); give a name that ends in .mp4 or .mkv.") from None
        self._stream.width, self._stream.height, self._stream.pix_fmt = WIDTH, height, "yuv420p"
        self._stream.codec_context.time_base = Fraction(1, 1000)
        self._stream.options = {"preset": "veryfast", "crf": "23"}

    def gap(self, gap: Gap) -> None:
        """The counters in the bar say what was made of it."""

    def close(self) -> None:
        if self._container is None or self._stream is None:
            self._part.unlink(missing_ok=True)
            return
        self._container.mux(self._stream.encode(None))
        self._container.close()
        self._part.replace(self._path)

