"""What a protocol has to know besides the labels, and what it states about itself."""

from dataclasses import dataclass
from math import isfinite

from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.pairs import VideoPair
from surgicalmamba.eval.relaxed import RULES, RelaxedRules
from surgicalmamba.eval.score import Json


@dataclass(frozen=True)
class Settings:
    """Phase names, rows per second and the relaxed boundary."""

    names: tuple[str, ...]
    fps: float = 1.0
    """Rows per second of the label files, not of the video they were made from."""
    fps_source: str = "given"
    window_s: float = 10.0
    rules: RelaxedRules | None = None
    n_bins: int = 15

    def __post_init__(self) -> None:
        if not (self.fps > 0 and isfinite(self.fps)):
            raise ConfigError(f"fps={self.fps} is not a rate: give the rows per second of the label files, such as 1.")
        if not (self.window_s >= 0 and isfinite(self.window_s)):
            raise ConfigError(f"window_s={self.window_s} is not a duration: give seconds, such as 10.")

    @property
    def n_phases(self) -> int:
        return len(self.names)

    @property
    def window_rows(self) -> int:
        return round(self.window_s * self.fps)

    def require_rules(self, protocol: str) -> RelaxedRules:
        if self.rules is None:
            raise ConfigError(
                f"{protocol} tells neighbouring phases by their numbers and has no rules for these {self.n_phases} phases: name rules "
                f"({', '.join(sorted(RULES))}), or use relaxed-symmetric, which needs none."
            )
        return self.rules

    @staticmethod
    def videos(runs: list[list[VideoPair]]) -> tuple[str, ...]:
        return tuple(video.name for video in runs[0])

    def describe(self, runs: list[list[VideoPair]], undefined: str | None = None, relaxed: bool = False) -> dict[str, Json]:
        """The settings that go with a number."""
        stated: dict[str, Json] = {"videos": len(runs[0]), "runs": len(runs), "rows": sum(len(video.truth) for video in runs[0])}
        stated["unlabelled_rows"] = sum(int((~video.labelled).sum()) for video in runs[0])
        stated |= {"fps": self.fps, "fps_source": self.fps_source}
        if undefined is not None:
            stated["undefined"] = undefined
        if relaxed:
            stated |= {"window_s": self.window_s, "rules": self.rules.name if self.rules else None}
        return stated
