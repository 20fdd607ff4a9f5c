"""Protocols: the named ways to score, and scoring with them.

A protocol takes the runs of one system over the same videos and returns a Score. There are three groups:
protocols that count rows (strict with its rules for undefined values, the paper's formula, pooled rows, the
relaxed boundary), those that look at segments and transitions, and those that need probabilities."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from surgicalmamba.errors import ConfigError, InputError
from surgicalmamba.eval.frame import (
    RelaxedMode,
    Summary,
    UndefinedRule,
    accuracy,
    average_precisions,
    balanced_accuracy,
    cell_scores,
    confusion_matrices,
    forgiven_rows,
    inflated_f1,
    log_losses,
    nan_mean,
    reliability,
    rules_for,
    score_relaxed,
    summarise_each_phase,
    summarise_phases,
    summarise_runs,
    summarise_videos,
)
from surgicalmamba.eval.pairs import FloatArray, IntArray, VideoPair, make_pair
from surgicalmamba.eval.score import Json, Report, Score, Settings
from surgicalmamba.eval.segments import (
    Transitions,
    edit_score,
    find_transitions,
    near_transition,
    overlap_counts,
    overlap_f1,
    segment_pair,
)

Runs = list[list[VideoPair]]
PhaseTable = dict[str, dict[str, Summary]]

# Protocols that count rows.

RULE_TEXT: dict[UndefinedRule, str] = {
    "A": "A: only 0/0 is left out, a false alarm on a missing phase scores 0",
    "B": "B: a phase is left out of a video that does not contain it",
    "C": "C: as A, and correct silence scores 100",
    "Z": "Z: undefined values count as 0",
}
_MEAN_OF_PHASES = "over videos within each phase, then over phases"


def strict(runs: Runs, settings: Settings) -> Score:
    return _strict_score("strict", runs, settings, "A", {"mean_is": _MEAN_OF_PHASES})


def strict_b(runs: Runs, settings: Settings) -> Score:
    return _strict_score("strict-b", runs, settings, "B", {"mean_is": _MEAN_OF_PHASES})


def paper(runs: Runs, settings: Settings) -> Score:
    """1/(PV) times the sum over videos and phases. The divisor counts every phase of every video, so a phase
    that is absent (or never predicted, for precision) can only enter as 0; the authors' released loop does
    the same."""
    extra: dict[str, Json] = {
        "mean_is": "sum over all videos and phases / (phases x videos)",
        "absent_phases": "score 0 in precision, recall and Jaccard, even when it is right to be silent",
    }
    return _strict_score("paper", runs, settings, "Z", extra)


def _confusions(runs: Runs, settings: Settings) -> IntArray:
    return np.stack([confusion_matrices(videos, settings.n_phases) for videos in runs])


def _strict_score(
    protocol: str, runs: Runs, settings: Settings, rule: UndefinedRule, extra: dict[str, Json]
) -> Score:
    confusions = _confusions(runs, settings)
    cells = cell_scores(confusions, rule)
    phase_scores = dict(vars(cells))
    scalars = {
        "accuracy": accuracy(confusions),
        "balanced_accuracy": balanced_accuracy(confusions),
        "inflated_macro_f1": inflated_f1(nan_mean(cells.precision, axis=2), nan_mean(cells.recall, axis=2)),
    }
    summaries = {name: summarise_videos(values) for name, values in scalars.items()}
    metrics = {name: summaries[name] for name in ("accuracy", "balanced_accuracy")}
    metrics |= {name: summarise_phases(values) for name, values in phase_scores.items()}
    metrics["inflated_macro_f1"] = summaries["inflated_macro_f1"]
    grand = inflated_f1(nan_mean(cells.precision, axis=(1, 2)), nan_mean(cells.recall, axis=(1, 2)))
    metrics["inflated_macro_f1_upper_bound"] = summarise_runs(grand)
    stated = settings.describe(runs, undefined=RULE_TEXT[rule]) | extra
    by_run, table = _by_run(scalars, phase_scores), _phase_table(phase_scores, settings.names)
    return Score(protocol, metrics, stated, settings.videos(runs), by_run, table)


def _by_run(scalars: dict[str, FloatArray], phase_scores: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Each metric per run and video, averaged over phases."""
    return scalars | {metric: nan_mean(array, axis=2) for metric, array in phase_scores.items()}


