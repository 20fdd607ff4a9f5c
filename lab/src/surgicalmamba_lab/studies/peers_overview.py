"""Several comparisons of peers at a glance: every network's score on every dataset, its mean rank, and what a live frame costs it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from pydantic import BaseModel, ConfigDict, ValidationError

from surgicalmamba.errors import StudyError
from surgicalmamba.eval.compare import Standing, standing
from surgicalmamba.eval.score import Json
from surgicalmamba.report.colours import colour
from surgicalmamba.report.sections import provenance_line, refresh_page, slug
from surgicalmamba.report.tables import align, number
from surgicalmamba_lab.studies.figures import figure_on_page, save_figure
from surgicalmamba_lab.studies.peers import PUBLISHED_WIDTH
from surgicalmamba_lab.studies.step_cost import StepCost

MARKS: dict[Standing, str] = {"ahead": "▲", "behind": "▼", "no difference shown": "", "no verdict": "?"}


@dataclass(frozen=True)
class Cell:
    """A network on a dataset: strict Jaccard, its deviation over seeds, and where it stands against the first network."""

    jaccard: float
    deviation: float
    standing: Standing

    def text(self) -> str:
        spread = "" if math.isnan(self.deviation) else f" ± {self.deviation:.2f}"
        return f"{number(self.jaccard)}{spread} {MARKS[self.standing]}".rstrip()


@dataclass(frozen=True)
class Overview:
    """Networks by mean rank. `costs` are at published sizes where one of the comparisons measured those, else as trained in the first."""

    first: str
    datasets: tuple[str, ...]
    cells: dict[str, dict[str, Cell]]
    """Network -> dataset -> cell."""
    ranks: dict[str, float]
    memory: dict[str, str]
    costs: dict[str, list[StepCost]]
    at_published_sizes: bool

    def as_dict(self) -> dict[str, object]:
        return {
            "datasets": list(self.datasets),
            "networks": {
                name: {
                    "mean_rank": self.ranks[name],
                    "memory": self.memory[name],
                    "strict_jaccard": {dataset: vars(cell) for dataset, cell in self.cells[name].items()},
                    "step_costs": [cost.as_dict() for cost in self.costs.get(name, [])],
                }
                for name in self.ranks
            },
            "costs_at_published_sizes": self.at_published_sizes,
        }


class _Part(BaseModel):
    """What is read of a results.json; everything else in it is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Summary(_Part):
    mean: float | None
    std_runs: float | None = None


class _Strict(_Part):
    jaccard: _Summary


class _Protocols(_Part):
    strict: _Strict


class _Row(_Part):
    protocols: _Protocols


class _Difference(_Part):
    """The first network minus another."""

    seeds: tuple[int, int]
    low: float | None
    high: float | None

    @property
    def standing_of_other(self) -> Standing:
        low, high = (math.nan if end is None else end for end in (self.low, self.high))
        return standing(-high, -low, self.seeds)


class _Compared(_Part):
    jaccard: _Difference


class _Results(_Part):
    study: Literal["peers"]
    dataset: str
    rows: dict[str, _Row]
    memory: dict[str, str]
    step_costs: dict[str, list[StepCost]]
    step_costs_published_size: dict[str, list[StepCost]]
    compared_with_first: dict[str, _Compared]

    def replaced_by(self, later: "_Results") -> "_Results":
        """These results with the networks of a later comparison in place of their own, all but the first, which both were compared with."""
        first = next(iter(self.rows))
        new = [name for name in later.rows if name != first]
        changes: dict[str, object] = {}
        for part in ("rows", "memory", "step_costs", "step_costs_published_size", "compared_with_first"):
            given = getattr(later, part)
            changes[part] = {**getattr(self, part), **{name: given[name] for name in new if name in given}}
        return self.model_copy(update=changes)

    def cell(self, name: str) -> Cell:
        summary, compared = self.rows[name].protocols.strict.jaccard, self.compared_with_first.get(name)
        mean, deviation = (math.nan if value is None else value for value in (summary.mean, summary.std_runs))
        return Cell(mean, deviation, "no difference shown" if compared is None else compared.jaccard.standing_of_other)


