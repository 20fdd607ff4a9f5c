"""Means and spreads, each under its own name.

A score lives in an array runs x videos x phases with undefined cells. There are three ways to average it, and they part as soon as one
cell is undefined:

- `mean_phases`: over runs and videos within each phase, then over phases (the order of the field's MATLAB script);
- `mean_videos`: over phases within each run and video, then over videos and runs (macro scores per video);
- `mean_cells`: over all defined cells at once.

Spreads are sample deviations (N - 1): `std_phases` over the phase means, `std_videos` over the video means (runs and phases averaged
first), `std_runs` over the run means, undefined for a single run."""

import numpy as np

from surgicalmamba.eval.cells import nan_mean, nan_std
from surgicalmamba.eval.pairs import FloatArray

Summary = dict[str, float]


def summarise_phases(values: FloatArray) -> Summary:
    """Summary of a phase score (r, v, k). `mean` is `mean_phases`; phases that are never defined are left out of it."""
    by_phase = nan_mean(values, axis=(0, 1))
    by_run = nan_mean(nan_mean(values, axis=1), axis=1)
    by_video = nan_mean(values, axis=(0, 2))
    return {
        "mean": float(nan_mean(by_phase)),
        "std_phases": float(nan_std(by_phase)),
        "mean_videos": float(nan_mean(nan_mean(values, axis=2))),
        "std_videos": float(nan_std(by_video)),
        "mean_cells": float(nan_mean(values)),
        "std_runs": float(nan_std(by_run)),
    }


def summarise_videos(values: FloatArray) -> Summary:
    """Summary of a score with one value per run and video (r, v)."""
    return {
        "mean": float(nan_mean(values)),
        "std_videos": float(nan_std(nan_mean(values, axis=0))),
        "std_runs": float(nan_std(nan_mean(values, axis=1))),
    }


def summarise_each_phase(values: FloatArray) -> list[Summary]:
    """Per phase of (r, v, k): mean over its defined cells, deviation over videos (0 if one video has it), over runs, and the video
    count."""
    summaries = []
    for phase in range(values.shape[2]):
        column = values[:, :, phase]
        by_video = nan_mean(column, axis=0)
        videos = int(np.count_nonzero(~np.isnan(by_video)))
        spread = 0.0 if videos == 1 else float(nan_std(by_video))
        summaries.append(
            {"mean": float(nan_mean(column)), "std_videos": spread, "std_runs": float(nan_std(nan_mean(column, axis=1))), "videos": videos}
        )
    return summaries
