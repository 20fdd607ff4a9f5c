"""Protocols that count rows: strict with its rules for undefined values, the paper's formula, pooled rows, and the relaxed boundary."""

import numpy as np

from surgicalmamba.eval.averages import Summary, summarise_each_phase, summarise_phases, summarise_videos
from surgicalmamba.eval.cells import (
    UndefinedRule,
    accuracy,
    balanced_accuracy,
    cell_scores,
    confusion_matrices,
    inflated_f1,
    nan_mean,
    nan_std,
)
from surgicalmamba.eval.pairs import FloatArray, IntArray, VideoPair
from surgicalmamba.eval.relaxed import RelaxedMode, forgiven_rows, score_relaxed
from surgicalmamba.eval.score import Json, Score
from surgicalmamba.eval.settings import Settings

Runs = list[list[VideoPair]]
RULE_TEXT: dict[UndefinedRule, str] = {
    "A": "A: only 0/0 is left out, a false alarm on a missing phase scores 0",
    "B": "B: a phase is left out of a video that does not contain it",
    "C": "C: as A, and correct silence scores 100",
    "Z": "Z: undefined values count as 0",
}


def _confusions(runs: Runs, settings: Settings) -> IntArray:
    return np.stack([confusion_matrices(videos, settings.n_phases) for videos in runs])


def _phase_table(scores: dict[str, FloatArray], names: tuple[str, ...]) -> dict[str, dict[str, Summary]]:
    each = {metric: summarise_each_phase(values) for metric, values in scores.items()}
    return {name: {metric: summaries[index] for metric, summaries in each.items()} for index, name in enumerate(names)}


