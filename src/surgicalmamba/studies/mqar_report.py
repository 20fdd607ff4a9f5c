"""The recall study as a figure like the paper's, as a table for the results page, and as text."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from surgicalmamba.eval.score import Json
from surgicalmamba.report.colours import colour
from surgicalmamba.report.tables import align, number
from surgicalmamba.studies.mqar import Pair, Recall
from surgicalmamba.studies.results import provenance_line

MARKS = ("o", "s", "^", "D")


def draw_recall(pairs: Sequence[Pair]) -> Figure:
    """A panel for each length: accuracy over model width, a colour for each state, hollow without rotation and filled with it."""
    lengths = list(dict.fromkeys(pair.plain.cell.length for pair in pairs))
    figure = Figure(figsize=(1.2 + 3.6 * len(lengths), 3.8), layout="constrained")
    panels = figure.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
    for axes, length in zip(panels, lengths, strict=True):
        _panel(axes, [pair for pair in pairs if pair.plain.cell.length == length])
        axes.set_title(f"T = {length}, {length // 4} pairs", fontsize=10)
    panels[0].set_ylabel("accuracy, %")
    panels[0].set_ylim(0, 112)
    panels[0].set_yticks(range(0, 101, 20))
    panels[-1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _panel(axes: Axes, pairs: Sequence[Pair]) -> None:
    """The states of a width stand side by side, and so do the two variants of each; small dots are single seeds."""
    widths, states = sorted({pair.plain.cell.d_model for pair in pairs}), sorted({pair.plain.cell.d_state for pair in pairs})
    for index, d_state in enumerate(states):
        mine = sorted((pair for pair in pairs if pair.plain.cell.d_state == d_state), key=lambda pair: pair.plain.cell.d_model)
        middles = [widths.index(pair.plain.cell.d_model) + 0.3 * (index - (len(states) - 1) / 2) for pair in mine]
        ink, mark = colour(index * 5), MARKS[index % len(MARKS)]
        for name, aside, style, fill, cells in (
            ("without Z", -0.06, "--", "white", [pair.plain for pair in mine]),
            ("with Z", 0.06, "-", ink, [pair.rotated for pair in mine]),
        ):
            places = [middle + aside for middle in middles]
            spread = [0.0 if cell.deviation != cell.deviation else cell.deviation for cell in cells]
            means = [cell.mean for cell in cells]
            drawn = axes.errorbar(places, means, yerr=spread, color=ink, linestyle=style, capsize=3, label=f"N = {d_state}, {name}")
            drawn.lines[0].set(marker=mark, markerfacecolor=fill, markersize=6)
            for place, cell in zip(places, cells, strict=True):
                axes.plot([place] * len(cell.accuracy), cell.accuracy, ".", color=ink, alpha=0.4, markersize=4)
        for middle, pair in zip(middles, mine, strict=True):
            top = max(cell.mean + (cell.deviation if cell.deviation == cell.deviation else 0.0) for cell in (pair.plain, pair.rotated))
            axes.annotate(f"{pair.gain:+.1f}", (middle, top), (0, 6), textcoords="offset points", ha="center", color=ink, fontsize=8)
    axes.set_xticks(range(len(widths)), [str(width) for width in widths])
    axes.set_xlim(-0.5, len(widths) - 0.5)
    axes.set_xlabel("model width")
    axes.grid(axis="y", color="#00000020")
    axes.spines[["top", "right"]].set_visible(False)


def recall_table(pairs: Sequence[Pair]) -> list[list[str]]:
    """Header and a row per cell."""
    rows = [["T", "pairs", "N", "width", "without Z", "with Z", "gain", "rates", "weights", "more weights", "minutes a run"]]
    for pair in pairs:
        cell = pair.plain.cell
        gain = f"{pair.gain:+.2f}" + (f" ({min(pair.gains):+.2f} to {max(pair.gains):+.2f})" if len(pair.gains) > 1 else "")
        sizes = [str(cell.length), str(cell.length // 4), str(cell.d_state), str(cell.d_model)]
        weights = [f"{pair.plain.parameters:,}", f"{pair.more_weights:.1f} %"]
        rates = f"{pair.plain.rate:g}, {pair.rotated.rate:g}"
        minutes = f"{pair.plain.minutes:.1f}, {pair.rotated.minutes:.1f}"
        rows.append([*sizes, _told(pair.plain), _told(pair.rotated), gain, rates, *weights, minutes])
    return rows


def _told(cell: Recall) -> str:
    text = number(cell.mean)
    return text if cell.deviation != cell.deviation else f"{text} ± {cell.deviation:.2f}"


def recall_section(title: str, pairs: Sequence[Pair], seeds: int, about: Mapping[str, Json]) -> str:
    """The study's section of the results page, figure apart."""
    header, *rows = recall_table(pairs)
    lines = [
        f"## {title}",
        "",
        f"{provenance_line(about)} Seeds {', '.join(map(str, range(seeds)))}.",
        "",
        f"```\n{about['command']}\n```",
        "",
    ]
    lines += ["| " + " | ".join(header) + " |", "|---" * len(header) + "|", *("| " + " | ".join(row) + " |" for row in rows)]
    lines += [
        "",
        "Accuracy in percent at the questions of unseen sequences with T/4 pairs; mean ± deviation over seeds. Gain in points, with its "
        "range over seeds. Of two rates or minutes the first is without Z. The rate was chosen on other sequences than those reported.",
    ]
    return "\n".join(lines) + "\n"


def recall_text(pairs: Sequence[Pair]) -> str:
    """For the terminal."""
    return "\n".join(align(recall_table(pairs)))
