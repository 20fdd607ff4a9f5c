"""From the prediction files of a study to results.json, tables, and the study's section of a results page."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from surgicalmamba.data.labels import PhaseVocabulary
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.eval.compare import (
    VIDEOS_FOR_A_SPREAD,
    Comparison,
    SpreadComparison,
    compare,
    compare_spread,
    resampled_levels,
    verdict,
)
from surgicalmamba.eval.files import Matching, load
from surgicalmamba.eval.frame import rules_for
from surgicalmamba.eval.pairs import FloatArray, VideoPair
from surgicalmamba.eval.protocols import USUAL_RULES, score_runs
from surgicalmamba.eval.score import Json, Report, Settings, describe, to_json
from surgicalmamba.files import atomic_path, make_folder, write_atomic
from surgicalmamba.report.sections import provenance_line, refresh_page, slug
from surgicalmamba.report.tables import markdown_table, number
from surgicalmamba_lab.studies.runs import Job, training_seconds

TABLE_METRICS = (
    ("strict", "accuracy"),
    ("strict", "jaccard"),
    ("relaxed-published", "accuracy"),
    ("relaxed-published", "jaccard"),
    ("segmental", "edit"),
)
"""Columns of the table, if the protocol could be computed; results.json has every protocol."""
COMPARED_METRICS = ("accuracy", "jaccard")


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a study: a system over all of its seeds and folds."""

    name: str
    report: Report
    seeds: tuple[int, ...]
    folds: tuple[str, ...]
    accuracy_by_fold: dict[str, float]
    parameters: int
    seconds: tuple[float, ...]
    """Training time of each job."""

    @property
    def accuracy_by_run(self) -> FloatArray:
        """Strict accuracy (seeds, videos)."""
        return self.report.scores["strict"].by_run["accuracy"]

    @property
    def spread(self) -> float:
        """Deviation over videos of the strict accuracy of one run, averaged over seeds; undefined for one
        video."""
        runs = self.accuracy_by_run
        return float(runs.std(axis=1, ddof=1).mean()) if runs.shape[1] > 1 else math.nan

    def mean(self, protocol: str, metric: str) -> float:
        return self.report.scores[protocol].metrics[metric]["mean"]

    def as_dict(self) -> dict[str, object]:
        by_run = self.report.scores["strict"].by_run
        return {
            "seeds": self.seeds,
            "folds": self.folds,
            "parameters": self.parameters,
            "training_seconds": self.seconds,
            "strict_accuracy_by_fold": self.accuracy_by_fold,
            "strict_accuracy_by_seed": self.accuracy_by_run.mean(axis=1).tolist(),
            "spread_over_videos": self.spread,
            "strict_by_seed_and_video": {
                "videos": self.report.videos,
                **{metric: by_run[metric].tolist() for metric in COMPARED_METRICS},
            },
            **self.report.as_dict(),
        }


def gather(jobs: Sequence[Job], out: Path, dataset: PreparedDataset) -> list[Row]:
    """Score every group of jobs with every protocol. A run is one seed; its videos are those of all its
    folds."""
    usual = USUAL_RULES.get(dataset.name)
    rules = None if usual is None else rules_for(usual, len(dataset.phases))
    settings = Settings(dataset.phases, float(dataset.fps), "files", rules=rules)
    vocabulary = PhaseVocabulary(dataset.name, dataset.phases)
    rows = []
    for group in dict.fromkeys(job.group for job in jobs):
        members = [job for job in jobs if job.group == group]
        seeds = tuple(dict.fromkeys(job.config.seed for job in members))
        folds = tuple(dict.fromkeys(job.split for job in members))
        pairs: dict[tuple[int, str], list[VideoPair]] = {}
        for job in members:
            loaded = load(dataset.folder, [job.predictions(out)], vocabulary, Matching(common_videos=True))
            pairs[job.config.seed, job.split] = loaded.runs[0]
        runs = [[p for fold in folds for p in pairs[seed, fold]] for seed in seeds]
        report = score_runs(runs, settings, ["all"])
        by_fold = {}
        for fold in folds:
            strict = score_runs([pairs[seed, fold] for seed in seeds], settings, ["strict"]).scores["strict"]
            by_fold[fold] = strict.metrics["accuracy"]["mean"]
        seconds = tuple(training_seconds(job.run(out)) for job in members)
        rows.append(Row(group, report, seeds, folds, by_fold, _parameters(members[0].run(out)), seconds))
    return rows


def _parameters(run: Path) -> int:
    """Weights in the run's best checkpoint, counted from the file's header."""
    from safetensors import safe_open

    with safe_open(run / "best" / "model.safetensors", framework="numpy") as weights:
        names = weights.keys()
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in names)


def comparisons(rows: Sequence[Row], protocol: str = "strict") -> dict[str, dict[str, Comparison]]:
    """The first row minus every other, paired by video; intervals are over seeds and videos together."""
    first, *others = (row.report.scores[protocol].by_run for row in rows)
    return {
        row.name: {metric: compare(first[metric], other[metric]) for metric in COMPARED_METRICS}
        for row, other in zip(rows[1:], others, strict=True)
    }


def spreads(rows: Sequence[Row]) -> dict[str, SpreadComparison]:
    """Every row's deviation over videos against the first's; empty with fewer than three videos."""
    first, *others = rows
    if first.accuracy_by_run.shape[1] < VIDEOS_FOR_A_SPREAD:
        return {}
    return {row.name: compare_spread(first.accuracy_by_run, row.accuracy_by_run) for row in others}


