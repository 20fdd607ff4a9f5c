"""Parameter groups by rule, the learning-rate schedule, and the average of the weights."""

import math
import re

import torch
from torch import Tensor, nn

from surgicalmamba.train.config import OptimSettings


def parameter_groups(model: nn.Module, settings: OptimSettings) -> list[dict[str, object]]:
    """Trainable parameters by learning rate and decay."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decay = settings.weight_decay if _is_decayed(name, parameter, settings.decay_on) else 0.0
            groups.setdefault((_learning_rate(name, settings), decay), []).append(parameter)
    return [{"params": members, "lr": lr, "initial_lr": lr, "weight_decay": decay} for (lr, decay), members in groups.items()]


def adamw(model: nn.Module, settings: OptimSettings) -> torch.optim.AdamW:
    """The optimizer of a run."""
    return torch.optim.AdamW(parameter_groups(model, settings), lr=settings.lr, eps=settings.eps)


def _learning_rate(name: str, settings: OptimSettings) -> float:
    """The temporal model's rate, or the backbone's, lower for every stage below the last; the stem lies below the first."""
    if not name.startswith("backbone."):
        return settings.lr
    stage = re.match(r"backbone\.stages\.(\d)\.", name)
    below_last = 3 - int(stage[1]) if stage else 4
    return settings.backbone_lr * settings.backbone_lr_decay**below_last


def _is_decayed(name: str, parameter: Tensor, rule: str) -> bool:
    """`matrices` leaves out vectors: norms, biases, scales, A and D. Per-head biases are vectors stored as one matrix."""
    last = name.rsplit(".", 1)[-1]
    if rule == "all":
        return last not in ("A_log", "D")
    return parameter.dim() >= 2 and last not in ("b1", "b2")


def learning_rate_share(step: int, n_steps: int, warmup_steps: int, final_share: float) -> float:
    """Linear warm-up to 1, then cosine down to `final_share` at the last step; steps are updates, or videos."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, n_steps - 1 - warmup_steps)
    return final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def set_learning_rate(optimizer: torch.optim.Optimizer, share: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * share


class WeightAverage:
    """Exponential moving average of the trainable weights, with the usual correction for the first updates."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self, model: nn.Module, n_updates: int) -> None:
        decay = min(self.decay, (1 + n_updates) / (10 + n_updates))
        for name, parameter in model.named_parameters():
            if name in self.values:
                self.values[name].lerp_(parameter.detach(), 1 - decay)

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        """Exchange the model's weights with the average; calling it again exchanges them back."""
        for name, parameter in model.named_parameters():
            if name in self.values:
                held: Tensor = parameter.detach().clone()
                parameter.copy_(self.values[name])
                self.values[name].copy_(held)
