"""The drawings of docs/how-it-works.md: the network, and the way of one frame. Writes SVG files.

    python docs/drawings.py             into docs/images
    python docs/drawings.py FOLDER

A unit is an inch. Names in fixed width are modules below src/surgicalmamba; a test checks that they exist."""

import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

IMAGES = Path(__file__).with_name("images")
Point = tuple[float, float]
Colours = tuple[str, str]
"""Fill and edge."""

INK, SOFT, PASSED = "#22313a", "#5b6b75", "#85630f"
PAPER, PANEL = "#ffffff", "#f5f7f8"
# A colour means the same in both drawings.
PLAIN = ("#ffffff", "#8a99a3")
DATA = ("#fdf3dc", "#c79a2b")
VISION = ("#e6eefb", "#4a73b8")
SLOW = ("#dff2ee", "#1d8a78")
FAST = ("#fdebdd", "#d0722a")
HEAD = ("#efe6f7", "#8153b0")
INTENSITY = ("#fbe3e3", "#c23b3b")
ROTATION = ("#e3e9ff", "#3d51c4")
SERVER = ("#e9ecef", "#5b6b75")


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty drawing; the origin is at the lower left."""
    figure = plt.figure(figsize=(width, height), facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axes.axis("off")
    return figure, axes


def text(axes: Axes, at: Point, words: str, size: float = 9.5, colour: str = INK, **style: str) -> None:
    """Words around a point; `ha`, `va`, `weight` and `family` as in matplotlib."""
    look = {"ha": "center", "va": "center", **style}
    axes.text(*at, words, fontsize=size, color=colour, linespacing=1.3).set(**look)


def module(axes: Axes, at: Point, name: str, size: float = 8.0, **style: str) -> None:
    """The name of a module, in fixed width."""
    text(axes, at, name, size, SOFT, family="monospace", **style)


def frame(axes: Axes, low: Point, high: Point, colours: Colours, line: float = 1.2) -> None:
    """A rounded rectangle from its lower left to its upper right corner."""
    size = (high[0] - low[0], high[1] - low[1])
    style = "round,pad=0,rounding_size=0.08"
    axes.add_patch(
        FancyBboxPatch(low, *size, boxstyle=style, facecolor=colours[0], edgecolor=colours[1], lw=line)
    )


def panel(axes: Axes, low: Point, high: Point, title: str, name: str = "") -> None:
    """A part of the drawing with a title and the module that holds it."""
    frame(axes, low, high, (PANEL, "#d5dce0"), 1.0)
    text(axes, (low[0] + 0.15, high[1] - 0.26), title, 11, weight="bold", ha="left", va="baseline")
    if name:
        module(axes, (high[0] - 0.15, high[1] - 0.26), name, ha="right", va="baseline")


def box(axes: Axes, low: Point, high: Point, words: str, colours: Colours = PLAIN, size: float = 9.5) -> None:
    """A rectangle with words in its middle."""
    frame(axes, low, high, colours)
    text(axes, ((low[0] + high[0]) / 2, (low[1] + high[1]) / 2), words, size)


def sign(axes: Axes, at: Point, symbol: str, colours: Colours = PLAIN, radius: float = 0.14) -> None:
    """A small circle with a symbol: a sum, a product, a rotation."""
    axes.add_patch(Circle(at, radius, facecolor=colours[0], edgecolor=colours[1], lw=1.2, zorder=3))
    axes.text(*at, symbol, fontsize=11, color=INK, ha="center", va="center_baseline", zorder=4)


def arrow(axes: Axes, *points: Point, colour: str = INK) -> None:
    """A line through points, with a head at the last one."""
    if len(points) > 2:
        xs, ys = zip(*points[:-1], strict=True)
        axes.plot(xs, ys, color=colour, lw=1.2, solid_joinstyle="round", zorder=2)
    head = FancyArrowPatch(points[-2], points[-1], arrowstyle="-|>", mutation_scale=10, shrinkA=0, shrinkB=0)
    head.set(color=colour, linewidth=1.2, zorder=2)
    axes.add_patch(head)


def draw_network() -> Figure:
    """The network from frames to logits, then its parts: block, path, head."""
    figure, axes = canvas(10, 10.3)
    _draw_whole(axes)
    _draw_block(axes)
    _draw_path(axes)
    _draw_head(axes)
    return figure


def _draw_whole(axes: Axes) -> None:
    panel(axes, (0.1, 7.85), (9.9, 10.2), "SurgicalMamba", "model/surgical_mamba.py")
    middle, low, high = 9.08, 8.73, 9.43
    box(axes, (0.25, low), (1.45, high), "frames\n(b, l, 3, H, W)", DATA)
    box(axes, (1.85, low), (3.15, high), "ConvNeXt\npartly frozen", VISION)
    box(axes, (3.5, low), (4.6, high), "projector\nLinear, norm")
    for shift in (0.1, 0.05, 0.0):
        frame(axes, (5.0 + shift, low + shift), (6.6 + shift, high + shift), SLOW)
    text(axes, (5.8, middle), "DualPathBlock\n× n_blocks")
    box(axes, (7.15, low), (8.25, high), "PhaseHead", HEAD)
    box(axes, (8.65, low), (9.75, high), "logits\n(b, l, k)", DATA)
    module(axes, (2.5, 8.55), "model/backbone.py")
    for left, right in ((1.45, 1.85), (3.15, 3.5), (4.6, 5.0), (6.7, 7.15), (8.25, 8.65)):
        arrow(axes, (left, middle), (right, middle))
    arrow(axes, (6.35, 9.53), (6.35, 9.68), (7.15, 9.68), colour=INTENSITY[1])
    text(axes, (7.25, 9.68), "intensity logits (b, l, n_blocks)", 9, INTENSITY[1], ha="left")
    box(axes, (5.0, 8.0), (8.25, 8.35), "ModelState: all memory between two calls", size=9)
    module(axes, (4.9, 8.18), "core/state.py", ha="right")
    for x in (5.8, 7.7):
        arrow(axes, (x - 0.1, 8.35), (x - 0.1, low), colour=SOFT)
        arrow(axes, (x + 0.1, low), (x + 0.1, 8.35), colour=SOFT)


def _draw_block(axes: Axes) -> None:
    panel(axes, (0.1, 4.15), (9.9, 7.7), "DualPathBlock")
    middle = 5.7
    text(axes, (0.3, middle), "x", 11, style="italic")
    arrow(axes, (0.42, middle), (0.75, middle))
    box(axes, (0.75, 5.42), (1.6, 5.98), "Layer-\nNorm")
    arrow(axes, (1.6, middle), (1.8, middle), (1.8, 6.65), (2.05, 6.65))
    arrow(axes, (1.6, middle), (1.8, middle), (1.8, 4.83), (2.05, 4.83))

    frame(axes, (2.05, 6.1), (5.05, 7.2), SLOW)
    text(axes, (3.55, 7.0), "slow path (SSMPath)", 10, weight="bold")
    box(axes, (2.2, 6.45), (3.5, 6.82), "IntensityNet", INTENSITY, 9)
    arrow(axes, (3.5, 6.63), (3.78, 6.63), colour=INTENSITY[1])
    text(axes, (4.4, 6.63), "dt · (1 + λ)", 9.5, INTENSITY[1])
    text(axes, (3.55, 6.26), "remembers the whole procedure", 9, SOFT)
    frame(axes, (2.05, 4.45), (5.05, 5.2), FAST)
    text(axes, (3.55, 4.98), "fast path (SSMPath)", 10, weight="bold")
    text(axes, (3.55, 4.67), "remembers one clip, emits the gate", 9, SOFT)
    arrow(axes, (2.5, 6.1), (2.5, 5.2), colour=SLOW[1])
    text(axes, (2.62, 5.65), "condition of the fast\npath's dt, B, C", 9, SLOW[1], ha="left")

    arrow(axes, (5.05, 6.65), (5.65, 6.65), (5.65, middle + 0.14), colour=SLOW[1])
    arrow(axes, (5.05, 4.98), (5.65, 4.98), (5.65, middle - 0.14), colour=FAST[1])
    arrow(axes, (5.05, 4.65), (6.2, 4.65), (6.2, middle - 0.14), colour=FAST[1])
    text(axes, (6.28, 4.98), "SiLU(gate)", 9, FAST[1], ha="left")
    text(axes, (5.75, 6.5), "y slow", 9, SLOW[1], ha="left")
    sign(axes, (5.65, middle), "+")
    arrow(axes, (5.79, middle), (6.06, middle))
    sign(axes, (6.2, middle), "×")
    arrow(axes, (6.34, middle), (6.55, middle))
    box(axes, (6.55, 5.42), (7.35, 5.98), "RMSNorm\nLinear", size=9)
    arrow(axes, (7.35, middle), (7.56, middle))
    sign(axes, (7.7, middle), "+")
    arrow(axes, (0.58, middle), (0.58, 4.3), (7.7, 4.3), (7.7, middle - 0.14), colour=SOFT)
    arrow(axes, (7.84, middle), (8.15, middle))
    box(axes, (8.15, 5.42), (9.0, 5.98), "LayerNorm\nFFN, GELU", size=9)
    arrow(axes, (9.0, middle), (9.16, middle))
    sign(axes, (9.3, middle), "+")
    arrow(axes, (7.98, middle), (7.98, 6.35), (9.3, 6.35), (9.3, middle + 0.14), colour=SOFT)
    arrow(axes, (9.44, middle), (9.68, middle))
    text(axes, (9.78, middle), "x", 11, style="italic")


def _draw_path(axes: Axes) -> None:
    panel(axes, (0.1, 0.1), (6.85, 4.0), "SSMPath: one function for any length")
    top = 3.22
    box(axes, (0.3, top - 0.22), (1.2, top + 0.22), "in_proj")
    box(axes, (1.55, top - 0.22), (3.2, top + 0.22), "CausalConv, SiLU")
    box(axes, (3.55, top - 0.22), (5.1, top + 0.22), "dt, B, C\nof each frame", size=9)
    arrow(axes, (1.2, top), (1.55, top))
    arrow(axes, (3.2, top), (3.55, top))
    arrow(axes, (5.1, top), (5.55, top), (5.55, 2.62))
    text(axes, (5.67, top), "SSD scan,\nor one step", 9, ha="left")
    module(axes, (5.67, 2.82), "core/ssd.py", ha="left")

    frame(axes, (0.22, 1.7), (6.73, 2.62), (PAPER, "#d5dce0"), 1.0)
    module(axes, (0.3, 2.8), "core/chunks.py", ha="left")
    text(axes, (1.5, 2.8), "finds where chunks end", 9, SOFT, ha="left")
    line, starts = 1.98, (0.35, 2.6, 4.85)
    for number, start in enumerate(starts):
        for index in range(8):
            left = start + 0.21 * index
            frame(axes, (left, line - 0.16), (left + 0.17, line + 0.16), SLOW, 0.9)
        text(axes, (start + 0.82, line + 0.4), f"chunk {number + 1}: frames in order", 8.5, SOFT)
    for number, start in enumerate(starts[:-1]):
        turn = start + 1.94
        sign(axes, (turn, line), "Z", ROTATION, 0.17)
        arrow(axes, (start + 1.65, line), (turn - 0.17, line))
        arrow(axes, (turn + 0.17, line), (starts[number + 1], line))
        arrow(
            axes,
            (start + 0.82, line - 0.16),
            (start + 0.82, 1.22),
            (turn, 1.22),
            (turn, line - 0.17),
            colour=ROTATION[1],
        )
    text(axes, (2.1, 1.02), "mean of y", 9, ROTATION[1])
    text(axes, (4.35, 1.02), "mean of y", 9, ROTATION[1])
    box(axes, (0.3, 0.28), (6.65, 0.82), "", ROTATION)
    text(axes, (0.42, 0.55), "Rotator", 9.5, ha="left", weight="bold")
    text(axes, (1.3, 0.55), "chunk mean → planes U, V and angles θ → Z (Cayley);  h ← h Z", 9, ha="left")
    module(axes, (6.65, 1.02), "core/rotation.py", ha="right")


def _draw_head(axes: Axes) -> None:
    panel(axes, (7.05, 0.1), (9.9, 4.0), "PhaseHead")
    steps = (
        ("LayerNorm", PLAIN, 0.36),
        ("one path (SSMPath)\nremembers one clip, no λ", HEAD, 0.6),
        ("SiLU(gate), RMSNorm, Linear, + x", PLAIN, 0.36),
        ("LayerNorm, FFN, + x", PLAIN, 0.36),
        ("classifier (Linear)", HEAD, 0.36),
    )
    high = 3.6
    for words, colours, height in steps:
        box(axes, (7.2, high - height), (9.75, high), words, colours, 9)
        arrow(axes, (8.475, high - height), (8.475, high - height - 0.2))
        high -= height + 0.2
    text(axes, (8.475, high - 0.14), "logits (b, l, k)", 9.5)


def draw_frame() -> Figure:
    """The way of one frame, from the camera to the screen."""
    figure, axes = canvas(10, 12.1)
    _draw_arrival(axes)
    _draw_session(axes)
    _draw_engine(axes)
    _draw_estimate(axes)
    _draw_readers(axes)
    return figure


LEFT, RIGHT = 3.3, 6.3
MIDDLE = (LEFT + RIGHT) / 2


def _step(axes: Axes, low: float, title: str, name: str, words: str, colours: Colours = PLAIN) -> None:
    """A step in the middle column with its module; on the right, what happens to the frame."""
    frame(axes, (LEFT, low), (RIGHT, low + 0.62), colours)
    text(axes, (MIDDLE, low + 0.41), title, 10, weight="bold")
    module(axes, (MIDDLE, low + 0.17), name)
    text(axes, (RIGHT + 0.2, low + 0.31), words, 9, ha="left")


def _down(axes: Axes, high: float, low: float, passed: str) -> None:
    """An arrow between two steps, with what is passed on."""
    arrow(axes, (MIDDLE, high), (MIDDLE, low))
    text(axes, (MIDDLE - 0.12, low + 0.16), passed, 8.5, PASSED, ha="right")


def _draw_arrival(axes: Axes) -> None:
    panel(axes, (0.1, 10.4), (4.85, 12.0), "stream")
    panel(axes, (5.15, 10.4), (9.9, 12.0), "serve")
    frame(axes, (0.3, 10.6), (4.65, 11.5), PLAIN)
    text(axes, (2.475, 11.28), "source", 10, weight="bold")
    module(axes, (2.475, 11.05), "live/sources.py")
    text(axes, (2.475, 10.79), "file, folder, camera, network stream or pipe", 9)
    frame(axes, (5.35, 10.6), (9.7, 11.5), SERVER)
    text(axes, (7.525, 11.28), "frame connection", 10, weight="bold")
    module(axes, (7.525, 11.05), "server/push.py  server/rooms.py")
    text(axes, (7.525, 10.79), "JPEG or PNG, checked, decoded, numbered", 9)
    arrow(axes, (2.475, 10.6), (2.475, 10.08), (MIDDLE - 0.3, 10.08), (MIDDLE - 0.3, 9.52))
    arrow(axes, (7.525, 10.6), (7.525, 10.08), (MIDDLE + 0.3, 10.08), (MIDDLE + 0.3, 9.52))
    text(axes, (MIDDLE, 10.23), "picture (h, w, 3) uint8, time in seconds", 8.5, PASSED)


def _draw_session(axes: Axes) -> None:
    panel(axes, (0.1, 6.82), (9.9, 9.92), "live/")
    text(axes, (0.25, 9.34), "Session: one stream,\na pool holds many", 9, SOFT, ha="left")
    module(axes, (0.25, 9.02), "live/session.py", ha="left")
    text(
        axes,
        (0.25, 8.49),
        "A full queue drops its\noldest frame; that tick\ncounts as late.",
        9,
        SOFT,
        ha="left",
    )
    _step(
        axes,
        8.9,
        "Clock",
        "live/track.py",
        "Which tick of the model's time is it?\nA frame between two ticks is not used.",
    )
    _down(axes, 8.9, 8.59, "tick")
    words = "Ordinary, black, frozen, unreadable, missing?\nThen: advance, hold the last features, or skip."
    _step(axes, 7.97, "Policy", "live/track.py", words)
    _down(axes, 7.97, 7.66, "a usable picture")
    words = "As in training: margin cut, stored size,\nJPEG loss, the model's size."
    _step(axes, 7.04, "PictureMaker", "live/track.py", words)


def _draw_engine(axes: Axes) -> None:
    _down(axes, 7.04, 6.29, "picture (s, s, 3) uint8")
    panel(axes, (0.1, 4.52), (9.9, 6.67), "engines/")
    text(axes, (0.25, 6.1), "eager, compiled, ONNX;\none batch of all streams", 9, SOFT, ha="left")
    module(axes, (0.25, 5.78), "engines/engine.py", ha="left")
    words = "Normalised, through the backbone.\nEach picture by itself."
    _step(axes, 5.67, "encode", "model/backbone.py", words, VISION)
    _down(axes, 5.67, 5.36, "features (d,)")
    words = "One step of every path. At the end of a chunk\nthe states are rotated."
    _step(axes, 4.74, "advance", "model/surgical_mamba.py", words, SLOW)
    frame(axes, (0.3, 4.74), (2.35, 5.36), SLOW)
    text(axes, (1.325, 5.15), "ModelState", 10, weight="bold")
    module(axes, (1.325, 4.91), "live/snapshot.py")
    arrow(axes, (2.35, 5.15), (LEFT, 5.15), colour=SLOW[1])
    arrow(axes, (LEFT, 4.95), (2.35, 4.95), colour=SLOW[1])


def _draw_estimate(axes: Axes) -> None:
    _down(axes, 4.74, 3.99, "logits (k,), intensity logits")
    panel(axes, (0.1, 2.22), (9.9, 4.37), "live/")
    text(
        axes,
        (0.25, 3.7),
        "From here on there is\none record and its codecs:\nJSON, CSV, database row.",
        9,
        SOFT,
        ha="left",
    )
    words = "Softmax; then calibration and a filter over\ntime, where fitted."
    _step(axes, 3.37, "OutputStage", "live/output.py", words)
    _down(axes, 3.37, 3.06, "probabilities (k,)")
    words = "Phase, probabilities, intensity, time, quality,\nand what the model was fed."
    _step(axes, 2.44, "PhaseEstimate", "live/estimate.py", words, DATA)


def _draw_readers(axes: Axes) -> None:
    arrow(axes, (MIDDLE - 0.3, 2.44), (MIDDLE - 0.3, 2.05), (2.475, 2.05), (2.475, 1.2))
    arrow(axes, (MIDDLE + 0.3, 2.44), (MIDDLE + 0.3, 2.05), (6.35, 2.05), (6.35, 1.2))
    arrow(axes, (6.35, 2.05), (8.775, 2.05), (8.775, 1.2))
    panel(axes, (0.1, 0.1), (4.85, 1.85), "stream")
    frame(axes, (0.3, 0.3), (4.65, 1.2), PLAIN)
    text(axes, (2.475, 0.98), "sinks", 10, weight="bold")
    module(axes, (2.475, 0.75), "live/sinks.py")
    text(axes, (2.475, 0.49), "terminal, JSON lines, CSV, video with ribbon", 9)
    panel(axes, (5.15, 0.1), (9.9, 1.85), "serve")
    frame(axes, (5.35, 0.3), (7.35, 1.2), SERVER)
    text(axes, (6.35, 0.98), "record", 10, weight="bold")
    module(axes, (6.35, 0.75), "server/record.py")
    text(axes, (6.35, 0.49), "SQLite, snapshots", 9)
    frame(axes, (7.85, 0.3), (9.7, 1.2), SERVER)
    text(axes, (8.775, 0.98), "page, client", 10, weight="bold")
    module(axes, (8.775, 0.75), "server/page/")
    module(axes, (8.775, 0.49), "server/client.py")
    arrow(axes, (7.35, 0.75), (7.85, 0.75))


DRAWINGS = {"how-network.svg": draw_network, "how-frame.svg": draw_frame}


def main(folder: Path) -> None:
    """Write every drawing. Text becomes outlines, which look the same everywhere; comments keep the words."""
    matplotlib.use("agg")
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(
        {"svg.fonttype": "path", "svg.hashsalt": "surgicalmamba", "font.family": "DejaVu Sans"}
    ):
        for name, draw in DRAWINGS.items():
            figure = draw()
            figure.savefig(folder / name, metadata={"Date": None, "Creator": None})
            plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