def _phase_table(
    scores: dict[str, FloatArray], names: tuple[str, ...], keys: Sequence[str] = ()
) -> PhaseTable:
    """Summaries (or these keys of them) by phase and metric."""
    table: PhaseTable = {name: {} for name in names}
    for metric, values in scores.items():
        for name, summary in zip(names, summarise_each_phase(values), strict=True):
            table[name][metric] = {key: summary[key] for key in keys or summary}
    return table


def framewise(runs: Runs, settings: Settings) -> Score:
    """All rows of all videos pooled into one confusion matrix per run."""
    confusions = _confusions(runs, settings)
    pooled = confusions.sum(axis=1, keepdims=True)
    phase_scores = dict(vars(cell_scores(pooled, "A")))
    metrics: dict[str, Summary] = {"accuracy": summarise_runs(accuracy(pooled)[:, 0])}
    for name, values in phase_scores.items():
        summary = summarise_phases(values)
        metrics[name] = {key: summary[key] for key in ("mean", "std_phases", "std_runs")}
    by_video = accuracy(confusions)
    metrics["accuracy_by_video"] = summarise_videos(by_video)
    stated = settings.describe(runs, undefined=RULE_TEXT["A"])
    stated["mean_is"] = "rows of all videos pooled, then over phases; accuracy_by_video is a mean over videos"
    table = _phase_table(phase_scores, settings.names, ("mean", "std_runs"))
    return Score("framewise", metrics, stated, settings.videos(runs), {"accuracy": by_video}, table)


def relaxed_published(runs: Runs, settings: Settings) -> Score:
    return _relaxed(runs, settings, "published")


def relaxed_repaired(runs: Runs, settings: Settings) -> Score:
    return _relaxed(runs, settings, "repaired")


def _relaxed(runs: Runs, settings: Settings, mode: RelaxedMode) -> Score:
    rules = settings.require_rules(f"relaxed-{mode}")
    sizes = settings.window_rows, settings.n_phases
    scored = [[score_relaxed(v.truth, v.predicted, mode, *sizes, rules) for v in videos] for videos in runs]

    def collect(metric: str) -> FloatArray:
        return np.array([[getattr(video, metric) for video in videos] for videos in scored])

    scalars = {"accuracy": collect("accuracy")}
    phase_scores = {metric: collect(metric) for metric in ("precision", "recall", "jaccard")}
    metrics = {"accuracy": summarise_videos(scalars["accuracy"])}
    metrics |= {metric: summarise_phases(values) for metric, values in phase_scores.items()}
    stated = settings.describe(runs, "a phase is left out of a video that does not contain it", relaxed=True)
    stated["mean_is"] = f"{_MEAN_OF_PHASES}; values above 100 are cut to 100 per phase and video"
    warnings = ["a forgiven row counts for two phases: precision, recall and Jaccard are no proportions"]
    if mode == "published":
        warnings.append("reproduces the defect of the published script: late changes are forgiven, early "
                        "ones hardly ever")
        warnings += _follow_script(metrics, phase_scores, settings)
        unlabelled = sum(int((~video.labelled).sum()) for video in runs[0])
        if unlabelled:
            warnings.append(f"{unlabelled} rows without annotation count as right, as in the published "
                            "script")
    by_run, table = _by_run(scalars, phase_scores), _phase_table(phase_scores, settings.names)
    return Score(f"relaxed-{mode}", metrics, stated, settings.videos(runs), by_run, table, tuple(warnings))