def read_overview(studies: Sequence[str | Path]) -> Overview:
    """Join the results of `study peers` in these folders, or NAME=FOLDER to call a dataset otherwise. Networks that one dataset lacks
    are left out.

    A second comparison on a dataset, such as of networks trained anew, counts for those of its networks that come after the first."""
    read = [_read(study) for study in studies]
    firsts = {next(iter(result.rows)) for result in read}
    if len(firsts) > 1:
        raise StudyError(f"the comparisons begin with different networks ({', '.join(sorted(firsts))}): compare each with the same one.")
    by_dataset: dict[str, _Results] = {}
    for result in read:
        earlier = by_dataset.get(result.dataset)
        by_dataset[result.dataset] = result if earlier is None else earlier.replaced_by(result)
    datasets, results = tuple(by_dataset), list(by_dataset.values())
    shared = [name for name in results[0].rows if all(name in result.rows for result in results)]
    cells = {name: {result.dataset: result.cell(name) for result in results} for name in shared}
    ranks = mean_ranks({dataset: {name: cells[name][dataset].jaccard for name in shared} for dataset in datasets})
    published = next((result.step_costs_published_size for result in results if result.step_costs_published_size), {})
    measured = published or results[0].step_costs
    return Overview(
        first=firsts.pop(),
        datasets=datasets,
        cells=cells,
        ranks=dict(sorted(ranks.items(), key=lambda item: item[1])),
        memory={name: results[0].memory[name] for name in shared},
        costs={name: measured[name] for name in shared if name in measured},
        at_published_sizes=bool(published),
    )


