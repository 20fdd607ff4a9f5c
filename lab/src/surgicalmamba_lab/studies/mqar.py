"""`study mqar`, the paper's section "Does the mechanism transfer": multi-query associative recall with and
without rotation in every cell, each variant at its own best learning rate."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from surgicalmamba.errors import StudyError
from surgicalmamba.eval.compare import Comparison, compare
from surgicalmamba.eval.pairs import FloatArray
from surgicalmamba.eval.score import Json
from surgicalmamba.report.colours import colour
from surgicalmamba.report.figures import save_figure
from surgicalmamba.report.tables import align, markdown_table, number
from surgicalmamba_lab.studies.mqar_task import VARIANTS, Cell, MqarConfig, Variant
from surgicalmamba_lab.studies.mqar_train import RecallRun, train_run
from surgicalmamba_lab.studies.results import put_on_page, section_head, with_interval, write_document
from surgicalmamba_lab.studies.runs import end_with_the_study, job_processes

Bar = Callable[[int, str], AbstractContextManager[Callable[[int], None]]]
"""A progress bar over a number of runs with a label; the function it yields takes how many are done."""
FLOOR, CEILING = 20.0, 95.0
"""A cell is a contest if the first variant's plateau lies between these, percent."""


@dataclass(frozen=True, eq=False)
class Recall:
    """A variant of a cell at the rate that was best on examples kept for choosing."""

    cell: Cell
    variant: Variant
    rate: float
    by_batch: FloatArray
    """Accuracy in percent (seeds, test batches); the batches are the same for all seeds and variants."""
    updates: tuple[int, ...]
    to_half: tuple[int | None, ...]
    """By seed, updates until half of the questions of a training batch were answered; None if never."""
    by_rate: dict[float, float]
    parameters: int
    minutes: float
    """Median over the runs at this rate."""

    @property
    def accuracy(self) -> FloatArray:
        """By seed."""
        return np.asarray(self.by_batch.mean(axis=1))

    @property
    def mean(self) -> float:
        return float(self.accuracy.mean())

    @property
    def deviation(self) -> float:
        """Over seeds; undefined for one."""
        return float(np.std(self.accuracy, ddof=1)) if len(self.accuracy) > 1 else float("nan")

    @property
    def median_to_half(self) -> float:
        """Infinite if most seeds never answered half."""
        return float(np.median([np.inf if updates is None else updates for updates in self.to_half]))

    def as_dict(self) -> dict[str, object]:
        return {
            "rate": self.rate,
            "accuracy_by_seed": self.accuracy.tolist(),
            "accuracy_by_seed_and_batch": self.by_batch.tolist(),
            "mean": self.mean,
            "deviation": self.deviation,
            "updates_by_seed": self.updates,
            "updates_to_half_by_seed": self.to_half,
            "chosen_by": {f"{rate:g}": score for rate, score in self.by_rate.items()},
            "parameters": self.parameters,
            "minutes_a_run": self.minutes,
        }


@dataclass(frozen=True, eq=False)
class CellResult:
    """All variants of a cell; the others are compared with the first."""

    rows: tuple[Recall, ...]

    @property
    def cell(self) -> Cell:
        return self.rows[0].cell

    def gain(self, row: Recall) -> Comparison:
        """A variant minus the first, in points, with the interval over seeds and test batches together."""
        return compare(row.by_batch, self.rows[0].by_batch)

    def more_weights(self, row: Recall) -> float:
        """Weights that a variant adds to the first, in percent."""
        return 100.0 * (row.parameters / self.rows[0].parameters - 1)


def run_recall(
    config: MqarConfig, seeds: int, out: Path, workers: int, device: str, bar: Bar
) -> list[CellResult]:
    """Train the runs that choose the rates, then the other seeds at the chosen rates."""
    trials = rate_runs(config, seeds)
    with bar(len(trials), "runs that choose the rates") as progress:
        train_all(trials, out, workers, progress, device)
    others = final_runs(config, seeds, out)
    with bar(len(others), "runs at the chosen rates") as progress:
        train_all(others, out, workers, progress, device)
    return gather_recall(config, seeds, out)


def rate_runs(config: MqarConfig, seeds: int) -> list[RecallRun]:
    """The runs that choose the rates; variants of a rate and seed come one after the other."""
    return [
        RecallRun(config, cell, variant, rate, seed)
        for seed in range(min(seeds, config.rate_seeds))
        for cell in config.sizes()
        for rate in config.rates
        for variant in config.variants
    ]