def _follow_script(
    metrics: dict[str, Summary], phase_scores: dict[str, FloatArray], settings: Settings
) -> list[str]:
    """The script's mean of Jaccard and recall over phases is undefined as soon as a phase occurs in no video.
    Warn about it and keep the mean of the defined phases beside it."""
    empty = np.isnan(nan_mean(phase_scores["jaccard"], axis=(0, 1)))
    if not empty.any():
        return []
    nan = float("nan")
    for metric in ("recall", "jaccard"):
        mean = metrics[metric].pop("mean")
        metrics[metric] = {"mean": nan, "mean_defined_phases": mean} | metrics[metric] | {"std_phases": nan}
    names = ", ".join(name for name, is_empty in zip(settings.names, empty, strict=True) if is_empty)
    because = f"because no video contains {names}; see mean_defined_phases"
    return [f"mean recall and Jaccard are undefined, as in the script, {because}"]


def relaxed_symmetric(runs: Runs, settings: Settings) -> Score:
    """Forgiven rows are rewritten to the annotated phase, then scored strictly: all scores stay proportions
    and no order of phases is assumed."""
    window, n_phases = settings.window_rows, settings.n_phases

    def rewrite(video: VideoPair) -> VideoPair:
        right = forgiven_rows(video.truth, video.predicted, "symmetric", window, n_phases, None)
        return VideoPair(video.name, video.truth, np.where(right, video.truth, video.predicted))

    rewritten = [[rewrite(video) for video in videos] for videos in runs]
    extra: dict[str, Json] = {
        "window_s": settings.window_s,
        "rules": "none: either neighbouring annotated phase",
        "mean_is": f"{_MEAN_OF_PHASES}; a forgiven row counts as the annotated phase",
    }
    return _strict_score("relaxed-symmetric", rewritten, settings, "A", extra)


# Segments and transitions.

OVERLAPS = (10, 25, 50)


def segmental(runs: Runs, settings: Settings) -> Score:
    """Edit score, F1@10/25/50, over-segmentation, and how late transitions are noticed."""
    names = ("edit", *(f"f1_{overlap}" for overlap in OVERLAPS), "over_segmentation")
    per_video: dict[str, list[list[float]]] = {name: [] for name in names}
    pooled: dict[str, list[float]] = {f"f1_{overlap}": [] for overlap in OVERLAPS}
    transitions: list[list[Transitions]] = []
    for videos in runs:
        pairs = [segment_pair(video.truth, video.predicted) for video in videos]
        per_video["edit"].append([edit_score(*pair) for pair in pairs])
        per_video["over_segmentation"].append([len(predicted) / len(truth) for truth, predicted in pairs])
        for overlap in OVERLAPS:
            counts = [overlap_counts(*pair, overlap / 100) for pair in pairs]
            per_video[f"f1_{overlap}"].append([overlap_f1(*count) for count in counts])
            pooled[f"f1_{overlap}"].append(overlap_f1(*np.sum(counts, axis=0).tolist()))
        transitions.append([find_transitions(*pair) for pair in pairs])
    by_run = {name: np.array(values) for name, values in per_video.items()}
    metrics = {name: summarise_videos(values) for name, values in by_run.items()}
    for name, scores in pooled.items():
        metrics[name]["pooled"] = float(np.mean(scores))
    every = [item for items in transitions for item in items]
    delay_s = np.concatenate([item.delay_rows for item in every]) / settings.fps
    after = np.concatenate([item.after for item in every])
    metrics["latency_s"] = _summarise_delays(delay_s)
    into = {name: _summarise_delays(delay_s[after == phase]) for phase, name in enumerate(settings.names)}
    table = {name: {"latency_s": summary} for name, summary in into.items()}
    stated = settings.describe(runs)
    stated["mean_is"] = ("over videos; pooled: segments of all videos counted together; latency over all "
                         "transitions that were noticed")
    details: dict[str, Json] = {"transitions": _list_transitions(runs, transitions, settings)}
    return Score("segmental", metrics, stated, settings.videos(runs), by_run, table, details=details)


