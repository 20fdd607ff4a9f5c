"""`study peers`: SurgicalMamba and its peers side by side. Same features, split, seeds, recipe and
learning-rate sweep; accuracy beside the cost of a live frame."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from torch import Tensor

from surgicalmamba.core.state import LaneState
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.score import Json
from surgicalmamba.model.recognizer import AnyRecognizer
from surgicalmamba.model.registry import BUILT_IN, DEFAULT, build, network_of
from surgicalmamba.report.colours import colour
from surgicalmamba.report.figures import save_figure
from surgicalmamba.report.tables import markdown_table, number
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.run import fit_network
from surgicalmamba_lab.studies.ablation import Ablation, AblationPlan, best_rates, run_systems
from surgicalmamba_lab.studies.results import (
    Row,
    division_words,
    markdown,
    put_on_page,
    rates_table,
    write_results,
)
from surgicalmamba_lab.studies.runs import RunJobs, System, surgical_mamba_of

RATES = (2.5e-4, 1e-3, 4e-3, 1.6e-2, 6.4e-2)
"""Learning rates tried for every network: a range so wide that the best of each lies between two others."""
RESCANS = frozenset({"sr-mamba"})
"""Networks that scan the whole past again for every frame. Validation would cost the square of a video's
length, so they train without it and the last epoch is kept."""
PUBLISHED_WIDTH = 768
"""Width of the features at which published sizes are measured: ConvNeXt-Tiny's and ViT-B's."""
LENGTHS = (100, 2_000, 6_000, 20_000)
"""Frames of a procedure at which a step is measured: up to five and a half hours at one frame per second."""
STEPS = 64
"""Frames of a turn: a whole chunk of the paper's slow path, so that one rotation is included."""
TURNS = 3
MAX_TURN_S = 4.0
"""A turn that takes longer ends early."""
TRADEOFF_FRAMES = 6_000
"""An operation of 100 minutes at one frame per second."""
PROTOCOL_METRICS = (
    ("strict", "precision"),
    ("strict", "recall"),
    ("strict-b", "jaccard"),
    ("paper", "jaccard"),
    ("framewise", "jaccard"),
    ("relaxed-repaired", "jaccard"),
    ("relaxed-symmetric", "jaccard"),
    ("segmental", "f1_10"),
    ("segmental", "f1_25"),
    ("segmental", "f1_50"),
    ("segmental", "over_segmentation"),
    ("segmental", "latency_s"),
    ("map", "map"),
    ("calibration", "log_loss"),
    ("calibration", "calibration_error"),
)
"""Columns of the second table; the first has the main ones."""
STYLES = {"O(1)": "-", "O(W)": "--", "O(T)": ":"}
MARKS = "osD^vP*X<>ph"


@dataclass(frozen=True)
class StepCost:
    """A live frame after `frames` frames: its mean over a turn, median over turns; the 95th percentile of
    single frames; and the memory of one procedure."""

    frames: int
    frame_ms: float
    p95_ms: float
    state_bytes: int

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Peers:
    """A finished comparison. `costs` are of the networks as trained here, `published` of those of
    published size."""

    scores: Ablation
    settings: dict[str, dict[str, Any]]
    memory: dict[str, str]
    costs: dict[str, list[StepCost]]
    published: dict[str, list[StepCost]]


def run_peers(
    plan: AblationPlan, dataset: PreparedDataset, out: Path, run: RunJobs, with_published: bool
) -> Peers:
    """Train and score every network of the plan, then measure what a step of each costs. Untrained weights
    cost the same."""
    systems = peer_systems(plan.recipe, plan.rows)
    scores = run_systems(systems, plan, dataset, out, run)
    fitted = {s.name: fit_network(s.config, dataset) for s in systems}
    networks = {name: network_of(name)(config.network) for name, config in fitted.items()}
    published = {k: build(k, PUBLISHED_WIDTH, len(dataset.phases)) for k in networks if with_published}
    return Peers(
        scores,
        {name: study_settings(name, plan.recipe) for name in networks},
        {name: network.memory for name, network in networks.items()},
        {name: step_costs(network) for name, network in networks.items()},
        {name: step_costs(network) for name, network in published.items()},
    )


