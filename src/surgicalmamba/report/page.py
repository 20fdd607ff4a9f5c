"""Self-contained HTML pages, and the page of an evaluation with its tables and figures.

Figures lie inside the page as SVG, and beside it as PNG and SVG files."""

import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from surgicalmamba.eval.evaluate import Evaluation
from surgicalmamba.eval.frame import accuracy, cell_scores, confusion_matrices, nan_mean, reliability
from surgicalmamba.eval.protocols import pool
from surgicalmamba.eval.score import Score, describe, state
from surgicalmamba.eval.segments import find_transitions, near_transition, segment_pair
from surgicalmamba.files import make_folder, write_atomic
from surgicalmamba.report.figures import (
    draw_confusion,
    draw_latency,
    draw_reliability,
    draw_ribbons,
    save_figure,
)
from surgicalmamba.report.tables import comparison_note, comparison_rows, number, phase_rows

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 72rem; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1rem; margin-bottom: .3rem; }
table { border-collapse: collapse; margin: .6rem 0 1.2rem; font-size: .92rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #e2e2e2; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid #888; }
.settings, .note, figcaption { color: #444; font-size: .88rem; }
.warning { color: #7a3300; font-size: .88rem; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; } .scroll { overflow-x: auto; }
"""


def write_page(file: Path, title: str, body: Sequence[str]) -> Path:
    """Write a page with these parts, whole or not at all, and return its path."""
    head = (
        f'<meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style>'
    )
    foot = "<p class='note'>Research software, not a medical device.</p>"
    start = f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>'
    write_atomic(file, "\n".join([start, *body, foot, "</body></html>\n"]))
    return file


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def html_figure(figure: Figure, folder: Path, name: str, caption: str) -> str:
    """Save a figure as PNG and SVG, and return it as HTML with the SVG inside."""
    svg = save_figure(figure, folder, name)
    # Ids must differ between the figures of one page, or the clip paths of the first would cut all others.
    inline = re.sub(r'\bid="', f'id="{name}-', svg[svg.index("<svg") :])
    inline = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", inline)
    text = escape(caption)
    image = f'<div class="scroll" role="img" aria-label="{text}">{inline}</div>'
    return f"<figure>{image}<figcaption>{text}</figcaption></figure>"


def html_lines(kind: str, lines: Sequence[str]) -> list[str]:
    """A paragraph of a class of the style sheet (settings, note or warning) for each line."""
    return [f'<p class="{kind}">{escape(line)}</p>' for line in lines]


def write_report(evaluation: Evaluation, folder: Path, on_figure: Callable[[], None] = lambda: None) -> Path:
    """Write `index.html` and `figures/*.png|svg` and return the page's path. The first run is drawn where
    there are several; `on_figure` is called after each video's figure."""
    figures = folder / "figures"
    make_folder(figures)
    title = f"Evaluation on {evaluation.vocabulary.dataset}"
    videos, report = evaluation.runs[0], evaluation.report
    rows = sum(len(video.truth) for video in videos)
    runs = f", {len(evaluation.runs)} runs (figures show the first)" if len(evaluation.runs) > 1 else ""
    body = [f"<h1>{escape(title)}</h1>"]
    body.append(f"<p>{len(videos)} videos, {rows:,} rows{runs}. Percentages unless a unit is given.</p>")
    body += html_lines("warning", evaluation.notes)
    for score in report.scores.values():
        body += _score_section(score, evaluation)
    body += html_lines("note", [f"{name}: not computed, {why}." for name, why in report.skipped.items()])
    body += ["<h2>Confusion</h2>", _confusion(evaluation, figures)]
    body += ["<h2>Latency of transitions</h2>", _latency(evaluation, figures)]
    if all(video.probabilities is not None for video in videos):
        body += ["<h2>Reliability</h2>", _reliability(evaluation, figures)]
    body += ["<h2>Videos, worst first</h2>", *_videos(evaluation, figures, on_figure)]
    return write_page(folder / "index.html", title, body)


def _score_section(score: Score, evaluation: Evaluation) -> list[str]:
    stated = f"{state(score.settings)}. Mean: {score.settings['mean_is']}."
    parts = [f"<h2>{escape(score.protocol)}</h2>", *html_lines("settings", [stated])]
    parts += html_lines("warning", [f"{warning}." for warning in score.warnings])
    values = [[name, describe(summary)] for name, summary in score.printed.items()]
    parts.append(html_table([["score", "value"], *values]))
    if score.per_phase:
        parts += ["<h3>Per phase</h3>", html_table(phase_rows(score))]
    if evaluation.comparison is not None and score.protocol in evaluation.comparison:
        results = evaluation.comparison[score.protocol]
        parts.append("<h3>Against the other system, per video (first minus second)</h3>")
        parts += [html_table(comparison_rows(results)), *html_lines("settings", [comparison_note(results)])]
    return parts


def _confusion(evaluation: Evaluation, folder: Path) -> str:
    names = evaluation.settings.names
    pooled = confusion_matrices(evaluation.runs[0], len(names)).sum(axis=0)
    caption = "Rows of all videos pooled; each line sums to 100 %."
    return html_figure(draw_confusion(pooled, names), folder, "confusion", caption)


def _latency(evaluation: Evaluation, folder: Path) -> str:
    settings = evaluation.settings
    found = [find_transitions(*segment_pair(video.truth, video.predicted)) for video in evaluation.runs[0]]
    delays_s = np.concatenate([item.delay_rows for item in found]) / settings.fps
    caption = "Signed delay of each annotated change of phase, nearest predicted change into the same phase."
    return html_figure(draw_latency(delays_s, settings.window_s, settings.fps), folder, "latency", caption)


def _reliability(evaluation: Evaluation, folder: Path) -> str:
    settings, videos = evaluation.settings, evaluation.runs[0]
    probabilities, truth = pool(videos)
    close = np.concatenate([near_transition(video.truth, settings.window_rows) for video in videos])
    near = reliability(probabilities, np.where(close, truth, -1), settings.n_bins)
    figure = draw_reliability(reliability(probabilities, truth, settings.n_bins), near)
    within = f"within {settings.window_s:g} s of an annotated change"
    caption = f"Confidence in {settings.n_bins} bins; near transitions: {within}."
    return html_figure(figure, folder, "reliability", caption)


def _videos(evaluation: Evaluation, folder: Path, on_figure: Callable[[], None]) -> list[str]:
    """A table of all videos, and a figure of each."""
    videos, settings = evaluation.runs[0], evaluation.settings
    confusions = confusion_matrices(videos, settings.n_phases)
    accuracies = accuracy(confusions)
    jaccards = nan_mean(cell_scores(confusions, "A").jaccard, axis=1)
    rows = [["video", "strict accuracy", "strict Jaccard (A, mean of its phases)", "rows"]]
    parts = []
    for index in np.argsort(accuracies, kind="stable"):
        video = videos[index]
        rows.append([video.name, number(accuracies[index]), number(jaccards[index]), f"{len(video.truth):,}"])
        title = f"{video.name}: strict accuracy {accuracies[index]:.1f} %"
        truth, predicted = segment_pair(video.truth, video.predicted)
        counts = f"{len(predicted)} predicted segments for {len(truth)} annotated"
        caption = f"{title}, Jaccard {jaccards[index]:.1f} %; {counts}."
        ribbons = {"annotated": video.truth, "predicted": video.predicted}
        figure = draw_ribbons(ribbons, settings.names, settings.fps, title)
        parts.append(html_figure(figure, folder, "timeline-" + re.sub(r"[^\w.-]+", "-", video.name), caption))
        on_figure()
    return [html_table(rows), *parts]