def _read(study: str | Path) -> _Results:
    name, _, place = ("", "", str(study)) if Path(study).exists() else str(study).rpartition("=")
    folder = Path(place)
    file = folder / "results.json" if folder.is_dir() else folder
    try:
        results = _Results.model_validate_json(file.read_bytes())
        return results.model_copy(update={"dataset": name}) if name else results
    except OSError as error:
        raise StudyError(f"{file} cannot be read ({error.strerror}); give folders that `study peers` has finished.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        if where.endswith(".seeds"):
            where = "its intervals ignore the seeds; call `study peers` again in that folder, which trains nothing that is there"
            raise StudyError(f"{file} was written by an older version: {where}.") from None
        raise StudyError(f"{file} is not what `study peers` writes ({where}: {first['msg']}); give folders that it has finished.") from None


def mean_ranks(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """dataset -> network -> score to network -> rank averaged over datasets; 1 is the highest score, equal ones share their ranks."""
    total: dict[str, float] = {}
    for by_network in scores.values():
        for name, score in by_network.items():
            higher = sum(other > score for other in by_network.values())
            equal = sum(other == score for other in by_network.values())
            total[name] = total.get(name, 0.0) + higher + (equal + 1) / 2
    return {name: rank / len(scores) for name, rank in total.items()}


def table(overview: Overview) -> list[list[str]]:
    """A header and a line per network, best mean rank first."""
    lengths = [cost.frames for cost in next(iter(overview.costs.values()), [])]
    header = ["", "memory", *overview.datasets, "mean rank", *(f"ms at {length:,}" for length in lengths)]
    rows = [header + ([f"MB at {lengths[-1]:,}"] if lengths else [])]
    for name, rank in overview.ranks.items():
        costs = overview.costs.get(name)
        cells = [overview.cells[name][dataset].text() for dataset in overview.datasets]
        ms = [number(cost.frame_ms) for cost in costs] if costs else ["-" for _ in lengths]
        size = ([number(costs[-1].state_bytes / 1e6)] if costs else ["-"]) if lengths else []
        rows.append([name, overview.memory[name], *cells, f"{rank:.1f}", *ms, *size])
    return rows


def note(overview: Overview) -> str:
    """What stands in the table."""
    published = f"published sizes, features of width {PUBLISHED_WIDTH}"
    sizes = published if overview.at_published_sizes else f"the sizes trained on {overview.datasets[0]}"
    return (
        f"Strict Jaccard ± deviation over seeds; ▲ shown to be ahead of {overview.first}, ▼ shown to be behind it (the 95 % interval over "
        "seeds and videos leaves zero out), no mark: no difference shown, ?: fewer than three seeds, no verdict. The mean rank is over "
        f"the datasets. Live cost at {sizes}."
    )


def text(overview: Overview) -> str:
    """For the terminal."""
    return "\n".join([*align(table(overview)), note(overview)])


def section(overview: Overview, about: Mapping[str, Json], title: str) -> str:
    header, *rows = table(overview)
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|", *("| " + " | ".join(row) + " |" for row in rows)]
    told = [f"## {title}", provenance_line(about), f"```\n{about['command']}\n```", "\n".join(lines), note(overview)]
    return "\n\n".join(told) + "\n"


def write_overview(overview: Overview, out: Path | None, about: Mapping[str, Json], page: Path | None, title: str | None) -> None:
    """The figure into a folder; the section, with its figure beside the page, where one is given."""
    title, figure = title or "Peers at a glance", draw_overview(overview)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        save_figure(figure, out, "overview")
    if page is not None:
        picture = figure_on_page(figure, page, slug(title), "Strict Jaccard of every network on every dataset, and its cost per frame")
        refresh_page(page, slug(title), f"{section(overview, about, title)}\n{picture}\n")


def draw_overview(overview: Overview) -> Figure:
    """A panel per dataset with every network's score, best mean rank on top, and one with the cost of a frame, first and last."""
    names = list(overview.ranks)
    n_panels = len(overview.datasets) + bool(overview.costs)
    figure = Figure(figsize=(1.8 + 2.9 * n_panels, 1.4 + 0.27 * len(names)), layout="constrained")
    panels = figure.subplots(1, n_panels, sharey=True, squeeze=False)[0]
    for axes, dataset in zip(panels, overview.datasets, strict=False):
        _score_panel(axes, overview, dataset)
    if overview.costs:
        _cost_panel(panels[-1], overview)
    panels[0].set_yticks(range(len(names)), [f"{name}  {overview.ranks[name]:.1f}" for name in names], fontsize=8)
    panels[0].invert_yaxis()
    for label in panels[0].get_yticklabels():
        label.set_fontweight("bold" if label.get_text().split()[0] == overview.first else "normal")
    for axes in panels:
        axes.grid(color="#00000018")
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.suptitle(f"Networks by mean rank; filled: a difference from {overview.first} is shown", fontsize=10)
    return figure


def _score_panel(axes: Axes, overview: Overview, dataset: str) -> None:
    inks: dict[Standing, str] = {"ahead": colour(2), "behind": colour(5)}
    for place, name in enumerate(overview.ranks):
        cell = overview.cells[name][dataset]
        own = name == overview.first
        ink = "black" if own else inks.get(cell.standing, "#777777")
        spread = None if math.isnan(cell.deviation) else cell.deviation
        fill = ink if own or cell.standing in inks else "white"
        axes.errorbar(cell.jaccard, place, xerr=spread, fmt="D" if own else "o", color=ink, markerfacecolor=fill, markersize=6, capsize=2)
    axes.axvline(overview.cells[overview.first][dataset].jaccard, color="black", linewidth=0.8, linestyle=":")
    axes.set_title(dataset, fontsize=9)
    axes.set_xlabel("strict Jaccard, %", fontsize=8)


def _cost_panel(axes: Axes, overview: Overview) -> None:
    for place, name in enumerate(overview.ranks):
        if costs := overview.costs.get(name):
            ink = "black" if name == overview.first else colour(0)
            axes.plot([costs[0].frame_ms, costs[-1].frame_ms], [place, place], color=ink, linewidth=1.5)
            axes.plot(costs[0].frame_ms, place, "|", color=ink, markersize=7)
            axes.plot(costs[-1].frame_ms, place, "o", color=ink, markersize=5)
    some = next(iter(overview.costs.values()))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(f"live frame, {'published sizes' if overview.at_published_sizes else 'as trained'}", fontsize=9)
    axes.set_xlabel(f"ms after {some[0].frames:,} (bar) and {some[-1].frames:,} (dot) frames", fontsize=8)
