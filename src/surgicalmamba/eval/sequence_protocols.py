"""Protocols that look at segments, transitions and probabilities."""

import numpy as np

from surgicalmamba.errors import InputError
from surgicalmamba.eval.averages import Summary, summarise_each_phase, summarise_videos
from surgicalmamba.eval.cells import nan_mean, nan_std
from surgicalmamba.eval.pairs import FloatArray, IntArray, VideoPair
from surgicalmamba.eval.probabilities import average_precisions, log_losses, reliability
from surgicalmamba.eval.score import Json, Score
from surgicalmamba.eval.segments import (
    Transitions,
    edit_score,
    find_transitions,
    near_transition,
    overlap_counts,
    overlap_f1,
    segment_pair,
)
from surgicalmamba.eval.settings import Settings

Runs = list[list[VideoPair]]
OVERLAPS = (10, 25, 50)


def segmental(runs: Runs, settings: Settings) -> Score:
    """Edit score, F1@10/25/50, over-segmentation, and how late transitions are noticed."""
    per_video: dict[str, list[list[float]]] = {name: [] for name in ("edit", *(f"f1_{k}" for k in OVERLAPS), "over_segmentation")}
    totals = np.zeros((len(runs), len(OVERLAPS), 3), dtype=np.int64)
    delays: list[list[Transitions]] = []
    for index, videos in enumerate(runs):
        pairs = [segment_pair(video.truth, video.predicted) for video in videos]
        per_video["edit"].append([edit_score(*pair) for pair in pairs])
        per_video["over_segmentation"].append([len(predicted) / len(truth) for truth, predicted in pairs])
        for position, overlap in enumerate(OVERLAPS):
            counts = [overlap_counts(*pair, overlap / 100) for pair in pairs]
            totals[index, position] = np.sum(counts, axis=0)
            per_video[f"f1_{overlap}"].append([overlap_f1(*count) for count in counts])
        delays.append([find_transitions(*pair) for pair in pairs])
    scalars = {name: np.array(values) for name, values in per_video.items()}
    metrics = {name: summarise_videos(values) for name, values in scalars.items()}
    for position, overlap in enumerate(OVERLAPS):
        pooled = [overlap_f1(*counts) for counts in totals[:, position].tolist()]
        metrics[f"f1_{overlap}"]["pooled"] = float(np.mean(pooled))
    metrics["latency_s"] = _summarise_delays([item for items in delays for item in items], settings.fps)
    stated = settings.describe(runs)
    stated["mean_is"] = "over videos; pooled: segments of all videos counted together; latency over all transitions that were noticed"
    details: dict[str, Json] = {"transitions": _list_transitions(runs, delays, settings)}
    table = _delays_by_phase(delays, settings)
    return Score("segmental", metrics, stated, settings.videos(runs), scalars, table, details=details)


def _list_transitions(runs: Runs, delays: list[list[Transitions]], settings: Settings) -> list[Json]:
    """Every annotated change of phase with its signed delay; a missed one has none."""
    return [
        {
            "run": run,
            "video": video.name,
            "row": row,
            "from": settings.names[before],
            "to": settings.names[after],
            "delay_s": None if delay != delay else delay / settings.fps,
        }
        for run, (videos, found) in enumerate(zip(runs, delays, strict=True))
        for video, item in zip(videos, found, strict=True)
        for row, before, after, delay in zip(
            item.row.tolist(), item.before.tolist(), item.after.tolist(), item.delay_rows.tolist(), strict=True
        )
    ]