def peer_systems(recipe: TrainConfig, names: Sequence[str] = ()) -> list[System]:
    """The recipe for each network, SurgicalMamba first. Networks wider than the recipe's are cut down to
    it."""
    chosen = list(names) or list(BUILT_IN)
    for name in chosen:
        network_of(name)  # an unknown name is refused before anything runs
    other, variant = recipe.recognizer.name, recipe.recognizer.variant
    if other != DEFAULT or variant != "full":
        asked = f"variant={variant}" if other == DEFAULT else f"recognizer={other}"
        raise ConfigError(
            f"{asked} would not be used: a comparison trains every network as it is; choose networks with "
            "--peers."
        )
    if len(chosen) < 2:
        raise ConfigError("a comparison takes at least two networks; name more with --peers.")
    systems = []
    for name in sorted(chosen, key=lambda name: name != DEFAULT):
        config = recipe.for_network(name, **study_settings(name, recipe))
        systems.append(System(name, config.with_(validate_every=None) if name in RESCANS else config))
    return systems


def study_settings(name: str, recipe: TrainConfig) -> dict[str, Any]:
    """A network's settings in a comparison: the clips of the recipe, for the same number of updates, and a
    size like its model's; for small features the published sizes would be hundreds of times SurgicalMamba's.

    Recurrent networks get the inner width of its paths, attention its width, scans its width, depth and
    state. TeCNO, Trans-SVNet and OperA are published about as small and keep their sizes. All keep what is
    no width: windows, layers, dropout, weights."""
    if name == DEFAULT:
        return {}
    model = surgical_mamba_of(recipe, "peers")
    width, path, n_blocks = model.d_model, model.block.slow, model.n_blocks
    recurrent = {"d_hidden": path.expand * width}
    attention = {"d_model": width, "n_heads": 4, "d_hidden": 2 * width}
    state = {"d_state": path.d_state, "d_head": path.d_head}
    scan = {"d_model": width, "n_blocks": n_blocks, **state}
    prefix = {"d_model": width, "n_blocks": n_blocks, "path": {"rotation": None, **state}}
    sizes: dict[str, dict[str, Any]] = {
        **dict.fromkeys(("lstm", "sv-rcnet", "tmrnet", "dacat", "mttr-net"), recurrent),
        **dict.fromkeys(("lovit", "skit"), attention),
        **dict.fromkeys(("mamba2", "mamba2-upstream"), scan),
        **dict.fromkeys(("sr-mamba", "sr-mamba-forward"), prefix),
        "surgformer": {"d_model": width, "n_heads": 4, "n_blocks": n_blocks},
    }
    return {"clip_len": model.clip_len, **sizes.get(name, {})}


# What a live frame costs after T frames: milliseconds of a step and bytes of memory. The state of T frames is
# constructed: after enough frames to fill the network's windows, growing tensors are repeated up to T and the
# clock is set. The cost of a step depends on the sizes alone.


@torch.inference_mode()
def step_costs(
    model: AnyRecognizer, lengths: Sequence[int] = LENGTHS, steps: int = STEPS, turns: int = TURNS
) -> list[StepCost]:
    """Measure at every length, one lane, one frame per call, as live."""
    model.eval()
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1, max(min(lengths), steps), model.feature_width, generator=generator)
    features = features.to(model.device, model.dtype)
    start = model.remember(features[:, : min(lengths)], model.initial_state(1))
    costs = []
    for length in lengths:
        state = model.remember(features[:, :1], lengthened(start, length - 1))
        times = [_turn(model, features[:, :steps], state) for _ in range(turns)]
        p95 = float(np.percentile([frame for turn in times for frame in turn], 95))
        costs.append(StepCost(length, 1e3 * median(mean(turn) for turn in times), 1e3 * p95, state.nbytes))
    return costs


def lengthened(state: LaneState, length: int) -> LaneState:
    """The state of one lane as if it had seen `length` frames: what grows is repeated to that length, the
    rest stays."""

    def repeat(tensor: Tensor) -> Tensor:
        return tensor[:, torch.arange(length, device=tensor.device) % state.length]

    named = zip(state.names(), state.tensors(), strict=True)
    tensors = [repeat(tensor) if name in state.GROWING and state.length else tensor for name, tensor in named]
    return state.with_tensors(tensors).at([length])


def _turn(model: AnyRecognizer, features: Tensor, state: LaneState) -> list[float]:
    """Seconds of consecutive frames from a state of T frames."""
    # not timed: the first step of a turn copies what the turns share
    state = model.forward_features(features[:, :1], state).state
    times: list[float] = []
    for frame in features.split(1, dim=1):
        started = time.perf_counter()
        state = model.forward_features(frame, state).state
        times.append(time.perf_counter() - started)
        if sum(times) > MAX_TURN_S:
            break
    return times


