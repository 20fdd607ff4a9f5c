"""The recall study of section "Does the mechanism transfer": every cell with and without rotation, at its own best learning rate."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from surgicalmamba.data.store import write_atomic
from surgicalmamba.errors import StudyError
from surgicalmamba.eval.score import Json, to_json
from surgicalmamba.studies.mqar_config import VARIANTS, Cell, MqarConfig, Variant
from surgicalmamba.studies.mqar_train import RecallRun, train_run
from surgicalmamba.studies.processes import end_with_the_study, job_processes

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Recall:
    """A cell of one variant: accuracy in percent of each seed at the rate that was best on examples kept for choosing."""

    cell: Cell
    variant: Variant
    rate: float
    accuracy: tuple[float, ...]
    by_rate: dict[float, float]
    parameters: int
    minutes: float
    """Median of the runs at all rates."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.accuracy))

    @property
    def deviation(self) -> float:
        """Over seeds; undefined for one."""
        return float(np.std(self.accuracy, ddof=1)) if len(self.accuracy) > 1 else float("nan")

    def as_dict(self) -> dict[str, object]:
        chosen_by = {f"{rate:g}": score for rate, score in self.by_rate.items()}
        return {
            "rate": self.rate,
            "accuracy_by_seed": list(self.accuracy),
            "mean": self.mean,
            "deviation": self.deviation,
            "chosen_by": chosen_by,
            "parameters": self.parameters,
            "minutes_a_run": self.minutes,
        }


@dataclass(frozen=True)
class Pair:
    """The two variants of a cell."""

    plain: Recall
    rotated: Recall

    @property
    def gains(self) -> tuple[float, ...]:
        """Points gained by the rotation, seed by seed; both saw the same data."""
        return tuple(b - a for a, b in zip(self.plain.accuracy, self.rotated.accuracy, strict=True))

    @property
    def gain(self) -> float:
        return float(np.mean(self.gains))

    @property
    def more_weights(self) -> float:
        """Weights added by the rotation, in percent."""
        return 100.0 * (self.rotated.parameters / self.plain.parameters - 1)


def recall_runs(config: MqarConfig, seeds: int) -> list[RecallRun]:
    """Every run of a study; the two variants of a rate and seed come one after the other."""
    return [
        RecallRun(config, cell, variant, rate, seed)
        for cell in config.cells()
        for seed in range(seeds)
        for rate in config.rates
        for variant in VARIANTS
    ]


def train_all(runs: Sequence[RecallRun], out: Path, workers: int, progress: Progress | None = None) -> None:
    """Train every run that is not done, in processes of one thread. The first error ends the study; what is saved stays."""
    waiting = [run for run in runs if run.result(out) is None]
    n_done = len(runs) - len(waiting)
    with ProcessPoolExecutor(workers, mp_context=job_processes(), initializer=end_with_the_study) as pool:
        pending = [pool.submit(train_run, run, out) for run in waiting]
        try:
            for future in as_completed(pending):
                future.result()
                n_done += 1
                if progress is not None:
                    progress(n_done, len(runs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def gather_recall(config: MqarConfig, seeds: int, out: Path) -> list[Pair]:
    """The finished cells in the order of the study."""
    return [Pair(_best(config, cell, "plain", seeds, out), _best(config, cell, "rotated", seeds, out)) for cell in config.cells()]


def _best(config: MqarConfig, cell: Cell, variant: Variant, seeds: int, out: Path) -> Recall:
    found: dict[float, list[Mapping[str, object]]] = {}
    for rate in config.rates:
        for seed in range(seeds):
            run = RecallRun(config, cell, variant, rate, seed)
            result = run.result(out)
            if result is None:
                raise StudyError(f"{run.folder(out)} has no result yet; run the study to its end.")
            found.setdefault(rate, []).append(result)
    by_rate = {rate: float(np.mean([_number(result, "chosen_by") for result in results])) for rate, results in found.items()}
    rate = max(by_rate, key=lambda key: by_rate[key])
    seconds = [_number(result, "seconds") for results in found.values() for result in results]
    accuracy = tuple(_number(result, "accuracy") for result in found[rate])
    parameters = int(_number(found[rate][0], "parameters"))
    return Recall(cell, variant, rate, accuracy, by_rate, parameters, float(np.median(seconds)) / 60)


def _number(result: Mapping[str, object], key: str) -> float:
    return float(str(result[key]))


def write_recall(out: Path, config: MqarConfig, pairs: Sequence[Pair], about: Mapping[str, Json]) -> Path:
    """results.json: settings, and both variants of every cell."""
    document: dict[str, object] = {"study": "mqar", **about, "settings": config.model_dump(mode="json")}
    document["cells"] = {
        pair.plain.cell.name: {
            "plain": pair.plain.as_dict(),
            "rotated": pair.rotated.as_dict(),
            "gain": pair.gain,
            "gain_by_seed": list(pair.gains),
            "more_weights_percent": pair.more_weights,
        }
        for pair in pairs
    }
    file = out / "results.json"
    write_atomic(file, (json.dumps(to_json(document), indent=1) + "\n").encode())
    return file
