"""`study ablation`: the full model, controls, and the full model without one part at a time, beside the
paper's table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.published import load_published_ablation
from surgicalmamba.eval.score import Json
from surgicalmamba.model.surgical_mamba import VARIANTS
from surgicalmamba.report.colours import colour
from surgicalmamba.report.figures import save_figure
from surgicalmamba.report.tables import align, markdown_table, number
from surgicalmamba.train.config import TrainConfig
from surgicalmamba_lab.studies.results import (
    COMPARED_METRICS,
    Row,
    comparisons,
    division_words,
    gather,
    interval_levels,
    markdown,
    put_on_page,
    rates_table,
    spreads,
    summary_text,
    with_interval,
    write_results,
)
from surgicalmamba_lab.studies.runs import (
    Job,
    RunJobs,
    System,
    divide,
    surgical_mamba_of,
    system_jobs,
    with_tuning,
)

WITHOUT_SMOOTH = "without-smooth"
ROWS = (*VARIANTS, WITHOUT_SMOOTH)
"""Rows of the table; all are compared with the first. The last is a training setting. The others are
variants of the model: first those of the paper's table, then controls of the rotation that the paper does
not have."""
METRICS = tuple(
    (protocol, metric)
    for protocol in ("strict", "relaxed-published")
    for metric in ("accuracy", "precision", "recall", "jaccard")
)
"""Columns of the paper's table."""
MARKS = {"accuracy": ("o", colour(0)), "jaccard": ("s", colour(5))}
PROTOCOL_NAMES = {"strict": "strict", "relaxed-published": "relaxed, 10 s"}


@dataclass(frozen=True)
class AblationPlan:
    """What a call of the study asks for. `splits` is a pattern; `folds` cuts the dataset into folds
    instead. Without `rates` every row has the recipe's learning rate. With them each row has its best
    rate, by the validation videos of the first `rate_seeds` seeds."""

    recipe: TrainConfig
    rows: tuple[str, ...]
    seeds: int
    splits: str | None
    folds: int | None
    rates: tuple[float, ...]
    rate_seeds: int
    train_folds: int | None = None


@dataclass(frozen=True, eq=False)
class Ablation:
    """A finished ablation. `rate_scores` is the strict Jaccard on validation videos by row and learning
    rate; it is empty if no rates were tried."""

    dataset: PreparedDataset
    rows: list[Row]
    rate_scores: dict[str, dict[float, float]]
    rate_split: str | None

    def rates_as_dict(self) -> dict[str, object]:
        chosen = best_rates(self.rate_scores)
        return {"split": self.rate_split, "strict_jaccard": self.rate_scores, "chosen": chosen}


def run_ablation(plan: AblationPlan, dataset: PreparedDataset, out: Path, run: RunJobs) -> Ablation:
    """The rows of the table, trained and scored."""
    return run_systems(ablation_systems(plan.recipe, plan.rows), plan, dataset, out, run)


def run_systems(
    systems: Sequence[System], plan: AblationPlan, dataset: PreparedDataset, out: Path, run: RunJobs
) -> Ablation:
    """Divide the dataset, choose learning rates if the plan has any, train and score every system.

    A row is reported under the system's name, whatever its rate. A job that the trials have already
    trained on the same split is the same job, so it is not trained again."""
    view, chosen = divide(dataset, out, plan.splits, plan.folds, plan.train_folds)
    rate_split = None
    scores: dict[str, dict[float, float]] = {}
    if plan.rates:
        view, rate_split = with_tuning(view, out, chosen)
        tried = [at_rate(system, rate) for system in systems for rate in plan.rates]
        trials = [
            replace(job, may_diverge=True)
            for job in system_jobs(tried, view, range(plan.rate_seeds), [rate_split], name_splits=True)
        ]
        run(trials, "learning rates")
        diverged = {job.group for job in trials if job.diverged(out)}
        rows = gather([job for job in trials if job.group not in diverged], out, view)
        reached = {row.name: row.mean("strict", "jaccard") for row in rows}
        scores = {
            system.name: {rate: reached.get(at_rate(system, rate).name, 0.0) for rate in plan.rates}
            for system in systems
        }
    rates = best_rates(scores)
    jobs: list[Job] = []
    for system in systems:
        final = at_rate(system, rates[system.name]) if rates else system
        trained = system_jobs([final], view, range(plan.seeds), chosen, name_splits=True)
        jobs += [replace(job, group=system.name) for job in trained]
    run(jobs, "runs")
    return Ablation(view, gather(jobs, out, view), scores, rate_split)


