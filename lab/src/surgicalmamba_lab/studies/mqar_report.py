"""The recall study as a figure, as a table for the results page, and as text."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from surgicalmamba.eval.score import Json
from surgicalmamba.report.colours import colour
from surgicalmamba.report.sections import provenance_line
from surgicalmamba.report.tables import align, number
from surgicalmamba_lab.studies.mqar import CellResult, Recall
from surgicalmamba_lab.studies.mqar_config import VARIANTS

FLOOR, CEILING = 20.0, 95.0
"""Where the first variant must lie at its plateau for a cell to be a contest, percent."""


def draw_recall(cells: Sequence[CellResult]) -> Figure:
    """A panel for each cell: accuracy of each variant, a dot for every seed, a bar at the mean, the gain with its interval above."""
    figure = Figure(figsize=(max(5.4, 1.0 + 2.7 * len(cells)), 4.6), layout="constrained")
    panels = figure.subplots(1, len(cells), sharey=True, squeeze=False)[0]
    for axes, found in zip(panels, cells, strict=True):
        _panel(axes, found)
    panels[0].set_ylabel("questions answered, %")
    panels[0].set_ylim(0, 118)
    panels[0].set_yticks(range(0, 101, 20))
    figure.suptitle("dot: a seed; bar: mean; numbers: points gained over the first\n(95 % interval over seeds and sequences)", fontsize=8)
    return figure


def _panel(axes: Axes, found: CellResult) -> None:
    axes.axhspan(FLOOR, CEILING, color="#00000008", linewidth=0)
    for place, row in enumerate(found.rows):
        ink = colour(place)
        axes.bar(place, row.mean, width=0.62, color=ink, alpha=0.35)
        spread = 0.12 * np.linspace(-1, 1, len(row.accuracy)) if len(row.accuracy) > 1 else np.zeros(1)
        axes.plot(place + spread, row.accuracy, "o", color=ink, markersize=4)
        if row is not found.rows[0]:
            gain = found.gain(row)
            text = f"{gain.difference:+.1f}\n[{gain.low:+.0f}, {gain.high:+.0f}]"
            axes.annotate(text, (place, max(row.accuracy)), (0, 5), textcoords="offset points", ha="center", fontsize=7)
    axes.set_xticks(range(len(found.rows)), [row.variant for row in found.rows], rotation=40, ha="right", fontsize=8)
    cell = found.cell
    sizes = f"{cell.n_pairs} pairs, state {cell.d_state}, width {cell.d_model}\nT {cell.length}, vocabulary {cell.vocabulary}"
    axes.set_title(sizes, fontsize=9)
    axes.grid(axis="y", color="#00000020")
    axes.spines[["top", "right"]].set_visible(False)


def recall_table(cells: Sequence[CellResult]) -> list[list[str]]:
    """Header and a row per cell and variant."""
    head = ["cell", "pairs", "variant", "accuracy", "gain (95 % interval)", "", "updates to half", "updates", "rate", "weights", "minutes"]
    rows = [head]
    for found in cells:
        for row in found.rows:
            first = row is found.rows[0]
            gain = found.gain(row)
            more = "" if first else f" (+{found.more_weights(row):.1f} %)"
            rows.append(
                [
                    found.cell.name if first else "",
                    str(found.cell.n_pairs) if first else "",
                    row.variant,
                    number(row.mean) + ("" if np.isnan(row.deviation) else f" ± {row.deviation:.2f}"),
                    "" if first else f"{gain.difference:+.2f} ({gain.low:+.2f} to {gain.high:+.2f})",
                    _fitness(row) if first else gain.standing,
                    _updates(row),
                    f"{np.median(row.updates):,.0f}",
                    f"{row.rate:g}",
                    f"{row.parameters:,}{more}",
                    f"{row.minutes:.1f}",
                ]
            )
    return rows


def _fitness(row: Recall) -> str:
    """Whether the first variant's plateau leaves room to win and to lose."""
    if row.mean < FLOOR:
        return "hardly learned: no contest"
    return "nearly solved: no contest" if row.mean > CEILING else ""


def _updates(row: Recall) -> str:
    median = row.median_to_half
    return "never" if np.isinf(median) else f"{median:,.0f}"


def recall_section(title: str, cells: Sequence[CellResult], seeds: int, about: Mapping[str, Json]) -> str:
    """The study's section of a results page, figure apart."""
    header, *rows = recall_table(cells)
    lines = [
        f"## {title}",
        "",
        f"{provenance_line(about)} Seeds {', '.join(map(str, range(seeds)))}.",
        "",
        f"```\n{about['command']}\n```",
        "",
    ]
    lines += ["| " + " | ".join(header) + " |", "|---" * len(header) + "|", *("| " + " | ".join(row) + " |" for row in rows)]
    variants = list(dict.fromkeys(row.variant for found in cells for row in found.rows))
    lines += [
        "",
        "Accuracy in percent at the questions of unseen sequences with T/4 pairs, at the plateau; mean ± deviation over seeds. Gain in "
        "points over the cell's first row; its interval is over seeds and test sequences together. Updates and minutes are medians over "
        "runs. The rate was chosen on other sequences than those reported. "
        + "; ".join(f"{name}: {VARIANTS[name]}" for name in variants)
        + ".",
    ]
    return "\n".join(lines) + "\n"


def recall_text(cells: Sequence[CellResult]) -> str:
    """For the terminal."""
    return "\n".join(align(recall_table(cells)))
