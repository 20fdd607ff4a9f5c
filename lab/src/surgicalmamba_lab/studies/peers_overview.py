"""`study peers-overview`: finished comparisons of peers side by side: every network's score on every
dataset, its mean rank, and what a live frame costs it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from pydantic import AliasPath, BaseModel, BeforeValidator, Field, ValidationError

from surgicalmamba.errors import StudyError
from surgicalmamba.eval.compare import Standing, standing
from surgicalmamba.eval.score import Json
from surgicalmamba.files import make_folder
from surgicalmamba.report.colours import colour
from surgicalmamba.report.figures import save_figure
from surgicalmamba.report.tables import markdown_table, number
from surgicalmamba_lab.studies.peers import PUBLISHED_WIDTH, StepCost
from surgicalmamba_lab.studies.results import put_on_page, section_head

MARKS: dict[Standing, str] = {"ahead": "▲", "behind": "▼", "no difference shown": "", "no verdict": "?"}
JACCARD = ("protocols", "strict", "jaccard")
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


class _Score(BaseModel):
    mean: Number = Field(validation_alias=AliasPath(*JACCARD, "mean"))
    deviation: Number = Field(math.nan, validation_alias=AliasPath(*JACCARD, "std_runs"))


class _Difference(BaseModel):
    """The first network minus another."""

    seeds: tuple[int, int] = Field(validation_alias=AliasPath("jaccard", "seeds"))
    low: Number = Field(validation_alias=AliasPath("jaccard", "low"))
    high: Number = Field(validation_alias=AliasPath("jaccard", "high"))


class _Results(BaseModel):
    """What is read of a results.json of `study peers`."""

    study: Literal["peers"]
    dataset: str
    rows: dict[str, _Score]
    memory: dict[str, str]
    step_costs: dict[str, list[StepCost]]
    step_costs_published_size: dict[str, list[StepCost]]
    compared_with_first: dict[str, _Difference]


@dataclass(frozen=True)
class Cell:
    """A network on a dataset: strict Jaccard, its deviation over seeds, and its standing against the first
    network."""

    jaccard: float
    deviation: float
    standing: Standing

    def __str__(self) -> str:
        spread = "" if math.isnan(self.deviation) else f" ± {self.deviation:.2f}"
        return f"{number(self.jaccard)}{spread} {MARKS[self.standing]}".rstrip()


@dataclass(frozen=True)
class Network:
    mean_rank: float
    memory: str
    strict_jaccard: dict[str, Cell]
    step_costs: list[StepCost]


@dataclass(frozen=True)
class Overview:
    """Networks by mean rank. Costs are at published sizes if a comparison measured those, else as trained
    in the first."""

    first: str
    datasets: tuple[str, ...]
    networks: dict[str, Network]
    costs_at_published_sizes: bool


def read_overview(studies: Sequence[str | Path]) -> Overview:
    """Join the results in these folders, or NAME=FOLDER to rename a dataset. Networks that one dataset
    lacks are left out. A second comparison on a dataset replaces its networks, except the first, which
    both were compared with."""
    by_dataset: dict[str, _Results] = {}
    for new in map(_read, studies):
        old = by_dataset.setdefault(new.dataset, new)
        for part in ("rows", "memory", "step_costs", "step_costs_published_size", "compared_with_first"):
            getattr(old, part).update(
                {k: v for k, v in getattr(new, part).items() if k != next(iter(old.rows))}
            )
        if len(firsts := {next(iter(result.rows)) for result in (*by_dataset.values(), new)}) > 1:
            names = ", ".join(sorted(firsts))
            raise StudyError(
                f"the comparisons begin with different networks ({names}): compare each with the same one."
            )
    results = list(by_dataset.values())
    (first,) = firsts
    shared = [name for name in results[0].rows if all(name in result.rows for result in results)]
    ranks = mean_ranks([{name: result.rows[name].mean for name in shared} for result in results])
    published = next(
        (result.step_costs_published_size for result in results if result.step_costs_published_size), {}
    )
    costs = published or results[0].step_costs
    networks = {}
    for name in sorted(shared, key=lambda name: ranks[name]):
        cells = {result.dataset: _cell(result, name) for result in results}
        networks[name] = Network(ranks[name], results[0].memory[name], cells, costs.get(name, []))
    return Overview(first, tuple(by_dataset), networks, bool(published))


def _read(study: str | Path) -> _Results:
    name, _, place = ("", "", str(study)) if Path(study).exists() else str(study).rpartition("=")
    file = Path(place) / "results.json" if Path(place).is_dir() else Path(place)
    try:
        results = _Results.model_validate_json(file.read_bytes())
        return results.model_copy(update={"dataset": name or results.dataset})
    except OSError as error:
        reason = f"cannot be read ({error.strerror}); give folders that `study peers` has finished"
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        reason = (
            f"is not what `study peers` writes ({where}: {first['msg']}); give folders that it has finished"
        )
        if where.endswith(".seeds"):
            reason = (
                "was written by an older version: its intervals ignore the seeds; call `study peers` again"
            )
            reason += " in that folder, which trains nothing that is there"
    raise StudyError(f"{file} {reason}.")


def _cell(result: _Results, name: str) -> Cell:
    score, compared = result.rows[name], result.compared_with_first.get(name)
    if compared is None:
        return Cell(score.mean, score.deviation, "no difference shown")
    return Cell(score.mean, score.deviation, standing(-compared.high, -compared.low, compared.seeds))


def mean_ranks(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Scores of networks on each dataset -> mean rank of each network; 1 is the highest, equal scores
    share their ranks."""

    def rank(name: str, of: Mapping[str, float]) -> float:
        return (
            sum(other > of[name] for other in of.values())
            + (sum(other == of[name] for other in of.values()) + 1) / 2
        )

    return {name: sum(rank(name, of) for of in scores) / len(scores) for name in scores[0]}