def _summarise_delays(seconds: FloatArray) -> Summary:
    noticed = np.sort(seconds[~np.isnan(seconds)])
    # The median by hand: np.median would import masked arrays, a tenth of the time of the whole command.
    middle = noticed[(len(noticed) - 1) // 2 : len(noticed) // 2 + 1]
    return {
        "mean": float(nan_mean(noticed)),
        "median": float(nan_mean(middle)),
        "mean_absolute": float(nan_mean(np.abs(noticed))),
        "transitions": len(seconds),
        "missed": len(seconds) - len(noticed),
        "early": int((noticed < 0).sum()),
        "late": int((noticed > 0).sum()),
    }


def _list_transitions(runs: Runs, transitions: list[list[Transitions]], settings: Settings) -> list[Json]:
    """Every annotated change of phase with its signed delay; a missed one has none."""
    listed: list[Json] = []
    for run, (videos, found) in enumerate(zip(runs, transitions, strict=True)):
        for video, item in zip(videos, found, strict=True):
            columns = (item.row.tolist(), item.before.tolist(), item.after.tolist(), item.delay_rows.tolist())
            for row, before, after, delay in zip(*columns, strict=True):
                delay_s = None if delay != delay else delay / settings.fps
                names = {"from": settings.names[before], "to": settings.names[after]}
                listed.append({"run": run, "video": video.name, "row": row, **names, "delay_s": delay_s})
    return listed


# Probabilities.


def _probabilities(video: VideoPair) -> FloatArray:
    if video.probabilities is None:
        raise InputError(f"{video.name} has no probabilities: use prediction files with columns p_0, p_1, "
                         "..., or another protocol.")
    return video.probabilities


def pool(videos: list[VideoPair]) -> tuple[FloatArray, IntArray]:
    """Probabilities and labels of all videos, one after the other."""
    probabilities = np.concatenate([_probabilities(video) for video in videos])
    return probabilities, np.concatenate([video.truth for video in videos])


def mean_average_precision(runs: Runs, settings: Settings) -> Score:
    """Average precision of each phase against the rest: rows of all videos pooled (GraSP's official mAP), and
    per video."""
    pooled = np.array([[average_precisions(*pool(videos))] for videos in runs])
    by_video = np.array([[average_precisions(_probabilities(v), v.truth) for v in videos] for videos in runs])
    per_video = nan_mean(by_video, axis=2)
    of_runs = summarise_runs(nan_mean(pooled, axis=(1, 2)))
    metrics = {"map": of_runs, "map_by_video": summarise_videos(per_video)}
    table = _phase_table({"average_precision": pooled}, settings.names, ("mean", "std_runs"))
    for name, summaries in _phase_table({"average_precision_by_video": by_video}, settings.names).items():
        table[name] |= summaries
    stated = settings.describe(runs, undefined="a phase without annotated rows is left out")
    stated["mean_is"] = ("map: rows of all videos pooled, then over phases; map_by_video: over phases within "
                         "a video, then over videos")
    return Score("map", metrics, stated, settings.videos(runs), {"map_by_video": per_video}, table)


def calibration(runs: Runs, settings: Settings) -> Score:
    """Log loss and expected calibration error, over all rows and near annotated transitions."""
    losses = np.array([[log_losses(_probabilities(v), v.truth).mean() for v in videos] for videos in runs])
    pooled: list[float] = []
    overall: list[float] = []
    near: list[float] = []
    for videos in runs:
        probabilities, truth = pool(videos)
        close = np.concatenate([near_transition(video.truth, settings.window_rows) for video in videos])
        pooled.append(log_losses(probabilities, truth).mean())
        for rows, errors in ((truth, overall), (np.where(close, truth, -1), near)):
            errors.append(reliability(probabilities, rows, settings.n_bins).expected_calibration_error)
    metrics: dict[str, Summary] = {
        "log_loss": summarise_runs(np.array(pooled)),
        "log_loss_by_video": summarise_videos(losses),
        "calibration_error": summarise_runs(np.array(overall)),
        "calibration_error_near_transitions": summarise_runs(np.array(near)) | {"rows": int(close.sum())},
    }
    stated = settings.describe(runs) | {"window_s": settings.window_s, "bins": settings.n_bins}
    stated["mean_is"] = ("rows of all videos pooled; log loss in nats; calibration error of the highest "
                         "probability in percentage points")
    return Score("calibration", metrics, stated, settings.videos(runs), {"log_loss": losses})


# Protocols by name.


@dataclass(frozen=True)
class Protocol:
    """A named way to score."""

    name: str
    summary: str
    compute: Callable[[Runs, Settings], Score]
    needs_probabilities: bool = False
    needs_rules: bool = False


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("strict", "per phase and video, only 0/0 left out (rule A)", strict),
        Protocol("strict-b", "per phase and video, phases missing from a video left out (rule B)", strict_b),
        Protocol("paper", "the formula of the paper's appendix: absent phases score 0 (rule Z)", paper),
        Protocol("framewise", "rows of all videos pooled", framewise),
        Protocol("relaxed-published", "10 s boundary as the field's script computes it", relaxed_published,
                 needs_rules=True),
        Protocol("relaxed-repaired", "10 s boundary with the script's defect repaired", relaxed_repaired,
                 needs_rules=True),
        Protocol("relaxed-symmetric", "10 s boundary without any order of phases", relaxed_symmetric),
        Protocol("segmental", "edit score, F1@10/25/50, over-segmentation, transition latency", segmental),
        Protocol("map", "average precision, pooled and per video", mean_average_precision,
                 needs_probabilities=True),
        Protocol("calibration", "log loss and calibration error", calibration, needs_probabilities=True),
    )
}
USUAL_PROTOCOL = {"cholec80": "relaxed-published", "m2cai16": "relaxed-published", "grasp": "map"}
"""What papers on a dataset usually print; strict for all others."""
USUAL_RULES = {"cholec80": "cholec80", "cholec80-tools": "cholec80", "m2cai16": "m2cai16"}
"""Datasets whose relaxed script is in wide use."""
_RULES_BY_COUNT = {7: "cholec80", 8: "m2cai16"}


