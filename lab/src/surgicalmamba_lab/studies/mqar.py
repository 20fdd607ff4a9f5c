"""The recall study of section "Does the mechanism transfer": every cell with and without rotation, at its own best learning rate."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from surgicalmamba.errors import StudyError
from surgicalmamba.eval.compare import Comparison, compare
from surgicalmamba.eval.pairs import FloatArray
from surgicalmamba.eval.score import Json, to_json
from surgicalmamba.files import write_atomic
from surgicalmamba_lab.studies.mqar_config import Cell, MqarConfig, Variant
from surgicalmamba_lab.studies.mqar_train import RecallRun, train_run
from surgicalmamba_lab.studies.processes import end_with_the_study, job_processes

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Recall:
    """A variant of a cell at the rate that was best on examples kept for choosing."""

    cell: Cell
    variant: Variant
    rate: float
    by_batch: FloatArray
    """Accuracy in percent (seeds, test batches); the batches are the same for all seeds and variants."""
    updates: tuple[int, ...]
    to_half: tuple[int | None, ...]
    """Updates until half of the questions of a training batch were answered, by seed; None where that was never so."""
    by_rate: dict[float, float]
    parameters: int
    minutes: float
    """Median of the runs at all rates."""

    @property
    def accuracy(self) -> FloatArray:
        """By seed."""
        return np.asarray(self.by_batch.mean(axis=1))

    @property
    def mean(self) -> float:
        return float(self.accuracy.mean())

    @property
    def deviation(self) -> float:
        """Over seeds; undefined for one."""
        return float(np.std(self.accuracy, ddof=1)) if len(self.accuracy) > 1 else float("nan")

    @property
    def median_to_half(self) -> float:
        """Infinite where most seeds never came so far."""
        return float(np.median([np.inf if updates is None else updates for updates in self.to_half]))

    def as_dict(self) -> dict[str, object]:
        return {
            "rate": self.rate,
            "accuracy_by_seed": [float(value) for value in self.accuracy],
            "accuracy_by_seed_and_batch": self.by_batch.tolist(),
            "mean": self.mean,
            "deviation": self.deviation,
            "updates_by_seed": list(self.updates),
            "updates_to_half_by_seed": list(self.to_half),
            "chosen_by": {f"{rate:g}": score for rate, score in self.by_rate.items()},
            "parameters": self.parameters,
            "minutes_a_run": self.minutes,
        }


@dataclass(frozen=True, eq=False)
class CellResult:
    """All variants of a cell; the first is what the others are compared with."""

    rows: tuple[Recall, ...]

    @property
    def cell(self) -> Cell:
        return self.rows[0].cell

    def gain(self, row: Recall) -> Comparison:
        """A variant minus the first, in points, with the interval over seeds and test batches together."""
        return compare(row.by_batch, self.rows[0].by_batch)

    def more_weights(self, row: Recall) -> float:
        """Weights that a variant adds to the first, in percent."""
        return 100.0 * (row.parameters / self.rows[0].parameters - 1)


def rate_runs(config: MqarConfig, seeds: int) -> list[RecallRun]:
    """The runs that choose the rates; variants of a rate and seed come one after the other."""
    return [
        RecallRun(config, cell, variant, rate, seed)
        for seed in range(min(seeds, config.rate_seeds))
        for cell in config.sizes()
        for rate in config.rates
        for variant in config.variants
    ]


def final_runs(config: MqarConfig, seeds: int, out: Path) -> list[RecallRun]:
    """The other seeds of every cell and variant, at the rate that was chosen."""
    chosen = {(cell, variant): best_rate(config, cell, variant, seeds, out)[0] for cell in config.sizes() for variant in config.variants}
    return [
        RecallRun(config, cell, variant, rate, seed)
        for seed in range(config.rate_seeds, seeds)
        for (cell, variant), rate in chosen.items()
    ]


def train_all(runs: Sequence[RecallRun], out: Path, workers: int, progress: Progress | None = None, device: str = "cpu") -> None:
    """Train every run that is not done, in processes of one thread. The first error ends the study; what is saved stays."""
    waiting = [run for run in runs if run.result(out) is None]
    n_done = len(runs) - len(waiting)
    with ProcessPoolExecutor(workers, mp_context=job_processes(), initializer=end_with_the_study) as pool:
        pending = [pool.submit(train_run, run, out, device) for run in waiting]
        try:
            for future in as_completed(pending):
                future.result()
                n_done += 1
                if progress is not None:
                    progress(n_done, len(runs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def best_rate(config: MqarConfig, cell: Cell, variant: Variant, seeds: int, out: Path) -> tuple[float, dict[float, float]]:
    """The rate with the best mean accuracy on the examples kept for choosing, and that mean for every rate."""
    by_rate = {
        rate: float(np.mean([_number(_result(RecallRun(config, cell, variant, rate, seed), out), "chosen_by") for seed in range(n)]))
        for rate in config.rates
        for n in [min(seeds, config.rate_seeds)]
    }
    return max(by_rate, key=lambda rate: by_rate[rate]), by_rate


def gather_recall(config: MqarConfig, seeds: int, out: Path) -> list[CellResult]:
    """The finished cells in the order of the study."""
    return [CellResult(tuple(_best(config, cell, variant, seeds, out) for variant in config.variants)) for cell in config.sizes()]


def _best(config: MqarConfig, cell: Cell, variant: Variant, seeds: int, out: Path) -> Recall:
    rate, by_rate = best_rate(config, cell, variant, seeds, out)
    results = [_result(RecallRun(config, cell, variant, rate, seed), out) for seed in range(seeds)]
    halves = [result["updates_to_half"] for result in results]
    return Recall(
        cell=cell,
        variant=variant,
        rate=rate,
        by_batch=np.array([result["accuracy_by_batch"] for result in results], dtype=np.float64),
        updates=tuple(int(_number(result, "updates")) for result in results),
        to_half=tuple(None if half is None else int(str(half)) for half in halves),
        by_rate=by_rate,
        parameters=int(_number(results[0], "parameters")),
        minutes=float(np.median([_number(result, "seconds") for result in results])) / 60,
    )


def _result(run: RecallRun, out: Path) -> dict[str, object]:
    result = run.result(out)
    if result is None:
        raise StudyError(f"{run.folder(out)} has no result yet; run the study to its end.")
    return result


def _number(result: Mapping[str, object], key: str) -> float:
    return float(str(result[key]))


def write_recall(out: Path, config: MqarConfig, cells: Sequence[CellResult], about: Mapping[str, Json]) -> Path:
    """results.json: settings, and every variant of every cell with its gain."""
    document: dict[str, object] = {"study": "mqar", **about, "settings": config.model_dump(mode="json")}
    document["cells"] = {
        found.cell.name: {
            row.variant: {
                **row.as_dict(),
                "gain": None if row is found.rows[0] else found.gain(row).as_dict(),
                "more_weights_percent": found.more_weights(row),
            }
            for row in found.rows
        }
        for found in cells
    }
    file = out / "results.json"
    write_atomic(file, (json.dumps(to_json(document), indent=1) + "\n").encode())
    return file