def table(overview: Overview) -> list[list[str]]:
    """A header and a line per network, best mean rank first."""
    lengths = [cost.frames for cost in overview.networks[overview.first].step_costs]
    size = [f"MB at {lengths[-1]:,}"] if lengths else []
    rows = [
        ["", "memory", *overview.datasets, "mean rank", *(f"ms at {length:,}" for length in lengths), *size]
    ]
    for name, network in overview.networks.items():
        cells = [number(cost.frame_ms) for cost in network.step_costs] or ["-"] * len(lengths)
        cells += [number(cost.state_bytes / 1e6) for cost in network.step_costs[-1:]] or ["-"] * len(size)
        rows.append(
            [
                name,
                network.memory,
                *map(str, network.strict_jaccard.values()),
                f"{network.mean_rank:.1f}",
                *cells,
            ]
        )
    return rows


def note(overview: Overview) -> str:
    """What the table shows."""
    published = f"published sizes, features of width {PUBLISHED_WIDTH}"
    sizes = published if overview.costs_at_published_sizes else f"the sizes trained on {overview.datasets[0]}"
    return (
        f"Strict Jaccard ± deviation over seeds; ▲ shown to be ahead of {overview.first}, ▼ shown to be "
        "behind it (the "
        "95 % interval over seeds and videos leaves zero out), no mark: no difference shown, ?: fewer than "
        "three seeds, no "
        f"verdict. The mean rank is over the datasets. Live cost at {sizes}."
    )


def write_overview(
    overview: Overview, out: Path | None, about: Mapping[str, Json], page: Path | None, title: str
) -> None:
    """The figure into a folder; the section, with its figure beside the page, on a page."""
    figure = draw_overview(overview)
    if out is not None:
        make_folder(out)
        save_figure(figure, out, "overview")
    if page is not None:
        lines = [*section_head(title, about), *markdown_table(table(overview)), "", note(overview)]
        alt = "Strict Jaccard of every network on every dataset, and its cost per frame"
        put_on_page(page, title, "\n".join(lines) + "\n", (figure, "", alt))


def draw_overview(overview: Overview) -> Figure:
    """A panel per dataset with every network's score, best mean rank on top, and one with the cost of a
    frame."""
    networks, measured = overview.networks, overview.networks[overview.first].step_costs
    n_panels = len(overview.datasets) + bool(measured)
    figure = Figure(figsize=(1.8 + 2.9 * n_panels, 1.4 + 0.27 * len(networks)), layout="constrained")
    panels = figure.subplots(1, n_panels, sharey=True, squeeze=False)[0]
    inks: dict[Standing, str] = {"ahead": colour(2), "behind": colour(5)}
    for place, (name, network) in enumerate(networks.items()):
        is_first = name == overview.first
        for axes, cell in zip(panels, network.strict_jaccard.values(), strict=False):
            ink = "black" if is_first else inks.get(cell.standing, "#777777")
            spread = None if math.isnan(cell.deviation) else cell.deviation
            fill = ink if is_first or cell.standing in inks else "white"
            mark = "D" if is_first else "o"
            axes.errorbar(cell.jaccard, place, xerr=spread, fmt=mark, color=ink, mfc=fill, ms=6, capsize=2)
        if network.step_costs:
            ink, ms = "black" if is_first else colour(0), [network.step_costs[i].frame_ms for i in (0, -1)]
            panels[-1].plot(ms, [place, place], color=ink, linewidth=1.5)
            panels[-1].plot(ms[0], place, "|", color=ink, markersize=7)
            panels[-1].plot(ms[1], place, "o", color=ink, markersize=5)
    for axes, (dataset, cell) in zip(panels, networks[overview.first].strict_jaccard.items(), strict=False):
        axes.axvline(cell.jaccard, color="black", linewidth=0.8, linestyle=":")
        axes.set_title(dataset, fontsize=9)
        axes.set_xlabel("strict Jaccard, %", fontsize=8)
    if measured:
        sizes = "published sizes" if overview.costs_at_published_sizes else "as trained"
        panels[-1].set_xscale("log")
        panels[-1].xaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
        panels[-1].xaxis.set_minor_locator(NullLocator())
        panels[-1].set_title(f"live frame, {sizes}", fontsize=9)
        early, late = f"{measured[0].frames:,} (bar)", f"{measured[-1].frames:,} (dot)"
        panels[-1].set_xlabel(f"ms after {early} and {late} frames", fontsize=8)
    panels[0].set_yticks(
        range(len(networks)), [f"{k}  {v.mean_rank:.1f}" for k, v in networks.items()], fontsize=8
    )
    panels[0].get_yticklabels()[list(networks).index(overview.first)].set_fontweight("bold")
    panels[0].invert_yaxis()
    for axes in panels:
        axes.grid(color="#00000018")
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.suptitle(
        f"Networks by mean rank; filled: a difference from {overview.first} is shown", fontsize=10
    )
    return figure
