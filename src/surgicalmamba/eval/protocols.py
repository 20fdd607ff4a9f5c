"""Protocols by name, and scoring with them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from surgicalmamba.errors import ConfigError, InputError
from surgicalmamba.eval import frame_protocols, sequence_protocols
from surgicalmamba.eval.pairs import VideoPair, make_pair
from surgicalmamba.eval.relaxed import rules_for
from surgicalmamba.eval.score import Report, Score
from surgicalmamba.eval.settings import Settings

Runs = list[list[VideoPair]]


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
        Protocol("strict", "per phase and video, only 0/0 left out (rule A)", frame_protocols.strict),
        Protocol("strict-b", "per phase and video, phases missing from a video left out (rule B)", frame_protocols.strict_b),
        Protocol("paper", "the formula of the paper's appendix: absent phases score 0 (rule Z)", frame_protocols.paper),
        Protocol("framewise", "rows of all videos pooled", frame_protocols.framewise),
        Protocol(
            "relaxed-published", "10 s boundary as the field's script computes it", frame_protocols.relaxed_published, needs_rules=True
        ),
        Protocol("relaxed-repaired", "10 s boundary with the script's defect repaired", frame_protocols.relaxed_repaired, needs_rules=True),
        Protocol("relaxed-symmetric", "10 s boundary without any order of phases", frame_protocols.relaxed_symmetric),
        Protocol("segmental", "edit score, F1@10/25/50, over-segmentation, transition latency", sequence_protocols.segmental),
        Protocol("map", "average precision, pooled and per video", sequence_protocols.mean_average_precision, needs_probabilities=True),
        Protocol("calibration", "log loss and calibration error", sequence_protocols.calibration, needs_probabilities=True),
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
    wanted: list[str] = []
    for name in names:
        if name != "all" and name not in PROTOCOLS:
            near = get_close_matches(name, [*PROTOCOLS, "all"], n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(f"unknown protocol {name!r}; {hint}known are {', '.join(PROTOCOLS)} and all.")
        wanted += [known for known in (PROTOCOLS if name == "all" else [name]) if known not in wanted]
    return wanted


def score_runs(runs: Runs, settings: Settings, protocols: Iterable[str], skip_impossible: bool = False) -> Report:
    """Score several runs of one system over the same videos. A protocol that lacks what it needs (probabilities, rules) is an error when it
    was asked for by name, and is skipped with the reason under `all` or with `skip_impossible`."""
    requested = list(protocols)
    names = resolve_protocols(requested)
    _check_runs(runs)
    has_probabilities = all(video.probabilities is not None for videos in runs for video in videos)
    scores: dict[str, Score] = {}
    skipped: dict[str, str] = {}
    for name in names:
        protocol = PROTOCOLS[name]
        asked_for = name in requested and not skip_impossible
        if protocol.needs_probabilities and not has_probabilities and not asked_for:
            skipped[name] = "the predictions carry no probabilities (columns p_0, p_1, ...)"
        elif protocol.needs_rules and settings.rules is None and not asked_for:
            skipped[name] = "no relaxed rules are known for these phases"
        else:
            scores[name] = protocol.compute(runs, settings)
    return Report(scores, settings.videos(runs), skipped)


def _check_runs(runs: Runs) -> None:
    if not runs or not runs[0]:
        raise InputError("there is no video to score.")
    first = runs[0]
    for number, videos in enumerate(runs[1:], start=1):
        same = len(videos) == len(first) and all(
            a.name == b.name and np.array_equal(a.truth, b.truth) for a, b in zip(first, videos, strict=True)
        )
        if not same:
            raise InputError(f"run {number} does not hold the same videos and labels as run 0; runs must differ in predictions only.")


@overload
def score(  # type: ignore[overload-overlap]
    labels: ArrayLike,
    predictions: ArrayLike,
    n_phases: int,
    protocol: Literal["all"],
    *,
    probabilities: ArrayLike | None = None,
    fps: float = 1.0,
    window_s: float = 10.0,
    rules: str | None = None,
    names: Sequence[str] | None = None,
) -> Report: ...
@overload
def score(
    labels: ArrayLike,
    predictions: ArrayLike,
    n_phases: int,
    protocol: str = "strict",
    *,
    probabilities: ArrayLike | None = None,
    fps: float = 1.0,
    window_s: float = 10.0,
    rules: str | None = None,
    names: Sequence[str] | None = None,
) -> Score: ...
def score(
    labels: ArrayLike,
    predictions: ArrayLike,
    n_phases: int,
    protocol: str = "strict",
    *,
    probabilities: ArrayLike | None = None,
    fps: float = 1.0,
    window_s: float = 10.0,
    rules: str | None = None,
    names: Sequence[str] | None = None,
) -> Score | Report:
    """Score integer phase ids by a named protocol: `sm.score(labels, predictions, n_phases=7)["jaccard"]["mean"]`.

    labels and predictions are one flat sequence (one video) or a list of them (many videos); negative labels mark rows without annotation.
    probabilities has one (t, k) array per video. `fps` is rows per second, and `window_s` the relaxed boundary. Relaxed rules are those
    of the script for 7 phases (cholec80) or 8 (m2cai16) unless named. Returns a Score; for protocol "all" a Report with one Score per
    protocol."""
    if not isinstance(n_phases, int) or n_phases < 1:
        raise InputError(f"n_phases={n_phases!r}: give the number of phases, a positive integer.")
    truths, guesses = _videos(labels, "labels"), _videos(predictions, "predictions")
    many = _is_nested(labels)
    if len(truths) != len(guesses) or many != _is_nested(predictions):
        raise InputError(f"labels hold {len(truths)} videos and predictions {len(guesses)}; give one prediction sequence per video.")
    tables: list[ArrayLike | None] = [None] * len(truths)
    if probabilities is not None:
        tables = list(probabilities) if many else [probabilities]  # type: ignore[arg-type]
        if len(tables) != len(truths):
            raise InputError(f"probabilities hold {len(tables)} videos, labels {len(truths)}.")
    phase_names = tuple(names) if names is not None else tuple(f"phase {index}" for index in range(n_phases))
    if len(phase_names) != n_phases:
        raise InputError(f"{len(phase_names)} names for n_phases={n_phases} phases; give one name per phase.")
    rule_name = rules if rules is not None else _RULES_BY_COUNT.get(n_phases)
    settings = Settings(phase_names, fps=fps, window_s=window_s, rules=rules_for(rule_name, n_phases) if rule_name is not None else None)
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
