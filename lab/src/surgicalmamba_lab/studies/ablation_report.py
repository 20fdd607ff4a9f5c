"""What an ablation leaves behind: results.json, a figure, and its section of the results page."""

from collections.abc import Mapping
from pathlib import Path

from surgicalmamba.eval.published import PublishedTable, load_published_ablation
from surgicalmamba.eval.score import Json, to_json
from surgicalmamba.report.sections import refresh_page, slug
from surgicalmamba.report.tables import align, number
from surgicalmamba_lab.studies.ablation import Ablation, best_rates
from surgicalmamba_lab.studies.ablation_figure import draw_ablation
from surgicalmamba_lab.studies.figures import figure_on_page, save_figure
from surgicalmamba_lab.studies.results import (
    COMPARED_METRICS,
    comparisons,
    division_words,
    interval_levels,
    markdown,
    rates_table,
    spreads,
    summary_text,
    with_interval,
    write_results,
)

METRICS = tuple(
    (protocol, metric) for protocol in ("strict", "relaxed-published") for metric in ("accuracy", "precision", "recall", "jaccard")
)
"""Columns of the paper's table."""


def write_ablation(study: Ablation, out: Path, about: Mapping[str, Json], page: Path | None, title: str | None) -> Path:
    """Results and figure into the study's folder; the section, with the figure beside the page, where a page is given."""
    title = title or f"Ablation, {study.dataset.name}, {division_words(study.rows[0])}"
    more = {
        "learning_rates": {"split": study.rate_split, "strict_jaccard": study.rate_scores, "chosen": best_rates(study.rate_scores)},
        "spread_compared_with_first": {name: result.as_dict() for name, result in spreads(study.rows).items()},
        "paper": load_published_ablation().as_dict(),
    }
    plain = to_json(more)
    assert isinstance(plain, dict)
    file = write_results(out, "ablation", study.dataset, study.rows, {**about, **plain})
    figure = draw_ablation(study.rows, title)
    save_figure(figure, out, "ablation")
    if page is not None:
        picture = figure_on_page(figure, page, slug(title), "Difference of each row from the first, and deviation over videos")
        refresh_page(page, slug(title), section(study, about, title) + f"\n{picture}\n")
    return file


def section(study: Ablation, about: Mapping[str, Json], title: str) -> str:
    """Table, comparison and spreads in words."""
    rates = best_rates(study.rate_scores)
    columns = {"learning rate": {row: f"{rate:g}" for row, rate in rates.items()}} if rates else None
    lines = [markdown(title, study.rows, about, METRICS, columns)]
    header, *cells = beside_paper(study)
    lines += ["", f"{_beside_paper_title(study)}:", "", "| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in cells]
    if rates:
        lines.append("\n" + rates_table(study.rate_scores, study.rate_split))
    return "\n".join(lines) + "\n"


def summary(study: Ablation) -> str:
    """For the terminal: the scores of each row, and the table beside the paper's."""
    return "\n".join([summary_text(study.rows), "", f"{_beside_paper_title(study)}:", *align(beside_paper(study))])


def _beside_paper_title(study: Ablation) -> str:
    return (
        f"Strict, each row minus {study.rows[0].name} (95 % interval over {interval_levels(study.rows)}), beside the paper's value on "
        "Cholec80 and its difference from the paper's full model. The deviation is that of the accuracy over the videos of one run, "
        "averaged over seeds"
    )


def beside_paper(study: Ablation) -> list[list[str]]:
    """A header and a line per row: score and difference of this study, then the paper's, for accuracy, Jaccard and the deviation over
    videos. The paper has no row for controls of our own."""
    quantities = (*COMPARED_METRICS, "deviation")
    paper = _paper_values(load_published_ablation())
    compared, deviations = comparisons(study.rows), spreads(study.rows)
    lines = [["", *(text for quantity in quantities for text in (quantity, "difference", "paper", "difference, paper"))]]
    for row in study.rows:
        line = [row.name]
        for quantity in quantities:
            if quantity == "deviation":
                value, result = row.spread, deviations.get(row.name)
                difference = "" if result is None else with_interval(result)
            else:
                value = row.report.scores["strict"].metrics[quantity]["mean"]
                difference = with_interval(compared[row.name][quantity].reversed()) if row.name in compared else ""
            line += [number(value), difference, *_paper_cells(paper, row.name, quantity)]
        lines.append(line)
    return lines


def _paper_values(table: PublishedTable) -> dict[str, dict[str, float]]:
    """The paper's strict values by row: accuracy, Jaccard, and the deviation of the accuracy over videos."""
    strict = next(block for block in table.blocks if block.protocols[0] == "strict")
    values = {}
    for row in strict.rows:
        accuracy, deviation = row.values["accuracy"]
        assert deviation is not None
        values[row.method] = {"accuracy": accuracy, "jaccard": row.values["jaccard"][0], "deviation": deviation}
    return values


def _paper_cells(paper: Mapping[str, Mapping[str, float]], row: str, quantity: str) -> list[str]:
    """The paper's value and its difference from the paper's full model."""
    if row not in paper:
        return ["-", "-"]
    value, full = paper[row][quantity], paper["full"][quantity]
    return [number(value), "" if row == "full" else f"{value - full:+.2f}"]