def final_runs(config: MqarConfig, seeds: int, out: Path) -> list[RecallRun]:
    """The other seeds of every cell and variant, at the chosen rate."""
    pairs = [(cell, variant) for cell in config.sizes() for variant in config.variants]
    rates = {pair: best_rate(config, *pair, seeds, out)[0] for pair in pairs}
    others = range(config.rate_seeds, seeds)
    return [RecallRun(config, *pair, rates[pair], seed) for seed in others for pair in pairs]


def train_all(
    runs: Sequence[RecallRun],
    out: Path,
    workers: int,
    progress: Callable[[int], None] = lambda n_done: None,
    device: str = "cpu",
) -> None:
    """Train every run that is not done, in processes of one thread. The first error ends the study; saved
    states stay."""
    waiting = [run for run in runs if run.result(out) is None]
    n_done = len(runs) - len(waiting)
    with ProcessPoolExecutor(workers, mp_context=job_processes(), initializer=end_with_the_study) as pool:
        pending = [pool.submit(train_run, run, out, device) for run in waiting]
        try:
            for n, future in enumerate(as_completed(pending), start=1):
                future.result()
                progress(n_done + n)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def best_rate(
    config: MqarConfig, cell: Cell, variant: Variant, seeds: int, out: Path
) -> tuple[float, dict[float, float]]:
    """The rate with the best mean accuracy on the examples kept for choosing, and that mean for every
    rate."""
    by_rate = {}
    for rate in config.rates:
        runs = [RecallRun(config, cell, variant, rate, seed) for seed in range(min(seeds, config.rate_seeds))]
        by_rate[rate] = float(np.mean([_number(_result(run, out), "chosen_by") for run in runs]))
    return max(by_rate, key=lambda rate: by_rate[rate]), by_rate


def gather_recall(config: MqarConfig, seeds: int, out: Path) -> list[CellResult]:
    """The finished cells in the order of the study."""
    return [
        CellResult(tuple(_best(config, cell, variant, seeds, out) for variant in config.variants))
        for cell in config.sizes()
    ]


def _best(config: MqarConfig, cell: Cell, variant: Variant, seeds: int, out: Path) -> Recall:
    rate, by_rate = best_rate(config, cell, variant, seeds, out)
    results = [_result(RecallRun(config, cell, variant, rate, seed), out) for seed in range(seeds)]
    halves = [result["updates_to_half"] for result in results]
    return Recall(
        cell=cell,
        variant=variant,
        rate=rate,
        by_batch=np.array([result["accuracy_by_batch"] for result in results], dtype=np.float64),
        updates=tuple(int(_number(result, "updates")) for result in results),
        to_half=tuple(None if half is None else int(str(half)) for half in halves),
        by_rate=by_rate,
        parameters=int(_number(results[0], "parameters")),
        minutes=float(np.median([_number(result, "seconds") for result in results])) / 60,
    )


def _result(run: RecallRun, out: Path) -> dict[str, object]:
    result = run.result(out)
    if result is None:
        raise StudyError(f"{run.folder(out)} has no result yet; run the study to its end.")
    return result


def _number(result: Mapping[str, object], key: str) -> float:
    return float(str(result[key]))


# What the study writes: results.json, a figure, and its section of the results page.


def write_recall(
    cells: Sequence[CellResult],
    config: MqarConfig,
    seeds: int,
    out: Path,
    about: Mapping[str, Json],
    page: Path | None = None,
    title: str = "MQAR",
) -> Path:
    """Results and figure into the study's folder; with a page also the section, its figure beside the
    page."""
    document: dict[str, object] = {"study": "mqar", **about, "settings": json.loads(config.model_dump_json())}
    document["cells"] = {
        found.cell.name: {
            row.variant: {
                **row.as_dict(),
                "gain": None if row is found.rows[0] else found.gain(row).as_dict(),
                "more_weights_percent": found.more_weights(row),
            }
            for row in found.rows
        }
        for found in cells
    }
    file = write_document(out, document)
    figure = draw_recall(cells)
    save_figure(figure, out, "mqar")
    if page is not None:
        alt = "Accuracy of every variant and seed in each cell, with gains"
        put_on_page(page, title, recall_section(title, cells, seeds, about), (figure, "", alt))
    return file


