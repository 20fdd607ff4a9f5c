"""Folders of label files and predictions in, a report and a comparison out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from surgicalmamba.data.labels import PhaseVocabulary, load_vocabulary
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.eval.compare import Comparison, compare
from surgicalmamba.eval.files import Loaded, Matching, check_rate, load, read_run
from surgicalmamba.eval.frame import RelaxedRules, rules_for
from surgicalmamba.eval.pairs import VideoPair
from surgicalmamba.eval.protocols import USUAL_RULES, score_runs, usual_protocol
from surgicalmamba.eval.score import Json, Report, Settings, to_json

_LONGEST_PLAUSIBLE_HOURS = 8.0


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What one call of `evaluate` found: the report, the videos behind it and, if asked for, the comparison
    with a second system."""

    vocabulary: PhaseVocabulary
    settings: Settings
    runs: list[list[VideoPair]]
    report: Report
    notes: tuple[str, ...]
    compared: Report | None = None
    comparison: dict[str, dict[str, Comparison]] | None = None

    def as_dict(self) -> dict[str, Json]:
        document = self.report.as_dict() | {"dataset": self.vocabulary.dataset, "notes": list(self.notes)}
        if self.compared is not None and self.comparison is not None:
            document["compared_with"] = {"protocols": self.compared.as_dict()["protocols"]}
            compared = self.comparison.items()
            document["comparison"] = to_json(
                {name: {metric: vars(result) for metric, result in of.items()} for name, of in compared}
            )
        return document


def evaluate(
    labels: Path,
    predictions: Sequence[Path],
    phases: str | Path | None = None,
    protocols: Iterable[str] | None = None,
    compare_with: Sequence[Path] = (),
    *,
    fps: float | None = None,
    window_s: float = 10.0,
    rules: str | None = None,
    matching: Matching | None = None,
) -> Evaluation:
    """Score one folder of predictions per run against a folder of labels, and compare with a second system's
    runs on the same videos.

    phases: a dataset's name or a YAML file; without it, the first predictions' run.json says. protocols:
    names, or the dataset's usual one. fps: rows per second; without it, what the files tell, else 1, and the
    report says that this was assumed."""
    vocabulary = _vocabulary(phases, predictions)
    loaded = load(labels, [*predictions, *compare_with], vocabulary, matching)
    rate, source = _rate(loaded, fps)
    settings = Settings(vocabulary.names, rate, source, window_s, _rules(rules, vocabulary))
    notes = list(loaded.notes)
    longest = max(len(video.truth) for video in loaded.runs[0]) / rate / 3600
    if source == "assumed" and longest > _LONGEST_PLAUSIBLE_HOURS:
        notes.append(f"at one row per second the longest video lasts {longest:.1f} hours; if the rows are "
                     "denser, say how dense with --fps")
    names = list(protocols) if protocols is not None else [usual_protocol(vocabulary.dataset)]
    runs, other_runs = loaded.runs[: len(predictions)], loaded.runs[len(predictions) :]
    report = score_runs(runs, settings, names)
    evaluation = Evaluation(vocabulary, settings, runs, report, tuple(notes))
    if not compare_with:
        return evaluation
    other = score_runs(other_runs, settings, report.scores, skip_impossible=True)
    notes += [f"not compared under {name}: {reason}" for name, reason in other.skipped.items()]
    comparison = {}
    for name, second in other.scores.items():
        first = report.scores[name].by_run
        comparison[name] = {metric: compare(first[metric], second.by_run[metric]) for metric in first}
    return replace(evaluation, notes=tuple(notes), compared=other, comparison=comparison)


def _vocabulary(phases: str | Path | None, predictions: Sequence[Path]) -> PhaseVocabulary:
    if phases is not None:
        return load_vocabulary(phases)
    info = read_run(predictions[0]) if predictions and predictions[0].is_dir() else None
    if info is None:
        raise ConfigError("no phases given and the predictions have no run.json; name a dataset (cholec80) "
                          "or a YAML file with --phases.")
    return PhaseVocabulary(info.dataset, info.phases, source=str(predictions[0] / "run.json"))


def _rate(loaded: Loaded, fps: float | None) -> tuple[float, str]:
    """Rows per second, and where that was learnt."""
    if fps is not None:
        check_rate(fps, loaded.fps, "the files")
        return fps, "given"
    if loaded.fps is not None:
        return loaded.fps, "files"
    if loaded.mixed_steps is not None:
        raise DataError(f"{loaded.mixed_steps}: mixed frame grids. If each row is one second in all of them, "
                        "say so with --fps 1.")
    return 1.0, "assumed"


def _rules(name: str | None, vocabulary: PhaseVocabulary) -> RelaxedRules | None:
    chosen = name if name is not None else USUAL_RULES.get(vocabulary.dataset)
    return rules_for(chosen, len(vocabulary)) if chosen is not None else None