def ablation_systems(config: TrainConfig, rows: Sequence[str] = ROWS) -> list[System]:
    """The recipe for each row, in the order of the table."""
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise ConfigError(f"unknown row {unknown[0]!r} of the ablation; rows: {', '.join(ROWS)}.")
    surgical_mamba_of(config, "ablation")
    if (variant := config.recognizer.variant) != "full":
        raise ConfigError(
            f"variant={variant} would not be used: the rows of an ablation are variants; choose some "
            "with --rows."
        )
    without_smooth = config.with_(loss=config.loss.with_(smooth_weight=0.0))
    systems = [
        System(row, without_smooth if row == WITHOUT_SMOOTH else config.with_variant(row))
        for row in ROWS
        if row in rows
    ]
    _refuse_equal_rows(systems)
    return systems


def _refuse_equal_rows(systems: Sequence[System]) -> None:
    """A recipe that lacks a part already, such as loss.smooth_weight=0, has no row without it."""
    networks = [(s.config.network.variant(s.config.recognizer.variant), s.config.loss) for s in systems]
    for later, network in enumerate(networks):
        if (earlier := networks.index(network)) < later:
            raise ConfigError(
                f"rows {systems[earlier].name} and {systems[later].name} would be the same: the recipe "
                "leaves that "
                "part out already; choose other rows with --rows."
            )


def at_rate(system: System, rate: float) -> System:
    """The same system at another learning rate."""
    optim = system.config.optim.with_(lr=rate)
    return System(f"{system.name}-lr{rate:g}", system.config.with_(optim=optim))


def best_rates(scores: Mapping[str, Mapping[float, float]]) -> dict[str, float]:
    """The rate of each row with the best score; of equal ones the first."""
    return {row: max(by_rate, key=lambda rate: by_rate[rate]) for row, by_rate in scores.items()}


# What the study writes: results.json, a figure, and its section of the results page.


def write_ablation(
    study: Ablation, out: Path, about: Mapping[str, Json], page: Path | None, title: str | None
) -> Path:
    """Results and figure into the study's folder; with a page also the section, its figure beside the
    page."""
    title = title or f"Ablation, {study.dataset.name}, {division_words(study.rows[0])}"
    more = {
        "learning_rates": study.rates_as_dict(),
        "spread_compared_with_first": {
            name: result.as_dict() for name, result in spreads(study.rows).items()
        },
        "paper": load_published_ablation().as_dict(),
    }
    file = write_results(out, "ablation", study.dataset, study.rows, {**about, **more})
    figure = draw_ablation(study.rows, title)
    save_figure(figure, out, "ablation")
    if page is not None:
        alt = "Difference of each row from the first, and deviation over videos"
        put_on_page(page, title, section(study, about, title), (figure, "", alt))
    return file


def section(study: Ablation, about: Mapping[str, Json], title: str) -> str:
    """The table, the comparison with the paper, and how learning rates were chosen."""
    rates = best_rates(study.rate_scores)
    columns = {"learning rate": {row: f"{rate:g}" for row, rate in rates.items()}} if rates else None
    lines = [markdown(title, study.rows, about, METRICS, columns), f"{_beside_paper_title(study)}:", ""]
    lines += markdown_table(beside_paper(study))
    if rates:
        lines.append("\n" + rates_table(study.rate_scores, study.rate_split))
    return "\n".join(lines) + "\n"


def summary(study: Ablation) -> str:
    """For the terminal: the scores of each row, and the table beside the paper's."""
    return "\n".join(
        [summary_text(study.rows), "", f"{_beside_paper_title(study)}:", *align(beside_paper(study))]
    )


def _beside_paper_title(study: Ablation) -> str:
    return (
        f"Strict, each row minus {study.rows[0].name} (95 % interval over {interval_levels(study.rows)}), "
        "beside the "
        "paper's value on Cholec80 and its difference from the paper's full model. The deviation is that of "
        "the accuracy "
        "over the videos of one run, averaged over seeds"
    )


