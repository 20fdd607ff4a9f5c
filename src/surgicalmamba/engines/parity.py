"""Whether an engine computes what the model computes: eager's outputs on a few frames, and an engine's
distance.

The frames are made by a formula, so that outputs written at export can be compared later without the model's
weights. They cross the end of a chunk in every group of paths and the end of a clip, each time from an empty
state whose clock is set shortly before it."""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from surgicalmamba.engines.engine import Engine
from surgicalmamba.errors import CheckpointError, EngineError
from surgicalmamba.model.checkpoint import read_weights
from surgicalmamba.model.surgical_mamba import ModelConfig, rotation_grids

FRAMES_BEFORE, FRAMES_AFTER = 3, 2
TOLERANCE = 1e-3
"""Largest difference from eager, relative to the largest value, at which a float32 engine counts as equal."""
INT8_TOLERANCE = 0.25
"""The same for int8. It finds a broken graph; `bench stream` measures the agreement on real operations."""
LONGEST = 80
"""Frames that `logit_error` compares at most: past the first rotation of every path of the paper's model."""


@dataclass(frozen=True)
class Parity:
    """An engine's distance from eager on the check frames: largest difference over eager's largest value."""

    engine: str
    features: float | None
    logits: float
    state: float
    frames: int
    tolerance: float

    @property
    def holds(self) -> bool:
        return all(error <= self.tolerance for error in (self.features or 0.0, self.logits, self.state))

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "holds": self.holds}


def model_config(engine: Engine) -> ModelConfig:
    """The config of an engine that runs SurgicalMamba; other models run on eager, with nothing to compare."""
    config = engine.config
    assert isinstance(config, ModelConfig)
    return config


def check_starts(config: ModelConfig) -> list[int]:
    """Clocks that lie FRAMES_BEFORE frames before the end of a chunk of some path, or of a clip."""
    ends = {config.clip_len, *(grid.chunk_len for grid in rotation_grids(config).values())}
    return sorted({max(0, end - FRAMES_BEFORE) for end in ends})


def check_features(config: ModelConfig) -> Tensor:
    """Feature vectors (l, d_feature) between -1 and 1, no two alike."""
    n = (FRAMES_BEFORE + FRAMES_AFTER) * config.feature_width
    return (
        torch.sin(torch.arange(n, dtype=torch.float64).square() * 0.37)
        .float()
        .reshape(-1, config.feature_width)
    )


def check_pictures(config: ModelConfig) -> Tensor:
    """One picture with structure at every scale."""
    assert config.backbone is not None
    size = config.backbone.image_size
    y, x, colour = torch.meshgrid(torch.arange(size), torch.arange(size), torch.arange(3), indexing="ij")
    return ((x * y // 7 + x * (colour + 1) + 3 * y) % 256).to(torch.uint8)[None]


def answers(engine: Engine) -> dict[str, Tensor]:
    """Features, logits and state of an engine on the check frames, by name, in one lane."""
    config = model_config(engine)
    found: dict[str, Tensor] = {}
    if config.backbone is not None:
        found["features"] = engine.encode(check_pictures(config)).cpu()
    for start in check_starts(config):
        state = engine.initial_state(1).at([start])
        vectors = check_features(config).to(state.head.ssm.device)
        for number, vector in enumerate(vectors.split(1)):
            output = engine.advance(vector, state)
            state = output.state
            found[f"{start}.logits.{number}"] = output.logits.cpu()
            if number in (FRAMES_BEFORE - 1, len(vectors) - 1):  # after the boundary, and at the end
                tensors = zip(state.names(), state.tensors(), strict=True)
                found |= {f"{start}.state.{number}.{name}": tensor.cpu() for name, tensor in tensors}
    return found


def compare(engine: Engine, reference: dict[str, Tensor]) -> Parity:
    """Measure an engine against the answers of eager."""
    found = answers(engine)
    if found.keys() != reference.keys():
        raise EngineError("the answers to compare with belong to another model; export again.")
    errors = {"features": [0.0], "logits": [0.0], "state": [0.0]}
    scale = {
        kind: max((float(value.abs().max()) for key, value in reference.items() if kind in key), default=0.0)
        for kind in ("features", "logits")
    }
    for key, value in reference.items():
        kind = next(kind for kind in errors if kind in key)
        largest = scale.get(kind, float(value.abs().max()))  # each tensor of the state has a scale of its own
        errors[kind].append(_relative(found[key], value, largest))
    worst = {kind: max(values) for kind, values in errors.items()}
    return Parity(
        engine=engine.name,
        features=worst["features"] if "features" in reference else None,
        logits=worst["logits"],
        state=worst["state"],
        frames=sum(".logits." in key for key in reference),
        tolerance=INT8_TOLERANCE if engine.name.endswith("int8") else TOLERANCE,
    )


def _relative(ours: Tensor, reference: Tensor, scale: float) -> float:
    if ours.shape != reference.shape:
        return float("inf")
    difference = float((ours.double() - reference.double()).abs().max())
    if difference != difference:
        return float("inf")  # a NaN must fail every comparison, also inside max()
    return difference / scale if scale else difference


def require(engine: Engine, reference: dict[str, Tensor]) -> Parity:
    """Measure, and refuse an engine that is too far off."""
    parity = compare(engine, reference)
    if not parity.holds:
        features = "" if parity.features is None else f"features {parity.features:.1e}, "
        raise EngineError(
            f"the {parity.engine} engine is refused: over {parity.frames} frames it differs from eager by "
            f"{features}logits {parity.logits:.1e}, state {parity.state:.1e} of the largest value, more than "
            f"{parity.tolerance:g}. Use another engine (eager always works) and report this."
        )
    return parity


def write_answers(reference: dict[str, Tensor], file: Path) -> None:
    from safetensors.torch import save_file

    save_file({key: value.contiguous() for key, value in reference.items()}, file)


def read_answers(file: Path) -> dict[str, Tensor]:
    try:
        return read_weights(file)
    except CheckpointError as error:
        raise EngineError(f"{error} The export is incomplete; export again.") from None


@torch.inference_mode()
def logit_error(engine: Engine, reference: Engine) -> float:
    """How far an engine is from another after the first frames of a procedure, both fed the same features:
    root mean square difference of the logits over that of the reference's logits."""
    config = model_config(engine)
    chunk_lens = [path.chunk_len for path in config.paths().values() if path.rotation is not None]
    n_frames = min(LONGEST, max(chunk_lens, default=0) + FRAMES_AFTER)
    features = torch.randn(n_frames, 1, config.feature_width, generator=torch.Generator().manual_seed(0))
    state, reference_state = engine.initial_state(1), reference.initial_state(1)
    error = scale = 0.0
    for vector in features:
        output, expected = engine.advance(vector, state), reference.advance(vector, reference_state)
        state, reference_state = output.state, expected.state
        error += float((output.logits - expected.logits).square().sum())
        scale += float(expected.logits.square().sum())
    return (error / scale) ** 0.5 if scale else error**0.5
