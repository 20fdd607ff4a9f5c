"""`study sensitivity`, the paper's appendix "Hyperparameter sensitivity": rank, chunk, state and number of
blocks, each swept with the others as in the recipe. And the start angle of the rotations, where paper and
release differ a hundredfold."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.score import Json
from surgicalmamba.model.surgical_mamba import ModelConfig, RotationConfig
from surgicalmamba.report.colours import colour
from surgicalmamba.report.figures import save_figure
from surgicalmamba.train.config import TrainConfig
from surgicalmamba_lab.studies.results import (
    Row,
    division_words,
    gather,
    markdown,
    put_on_page,
    write_results,
)
from surgicalmamba_lab.studies.runs import RunJobs, System, divide, surgical_mamba_of, system_jobs

DEFAULT = "default"


@dataclass(frozen=True)
class Knob:
    """One setting: its letter in the paper, how to read and set it, and the values to try by default."""

    letter: str
    title: str
    value: Callable[[ModelConfig], float]
    turn: Callable[[ModelConfig, float], ModelConfig]
    usual: Callable[[Any], tuple[float, ...]]
    kind: type[int] | type[float] = int


def _rotation(model: ModelConfig) -> RotationConfig:
    if model.block.slow.rotation is None:
        raise ConfigError(
            "the recipe has no rotation to sweep; leave rank, chunk and angle out or use a recipe with "
            "block.slow.rotation."
        )
    return model.block.slow.rotation


def _with_chunk(model: ModelConfig, chunk_len: float) -> ModelConfig:
    """Slow and fast path; the head's chunk is a setting of its own."""
    slow, fast = model.block.slow.with_(chunk_len=chunk_len), model.block.fast
    return model.with_(block=model.block.with_(slow=slow, fast=fast and fast.with_(chunk_len=chunk_len)))