def beside_paper(study: Ablation) -> list[list[str]]:
    """A header and a line per row: score and difference of this study, then the paper's, for accuracy,
    Jaccard and the deviation over videos. The paper has no row for the controls that only this study has."""
    quantities = (*COMPARED_METRICS, "deviation")
    paper = _paper_values()
    compared, deviations = comparisons(study.rows), spreads(study.rows)
    lines = [["", *(text for q in quantities for text in (q, "difference", "paper", "difference, paper"))]]
    for row in study.rows:
        line = [row.name]
        for quantity in quantities:
            if quantity == "deviation":
                value, result = row.spread, deviations.get(row.name)
                difference = "" if result is None else with_interval(result)
            else:
                value = row.mean("strict", quantity)
                difference = (
                    with_interval(compared[row.name][quantity].reversed()) if row.name in compared else ""
                )
            line += [number(value), difference]
            if row.name in paper:
                theirs, full = paper[row.name][quantity], paper["full"][quantity]
                line += [number(theirs), "" if row.name == "full" else f"{theirs - full:+.2f}"]
            else:
                line += ["-", "-"]
        lines.append(line)
    return lines


def _paper_values() -> dict[str, dict[str, float]]:
    """The paper's strict values by row: accuracy, Jaccard, and the deviation of the accuracy over videos."""
    strict = next(block for block in load_published_ablation().blocks if block.protocols[0] == "strict")
    values = {}
    for row in strict.rows:
        accuracy, deviation = row.values["accuracy"]
        assert deviation is not None
        values[row.method] = {
            "accuracy": accuracy,
            "jaccard": row.values["jaccard"][0],
            "deviation": deviation,
        }
    return values


def draw_ablation(rows: Sequence[Row], title: str) -> Figure:
    """A panel per protocol with the paired differences and their intervals, and one for the deviation over
    videos."""
    protocols = [protocol for protocol in PROTOCOL_NAMES if protocol in rows[0].report.scores]
    n_panels = len(protocols) + 1
    figure = Figure(figsize=(2.6 + 3.2 * n_panels, 1.5 + 0.42 * len(rows)), layout="constrained")
    panels = figure.subplots(1, n_panels, sharey=True, squeeze=False)[0]
    for axes, protocol in zip(panels, protocols, strict=False):
        _draw_differences(axes, rows, protocol)
    _draw_spreads(panels[-1], rows)
    names = [f"{row.name}\n{row.parameters:,} weights" for row in rows]
    panels[0].set_yticks(range(len(rows)), names, fontsize=8)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    return figure


def _draw_differences(axes: Axes, rows: Sequence[Row], protocol: str) -> None:
    compared = comparisons(rows, protocol)
    for place, row in enumerate(rows[1:], start=1):
        for offset, (metric, (mark, ink)) in zip((-0.14, 0.14), MARKS.items(), strict=True):
            result = compared[row.name][metric].reversed()  # this row minus the first
            ends = [[result.difference - result.low], [result.high - result.difference]]
            label = metric if place == 1 else None
            at = (result.difference, place + offset)
            axes.errorbar(*at, xerr=ends, marker=mark, color=ink, capsize=3, linestyle="none", label=label)
    axes.axvline(0, color="black", linewidth=1)
    interval = f"(95 % interval over {interval_levels(rows)})"
    axes.set_xlabel(f"points against {rows[0].name}, {PROTOCOL_NAMES[protocol]}\n{interval}", fontsize=9)
    if compared:
        axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    axes.grid(axis="x", color="#00000020")


def _draw_spreads(axes: Axes, rows: Sequence[Row]) -> None:
    """The interval is that of the difference from the first row, drawn around the row's value."""
    compared = spreads(rows)
    for place, row in enumerate(rows):
        axes.barh(place, row.spread, height=0.55, color=colour(4))
        if row.name in compared:
            result = compared[row.name]
            ends = [[result.difference - result.low], [result.high - result.difference]]
            axes.errorbar(row.spread, place, xerr=ends, color="black", capsize=3, linestyle="none")
    axes.axvline(rows[0].spread, color="black", linewidth=1, linestyle="--")
    interval = f"(95 % interval of the difference, over {interval_levels(rows)})"
    axes.set_xlabel(f"deviation of the strict accuracy over videos\n{interval}", fontsize=9)
    axes.set_xlim(left=0)
