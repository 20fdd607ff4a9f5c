"""What a comparison of peers leaves behind: results.json, a figure of cost against time, and its section of the results page."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from surgicalmamba.eval.score import Json, to_json
from surgicalmamba.model.registry import DEFAULT
from surgicalmamba.report.colours import colour
from surgicalmamba.report.sections import refresh_page, slug
from surgicalmamba.report.tables import number
from surgicalmamba_lab.studies.ablation import best_rates
from surgicalmamba_lab.studies.figures import figure_on_page, save_figure
from surgicalmamba_lab.studies.peers import PUBLISHED_WIDTH, Peers, cost_at
from surgicalmamba_lab.studies.results import Row, division_words, markdown, rates_table, write_results
from surgicalmamba_lab.studies.step_cost import LENGTHS, StepCost

Value = Callable[[StepCost], float]
STYLES = {"O(1)": "-", "O(W)": "--", "O(T)": ":"}
MARKS = "osD^vP*X<>ph"
PROTOCOL_METRICS = (
    ("strict", "precision"),
    ("strict", "recall"),
    ("strict-b", "jaccard"),
    ("paper", "jaccard"),
    ("framewise", "jaccard"),
    ("relaxed-repaired", "jaccard"),
    ("relaxed-symmetric", "jaccard"),
    ("segmental", "f1_10"),
    ("segmental", "f1_25"),
    ("segmental", "f1_50"),
    ("segmental", "over_segmentation"),
    ("segmental", "latency_s"),
    ("map", "map"),
    ("calibration", "log_loss"),
    ("calibration", "calibration_error"),
)
"""What the second table has of the protocols, besides the columns of the first."""
TRADEOFF_FRAMES = 6_000
"""An operation of 100 minutes at one frame per second."""


def write_peers(study: Peers, out: Path, about: Mapping[str, Json], page: Path | None, title: str | None) -> Path:
    """Results and figures into the study's folder; the section, with its figure beside the page, where a page is given."""
    scores = study.scores
    title = title or f"Peers, {scores.dataset.name}, {division_words(scores.rows[0])}"
    more = {
        "learning_rates": {"split": scores.rate_split, "strict_jaccard": scores.rate_scores, "chosen": best_rates(scores.rate_scores)},
        "memory": study.memory,
        "settings": study.settings,
        "step_costs": {name: [cost.as_dict() for cost in costs] for name, costs in study.costs.items()},
        "step_costs_published_size": {name: [cost.as_dict() for cost in costs] for name, costs in study.published.items()},
    }
    plain = to_json(more)
    assert isinstance(plain, dict)
    file = write_results(out, "peers", scores.dataset, scores.rows, {**about, **plain})
    figure = draw_costs(study)
    save_figure(figure, out, "peers")
    tradeoff = draw_tradeoff(study)
    save_figure(tradeoff, out, "tradeoff")
    if page is not None:
        costs = figure_on_page(figure, page, slug(title), "Milliseconds per frame and memory against the length of the operation")
        scored = figure_on_page(tradeoff, page, f"{slug(title)}-tradeoff", "Strict Jaccard against milliseconds per frame")
        refresh_page(page, slug(title), section(study, about, title) + f"\n{scored}\n\n{costs}\n")
    return file


def section(study: Peers, about: Mapping[str, Json], title: str) -> str:
    """Scores under every protocol, costs, and how the learning rates were chosen."""
    scores = study.scores
    rates = best_rates(scores.rate_scores)
    columns = {"memory": study.memory}
    if rates:
        columns["learning rate"] = {row: f"{rate:g}" for row, rate in rates.items()}
    parts = [markdown(title, scores.rows, about, more_columns=columns)]
    parts.append(
        "Every network had the same features, split, seeds, recipe and learning-rate sweep; networks published wider than the recipe's "
        "SurgicalMamba were cut down to its width (sizes in results.json).\n"
    )
    parts.append(protocol_table(scores.rows))
    parts.append(cost_table("Live cost of the networks of this table, one frame at a time", study.costs, study.memory))
    if study.published:
        parts.append(cost_table(f"Live cost at published sizes, features of width {PUBLISHED_WIDTH}", study.published, study.memory))
    if rates:
        parts.append(rates_table(scores.rate_scores, scores.rate_split))
        if outermost := at_the_ends(scores.rate_scores):
            parts.append(f"Best at the lowest or highest rate, so that others might suit them better: {', '.join(outermost)}.\n")
    return "\n".join(parts)


def at_the_ends(scores: Mapping[str, Mapping[float, float]]) -> list[str]:
    """The rows whose best rate has no neighbour on one side."""
    best = best_rates(scores)
    return [row for row, by_rate in scores.items() if best[row] in (min(by_rate), max(by_rate))]