def _summarise_delays(transitions: list[Transitions], fps: float) -> Summary:
    seconds = np.concatenate([item.delay_rows for item in transitions]) / fps
    noticed = np.sort(seconds[~np.isnan(seconds)])
    middle = noticed[(len(noticed) - 1) // 2 : len(noticed) // 2 + 1]  # np.median would import masked arrays, a tenth of the whole command
    return {
        "mean": float(nan_mean(noticed)),
        "median": float(nan_mean(middle)),
        "mean_absolute": float(nan_mean(np.abs(noticed))),
        "transitions": len(seconds),
        "missed": len(seconds) - len(noticed),
        "early": int((noticed < 0).sum()),
        "late": int((noticed > 0).sum()),
    }


def _delays_by_phase(delays: list[list[Transitions]], settings: Settings) -> dict[str, dict[str, Summary]]:
    """Latency of the transitions into each phase."""
    table = {}
    for phase, name in enumerate(settings.names):
        into = [
            Transitions(t.row[t.after == phase], t.before[t.after == phase], t.after[t.after == phase], t.delay_rows[t.after == phase])
            for videos in delays
            for t in videos
        ]
        table[name] = {"latency_s": _summarise_delays(into, settings.fps)}
    return table


def _probabilities(video: VideoPair) -> FloatArray:
    if video.probabilities is None:
        raise InputError(f"{video.name} has no probabilities: use prediction files with columns p_0, p_1, ..., or another protocol.")
    return video.probabilities


def _pool(videos: list[VideoPair]) -> tuple[FloatArray, IntArray]:
    return np.concatenate([_probabilities(video) for video in videos]), np.concatenate([video.truth for video in videos])


def mean_average_precision(runs: Runs, settings: Settings) -> Score:
    """Average precision of each phase against the rest: rows of all videos pooled (GraSP's official mAP), and per video."""
    pooled = np.array([[average_precisions(*_pool(videos))] for videos in runs])
    by_video = np.array([[average_precisions(_probabilities(video), video.truth) for video in videos] for videos in runs])
    by_run = nan_mean(pooled[:, 0], axis=1)
    per_video = nan_mean(by_video, axis=2)
    metrics = {
        "map": {"mean": float(nan_mean(by_run)), "std_runs": float(nan_std(by_run))},
        "map_by_video": summarise_videos(per_video),
    }
    pooled_phases, video_phases = summarise_each_phase(pooled), summarise_each_phase(by_video)
    table: dict[str, dict[str, Summary]] = {
        name: {
            "average_precision": {key: pooled_phases[index][key] for key in ("mean", "std_runs")},
            "average_precision_by_video": video_phases[index],
        }
        for index, name in enumerate(settings.names)
    }
    stated = settings.describe(runs, undefined="a phase without annotated rows is left out")
    stated["mean_is"] = "map: rows of all videos pooled, then over phases; map_by_video: over phases within a video, then over videos"
    return Score("map", metrics, stated, settings.videos(runs), {"map_by_video": per_video}, table)


def calibration(runs: Runs, settings: Settings) -> Score:
    """Log loss and expected calibration error, over all rows and near annotated transitions."""
    losses = np.array([[log_losses(_probabilities(video), video.truth).mean() for video in videos] for videos in runs])
    metrics: dict[str, Summary] = {}
    pooled_loss = np.array([log_losses(*_pool(videos)).mean() for videos in runs])
    metrics["log_loss"] = {"mean": float(pooled_loss.mean()), "std_runs": float(nan_std(pooled_loss))}
    metrics["log_loss_by_video"] = summarise_videos(losses)
    overall, near, rows = [], [], 0
    for videos in runs:
        probabilities, truth = _pool(videos)
        overall.append(reliability(probabilities, truth, settings.n_bins).expected_calibration_error)
        close = np.concatenate([near_transition(video.truth, settings.window_rows) for video in videos])
        rows = int(close.sum())
        near.append(reliability(probabilities, np.where(close, truth, -1), settings.n_bins).expected_calibration_error)
    for name, values in (("calibration_error", overall), ("calibration_error_near_transitions", near)):
        metrics[name] = {"mean": float(nan_mean(np.array(values))), "std_runs": float(nan_std(np.array(values)))}
    metrics["calibration_error_near_transitions"]["rows"] = rows
    stated = settings.describe(runs)
    stated |= {"window_s": settings.window_s, "bins": settings.n_bins}
    stated["mean_is"] = "rows of all videos pooled; log loss in nats; calibration error of the highest probability in percentage points"
    return Score("calibration", metrics, stated, settings.videos(runs), {"log_loss": losses})