def recall_section(title: str, cells: Sequence[CellResult], seeds: int, about: Mapping[str, Json]) -> str:
    """The study's section of a results page, without the figure."""
    variants = list(dict.fromkeys(row.variant for found in cells for row in found.rows))
    lines = section_head(title, about, f"Seeds {', '.join(map(str, range(seeds)))}.")
    lines += [
        *markdown_table(recall_table(cells)),
        "",
        "Accuracy in percent at the questions of unseen sequences with T/4 pairs, at the plateau; mean ± "
        "deviation over "
        "seeds. Gain in points over the cell's first row; its interval is over seeds and test sequences "
        "together. Updates "
        "and minutes are medians over runs. The rate was chosen on other sequences than those reported. "
        + "; ".join(f"{name}: {VARIANTS[name]}" for name in variants)
        + ".",
    ]
    return "\n".join(lines) + "\n"


def recall_text(cells: Sequence[CellResult]) -> str:
    """For the terminal."""
    return "\n".join(align(recall_table(cells)))


def recall_table(cells: Sequence[CellResult]) -> list[list[str]]:
    """Header and a row per cell and variant."""
    head = ["cell", "pairs", "variant", "accuracy", "gain (95 % interval)", "", "updates to half"]
    rows = [[*head, "updates", "rate", "weights", "minutes"]]
    for found in cells:
        for row in found.rows:
            is_first = row is found.rows[0]
            gain = found.gain(row)
            never = np.isinf(row.median_to_half)
            rows.append(
                [
                    found.cell.name if is_first else "",
                    str(found.cell.n_pairs) if is_first else "",
                    row.variant,
                    number(row.mean) + ("" if np.isnan(row.deviation) else f" ± {row.deviation:.2f}"),
                    "" if is_first else with_interval(gain),
                    _contest(row) if is_first else gain.standing,
                    "never" if never else f"{row.median_to_half:,.0f}",
                    f"{np.median(row.updates):,.0f}",
                    f"{row.rate:g}",
                    f"{row.parameters:,}" + ("" if is_first else f" (+{found.more_weights(row):.1f} %)"),
                    f"{row.minutes:.1f}",
                ]
            )
    return rows


def _contest(row: Recall) -> str:
    """Whether the first variant's plateau leaves room to win and to lose."""
    if row.mean < FLOOR:
        return "hardly learned: no contest"
    return "nearly solved: no contest" if row.mean > CEILING else ""


def draw_recall(cells: Sequence[CellResult]) -> Figure:
    """A panel per cell: accuracy of each variant, a dot for every seed, a bar at the mean, the gain with
    its interval."""
    figure = Figure(figsize=(max(5.4, 1.0 + 2.7 * len(cells)), 4.6), layout="constrained")
    panels = figure.subplots(1, len(cells), sharey=True, squeeze=False)[0]
    for axes, found in zip(panels, cells, strict=True):
        _draw_cell(axes, found)
    panels[0].set_ylabel("questions answered, %")
    panels[0].set_ylim(0, 118)
    panels[0].set_yticks(range(0, 101, 20))
    legend = "dot: a seed; bar: mean; numbers: points gained over the first"
    figure.suptitle(f"{legend}\n(95 % interval over seeds and sequences)", fontsize=8)
    return figure


def _draw_cell(axes: Axes, found: CellResult) -> None:
    axes.axhspan(FLOOR, CEILING, color="#00000008", linewidth=0)
    for place, row in enumerate(found.rows):
        ink = colour(place)
        axes.bar(place, row.mean, width=0.62, color=ink, alpha=0.35)
        offsets = 0.12 * np.linspace(-1, 1, len(row.accuracy)) if len(row.accuracy) > 1 else np.zeros(1)
        axes.plot(place + offsets, row.accuracy, "o", color=ink, markersize=4)
        if row is not found.rows[0]:
            gain = found.gain(row)
            text = f"{gain.difference:+.1f}\n[{gain.low:+.0f}, {gain.high:+.0f}]"
            top = (place, max(row.accuracy))
            axes.annotate(text, top, (0, 5), textcoords="offset points", ha="center", fontsize=7)
    axes.set_xticks(
        range(len(found.rows)), [row.variant for row in found.rows], rotation=40, ha="right", fontsize=8
    )
    cell = found.cell
    sizes = f"{cell.n_pairs} pairs, state {cell.d_state}, width {cell.d_model}"
    axes.set_title(f"{sizes}\nT {cell.length}, vocabulary {cell.vocabulary}", fontsize=9)
    axes.grid(axis="y", color="#00000020")
    axes.spines[["top", "right"]].set_visible(False)
