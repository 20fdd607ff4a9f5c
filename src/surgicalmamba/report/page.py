"""One self-contained HTML page with an evaluation's tables and figures, and the figures as PNG and SVG files beside it."""

import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from surgicalmamba.eval.evaluate import Evaluation
from surgicalmamba.eval.frame import accuracy, cell_scores, confusion_matrices, nan_mean
from surgicalmamba.eval.pairs import VideoPair
from surgicalmamba.eval.probabilities import reliability
from surgicalmamba.eval.score import Score, describe, state
from surgicalmamba.eval.segments import find_transitions, near_transition, segment_pair
from surgicalmamba.files import make_folder, write_atomic
from surgicalmamba.report.figures import draw_confusion, draw_latency, draw_reliability, draw_ribbons, save_figure
from surgicalmamba.report.tables import comparison_note, comparison_rows, number, phase_rows

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 72rem; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1rem; margin-bottom: .3rem; }
table { border-collapse: collapse; margin: .6rem 0 1.2rem; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #e2e2e2; } th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #888; }
.settings, .note, figcaption { color: #444; font-size: .88rem; } .warning { color: #7a3300; font-size: .88rem; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; } .scroll { overflow-x: auto; }
"""


def write_page(file: Path, title: str, body: Sequence[str]) -> Path:
    """Write a page with these parts, whole or not at all, and return its path."""
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + "\n<p class='note'>Research software, not a medical device.</p>\n</body></html>\n"
    )
    write_atomic(file, page.encode())
    return file


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def html_figure(drawn: Figure, folder: Path, name: str, caption: str) -> str:
    """Save a figure as PNG and SVG, and return it as HTML with the SVG inside."""
    svg = save_figure(drawn, folder, name)
    # Ids must differ between the figures of one page, or the clip paths of the first would cut all others.
    inline = re.sub(r'\bid="', f'id="{name}-', svg[svg.index("<svg") :])
    inline = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", inline)
    text = escape(caption)
    return f'<figure><div class="scroll" role="img" aria-label="{text}">{inline}</div><figcaption>{text}</figcaption></figure>'


def write_report(evaluation: Evaluation, folder: Path, on_figure: Callable[[], None] = lambda: None) -> Path:
    """Write `index.html` and `figures/*.png|svg` and return the page's path. The first run is drawn where there are several; `on_figure` is
    called after each video's figure."""
    figures = folder / "figures"
    make_folder(figures)
    videos = evaluation.runs[0]
    names = evaluation.settings.names
    body = [f"<h1>Evaluation on {escape(evaluation.vocabulary.dataset)}</h1>", _introduction(evaluation)]
    body += [_score_section(score, evaluation) for score in evaluation.report.scores.values()]
    body += [f'<p class="note">{escape(name)}: not computed, {escape(why)}.</p>' for name, why in evaluation.report.skipped.items()]
    body.append("<h2>Confusion</h2>" + _confusion(videos, names, figures))
    body.append("<h2>Latency of transitions</h2>" + _latency(evaluation, figures))
    if all(video.probabilities is not None for video in videos):
        body.append("<h2>Reliability</h2>" + _reliability(evaluation, figures))
    body.append("<h2>Videos, worst first</h2>" + _timelines(evaluation, figures, on_figure))
    title = f"Evaluation on {evaluation.vocabulary.dataset}"
    return write_page(folder / "index.html", title, body)


def _introduction(evaluation: Evaluation) -> str:
    runs = f", {len(evaluation.runs)} runs (figures show the first)" if len(evaluation.runs) > 1 else ""
    notes = "".join(f'<p class="warning">{escape(note)}</p>' for note in evaluation.notes)
    rows = sum(len(video.truth) for video in evaluation.runs[0])
    return f"<p>{len(evaluation.report.videos)} videos, {rows:,} rows{runs}. Percentages unless a unit is given.</p>{notes}"


def _score_section(score: Score, evaluation: Evaluation) -> str:
    parts = [f"<h2>{escape(score.protocol)}</h2>", f'<p class="settings">{escape(state(score.settings))}.']
    parts.append(f" Mean: {escape(str(score.settings['mean_is']))}.</p>" if "mean_is" in score.settings else "</p>")
    parts += [f'<p class="warning">{escape(warning)}.</p>' for warning in score.warnings]
    parts.append(html_table([["score", "value"], *([name, describe(summary)] for name, summary in score.metrics.items())]))
    if score.per_phase:
        parts.append("<h3>Per phase</h3>" + html_table(phase_rows(score)))
    if evaluation.comparison is not None and score.protocol in evaluation.comparison:
        parts.append("<h3>Against the other system, per video (first minus second)</h3>")
        parts.append(html_table(comparison_rows(evaluation.comparison[score.protocol])))
        parts.append(f'<p class="settings">{escape(comparison_note(evaluation.comparison[score.protocol]))}</p>')
    return "\n".join(parts)


def _confusion(videos: list[VideoPair], names: tuple[str, ...], folder: Path) -> str:
    pooled = confusion_matrices(videos, len(names)).sum(axis=0)
    return html_figure(draw_confusion(pooled, names), folder, "confusion", "Rows of all videos pooled; each line sums to 100 %.")


def _latency(evaluation: Evaluation, folder: Path) -> str:
    found = [find_transitions(*segment_pair(video.truth, video.predicted)) for video in evaluation.runs[0]]
    delays = np.concatenate([item.delay_rows for item in found]) / evaluation.settings.fps
    caption = "Signed delay of each annotated change of phase, nearest predicted change into the same phase."
    return html_figure(draw_latency(delays, evaluation.settings.window_s, evaluation.settings.fps), folder, "latency", caption)


def _reliability(evaluation: Evaluation, folder: Path) -> str:
    settings = evaluation.settings
    videos = [video for video in evaluation.runs[0] if video.probabilities is not None]
    probabilities = np.concatenate([video.probabilities for video in videos if video.probabilities is not None])
    truth = np.concatenate([video.truth for video in videos])
    close = np.concatenate([near_transition(video.truth, settings.window_rows) for video in videos])
    curves = (reliability(probabilities, truth, settings.n_bins), reliability(probabilities, np.where(close, truth, -1), settings.n_bins))
    caption = f"Confidence in {settings.n_bins} bins; near transitions: within {settings.window_s:g} s of an annotated change."
    return html_figure(draw_reliability(*curves), folder, "reliability", caption)


def _timelines(evaluation: Evaluation, folder: Path, on_figure: Callable[[], None]) -> str:
    videos, settings = evaluation.runs[0], evaluation.settings
    confusions = confusion_matrices(videos, settings.n_phases)
    accuracies = accuracy(confusions)
    jaccards = nan_mean(cell_scores(confusions, "A").jaccard, axis=1)
    order = np.argsort(accuracies, kind="stable")
    rows = [["video", "strict accuracy", "strict Jaccard (A, mean of its phases)", "rows"]]
    parts = []
    for index in order:
        video = videos[index]
        rows.append([video.name, number(accuracies[index]), number(jaccards[index]), f"{len(video.truth):,}"])
        title = f"{video.name}: strict accuracy {accuracies[index]:.1f} %"
        truth, predicted = segment_pair(video.truth, video.predicted)
        caption = f"{title}, Jaccard {jaccards[index]:.1f} %; {len(predicted)} predicted segments for {len(truth)} annotated."
        name = "timeline-" + re.sub(r"[^\w.-]+", "-", video.name)
        parts.append(html_figure(draw_ribbons(video, settings.names, settings.fps, title), folder, name, caption))
        on_figure()
    return html_table(rows) + "\n".join(parts)