# What the study writes: results.json, two figures, and its section of the results page.


def write_peers(
    study: Peers, out: Path, about: Mapping[str, Json], page: Path | None, title: str | None
) -> Path:
    """Results and figures into the study's folder; with a page also the section, its figures beside the
    page."""
    scores = study.scores
    title = title or f"Peers, {scores.dataset.name}, {division_words(scores.rows[0])}"
    more = {
        "learning_rates": scores.rates_as_dict(),
        "memory": study.memory,
        "settings": study.settings,
        "step_costs": {name: [cost.as_dict() for cost in costs] for name, costs in study.costs.items()},
        "step_costs_published_size": {
            name: [c.as_dict() for c in costs] for name, costs in study.published.items()
        },
    }
    file = write_results(out, "peers", scores.dataset, scores.rows, {**about, **more})
    costs, tradeoff = draw_costs(study), draw_tradeoff(study)
    save_figure(costs, out, "peers")
    save_figure(tradeoff, out, "tradeoff")
    if page is not None:
        score_alt = "Strict Jaccard against milliseconds per frame"
        cost_alt = "Milliseconds per frame and memory against the length of the operation"
        text = section(study, about, title)
        put_on_page(page, title, text, (tradeoff, "-tradeoff", score_alt), (costs, "", cost_alt))
    return file


def section(study: Peers, about: Mapping[str, Json], title: str) -> str:
    """Scores under every protocol, costs, and how the learning rates were chosen."""
    scores = study.scores
    rates = best_rates(scores.rate_scores)
    columns = {"memory": study.memory}
    if rates:
        columns["learning rate"] = {row: f"{rate:g}" for row, rate in rates.items()}
    parts = [
        markdown(title, scores.rows, about, more_columns=columns),
        "Every network had the same features, split, seeds, recipe and learning-rate sweep; networks "
        "published wider than "
        "the recipe's SurgicalMamba were cut down to its width (sizes in results.json).\n",
        protocol_table(scores.rows),
        cost_table("Live cost of the networks of this table, one frame at a time", study.costs, study.memory),
    ]
    if study.published:
        heading = f"Live cost at published sizes, features of width {PUBLISHED_WIDTH}"
        parts.append(cost_table(heading, study.published, study.memory))
    if rates:
        parts.append(rates_table(scores.rate_scores, scores.rate_split))
        if ends := ", ".join(at_the_ends(scores.rate_scores)):
            parts.append(
                f"Best at the lowest or highest rate, so that others might suit them better: {ends}.\n"
            )
    return "\n".join(parts)


def at_the_ends(scores: Mapping[str, Mapping[float, float]]) -> list[str]:
    """The rows whose best rate has no neighbour on one side."""
    best = best_rates(scores)
    return [row for row, by_rate in scores.items() if best[row] in (min(by_rate), max(by_rate))]


def protocol_table(rows: Sequence[Row]) -> str:
    """Every network under the other protocols that its predictions allow: means over seeds."""
    columns = [
        (protocol, metric) for protocol, metric in PROTOCOL_METRICS if protocol in rows[0].report.scores
    ]
    table = [["", *(f"{metric}, {protocol}" for protocol, metric in columns)]]
    table += [
        [row.name, *(number(row.mean(protocol, metric)) for protocol, metric in columns)] for row in rows
    ]
    heading = "The other protocols, means over seeds (explained on the page on metrics):"
    return "\n".join([heading, "", *markdown_table(table)]) + "\n"


def cost_table(heading: str, costs: Mapping[str, Sequence[StepCost]], memory: Mapping[str, str]) -> str:
    """Milliseconds per frame and kilobytes of memory at every length; at the longest also the 95th
    percentile and the ratio to the first network."""
    first = next(iter(costs))
    lengths = [f"{cost.frames:,}" for cost in costs[first]]
    head = ["", "memory", *(f"ms at {length}" for length in lengths)]
    head += [
        f"p95 at {lengths[-1]}",
        f"times {first} at {lengths[-1]}",
        *(f"kB at {length}" for length in lengths),
    ]
    table = [head]
    for name, rows in costs.items():
        last, ratio = rows[-1], rows[-1].frame_ms / costs[first][-1].frame_ms
        cells = [*(f"{row.frame_ms:.2f}" for row in rows), f"{last.p95_ms:.2f}", f"{ratio:.2f}"]
        table.append([name, memory[name], *cells, *(f"{row.state_bytes / 1e3:,.1f}" for row in rows)])
    return "\n".join([f"{heading}:", "", *markdown_table(table)]) + "\n"