def _octaves(value: int) -> tuple[int, ...]:
    """From a quarter of the default to twice it."""
    return tuple(dict.fromkeys(max(1, value * 2**step // 4) for step in range(4)))


KNOBS: dict[str, Knob] = {
    "rank": Knob(
        "r",
        "rotation rank r",
        lambda model: _rotation(model).rank,
        lambda model, r: model.with_rotation(rank=r),
        _octaves,
    ),
    "chunk": Knob("C", "chunk, frames", lambda model: model.block.slow.chunk_len, _with_chunk, _octaves),
    "state": Knob(
        "N",
        "state width N",
        lambda model: model.block.slow.d_state,
        lambda model, n: model.with_paths(d_state=n),
        lambda n: (n // 2, n, 2 * n, 4 * n),
    ),
    "blocks": Knob(
        "K",
        "blocks K",
        lambda model: model.n_blocks,
        lambda model, k: model.with_(n_blocks=k),
        lambda k: tuple(range(1, k + 3)),
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
LINES = {
    "relaxed-published": ("relaxed, 10 s", "-", "o", colour(0)),
    "strict": ("strict", "--", "s", colour(5)),
}


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


def sweep_systems(
    config: TrainConfig, values: Mapping[str, Sequence[float]]
) -> dict[str, dict[float, System]]:
    """For each knob its values and their recipes. The default is the same system in all of them; a value
    that contradicts another setting is refused with the knob's name."""
    model = surgical_mamba_of(config, "sensitivity")
    systems: dict[str, dict[float, System]] = {}
    for name, chosen in values.items():
        if name in OF_ROTATION:
            _rotation(model.variant(config.recognizer.variant))
        knob = KNOBS[name]
        default = knob.value(model)
        systems[name] = {}
        for value in sorted({default, *(chosen or knob.usual(default))}):
            if value == default:
                systems[name][value] = System(DEFAULT, config)
                continue
            try:
                turned = config.with_network(knob.turn(model, value))
            except ConfigError as error:
                raise ConfigError(f"--{name} {value:g} does not fit the recipe: {error}") from None
            systems[name][value] = System(f"{knob.letter}{value:g}", turned)
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
    model, systems = surgical_mamba_of(config, "sensitivity"), sweep_systems(config, values)
    view, chosen = divide(dataset, out, splits, folds, train_folds)
    once = {system.name: system for by_value in systems.values() for system in by_value.values()}
    ordered = [once.pop(DEFAULT), *once.values()]
    jobs = system_jobs(ordered, view, range(seeds), chosen, name_splits=True)
    run(jobs, "runs")
    rows = {row.name: row for row in gather(jobs, out, view)}
    sweeps = {}
    for name, by_value in systems.items():
        knob = KNOBS[name]
        of_knob = {value: rows[system.name] for value, system in by_value.items()}
        sweeps[name] = Sweep(knob, knob.value(model), of_knob)
    return Sensitivity(view, list(rows.values()), sweeps)


# What the study writes: results.json, the paper's figure, and its section of the results page.


def write_sensitivity(
    study: Sensitivity, out: Path, about: Mapping[str, Json], page: Path | None, title: str | None
) -> Path:
    """Results and figure into the study's folder; with a page also the section, its figure beside the
    page."""
    title = title or f"Sensitivity, {study.dataset.name}, {division_words(study.rows[0])}"
    sweeps = {
        name: {
            "default": sweep.default,
            "rows": {f"{value:g}": row.name for value, row in sweep.rows.items()},
        }
        for name, sweep in study.sweeps.items()
    }
    file = write_results(out, "sensitivity", study.dataset, study.rows, {**about, "sweeps": sweeps})
    figure = draw_sensitivity(list(study.sweeps.values()), title)
    save_figure(figure, out, "sensitivity")
    if page is not None:
        text = markdown(title, study.rows, about) + "\n" + " ".join(map(ranges, study.sweeps.values())) + "\n"
        put_on_page(
            page, title, text, (figure, "", "Accuracy over each hyperparameter, under both protocols")
        )
    return file


def ranges(sweep: Sweep) -> str:
    """How far the sweep's strict accuracies lie from the default's, and the deviation over videos to
    compare with."""
    means = {value: row.mean("strict", "accuracy") for value, row in sweep.rows.items()}
    others = [mean - means[sweep.default] for value, mean in means.items() if value != sweep.default]
    if not others:
        return f"{sweep.knob.letter}: nothing but the default {sweep.default:g} was tried."
    spread = _accuracy(sweep.rows[sweep.default], "strict")["std_videos"]
    values = ", ".join(f"{value:g}" for value in means)
    return (
        f"{sweep.knob.letter} in {values}: strict accuracy {min(others):+.2f} to {max(others):+.2f} points "
        "from that of "
        f"{sweep.default:g}; its deviation over videos is {spread:.2f}."
    )


def _accuracy(row: Row, protocol: str) -> Mapping[str, float]:
    return row.report.scores[protocol].metrics["accuracy"]


def draw_sensitivity(sweeps: Sequence[Sweep], title: str) -> Figure:
    """A panel per sweep: accuracy under both protocols with a band of one deviation over videos; dotted:
    the default."""
    n_rows = -(-len(sweeps) // 2)
    figure = Figure(figsize=(9.0 if len(sweeps) > 1 else 5.0, 0.7 + 2.9 * n_rows), layout="constrained")
    panels = figure.subplots(n_rows, min(2, len(sweeps)), sharey=True, squeeze=False)
    for axes, sweep in zip(panels.flat, sweeps, strict=False):
        _draw_sweep(axes, sweep)
    for axes in panels.flat[len(sweeps) :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("accuracy, %")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8, loc="outside lower center", ncols=2)
    figure.suptitle(title, fontsize=10)
    return figure


def _draw_sweep(axes: Axes, sweep: Sweep) -> None:
    values, rows = list(sweep.rows), list(sweep.rows.values())
    places = range(len(values))
    for protocol, (label, style, mark, ink) in LINES.items():
        if protocol not in rows[0].report.scores:
            continue
        means = [row.mean(protocol, "accuracy") for row in rows]
        deviations = [_accuracy(row, protocol)["std_videos"] for row in rows]
        low, high = ([m + sign * d for m, d in zip(means, deviations, strict=True)] for sign in (-1, 1))
        axes.fill_between(places, low, high, color=ink, alpha=0.15, linewidth=0)
        axes.plot(places, means, color=ink, linestyle=style, marker=mark, markersize=4, label=label)
    axes.axvline(values.index(sweep.default), color="#555555", linestyle=":", linewidth=1.2)
    axes.set_xticks(places, [f"{value:g}" for value in values])
    axes.set_xlabel(sweep.knob.title)
    axes.grid(axis="y", color="#00000020")
    top = axes.secondary_xaxis("top")
    counts = [row.parameters for row in rows]
    texts = [f"{count / 1e6:.2f}M" if count >= 1e6 else f"{count / 1e3:.0f}k" for count in counts]
    top.set_xticks(places, texts, fontsize=7)
    top.tick_params(length=0)
    top.set_xlabel("weights", fontsize=7)
    axes.spines[["right"]].set_visible(False)
