"""The paper's table "Component ablation": the full model, two controls, and the full model without one part at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.surgical_mamba import VARIANTS
from surgicalmamba.train.config import TrainConfig
from surgicalmamba_lab.studies.benchmark import RunJobs, System, refuse_other_networks, system_jobs
from surgicalmamba_lab.studies.division import divide, with_tuning
from surgicalmamba_lab.studies.results import Row, gather
from surgicalmamba_lab.studies.runner import Job

WITHOUT_SMOOTH = "without-smooth"
ROWS = (*VARIANTS, WITHOUT_SMOOTH)
"""Rows of the table; all are compared with the first. The last is a training setting, the others are variants of the model: those of the
paper's table, then controls of the rotation that it does not have."""


@dataclass(frozen=True)
class AblationPlan:
    """What a call of the study asks for. `splits` is a pattern; `folds` cuts the dataset anew instead. Without `rates` every row has
    the recipe's learning rate; with them each has its best, by the validation videos of the first `rate_seeds` seeds."""

    recipe: TrainConfig
    rows: tuple[str, ...]
    seeds: int
    splits: str | None
    folds: int | None
    rates: tuple[float, ...]
    rate_seeds: int
    train_folds: int | None = None


@dataclass(frozen=True, eq=False)
class Ablation:
    """A finished ablation. `rate_scores` is the strict Jaccard on validation videos by row and learning rate; empty without a sweep."""

    dataset: PreparedDataset
    rows: list[Row]
    rate_scores: dict[str, dict[float, float]]
    rate_split: str | None


def run_ablation(plan: AblationPlan, dataset: PreparedDataset, out: Path, run: RunJobs) -> Ablation:
    """The rows of the table, trained and scored."""
    return run_systems(ablation_systems(plan.recipe, plan.rows), plan, dataset, out, run)


def run_systems(systems: Sequence[System], plan: AblationPlan, dataset: PreparedDataset, out: Path, run: RunJobs) -> Ablation:
    """Divide the dataset, choose learning rates where asked, train and score every system."""
    view, chosen = divide(dataset, out, plan.splits, plan.folds, plan.train_folds)
    rate_split = None
    if plan.rates:
        view, rate_split = with_tuning(view, out, chosen)
    scores: dict[str, dict[float, float]] = {}
    if rate_split is not None:
        trials = system_jobs([at_rate(s, r) for s in systems for r in plan.rates], view, range(plan.rate_seeds), [rate_split], True)
        tuning = [replace(job, may_diverge=True) for job in trials]
        run(tuning, "learning rates")
        diverged = {job.group for job in tuning if job.diverged(out)}
        scores = _rate_scores(systems, plan.rates, gather([job for job in tuning if job.group not in diverged], out, view))
    jobs = _final_jobs(systems, best_rates(scores), view, range(plan.seeds), chosen)
    run(jobs, "runs")
    return Ablation(view, gather(jobs, out, view), scores, rate_split)


def ablation_systems(config: TrainConfig, rows: Sequence[str] = ROWS) -> list[System]:
    """The recipe for each row, in the order of the table."""
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise ConfigError(f"unknown row {unknown[0]!r} of the ablation; rows: {', '.join(ROWS)}.")
    refuse_other_networks(config, "ablation")
    if config.variant != "full":
        raise ConfigError(f"variant={config.variant} would not be used: the rows of an ablation are variants; choose some with --rows.")
    systems = [System(row, _without(config, row)) for row in ROWS if row in rows]
    _refuse_equal_rows(systems)
    return systems


def _refuse_equal_rows(systems: Sequence[System]) -> None:
    """A recipe that lacks a part already, such as loss.smooth_weight=0, has no row without it."""
    networks = [(system.config.model.variant(system.config.variant), system.config.loss) for system in systems]
    for later, network in enumerate(networks):
        if (earlier := networks.index(network)) < later:
            raise ConfigError(
                f"rows {systems[earlier].name} and {systems[later].name} would be the same: the recipe leaves that part out already; "
                "choose other rows with --rows."
            )


def _without(config: TrainConfig, row: str) -> TrainConfig:
    if row == WITHOUT_SMOOTH:
        return config.with_(variant="full", loss=config.loss.with_(smooth_weight=0.0))
    assert row in VARIANTS
    return config.with_(variant=row)


def at_rate(system: System, rate: float) -> System:
    """The same row at another learning rate."""
    return System(f"{system.name}-lr{rate:g}", system.config.with_(optim=system.config.optim.with_(lr=rate)))


def _rate_scores(systems: Sequence[System], rates: Sequence[float], tuned: Sequence[Row]) -> dict[str, dict[float, float]]:
    """What each rate reached; one at which training diverged counts as 0."""
    reached = {row.name: row.report.scores["strict"].metrics["jaccard"]["mean"] for row in tuned}
    return {system.name: {rate: reached.get(at_rate(system, rate).name, 0.0) for rate in rates} for system in systems}


def best_rates(scores: Mapping[str, Mapping[float, float]]) -> dict[str, float]:
    """The rate of each row with the best score; of equal ones the first."""
    return {row: max(by_rate, key=lambda rate: by_rate[rate]) for row, by_rate in scores.items()}


def _final_jobs(
    systems: Sequence[System], rates: Mapping[str, float], dataset: PreparedDataset, seeds: Sequence[int], splits: Sequence[str]
) -> list[Job]:
    """Every row, at its own rate where one was chosen, reported under its plain name. What the sweep has already trained on the same
    split is the same job, so it is not trained again."""
    jobs = []
    for system in systems:
        tuned = at_rate(system, rates[system.name]) if system.name in rates else system
        for job in system_jobs([tuned], dataset, seeds, splits, name_splits=True):
            jobs.append(Job(job.name, system.name, job.config, job.role))
    return jobs