def draw_costs(study: Peers) -> Figure:
    """Time and memory of a live frame against the length of the operation; published sizes if they were
    measured."""
    costs = study.published or study.costs
    figure = Figure(figsize=(12.5, 5.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_lines(left, costs, study.memory, lambda cost: cost.frame_ms)
    _draw_lines(right, costs, study.memory, lambda cost: cost.state_bytes / 1e6)
    left.set_ylabel("milliseconds per frame")
    right.set_ylabel("memory of one operation, MB")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    what = (
        f"published sizes, features of width {PUBLISHED_WIDTH}"
        if study.published
        else "sizes as trained here"
    )
    figure.suptitle(f"Cost of a live frame ({what}); solid O(1), dashed O(W), dotted O(T)", fontsize=10)
    return figure


def _draw_lines(
    axes: Axes,
    costs: Mapping[str, Sequence[StepCost]],
    memory: Mapping[str, str],
    value: Callable[[StepCost], float],
) -> None:
    for place, (name, rows) in enumerate(costs.items()):
        frames, values = [row.frames for row in rows], [value(row) for row in rows]
        ink, mark = _style(place, name)
        width, label = 2.5 if name == DEFAULT else 1.2, f"{name} {memory[name]}"
        style = STYLES[memory[name]]
        axes.plot(frames, values, style, color=ink, marker=mark, markersize=5, linewidth=width, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS])
    axes.minorticks_off()
    axes.set_xlabel("frames of the operation so far")
    axes.grid(color="#00000020")


def draw_tradeoff(study: Peers) -> Figure:
    """The score of a network against the cost of a live frame late in an operation; the legend ranks them."""
    figure = Figure(figsize=(8.8, 5.4), layout="constrained")
    axes = figure.subplots()
    legend = []
    for place, row in enumerate(study.scores.rows):
        score = row.report.scores["strict"].metrics["jaccard"]
        ms = next(cost.frame_ms for cost in study.costs[row.name] if cost.frames == TRADEOFF_FRAMES)
        spread = score.get("std_runs", math.nan)
        error = None if math.isnan(spread) else spread
        ink, mark = _style(place, row.name)
        size = 9 if row.name == DEFAULT else 6
        point = axes.errorbar(ms, score["mean"], error, fmt=mark, color=ink, markersize=size, capsize=2)
        legend.append((score["mean"], point.lines[0], row.name))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"milliseconds per frame after {TRADEOFF_FRAMES:,} frames, one at a time")
    axes.set_ylabel("strict Jaccard, %; bars: deviation over seeds")
    axes.grid(color="#00000020")
    axes.spines[["top", "right"]].set_visible(False)
    ranked = sorted(legend, key=lambda entry: -entry[0])
    names = [f"{score:.1f}  {name}" for score, _, name in ranked]
    marks = [mark for _, mark, _ in ranked]
    figure.legend(marks, names, loc="outside right center", fontsize=8, frameon=False)
    return figure


def _style(place: int, name: str) -> tuple[str, str]:
    """Colour and mark of a network, a unique pair for up to 72; without yellow, too pale for a line."""
    ink = "black" if name == DEFAULT else colour((place + place // len(MARKS)) % 6)
    return ink, MARKS[place % len(MARKS)]


def summary(study: Peers) -> str:
    """For the terminal: a line per network."""
    head = f"{'':18} {'accuracy':>9} {'jaccard':>8} {'weights':>10} {'memory':>6}"
    lines = [f"{head}   ms per frame at {', '.join(map(str, LENGTHS))}"]
    for row in study.scores.rows:
        ms = "  ".join(f"{cost.frame_ms:.2f}" for cost in study.costs[row.name])
        scores = f"{row.mean('strict', 'accuracy'):9.2f} {row.mean('strict', 'jaccard'):8.2f}"
        lines.append(f"{row.name:18} {scores} {row.parameters:>10,} {study.memory[row.name]:>6}   {ms}")
    return "\n".join(lines)
