"""From the prediction files of a study to results.json, a table, and the study's section of a results page."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from surgicalmamba.data.labels import PhaseVocabulary
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.eval.compare import VIDEOS_FOR_A_SPREAD, Comparison, SpreadComparison, compare, compare_spread, resampled_levels, verdict
from surgicalmamba.eval.files import Matching, load
from surgicalmamba.eval.frame import rules_for
from surgicalmamba.eval.pairs import FloatArray, VideoPair
from surgicalmamba.eval.protocols import USUAL_RULES, score_runs
from surgicalmamba.eval.score import Json, Report, Settings, describe, to_json
from surgicalmamba.files import write_atomic
from surgicalmamba.report.sections import provenance_line
from surgicalmamba.report.tables import number
from surgicalmamba_lab.studies.runner import Job, training_seconds

TABLE_METRICS = (
    ("strict", "accuracy"),
    ("strict", "jaccard"),
    ("relaxed-published", "accuracy"),
    ("relaxed-published", "jaccard"),
    ("segmental", "edit"),
)
"""Columns of the table, where a protocol could be computed; results.json has every protocol."""

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
        """Deviation over videos of the strict accuracy of one run, averaged over seeds; undefined for one video."""
        return float(self.accuracy_by_run.std(axis=1, ddof=1).mean()) if self.accuracy_by_run.shape[1] > 1 else math.nan

    def as_dict(self) -> dict[str, Json]:
        plain = to_json(
            {
                "seeds": list(self.seeds),
                "folds": list(self.folds),
                "parameters": self.parameters,
                "training_seconds": list(self.seconds),
                "strict_accuracy_by_fold": self.accuracy_by_fold,
                "strict_accuracy_by_seed": [float(value) for value in self.accuracy_by_run.mean(axis=1)],
                "spread_over_videos": self.spread,
                "strict_by_seed_and_video": {
                    "videos": list(self.report.videos),
                    **{metric: self.report.scores["strict"].by_run[metric].tolist() for metric in COMPARED_METRICS},
                },
            }
        )
        assert isinstance(plain, dict)
        return {**plain, **self.report.as_dict()}


def gather(jobs: Sequence[Job], out: Path, dataset: PreparedDataset) -> list[Row]:
    """Score every group of jobs with every protocol. A run is one seed; its videos are those of all its folds."""
    rules = USUAL_RULES.get(dataset.name)
    settings = Settings(dataset.phases, float(dataset.fps), "files", rules=None if rules is None else rules_for(rules, len(dataset.phases)))
    rows = []
    for group in dict.fromkeys(job.group for job in jobs):
        members = [job for job in jobs if job.group == group]
        seeds, folds = tuple(dict.fromkeys(j.config.seed for j in members)), tuple(dict.fromkeys(j.split for j in members))
        pairs = {(job.config.seed, job.split): _pairs(job, out, dataset) for job in members}
        runs = [[pair for fold in folds for pair in pairs[seed, fold]] for seed in seeds]
        report = score_runs(runs, settings, ["all"])
        by_fold = {fold: _accuracy([pairs[seed, fold] for seed in seeds], settings) for fold in folds}
        seconds = tuple(training_seconds(job.run(out)) for job in members)
        rows.append(Row(group, report, seeds, folds, by_fold, _parameters(members[0].run(out)), seconds))
    return rows


def _accuracy(runs: list[list[VideoPair]], settings: Settings) -> float:
    return score_runs(runs, settings, ["strict"]).scores["strict"].metrics["accuracy"]["mean"]


def _pairs(job: Job, out: Path, dataset: PreparedDataset) -> list[VideoPair]:
    vocabulary = PhaseVocabulary(dataset.name, dataset.phases)
    return load(dataset.folder, [job.predictions(out)], vocabulary, Matching(common_videos=True)).runs[0]


def _parameters(run: Path) -> int:
    """Weights in the run's best checkpoint, counted from the file's header."""
    from safetensors import safe_open

    with safe_open(run / "best" / "model.safetensors", framework="numpy") as weights:
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118 (no mapping)


def comparisons(rows: Sequence[Row], protocol: str = "strict") -> dict[str, dict[str, Comparison]]:
    """The first row minus every other, paired by video; intervals are over seeds and videos together."""
    first, *others = rows
    base = first.report.scores[protocol].by_run
    return {
        row.name: {metric: compare(base[metric], row.report.scores[protocol].by_run[metric]) for metric in COMPARED_METRICS}
        for row in others
    }


def spreads(rows: Sequence[Row]) -> dict[str, SpreadComparison]:
    """Every row's deviation over videos against the first's; nothing where there are fewer than three videos."""
    first, *others = rows
    if first.accuracy_by_run.shape[1] < VIDEOS_FOR_A_SPREAD:
        return {}
    return {row.name: compare_spread(first.accuracy_by_run, row.accuracy_by_run) for row in others}






def write_results(out: Path, study: str, dataset: PreparedDataset, rows: Sequence[Row], about: Mapping[str, Json]) -> Path:
    """results.json: every protocol of every row, and each row compared with the first."""
    document: dict[str, Json] = {"study": study, "dataset": dataset.name, **about}
    document["rows"] = {row.name: row.as_dict() for row in rows}
    compared = comparisons(rows)
    document["compared_with_first"] = to_json(
        {name: {metric: result.as_dict() for metric, result in metrics.items()} for name, metrics in compared.items()}
    )
    file = out / "results.json"
    write_atomic(file, (json.dumps(document, indent=1) + "\n").encode())
    return file


def markdown(
    title: str,
    rows: Sequence[Row],
    about: Mapping[str, Json],
    metrics: Sequence[tuple[str, str]] = TABLE_METRICS,
    more_columns: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """The study's section of the results page: what was run, the table, and what the comparison says. `more_columns` are put at its
    end: heading, then row name to text."""
    columns = [(protocol, metric) for protocol, metric in metrics if protocol in rows[0].report.scores]
    more = more_columns or {}
    first = rows[0]
    lines = [
        f"## {title}",
        "",
        f"{provenance_line(about)} Seeds {', '.join(map(str, first.seeds))}; {division_words(first)}, {len(first.report.videos)} videos.",
        "",
        f"```\n{about['command']}\n```",
        "",
        "| " + " | ".join(["", *(f"{metric}, {protocol}" for protocol, metric in columns), "weights", "minutes a run", *more]) + " |",
        "|---" * (len(columns) + 3 + len(more)) + "|",
    ]
    for row in rows:
        cells = [_cell(row, protocol, metric) for protocol, metric in columns]
        minutes = float(np.median(row.seconds)) / 60
        cells += [f"{row.parameters:,}", number(minutes, 1 if minutes >= 1 else 2), *(texts[row.name] for texts in more.values())]
        lines.append(f"| {row.name} | " + " | ".join(cells) + " |")
    lines += ["", "Mean ± deviation over seeds; in brackets the deviation over videos."]
    if len(first.folds) > 1:
        spread = {row.name: float(np.std(list(row.accuracy_by_fold.values()), ddof=1)) for row in rows}
        told = ", ".join(f"{name} {value:.1f}" for name, value in spread.items())
        lines.append(f"Deviation of the strict accuracy over folds: {told}.")
    if len(rows) > 1:
        lines += ["", *_comparison_table(rows)]
    return "\n".join(lines) + "\n"


def _comparison_table(rows: Sequence[Row]) -> list[str]:
    """The first row against every other, with what can be said of the difference."""
    compared = comparisons(rows)
    metrics = list(next(iter(compared.values())))
    titles = [f"{metric}, difference (95 % interval)" for metric in metrics]
    lines = [f"| {rows[0].name} against | " + " | ".join(titles) + " | |", "|---" * (2 + len(metrics)) + "|"]
    for name, results in compared.items():
        cells = [with_interval(result) for result in results.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {verdict(results)} |")
    return [*lines, "", f"Strict, {rows[0].name} minus the other, paired by video; the interval is over {interval_levels(rows)}."]


def with_interval(result: Comparison | SpreadComparison) -> str:
    """`+1.20 (-0.30 to +2.70)`."""
    return f"{result.difference:+.2f} ({result.low:+.2f} to {result.high:+.2f})"


def interval_levels(rows: Sequence[Row]) -> str:
    """What the intervals of a table are over; seeds count where every row has several."""
    fewest, most = (choose(len(row.seeds) for row in rows) for choose in (min, max))
    return resampled_levels((fewest, most), len(rows[0].report.videos))


def rates_table(scores: Mapping[str, Mapping[float, float]], split: str | None) -> str:
    """How the learning rates were chosen: what each row reached at each."""
    rates = list(next(iter(scores.values())))
    lines = [f"Learning rates were chosen by the strict Jaccard on the validation videos of `{split}`:", ""]
    lines += ["| | " + " | ".join(f"{rate:g}" for rate in rates) + " |", "|---" * (1 + len(rates)) + "|"]
    return "\n".join([*lines, *(f"| {row} | " + " | ".join(number(s) for s in by.values()) + " |" for row, by in scores.items())]) + "\n"


def _cell(row: Row, protocol: str, metric: str) -> str:
    summary = row.report.scores[protocol].metrics[metric]
    text = number(summary["mean"])
    if not math.isnan(summary.get("std_runs", math.nan)):
        text += f" ± {summary['std_runs']:.2f}"
    return f"{text} ({number(summary.get('std_videos', math.nan))})"


def division_words(row: Row) -> str:
    """On what a row was scored: one split by its name, or a number of folds."""
    return f"{len(row.folds)} folds" if len(row.folds) > 1 else f"split {row.folds[0]}"




def summary_text(rows: Sequence[Row]) -> str:
    """For the terminal: the strict and relaxed scores of each row."""
    lines = []
    for row in rows:
        lines.append(f"{row.name}: {len(row.seeds)} seeds, {len(row.folds)} split(s), {len(row.report.videos)} videos")
        for protocol in dict.fromkeys(protocol for protocol, _ in TABLE_METRICS):
            if protocol in row.report.scores:
                metrics = row.report.scores[protocol].metrics
                lines += [f"  {protocol:<18} {name:<10} {describe(metrics[name])}" for p, name in TABLE_METRICS if p == protocol]
    return "\n".join(lines)
