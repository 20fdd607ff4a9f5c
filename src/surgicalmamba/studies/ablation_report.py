"""What an ablation leaves behind: results.json, a figure, and its section of the results page."""

from collections.abc import Mapping
from pathlib import Path

from surgicalmamba.eval.score import Json, to_json
from surgicalmamba.studies.ablation import Ablation, best_rates
from surgicalmamba.studies.ablation_figure import draw_ablation
from surgicalmamba.studies.figures import figure_on_page, save_figure
from surgicalmamba.studies.results import division_words, markdown, rates_table, refresh_page, slug, spreads, write_results

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
    if compared := spreads(study.rows):
        told = [f"{study.rows[0].name} {study.rows[0].spread:.2f}"]
        for name, result in compared.items():
            told.append(f"{name} {result.second:.2f} ({result.difference:+.2f}, {result.low:+.2f} to {result.high:+.2f})")
        lines.append(
            "Deviation of the strict accuracy over videos, of one run, averaged over seeds (in brackets the difference from the first and "
            f"its 95 % interval): {'; '.join(told)}."
        )
    if rates:
        lines.append("\n" + rates_table(study.rate_scores, study.rate_split))
    return "\n".join(lines) + "\n"
