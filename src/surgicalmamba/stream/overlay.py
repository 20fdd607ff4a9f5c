"""A video of what was seen and said: the sampled pictures with phase name, confidence, intensity and the ribbon below them.

One picture per estimate, shown at its own time, so the video runs as long as the operation did."""

import unicodedata
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.records import Gap
from surgicalmamba.errors import DataError
from surgicalmamba.report.colours import colour
from surgicalmamba.stream.estimate import PhaseEstimate
from surgicalmamba.stream.sinks import Seen
from surgicalmamba.stream.timeline import Timeline, clock_text, counts_text

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream

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