def usual_protocol(dataset: str) -> str:
    return USUAL_PROTOCOL.get(dataset, "strict")


def resolve_protocols(names: Iterable[str]) -> list[str]:
    """Check protocol names; `all` stands for every one."""
    resolved: list[str] = []
    for name in names:
        if name != "all" and name not in PROTOCOLS:
            near = get_close_matches(name, [*PROTOCOLS, "all"], n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(f"unknown protocol {name!r}; {hint}known are {', '.join(PROTOCOLS)} and all.")
        resolved += PROTOCOLS if name == "all" else [name]
    return list(dict.fromkeys(resolved))


def score_runs(
    runs: Runs, settings: Settings, protocols: Iterable[str], skip_impossible: bool = False
) -> Report:
    """Score several runs of one system over the same videos. A protocol that lacks what it needs
    (probabilities, rules) is an error when it was requested by name, and is skipped with the reason under
    `all` or with `skip_impossible`."""
    requested = list(protocols)
    names = resolve_protocols(requested)
    _check_runs(runs)
    has_probabilities = all(video.probabilities is not None for videos in runs for video in videos)
    scores: dict[str, Score] = {}
    skipped: dict[str, str] = {}
    for name in names:
        protocol = PROTOCOLS[name]
        may_skip = name not in requested or skip_impossible
        if may_skip and protocol.needs_probabilities and not has_probabilities:
            skipped[name] = "the predictions carry no probabilities (columns p_0, p_1, ...)"
        elif may_skip and protocol.needs_rules and settings.rules is None:
            skipped[name] = "no relaxed rules are known for these phases"
        else:
            scores[name] = protocol.compute(runs, settings)
    return Report(scores, settings.videos(runs), skipped)


def _check_runs(runs: Runs) -> None:
    if not runs or not runs[0]:
        raise InputError("there is no video to score.")
    first = runs[0]
    for number, videos in enumerate(runs[1:], start=1):
        pairs = zip(first, videos, strict=False)
        same = all(a.name == b.name and np.array_equal(a.truth, b.truth) for a, b in pairs)
        if len(videos) != len(first) or not same:
            raise InputError(f"run {number} does not hold the same videos and labels as run 0; runs must "
                             "differ in predictions only.")


@overload
def score(  # type: ignore[overload-overlap]
    labels: ArrayLike, predictions: ArrayLike, n_phases: int, protocol: Literal["all"], *,
    probabilities: ArrayLike | None = None, fps: float = 1.0, window_s: float = 10.0,
    rules: str | None = None, names: Sequence[str] | None = None,
) -> Report: ...
@overload
def score(
    labels: ArrayLike, predictions: ArrayLike, n_phases: int, protocol: str = "strict", *,
    probabilities: ArrayLike | None = None, fps: float = 1.0, window_s: float = 10.0,
    rules: str | None = None, names: Sequence[str] | None = None,
) -> Score: ...
def score(
    labels: ArrayLike, predictions: ArrayLike, n_phases: int, protocol: str = "strict", *,
    probabilities: ArrayLike | None = None, fps: float = 1.0, window_s: float = 10.0,
    rules: str | None = None, names: Sequence[str] | None = None,
) -> Score | Report:
    """Score integer phase ids by a named protocol: `sm.score(labels, predictions,
    n_phases=7)["jaccard"]["mean"]`.

    labels and predictions are one flat sequence (one video) or a list of them (many videos); negative labels
    mark rows without annotation. probabilities has one (t, k) array per video. `fps` is rows per second, and
    `window_s` the relaxed boundary. Relaxed rules are by default those of the script for 7 phases (cholec80)
    or 8 (m2cai16). Returns a Score; for protocol "all" a Report with one Score per protocol."""
    if not isinstance(n_phases, int) or n_phases < 1:
        raise InputError(f"n_phases={n_phases!r}: give the number of phases, a positive integer.")
    many = _is_nested(labels)
    truths, guesses = _videos(labels, "labels"), _videos(predictions, "predictions")
    if len(truths) != len(guesses) or many != _is_nested(predictions):
        raise InputError(f"labels hold {len(truths)} videos and predictions {len(guesses)}; give one "
                         "prediction sequence per video.")
    tables: list[ArrayLike | None] = [None] * len(truths)
    if probabilities is not None:
        tables = list(probabilities) if many else [probabilities]  # type: ignore[arg-type]
        if len(tables) != len(truths):
            raise InputError(f"probabilities hold {len(tables)} videos, labels {len(truths)}.")
    phase_names = tuple(names) if names is not None else tuple(f"phase {index}" for index in range(n_phases))
    if len(phase_names) != n_phases:
        raise InputError(f"{len(phase_names)} names for n_phases={n_phases} phases; give one name per phase.")
    rule_name = rules if rules is not None else _RULES_BY_COUNT.get(n_phases)
    chosen = rules_for(rule_name, n_phases) if rule_name is not None else None
    settings = Settings(phase_names, fps=fps, window_s=window_s, rules=chosen)
    videos = [
        make_pair(f"video {index}", truth, guess, n_phases, table)
        for index, (truth, guess, table) in enumerate(zip(truths, guesses, tables, strict=True))
    ]
    report = score_runs([videos], settings, [protocol])
    return report if protocol == "all" else report.scores[protocol]


def _is_nested(values: ArrayLike) -> bool:
    """Whether values are a list of videos rather than one video."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values.ndim > 1
    return isinstance(values, Iterable) and any(np.ndim(item) > 0 for item in values)


def _videos(values: ArrayLike, what: str) -> list[ArrayLike]:
    if not _is_nested(values):
        return [values]
    if not isinstance(values, Iterable):
        raise InputError(f"{what} are no sequence.")
    return list(values)