def protocol_table(rows: Sequence[Row]) -> str:
    """Every network under the other protocols that its predictions allow: means over seeds."""
    columns = [(protocol, metric) for protocol, metric in PROTOCOL_METRICS if protocol in rows[0].report.scores]
    lines = ["The other protocols, means over seeds (explained on the page on metrics):", ""]
    lines += ["| | " + " | ".join(f"{metric}, {protocol}" for protocol, metric in columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for row in rows:
        values = [row.report.scores[protocol].metrics[metric]["mean"] for protocol, metric in columns]
        lines.append(f"| {row.name} | " + " | ".join(map(number, values)) + " |")
    return "\n".join(lines) + "\n"


def cost_table(heading: str, costs: Mapping[str, Sequence[StepCost]], memory: Mapping[str, str]) -> str:
    """Milliseconds per frame and kilobytes of memory at every length; at the longest also the 95 % quantile and the ratio to the first."""
    lengths = [cost.frames for cost in next(iter(costs.values()))]
    longest, first = f"{lengths[-1]:,}", next(iter(costs))
    columns = [f"ms at {length:,}" for length in lengths] + [f"p95 at {longest}", f"times {first} at {longest}"]
    columns += [f"kB at {length:,}" for length in lengths]
    lines = [f"{heading}:", "", f"| | memory | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    for name, rows in costs.items():
        numbers = [f"{row.frame_ms:.2f}" for row in rows]
        numbers += [f"{rows[-1].p95_ms:.2f}", f"{rows[-1].frame_ms / costs[first][-1].frame_ms:.2f}"]
        numbers += [f"{row.state_bytes / 1e3:,.1f}" for row in rows]
        lines.append(f"| {name} | {memory[name]} | " + " | ".join(numbers) + " |")
    return "\n".join(lines) + "\n"


def draw_costs(study: Peers) -> Figure:
    """Time and memory of a live frame against the length of the operation; published sizes where they were measured."""
    costs = study.published or study.costs
    figure = Figure(figsize=(12.5, 5.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _lines(left, costs, study.memory, lambda cost: cost.frame_ms)
    _lines(right, costs, study.memory, lambda cost: cost.state_bytes / 1e6)
    left.set_ylabel("milliseconds per frame")
    right.set_ylabel("memory of one operation, MB")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    what = f"published sizes, features of width {PUBLISHED_WIDTH}" if study.published else "sizes as trained here"
    figure.suptitle(f"Cost of a live frame ({what}); solid O(1), dashed O(W), dotted O(T)", fontsize=10)
    return figure


def draw_tradeoff(study: Peers) -> Figure:
    """What a network reaches against what a live frame costs late in an operation; the legend ranks them."""
    figure = Figure(figsize=(8.8, 5.4), layout="constrained")
    axes = figure.subplots()
    legend = []
    for place, row in enumerate(study.scores.rows):
        score = row.report.scores["strict"].metrics["jaccard"]
        ms = cost_at(study.costs[row.name], TRADEOFF_FRAMES).frame_ms
        spread = score.get("std_runs", math.nan)
        point = axes.errorbar(
            ms,
            score["mean"],
            None if math.isnan(spread) else spread,
            linestyle="none",
            color=_ink(place, row.name),
            marker=MARKS[place % len(MARKS)],
            markersize=9 if row.name == DEFAULT else 6,
            capsize=2,
        )
        legend.append((score["mean"], point.lines[0], row.name))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"milliseconds per frame after {TRADEOFF_FRAMES:,} frames, one at a time")
    axes.set_ylabel("strict Jaccard, %; bars: deviation over seeds")
    axes.grid(color="#00000020")
    axes.spines[["top", "right"]].set_visible(False)
    ranked = sorted(legend, key=lambda entry: -entry[0])
    names = [f"{mean:.1f}  {name}" for mean, _, name in ranked]
    figure.legend([mark for _, mark, _ in ranked], names, loc="outside right center", fontsize=8, frameon=False)
    return figure


def _lines(axes: Axes, costs: Mapping[str, Sequence[StepCost]], memory: Mapping[str, str], value: Value) -> None:
    for place, (name, rows) in enumerate(costs.items()):
        own = name == DEFAULT
        axes.plot(
            [row.frames for row in rows],
            [value(row) for row in rows],
            STYLES[memory[name]],
            marker=MARKS[place % len(MARKS)],
            markersize=5,
            color=_ink(place, name),
            linewidth=2.5 if own else 1.2,
            label=f"{name} {memory[name]}",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS])
    axes.minorticks_off()
    axes.set_xlabel("frames of the operation so far")
    axes.grid(color="#00000020")


def _ink(place: int, name: str) -> str:
    """A network's colour; with its mark it is the only one of up to 72. The palette's yellow is too pale for a line."""
    return "black" if name == DEFAULT else colour((place + place // len(MARKS)) % 6)


def summary(study: Peers, rows: Sequence[Row]) -> str:
    """For the terminal: a line per network."""
    lines = [f"{'':18} {'accuracy':>9} {'jaccard':>8} {'weights':>10} {'memory':>6}   ms per frame at {', '.join(map(str, LENGTHS))}"]
    for row in rows:
        strict = row.report.scores["strict"].metrics
        ms = "  ".join(f"{cost.frame_ms:.2f}" for cost in study.costs[row.name])
        scores = f"{strict['accuracy']['mean']:9.2f} {strict['jaccard']['mean']:8.2f}"
        lines.append(f"{row.name:18} {scores} {row.parameters:>10,} {study.memory[row.name]:>6}   {ms}")
    return "\n".join(lines)
