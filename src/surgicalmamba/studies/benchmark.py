"""One recipe on one dataset: several seeds, several splits, as many variants as asked for. Every number under every protocol."""

from collections.abc import Sequence
from fnmatch import fnmatch

from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError
from surgicalmamba.studies.runner import Job
from surgicalmamba.train.config import TrainConfig


def benchmark_jobs(config: TrainConfig, dataset: PreparedDataset, seeds: int, variants: Sequence[str], splits: str | None) -> list[Job]:
    """A job for each variant, seed and split. Scored are a split's validation videos, by which the epoch was chosen; where a split has
    none, the last epoch is the model and the test videos are scored."""
    chosen = [name for name in dataset.splits if fnmatch(name, splits)] if splits else list(dataset.splits)[:1]
    if not chosen:
        raise ConfigError(f"no split of {dataset.folder} matches {splits!r}; it has {', '.join(dataset.splits)}.")
    jobs = []
    for variant in variants:
        for seed in range(seeds):
            for split in chosen:
                role = "val" if dataset.splits[split].get("val") else "test"
                data = config.data.with_(path=str(dataset.folder), split=split)
                name = "-".join([variant, f"seed{seed}", *([split] if len(chosen) > 1 else [])])
                jobs.append(Job(name, variant, config.with_(data=data, seed=seed, variant=variant), role))
    return jobs
