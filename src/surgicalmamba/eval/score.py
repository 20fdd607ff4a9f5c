"""What scoring takes and returns: the settings of a protocol, and its numbers as a mapping, as text and as
JSON.

A number always carries the name of its protocol and the settings it was computed with."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.frame import RULES, RelaxedRules, Summary, nan_mean
from surgicalmamba.eval.pairs import FloatArray, VideoPair

Json: TypeAlias = "dict[str, Json] | list[Json] | str | float | int | bool | None"

NOT_PRINTED = ("inflated_macro_f1", "inflated_macro_f1_upper_bound")
"""Metrics for readers of papers that print them as F1, which they exceed: in JSON and by their key, not in
tables."""


@dataclass(frozen=True)
class Settings:
    """What a protocol needs besides the labels: phase names, rows per second and the relaxed boundary."""

    names: tuple[str, ...]
    fps: float = 1.0
    """Rows per second of the label files, not of the video they were made from."""
    fps_source: str = "given"
    window_s: float = 10.0
    rules: RelaxedRules | None = None
    n_bins: int = 15

    def __post_init__(self) -> None:
        if not (self.fps > 0 and math.isfinite(self.fps)):
            raise ConfigError(f"fps={self.fps} is not a rate: give the rows per second of the label files, "
                              "such as 1.")
        if not (self.window_s >= 0 and math.isfinite(self.window_s)):
            raise ConfigError(f"window_s={self.window_s} is not a duration: give seconds, such as 10.")

    @property
    def n_phases(self) -> int:
        return len(self.names)

    @property
    def window_rows(self) -> int:
        return round(self.window_s * self.fps)

    def require_rules(self, protocol: str) -> RelaxedRules:
        if self.rules is None:
            known = ", ".join(sorted(RULES))
            raise ConfigError(f"{protocol} finds neighbouring phases by their numbers and has no rules for "
                              f"these {self.n_phases} phases: name rules ({known}), or use "
                              "relaxed-symmetric, which needs none.")
        return self.rules

    @staticmethod
    def videos(runs: list[list[VideoPair]]) -> tuple[str, ...]:
        return tuple(video.name for video in runs[0])

    def describe(
        self, runs: list[list[VideoPair]], undefined: str | None = None, relaxed: bool = False
    ) -> dict[str, Json]:
        """The settings that go with a number."""
        stated: dict[str, Json] = {"videos": len(runs[0]), "runs": len(runs)}
        stated["rows"] = sum(len(video.truth) for video in runs[0])
        stated["unlabelled_rows"] = sum(int((~video.labelled).sum()) for video in runs[0])
        stated |= {"fps": self.fps, "fps_source": self.fps_source}
        if undefined is not None:
            stated["undefined"] = undefined
        if relaxed:
            stated |= {"window_s": self.window_s, "rules": self.rules.name if self.rules else None}
        return stated


class _AsMapping(Mapping[str, Json]):
    """A mapping with the keys of the JSON output."""

    def as_dict(self) -> dict[str, Json]:
        raise NotImplementedError

    def __getitem__(self, key: str) -> Json:
        return self.as_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict())

    def __len__(self) -> int:
        return len(self.as_dict())

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, eq=False, repr=False)
class Score(_AsMapping):
    """The numbers of one protocol. As a mapping it has the keys of the JSON output: one per metric,
    `per_phase`, `per_video`, `settings`, `warnings`. `by_run` holds each metric per run and video (r, v), for
    comparing systems."""

    protocol: str
    metrics: dict[str, Summary]
    settings: dict[str, Json]
    videos: tuple[str, ...]
    by_run: dict[str, FloatArray] = field(default_factory=dict)
    per_phase: dict[str, dict[str, Summary]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    details: dict[str, Json] = field(default_factory=dict)
    """Further keys of the JSON output, such as the list of transitions of the segmental protocol."""

    @property
    def printed(self) -> dict[str, Summary]:
        """The metrics that tables show."""
        return {name: summary for name, summary in self.metrics.items() if name not in NOT_PRINTED}

    @property
    def by_video(self) -> dict[str, FloatArray]:
        """Each metric per video, runs averaged."""
        return {metric: nan_mean(values, axis=0) for metric, values in self.by_run.items()}

    def as_dict(self) -> dict[str, Json]:
        by_video = self.by_video
        per_video = {
            video: {metric: float(values[index]) for metric, values in by_video.items()}
            for index, video in enumerate(self.videos)
        }
        document: dict[str, object] = {**self.metrics, "per_phase": self.per_phase, "per_video": per_video}
        document |= {**self.details, "settings": self.settings, "warnings": list(self.warnings)}
        plain = to_json(document)
        assert isinstance(plain, dict)
        return plain

    def __str__(self) -> str:
        width = max(len(name) for name in self.printed)
        lines = [f"{self.protocol}: {state(self.settings)}"]
        lines += [f"  {name:<{width}}  {describe(summary)}" for name, summary in self.printed.items()]
        return "\n".join(lines + [f"  warning: {warning}" for warning in self.warnings])


@dataclass(frozen=True, eq=False, repr=False)
class Report(_AsMapping):
    """Several protocols over the same videos, with the keys of the JSON output: `videos`, `protocols` and
    `skipped`."""

    scores: dict[str, Score]
    videos: tuple[str, ...]
    skipped: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Json]:
        protocols: dict[str, Json] = {name: score.as_dict() for name, score in self.scores.items()}
        return {"videos": len(self.videos), "protocols": protocols, "skipped": dict(self.skipped)}

    def __str__(self) -> str:
        skipped = [f"{name}: not computed, {reason}" for name, reason in self.skipped.items()]
        return "\n".join([str(score) for score in self.scores.values()] + skipped)


def state(settings: Mapping[str, Json]) -> str:
    """The settings that are always printed with a number, as text."""
    rate = f"{settings['fps']:g} row/s" + (" (assumed)" if settings["fps_source"] == "assumed" else "")
    parts = [f"{settings['videos']} video(s)", f"{settings['runs']} run(s)", rate]
    if "window_s" in settings:
        parts.append(f"window {settings['window_s']:g} s")
    if "rules" in settings:
        parts.append(f"rules {settings['rules']}")
    if "undefined" in settings:
        parts.append(f"undefined values: {settings['undefined']}")
    return ", ".join(parts)


def describe(summary: Summary) -> str:
    """`94.16 ± 4.67 over videos`: the mean and the spread the field prints beside it, named."""
    text = f"{summary.get('mean', math.nan):7.2f}"
    for key in ("std_phases" if "std_phases" in summary else "std_videos", "std_runs"):
        if not math.isnan(summary.get(key, math.nan)):
            text += f" ± {summary[key]:.2f} over {key.removeprefix('std_')}"
    rest = {key: value for key, value in summary.items() if not key.startswith(("mean", "std_"))}
    return text + "".join(f", {key.replace('_', ' ')} {value:g}" for key, value in rest.items())


def to_json(value: object) -> Json:
    """Plain JSON values; an undefined number (nan, infinity) becomes null."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form here")
