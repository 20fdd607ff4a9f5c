"""The ablation as a picture: what each row loses or gains against the first one, and how uneven it is over videos."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from surgicalmamba.report.colours import colour
from surgicalmamba_lab.studies.results import Row, comparisons, interval_levels, spreads

MARKS = {"accuracy": ("o", colour(0)), "jaccard": ("s", colour(5))}
NAMES = {"strict": "strict", "relaxed-published": "relaxed, 10 s"}


def draw_ablation(rows: Sequence[Row], title: str) -> Figure:
    """A panel for each protocol there is with the paired differences and their intervals, and one for the deviation over videos."""
    protocols = [protocol for protocol in NAMES if protocol in rows[0].report.scores]
    figure = Figure(figsize=(2.6 + 3.2 * (len(protocols) + 1), 1.5 + 0.42 * len(rows)), layout="constrained")
    panels = figure.subplots(1, len(protocols) + 1, sharey=True, squeeze=False)[0]
    for axes, protocol in zip(panels, protocols, strict=False):
        _differences(axes, rows, protocol)
    _spreads(panels[-1], rows)
    panels[0].set_yticks(range(len(rows)), [f"{row.name}\n{row.parameters:,} weights" for row in rows], fontsize=8)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    figure.suptitle(title, fontsize=10)
    return figure


def _differences(axes: Axes, rows: Sequence[Row], protocol: str) -> None:
    compared = comparisons(rows, protocol)
    for place, row in enumerate(rows[1:], start=1):
        for offset, (metric, (mark, ink)) in zip((-0.14, 0.14), MARKS.items(), strict=True):
            result = compared[row.name][metric]  # the first row minus this one
            ends = [[result.high - result.difference], [result.difference - result.low]]
            label = metric if place == 1 else None
            axes.errorbar(-result.difference, place + offset, xerr=ends, marker=mark, color=ink, capsize=3, label=label, linestyle="none")
    axes.axvline(0, color="black", linewidth=1)
    axes.set_xlabel(f"points against {rows[0].name}, {NAMES[protocol]}\n(95 % interval over {interval_levels(rows)})", fontsize=9)
    if compared:
        axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    axes.grid(axis="x", color="#00000020")
    axes.spines[["top", "right"]].set_visible(False)


def _spreads(axes: Axes, rows: Sequence[Row]) -> None:
    """The interval is that of the difference from the first row, drawn about the row's own value."""
    compared = spreads(rows)
    for place, row in enumerate(rows):
        axes.barh(place, row.spread, height=0.55, color=colour(4))
        if row.name in compared:
            result = compared[row.name]
            ends = [[result.difference - result.low], [result.high - result.difference]]
            axes.errorbar(row.spread, place, xerr=ends, color="black", capsize=3, linestyle="none")
    axes.axvline(rows[0].spread, color="black", linewidth=1, linestyle="--")
    interval = f"95 % interval of the difference, over {interval_levels(rows)}"
    axes.set_xlabel(f"deviation of the strict accuracy over videos\n({interval})", fontsize=9)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
