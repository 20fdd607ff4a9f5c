"""Results as tables of text: aligned for the terminal, or Markdown."""

import math
from collections.abc import Sequence

from surgicalmamba.eval.compare import Comparison, resampled_levels
from surgicalmamba.eval.evaluate import Evaluation
from surgicalmamba.eval.published import PublishedRow, PublishedTable, own_rows
from surgicalmamba.eval.score import NOT_PRINTED, Report, Score


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return lines


def markdown_table(rows: Sequence[Sequence[str]], align_right: bool = False) -> list[str]:
    """Lines of a Markdown table; the first row is its header. `align_right`: all columns but the first."""
    marks = "|---" + ("|---:" if align_right else "|---") * (len(rows[0]) - 1) + "|"
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, marks, *body]


def number(value: float, digits: int = 2) -> str:
    """A number, or a dash where it is undefined."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def phase_rows(score: Score) -> list[list[str]]:
    """The per-phase table of a score: a header and one row per phase with each metric's mean."""
    metrics = list(next(iter(score.per_phase.values()), {}))
    rows = [["phase", *metrics]]
    for phase, cells in score.per_phase.items():
        rows.append([phase, *(number(cells[metric]["mean"]) for metric in metrics)])
    return rows


def evaluation_text(evaluation: Evaluation) -> str:
    """Everything `evaluate` prints: each protocol with its settings, the phases, and the comparison."""
    parts = []
    for score in evaluation.report.scores.values():
        lines = [str(score)]
        if score.per_phase:
            lines += ["    " + line for line in align(phase_rows(score))]
        if evaluation.comparison is not None and score.protocol in evaluation.comparison:
            lines += ["  against the other system (first minus second, per video):"]
            lines += ["    " + line for line in align(comparison_rows(evaluation.comparison[score.protocol]))]
            lines += ["    " + comparison_note(evaluation.comparison[score.protocol])]
        parts.append("\n".join(lines))
    parts += [f"{name}: not computed, {reason}" for name, reason in evaluation.report.skipped.items()]
    header = f"{evaluation.vocabulary.dataset}, {len(evaluation.report.videos)} videos"
    return "\n\n".join([header, *parts])


def comparison_rows(results: dict[str, Comparison]) -> list[list[str]]:
    """Header and one row per metric of a paired comparison."""
    rows = [["metric", "difference", "95 % interval", "better", "equal", "worse", "Wilcoxon p"]]
    for metric, result in results.items():
        if metric in NOT_PRINTED:
            continue
        interval = f"{number(result.low)} to {number(result.high)}"
        counts = [str(result.wins), str(result.ties), str(result.losses)]
        p_value = f"{result.wilcoxon_p:.2g}" if math.isfinite(result.wilcoxon_p) else "-"
        rows.append([metric, f"{result.difference:+.2f}", interval, *counts, p_value])
    return rows


def comparison_note(results: dict[str, Comparison]) -> str:
    """What the interval of a paired comparison is over, and what Wilcoxon's test leaves out."""
    some = next(iter(results.values()))
    note = f"The interval is over {resampled_levels(some.seeds, some.videos)}"
    if max(some.seeds) == 1:
        other_seeds = "with one run of each system it does not show what other seeds would change"
        return f"{note}: {other_seeds}, and neither does Wilcoxon's test."
    runs = f"{some.seeds[0]} and {some.seeds[1]} runs"
    return f"{note} ({runs}). Wilcoxon's test averages the runs of a video first and ignores how they differ."


def published_text(table: PublishedTable, report: Report | None = None) -> str:
    """Published rows, one's own under them, then the warnings as numbered notes."""
    parts = [f"Published results on {table.dataset}. Source: {table.source}."]
    for block in table.blocks:
        notes: list[str] = []
        rows = [["method", *block.metrics]]
        own = own_rows(block, report) if report is not None else []
        for row in (*block.rows, *own):
            mark = ""
            if row.warning is not None:
                if row.warning not in notes:
                    notes.append(row.warning)
                mark = f" [{notes.index(row.warning) + 1}]"
            rows.append([row.method + mark, *(_cell(row, metric) for metric in block.metrics)])
        lines = [f"{block.title} (matching protocol: {block.protocols[0]})"]
        lines += ["  " + line for line in align(rows)]
        lines += [f"  note: {warning}." for warning in block.warnings]
        lines += [f"  [{index}] {note}." for index, note in enumerate(notes, start=1)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cell(row: PublishedRow, metric: str) -> str:
    if metric not in row.values:
        return "--"
    mean, spread = row.values[metric]
    text = number(mean, 1)
    return text if spread is None or not math.isfinite(spread) else f"{text} ± {spread:.1f}"
