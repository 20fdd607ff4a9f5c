"""What a sensitivity study leaves behind: results.json, the paper's figure, and its section of the results page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from surgicalmamba.eval.score import Json, to_json
from surgicalmamba.report.colours import colour
from surgicalmamba.report.sections import refresh_page, slug
from surgicalmamba_lab.studies.figures import figure_on_page, save_figure
from surgicalmamba_lab.studies.results import Row, division_words, markdown, write_results
from surgicalmamba_lab.studies.sensitivity import Sensitivity, Sweep

LINES = {"relaxed-published": ("relaxed, 10 s", "-", "o", colour(0)), "strict": ("strict", "--", "s", colour(5))}


def write_sensitivity(study: Sensitivity, out: Path, about: Mapping[str, Json], page: Path | None, title: str | None) -> Path:
    """Results and figure into the study's folder; the section, with the figure beside the page, where a page is given."""
    title = title or f"Sensitivity, {study.dataset.name}, {division_words(study.rows[0])}"
    sweeps = {
        name: {"default": sweep.default, "rows": {f"{value:g}": row.name for value, row in sweep.rows.items()}}
        for name, sweep in study.sweeps.items()
    }
    plain = to_json({"sweeps": sweeps})
    assert isinstance(plain, dict)
    file = write_results(out, "sensitivity", study.dataset, study.rows, {**about, **plain})
    figure = draw_sensitivity(list(study.sweeps.values()), title)
    save_figure(figure, out, "sensitivity")
    if page is not None:
        picture = figure_on_page(figure, page, slug(title), "Accuracy over each hyperparameter, under both protocols")
        text = markdown(title, study.rows, about) + "\n" + " ".join(ranges(sweep) for sweep in study.sweeps.values())
        refresh_page(page, slug(title), f"{text}\n\n{picture}\n")
    return file


def ranges(sweep: Sweep) -> str:
    """How far the sweep's strict accuracies lie from the default's, beside the deviation over videos that they should be seen against."""
    means = {value: _accuracy(row, "strict")["mean"] for value, row in sweep.rows.items()}
    default = means[sweep.default]
    others = [mean - default for value, mean in means.items() if value != sweep.default]
    if not others:
        return f"{sweep.knob.letter}: nothing but the default {sweep.default:g} was tried."
    spread = _accuracy(sweep.rows[sweep.default], "strict")["std_videos"]
    values = ", ".join(f"{value:g}" for value in means)
    return (
        f"{sweep.knob.letter} in {values}: strict accuracy {min(others):+.2f} to {max(others):+.2f} points from that of {sweep.default:g}; "
        f"its deviation over videos is {spread:.2f}."
    )


def _accuracy(row: Row, protocol: str) -> Mapping[str, float]:
    return row.report.scores[protocol].metrics["accuracy"]


def draw_sensitivity(sweeps: Sequence[Sweep], title: str) -> Figure:
    """A panel for each sweep: accuracy under both protocols with a band of one deviation over videos; a dotted line at the default."""
    n_rows = -(-len(sweeps) // 2)
    figure = Figure(figsize=(9.0 if len(sweeps) > 1 else 5.0, 0.7 + 2.9 * n_rows), layout="constrained")
    panels = figure.subplots(n_rows, min(2, len(sweeps)), sharey=True, squeeze=False)
    for axes, sweep in zip(panels.flat, sweeps, strict=False):
        _panel(axes, sweep)
    for axes in panels.flat[len(sweeps) :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("accuracy, %")
    figure.legend(*panels.flat[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside lower center", ncols=2)
    figure.suptitle(title, fontsize=10)
    return figure


def _panel(axes: Axes, sweep: Sweep) -> None:
    values, rows = list(sweep.rows), list(sweep.rows.values())
    places = range(len(values))
    for protocol, (label, style, mark, ink) in LINES.items():
        if protocol not in rows[0].report.scores:
            continue
        summaries = [_accuracy(row, protocol) for row in rows]
        means = [summary["mean"] for summary in summaries]
        low = [summary["mean"] - summary["std_videos"] for summary in summaries]
        high = [summary["mean"] + summary["std_videos"] for summary in summaries]
        axes.fill_between(places, low, high, color=ink, alpha=0.15, linewidth=0)
        axes.plot(places, means, color=ink, linestyle=style, marker=mark, markersize=4, label=label)
    axes.axvline(values.index(sweep.default), color="#555555", linestyle=":", linewidth=1.2)
    axes.set_xticks(places, [f"{value:g}" for value in values])
    axes.set_xlabel(sweep.knob.title)
    axes.grid(axis="y", color="#00000020")
    top = axes.secondary_xaxis("top")
    top.set_xticks(places, [_short(row.parameters) for row in rows], fontsize=7)
    top.tick_params(length=0)
    top.set_xlabel("weights", fontsize=7)
    axes.spines[["right"]].set_visible(False)


def _short(count: int) -> str:
    """12,345,678 as 12.3M, 12,345 as 12k."""
    return f"{count / 1e6:.2f}M" if count >= 1e6 else f"{count / 1e3:.0f}k"
