"""`doctor --self-check`: does this installation compute what the paper describes, in every form?"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from surgicalmamba.core.rotation import regram, unit_columns
from surgicalmamba.model.surgical_mamba import VARIANTS, ModelConfig, SurgicalMamba

FRAMES = 130


@dataclass(frozen=True)
class Check:
    """One property with the measured value and the largest value that passes."""

    name: str
    measured: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.measured <= self.limit


def checks() -> list[Callable[[], Check]]:
    """Every check, to be run one by one so that a caller can show progress."""
    return [*(partial(_step_equals_clip, name) for name in VARIANTS), _causal, _norm_kept, _memory, _learns]


def _model(variant: str = "full") -> SurgicalMamba:
    torch.manual_seed(0)
    config = ModelConfig.preset("tiny", backbone=None, d_feature=16, clip_len=100)  # less than FRAMES
    return SurgicalMamba(config.variant(variant)).eval()


@torch.no_grad()
def _step_equals_clip(variant: str) -> Check:
    model, features = _model(variant), torch.randn(1, FRAMES, 16)
    whole = model.forward_features(features).logits
    state, largest = None, 0.0
    for t in range(FRAMES):
        output = model.forward_features(features[:, t : t + 1], state)
        state = output.state
        largest = max(largest, float((output.logits[:, 0] - whole[:, t]).abs().max()))
    return Check(f"frame by frame equals clip: {variant}", largest, 1e-4)


@torch.no_grad()
def _causal() -> Check:
    model, features, half = _model(), torch.randn(1, FRAMES, 16), FRAMES // 2
    changed = features.clone()
    changed[:, half] += 1
    before, after = (model.forward_features(x).logits[:, :half] for x in (features, changed))
    return Check("no logit depends on a later frame", float((before - after).abs().max()), 0.0)


def _norm_kept() -> Check:
    torch.manual_seed(0)
    state = torch.randn(1, 2, 16, 64)
    norm = state.norm()
    for _ in range(1000):
        U, V = (unit_columns(torch.randn(1, 2, 64, 16)) for _ in range(2))
        state = regram(state, U, V, 2 * torch.rand(1, 2, 16), "low-rank")
    change = float((state.norm() / norm - 1).abs())
    return Check("rotations keep the state's norm over 1,000 boundaries", change, 1e-4)


@torch.no_grad()
def _memory() -> Check:
    model = _model()
    short, long = (model.forward_features(torch.randn(1, n, 16)).state.nbytes for n in (1, FRAMES))
    return Check("memory does not grow with the procedure, bytes", float(long - short), 0.0)


def _learns() -> Check:
    """A memory task: the class of the first frame, until the end of the clip. Loss after over loss before."""
    model = _model().train()
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(7, (16,), generator=generator)
    features = 0.3 * torch.randn(16, 48, 16, generator=generator)
    features[torch.arange(16), 0, labels] += 4
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(20):
        logits = model.forward_features(features).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.repeat_interleave(48))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Check("training lowers the loss", losses[-1] / losses[0], 0.5)
