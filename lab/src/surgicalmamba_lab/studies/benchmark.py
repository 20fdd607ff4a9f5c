"""Jobs of a study: systems, each with several seeds, over several splits. `study benchmark` takes a recipe and variants of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.registry import DEFAULT
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.run import check_network, fit_network
from surgicalmamba_lab.studies.division import chosen_splits
from surgicalmamba_lab.studies.runner import Job

RunJobs = Callable[[list[Job], str], None]
"""Runs jobs to their end; the text says what they are."""


@dataclass(frozen=True)
class System:
    """A row of a study before it is run: its name and how it is trained, seed and split apart."""

    name: str
    config: TrainConfig


def benchmark_jobs(config: TrainConfig, dataset: PreparedDataset, seeds: int, variants: Sequence[str], splits: str | None) -> list[Job]:
    """A job for each variant, seed and split."""
    chosen = chosen_splits(dataset, splits)
    return system_jobs(benchmark_systems(config, variants), dataset, range(seeds), chosen, name_splits=len(chosen) > 1)


def benchmark_systems(config: TrainConfig, variants: Sequence[str]) -> list[System]:
    """A row for each variant; without any, the recipe as it is, named by its variant or by its network."""
    network = config.recognizer.name
    if network != DEFAULT:
        if variants:
            raise ConfigError(f"the recipe trains {network}, and variants are SurgicalMamba's; leave --variants out.")
        return [System(network, config)]
    return [System(variant, config.with_(variant=variant)) for variant in variants or [config.variant]]


def refuse_other_networks(config: TrainConfig, study: str) -> None:
    """For a study of SurgicalMamba's parts."""
    if config.recognizer.name != DEFAULT:
        raise ConfigError(f"study {study} takes SurgicalMamba apart, and the recipe trains {config.recognizer.name}; use study benchmark.")


def system_jobs(
    systems: Sequence[System], dataset: PreparedDataset, seeds: Sequence[int], splits: Sequence[str], name_splits: bool
) -> list[Job]:
    """A job for each system, seed and split. Scored are a split's validation videos, by which the epoch was chosen; where a split has
    none, the last epoch is the model and the test videos are scored. What cannot be trained is refused here, before anything runs."""
    jobs = []
    for system in systems:
        check_network(fit_network(system.config, dataset))
        for seed in seeds:
            for split in splits:
                role = "val" if dataset.splits[split].get("val") else "test"
                data = system.config.data.with_(path=str(dataset.folder), split=split)
                name = "-".join([system.name, f"seed{seed}", *([split] if name_splits else [])])
                jobs.append(Job(name, system.name, system.config.with_(data=data, seed=seed), role))
    return jobs
