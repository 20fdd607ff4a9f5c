"""Appendix "Hyperparameter sensitivity": rank, chunk, state and number of blocks, each swept with the other three as in the recipe; and the
angle at which rotations begin, where paper and release differ a hundredfold."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.surgical_mamba import ModelConfig, RotationConfig
from surgicalmamba.train.config import TrainConfig
from surgicalmamba_lab.studies.benchmark import RunJobs, System, refuse_other_networks, system_jobs
from surgicalmamba_lab.studies.division import divide
from surgicalmamba_lab.studies.results import Row, gather

DEFAULT = "default"


@dataclass(frozen=True)
class Knob:
    """One setting: its letter in the paper, how it is read, how it is turned, and the values tried unless others are given."""

    letter: str
    title: str
    value: Callable[[ModelConfig], float]
    turn: Callable[[ModelConfig, float], ModelConfig]
    usual: Callable[[Any], tuple[float, ...]]
    kind: type[int] | type[float] = int


def _rotation(model: ModelConfig) -> RotationConfig:
    if model.block.slow.rotation is None:
        raise ConfigError("the recipe has no rotation to sweep; leave rank, chunk and angle out or use a recipe with block.slow.rotation.")
    return model.block.slow.rotation


def _with_chunk(model: ModelConfig, chunk_len: float) -> ModelConfig:
    """Slow and fast path; the head's chunk is a setting of its own."""
    fast = model.block.fast
    slow = model.block.slow.with_(chunk_len=chunk_len)
    return model.with_(block=model.block.with_(slow=slow, fast=None if fast is None else fast.with_(chunk_len=chunk_len)))


def _octaves(value: int) -> tuple[int, ...]:
    """From a quarter of the default to twice it."""
    return tuple(dict.fromkeys(max(1, value * 2**step // 4) for step in range(4)))


KNOBS: dict[str, Knob] = {
    "rank": Knob("r", "rotation rank r", lambda model: _rotation(model).rank, lambda model, r: model.with_rotation(rank=r), _octaves),
    "chunk": Knob("C", "chunk, frames", lambda model: model.block.slow.chunk_len, _with_chunk, _octaves),
    "state": Knob(
        "N",
        "state width N",
        lambda model: model.block.slow.d_state,
        lambda model, n: model.with_paths(d_state=n),
        lambda n: (n // 2, n, 2 * n, 4 * n),
    ),
    "blocks": Knob(
        "K", "blocks K", lambda model: model.n_blocks, lambda model, k: model.with_(n_blocks=k), lambda k: tuple(range(1, k + 3))
    ),
    "angle": Knob(
        "theta",
        "angle at the start, radians",
        lambda model: _rotation(model).start_angle,
        lambda model, theta: model.with_rotation(theta_init=theta),
        lambda _: (0.005, 0.05, 0.3, 1.0),
        float,
    ),
}
OF_ROTATION = ("rank", "chunk", "angle")
"""Sweeps that change nothing in a model without rotation."""
PAPER = ("rank", "chunk", "state", "blocks")
"""The sweeps of the paper's figure."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """The rows of one knob by its value, the default among them."""

    knob: Knob
    default: float
    rows: dict[float, Row]


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """A finished study; `rows` has the default first, then every other setting."""

    dataset: PreparedDataset
    rows: list[Row]
    sweeps: dict[str, Sweep]


def sweep_systems(config: TrainConfig, values: Mapping[str, Sequence[float]]) -> dict[str, dict[float, System]]:
    """For each knob its values and their recipes. The default is one and the same system in all of them; a value that contradicts
    another setting is refused with the knob's name."""
    refuse_other_networks(config, "sensitivity")
    systems: dict[str, dict[float, System]] = {}
    for name, tried in values.items():
        if name in OF_ROTATION:
            _rotation(config.model.variant(config.variant))
        knob = KNOBS[name]
        default = knob.value(config.model)
        systems[name] = {}
        for value in sorted({default, *(tried or knob.usual(default))}):
            if value == default:
                systems[name][value] = System(DEFAULT, config)
                continue
            try:
                systems[name][value] = System(f"{knob.letter}{value:g}", config.with_(model=knob.turn(config.model, value)))
            except ConfigError as error:
                raise ConfigError(f"--{name} {value:g} does not fit the recipe: {error}") from None
    return systems


def run_sensitivity(
    config: TrainConfig,
    values: Mapping[str, Sequence[float]],
    seeds: int,
    splits: str | None,
    folds: int | None,
    train_folds: int | None,
    dataset: PreparedDataset,
    out: Path,
    run: RunJobs,
) -> Sensitivity:
    """Train and score every setting; each once, however many sweeps it is part of."""
    systems = sweep_systems(config, values)
    view, chosen = divide(dataset, out, splits, folds, train_folds)
    once = {system.name: system for by_value in systems.values() for system in by_value.values()}
    ordered = [once[DEFAULT], *(system for name, system in once.items() if name != DEFAULT)]
    jobs = system_jobs(ordered, view, range(seeds), chosen, name_splits=True)
    run(jobs, "runs")
    rows = gather(jobs, out, view)
    by_name = {row.name: row for row in rows}
    sweeps = {
        name: Sweep(KNOBS[name], KNOBS[name].value(config.model), {value: by_name[s.name] for value, s in by_value.items()})
        for name, by_value in systems.items()
    }
    return Sensitivity(view, rows, sweeps)