def _by_run(scalars: dict[str, FloatArray], phase_scores: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Each metric per run and video, averaged over phases."""
    return scalars | {metric: nan_mean(array, axis=2) for metric, array in phase_scores.items()}


def _strict_score(
    protocol: str, confusions: IntArray, runs: Runs, settings: Settings, rule: UndefinedRule, extra: dict[str, Json]
) -> Score:
    cells = cell_scores(confusions, rule)
    phase_scores = {"precision": cells.precision, "recall": cells.recall, "f1": cells.f1, "jaccard": cells.jaccard}
    macro_precision, macro_recall = nan_mean(cells.precision, axis=2), nan_mean(cells.recall, axis=2)
    scalars = {
        "accuracy": accuracy(confusions),
        "balanced_accuracy": balanced_accuracy(confusions),
        "inflated_macro_f1": inflated_f1(macro_precision, macro_recall),
    }
    grand = inflated_f1(nan_mean(cells.precision, axis=(1, 2)), nan_mean(cells.recall, axis=(1, 2)))
    metrics = {name: summarise_videos(scalars[name]) for name in ("accuracy", "balanced_accuracy")}
    metrics |= {name: summarise_phases(values) for name, values in phase_scores.items()}
    metrics["inflated_macro_f1"] = summarise_videos(scalars["inflated_macro_f1"])
    metrics["inflated_macro_f1_upper_bound"] = {"mean": float(nan_mean(grand)), "std_runs": float(nan_std(grand))}
    stated = settings.describe(runs, undefined=RULE_TEXT[rule]) | extra
    table = _phase_table(phase_scores, settings.names)
    return Score(protocol, metrics, stated, settings.videos(runs), _by_run(scalars, phase_scores), table)


def strict(runs: Runs, settings: Settings) -> Score:
    extra: dict[str, Json] = {"mean_is": "over videos within each phase, then over phases"}
    return _strict_score("strict", _confusions(runs, settings), runs, settings, "A", extra)


def strict_b(runs: Runs, settings: Settings) -> Score:
    extra: dict[str, Json] = {"mean_is": "over videos within each phase, then over phases"}
    return _strict_score("strict-b", _confusions(runs, settings), runs, settings, "B", extra)


def paper(runs: Runs, settings: Settings) -> Score:
    """1/(PV) times the sum over videos and phases. The divisor counts every phase of every video, so a phase that is absent (or never
    predicted, for precision) can only enter as 0; the authors' released loop does the same."""
    extra: dict[str, Json] = {
        "mean_is": "sum over all videos and phases / (phases x videos)",
        "absent_phases": "score 0 in precision, recall and Jaccard, even when the prediction is right to be silent",
    }
    return _strict_score("paper", _confusions(runs, settings), runs, settings, "Z", extra)


def framewise(runs: Runs, settings: Settings) -> Score:
    """All rows of all videos pooled into one confusion matrix per run."""
    confusions = _confusions(runs, settings)
    pooled = confusions.sum(axis=1, keepdims=True)
    cells = cell_scores(pooled, "A")
    phase_scores = {"precision": cells.precision, "recall": cells.recall, "f1": cells.f1, "jaccard": cells.jaccard}
    by_run = accuracy(pooled)
    metrics: dict[str, Summary] = {"accuracy": {"mean": float(nan_mean(by_run)), "std_runs": float(nan_std(by_run[:, 0]))}}
    for name, values in phase_scores.items():
        full = summarise_phases(values)
        metrics[name] = {key: full[key] for key in ("mean", "std_phases", "std_runs")}
    metrics["accuracy_by_video"] = summarise_videos(accuracy(confusions))
    each = {metric: summarise_each_phase(values) for metric, values in phase_scores.items()}
    kept = ("mean", "std_runs")
    table = {
        name: {metric: {key: summaries[index][key] for key in kept} for metric, summaries in each.items()}
        for index, name in enumerate(settings.names)
    }
    stated = settings.describe(runs, undefined=RULE_TEXT["A"])
    stated["mean_is"] = "rows of all videos pooled, then over phases; accuracy_by_video is the mean over videos"
    return Score("framewise", metrics, stated, settings.videos(runs), {"accuracy": accuracy(confusions)}, table)


def _relaxed(runs: Runs, settings: Settings, mode: RelaxedMode) -> Score:
    rules = settings.require_rules(f"relaxed-{mode}")
    window = settings.window_rows
    scored = [[score_relaxed(v.truth, v.predicted, mode, window, settings.n_phases, rules) for v in videos] for videos in runs]
    phase_scores = {
        "precision": np.array([[video.precision for video in videos] for videos in scored]),
        "recall": np.array([[video.recall for video in videos] for videos in scored]),
        "jaccard": np.array([[video.jaccard for video in videos] for videos in scored]),
    }
    scalars = {"accuracy": np.array([[video.accuracy for video in videos] for videos in scored])}
    metrics = {"accuracy": summarise_videos(scalars["accuracy"])} | {m: summarise_phases(v) for m, v in phase_scores.items()}
    stated = settings.describe(runs, undefined="a phase is left out of a video that does not contain it", relaxed=True)
    stated["mean_is"] = "over videos within each phase, then over phases; values above 100 are cut to 100 per phase and video"
    warnings = ["a forgiven row counts for two phases: precision, recall and Jaccard are no proportions"]
    if mode == "published":
        warnings.append("reproduces the defect of the published script: late changes are forgiven, early ones hardly ever")
        warnings += _follow_script(metrics, phase_scores, settings)
        unlabelled = sum(int((~video.labelled).sum()) for video in runs[0])
        if unlabelled:
            warnings.append(f"{unlabelled} rows without annotation count as right, as in the published script")
    table = _phase_table(phase_scores, settings.names)
    values = _by_run(scalars, phase_scores)
    return Score(f"relaxed-{mode}", metrics, stated, settings.videos(runs), values, table, tuple(warnings))


def _follow_script(metrics: dict[str, Summary], phase_scores: dict[str, FloatArray], settings: Settings) -> list[str]:
    """The script's mean of Jaccard and recall over phases is undefined as soon as a phase occurs in no video. Say so and keep the mean of
    the defined phases beside it."""
    empty = np.isnan(nan_mean(phase_scores["jaccard"], axis=(0, 1)))
    if not empty.any():
        return []
    for metric in ("recall", "jaccard"):
        metrics[metric] = {"mean": float("nan"), "mean_defined_phases": metrics[metric]["mean"]} | {
            key: value for key, value in metrics[metric].items() if key != "mean"
        }
        metrics[metric]["std_phases"] = float("nan")
    names = ", ".join(name for name, is_empty in zip(settings.names, empty, strict=True) if is_empty)
    return [f"mean recall and Jaccard are undefined, as in the script, because no video contains {names}; see mean_defined_phases"]


def relaxed_published(runs: Runs, settings: Settings) -> Score:
    return _relaxed(runs, settings, "published")


def relaxed_repaired(runs: Runs, settings: Settings) -> Score:
    return _relaxed(runs, settings, "repaired")


def relaxed_symmetric(runs: Runs, settings: Settings) -> Score:
    """Forgiven rows are rewritten to the annotated phase, then scored strictly: all scores stay proportions and no order of phases is
    assumed."""
    confusions = []
    for videos in runs:
        rewritten = []
        for video in videos:
            right = forgiven_rows(video.truth, video.predicted, "symmetric", settings.window_rows, settings.n_phases, None)
            rewritten.append(VideoPair(video.name, video.truth, np.where(right, video.truth, video.predicted)))
        confusions.append(confusion_matrices(rewritten, settings.n_phases))
    extra: dict[str, Json] = {
        "window_s": settings.window_s,
        "rules": "none: either neighbouring annotated phase",
        "mean_is": "over videos within each phase, then over phases; a forgiven row counts as the annotated phase",
    }
    return _strict_score("relaxed-symmetric", np.stack(confusions), runs, settings, "A", extra)