def write_results(
    out: Path, study: str, dataset: PreparedDataset, rows: Sequence[Row], about: Mapping[str, object]
) -> Path:
    """results.json: every protocol of every row, and each row compared with the first."""
    compared = {
        name: {metric: result.as_dict() for metric, result in metrics.items()}
        for name, metrics in comparisons(rows).items()
    }
    by_name = {row.name: row.as_dict() for row in rows}
    document = {
        "study": study,
        "dataset": dataset.name,
        **about,
        "rows": by_name,
        "compared_with_first": compared,
    }
    return write_document(out, document)


def write_document(out: Path, document: Mapping[str, object]) -> Path:
    """Write OUT/results.json; an undefined number becomes null."""
    file = out / "results.json"
    write_atomic(file, json.dumps(to_json(document), indent=1) + "\n")
    return file


# Sections of a results page.


def section_head(title: str, about: Mapping[str, Json], note: str = "") -> list[str]:
    """Heading, date, code and machine, a note, and the command."""
    return [
        f"## {title}",
        "",
        f"{provenance_line(about)} {note}".rstrip(),
        "",
        f"```\n{about['command']}\n```",
        "",
    ]


def put_on_page(page: Path, title: str, section: str, *figures: tuple[Figure, str, str]) -> None:
    """Write or replace the section of a title. Figures, each with the end of its file name and its
    alternative text, are saved in `images` beside the page and shown at the end of the section."""
    for figure, suffix, alt in figures:
        make_folder(page.parent / "images")
        name = f"{slug(title)}{suffix}.png"
        with atomic_path(page.parent / "images" / name) as draft:
            figure.savefig(draft, dpi=150, format="png")
        section += f"\n![{alt}](images/{name})\n"
    refresh_page(page, slug(title), section)


def markdown(
    title: str,
    rows: Sequence[Row],
    about: Mapping[str, Json],
    metrics: Sequence[tuple[str, str]] = TABLE_METRICS,
    more_columns: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """A study's section: what was run, the table, and each row compared with the first. `more_columns` are
    added at the end of the table: heading, then row name to text."""
    columns = [(protocol, metric) for protocol, metric in metrics if protocol in rows[0].report.scores]
    more = more_columns or {}
    first = rows[0]
    seeds = ", ".join(map(str, first.seeds))
    table = [
        ["", *(f"{metric}, {protocol}" for protocol, metric in columns), "weights", "minutes a run", *more]
    ]
    for row in rows:
        cells = [_cell(row, protocol, metric) for protocol, metric in columns]
        minutes = float(np.median(row.seconds)) / 60
        cells += [f"{row.parameters:,}", number(minutes, 1 if minutes >= 1 else 2)]
        table.append([row.name, *cells, *(texts[row.name] for texts in more.values())])
    lines = [
        *section_head(
            title, about, f"Seeds {seeds}; {division_words(first)}, {len(first.report.videos)} videos."
        ),
        *markdown_table(table),
        "",
        "Mean ± deviation over seeds; in brackets the deviation over videos.",
    ]
    if len(first.folds) > 1:
        over_folds = [f"{r.name} {np.std(list(r.accuracy_by_fold.values()), ddof=1):.1f}" for r in rows]
        lines.append(f"Deviation of the strict accuracy over folds: {', '.join(over_folds)}.")
    if len(rows) > 1:
        titles = [f"{metric}, difference (95 % interval)" for metric in COMPARED_METRICS]
        table = [[f"{first.name} against", *titles, ""]]
        for name, results in comparisons(rows).items():
            table.append([name, *(with_interval(result) for result in results.values()), verdict(results)])
        levels = interval_levels(rows)
        lines += ["", *markdown_table(table), ""]
        lines.append(f"Strict, {first.name} minus the other, paired by video; the interval is over {levels}.")
    return "\n".join(lines) + "\n"


def _cell(row: Row, protocol: str, metric: str) -> str:
    summary = row.report.scores[protocol].metrics[metric]
    over_seeds = summary.get("std_runs", math.nan)
    text = number(summary["mean"]) + ("" if math.isnan(over_seeds) else f" ± {over_seeds:.2f}")
    return f"{text} ({number(summary.get('std_videos', math.nan))})"


def with_interval(result: Comparison | SpreadComparison) -> str:
    """`+1.20 (-0.30 to +2.70)`."""
    return f"{result.difference:+.2f} ({result.low:+.2f} to {result.high:+.2f})"


def interval_levels(rows: Sequence[Row]) -> str:
    """What the intervals of a table are over; seeds count if every row has several."""
    counts = [len(row.seeds) for row in rows]
    return resampled_levels((min(counts), max(counts)), len(rows[0].report.videos))


def division_words(row: Row) -> str:
    """On what a row was scored: the name of one split, or a number of folds."""
    return f"{len(row.folds)} folds" if len(row.folds) > 1 else f"split {row.folds[0]}"


def rates_table(scores: Mapping[str, Mapping[float, float]], split: str | None) -> str:
    """How the learning rates were chosen: the score of each row at each rate."""
    rates = [f"{rate:g}" for rate in next(iter(scores.values()))]
    rows = [[name, *map(number, by_rate.values())] for name, by_rate in scores.items()]
    about = f"Learning rates were chosen by the strict Jaccard on the validation videos of `{split}`:"
    return "\n".join([about, "", *markdown_table([["", *rates], *rows])]) + "\n"


def summary_text(rows: Sequence[Row]) -> str:
    """For the terminal: the main scores of each row."""
    lines = []
    for row in rows:
        videos = len(row.report.videos)
        lines.append(f"{row.name}: {len(row.seeds)} seeds, {len(row.folds)} split(s), {videos} videos")
        for protocol, metric in TABLE_METRICS:
            if protocol in row.report.scores:
                text = describe(row.report.scores[protocol].metrics[metric])
                lines.append(f"  {protocol:<18} {metric:<10} {text}")
    return "\n".join(lines)
