"""SurgicalMamba and its peers side by side: same features, split, seeds, recipe and learning-rate sweep; accuracy beside cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.recognizer import AnyRecognizer
from surgicalmamba.model.registry import BUILT_IN, DEFAULT, build, network_of
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.run import fit_model
from surgicalmamba_lab.studies.ablation import Ablation, AblationPlan, run_systems
from surgicalmamba_lab.studies.benchmark import RunJobs, System
from surgicalmamba_lab.studies.step_cost import StepCost, step_costs

RATES = (2.5e-4, 1e-3, 4e-3, 1.6e-2, 6.4e-2)
"""Learning rates tried for every network: wide enough that the best of each lies between two others."""
RESCANS = frozenset({"sr-mamba"})
"""Networks that scan the whole past anew for every frame. They pay the square of a video, so training has no validation: the last epoch
is kept."""
PUBLISHED_WIDTH = 768
"""Width of the features at which published sizes are measured: ConvNeXt-Tiny's and ViT-B's."""


@dataclass(frozen=True, eq=False)
class Peers:
    """A finished comparison. `costs` are of the networks as trained here, `published` of those of published size."""

    scores: Ablation
    settings: dict[str, dict[str, Any]]
    memory: dict[str, str]
    costs: dict[str, list[StepCost]]
    published: dict[str, list[StepCost]]


def run_peers(plan: AblationPlan, dataset: PreparedDataset, out: Path, run: RunJobs, with_published: bool) -> Peers:
    """Train and score every network of the plan, then measure what a step of each costs."""
    systems = peer_systems(plan.recipe, plan.rows)
    scores = run_systems(systems, plan, dataset, out, run)
    networks = {system.name: _fresh(system, dataset) for system in systems}
    published = {name: step_costs(build(name, PUBLISHED_WIDTH, len(dataset.phases))) for name in networks if with_published}
    return Peers(
        scores,
        {system.name: system.config.recognizer.settings for system in systems},
        {name: network.memory for name, network in networks.items()},
        {name: step_costs(network) for name, network in networks.items()},
        published,
    )


def peer_systems(recipe: TrainConfig, names: Sequence[str] = ()) -> list[System]:
    """The recipe for each network, SurgicalMamba first. Networks wider than the recipe's are cut down to it (`study_settings`)."""
    wanted = list(names) or list(BUILT_IN)
    for name in wanted:
        network_of(name)  # an unknown name is refused before anything runs
    ordered = [DEFAULT, *(name for name in wanted if name != DEFAULT)] if DEFAULT in wanted else wanted
    if recipe.recognizer.name != DEFAULT or recipe.variant != "full":
        asked = f"variant={recipe.variant}" if recipe.recognizer.name == DEFAULT else f"recognizer={recipe.recognizer.name}"
        raise ConfigError(f"{asked} would not be used: a comparison trains every network as it is; choose networks with --peers.")
    if len(ordered) < 2:
        raise ConfigError("a comparison takes at least two networks; name more with --peers.")
    return [System(name, _recipe_for(name, recipe)) for name in ordered]


def _recipe_for(name: str, recipe: TrainConfig) -> TrainConfig:
    network = recipe.with_(recognizer={"name": name, "settings": study_settings(name, recipe)})
    return network.with_(validate_every=None) if name in RESCANS else network


def study_settings(name: str, recipe: TrainConfig) -> dict[str, Any]:
    """A network's settings in a comparison: the recipe's clips, for the same number of updates, and a size like its model's."""
    return {} if name == DEFAULT else {"clip_len": recipe.model.clip_len, **_sizes(recipe).get(name, {})}


def _sizes(recipe: TrainConfig) -> dict[str, dict[str, Any]]:
    """Sizes for small features, where the published ones would be hundreds of times SurgicalMamba's in the recipe.

    Recurrent networks get the inner width of its paths, attention its width, scans its width, depth and state. TeCNO, Trans-SVNet and
    OperA are published about as small and keep their sizes, as does everything that is no width: windows, layers, dropout, weights."""
    width, path, n_blocks = recipe.model.d_model, recipe.model.block.slow, recipe.model.n_blocks
    recurrent = {"d_hidden": path.expand * width}
    attention = {"d_model": width, "n_heads": 4, "d_hidden": 2 * width}
    scan = {"d_model": width, "n_blocks": n_blocks, "d_state": path.d_state, "d_head": path.d_head}
    prefix = {"d_model": width, "n_blocks": n_blocks, "path": {"rotation": None, "d_state": path.d_state, "d_head": path.d_head}}
    return {
        **dict.fromkeys(("lstm", "sv-rcnet", "tmrnet", "dacat", "mttr-net"), recurrent),
        **dict.fromkeys(("lovit", "skit"), attention),
        **dict.fromkeys(("mamba2", "mamba2-upstream"), scan),
        **dict.fromkeys(("sr-mamba", "sr-mamba-forward"), prefix),
        "surgformer": {"d_model": width, "n_heads": 4, "n_blocks": n_blocks},
    }


def _fresh(system: System, dataset: PreparedDataset) -> AnyRecognizer:
    """The network of a row with untrained weights: a step costs the same."""
    config = system.config
    return network_of(config.recognizer.name)(fit_model(config, dataset))


def cost_at(costs: Sequence[StepCost], frames: int) -> StepCost:
    return next(cost for cost in costs if cost.frames == frames)
