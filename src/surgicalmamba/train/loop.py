"""The training loop: lanes of procedures, clip by clip, with carried state and one update per TBPTT window.

In order: parameter groups, learning-rate schedule and weight average; the message for a number that is not
finite; the `Trainer`. It receives finished parts, which `train/run.py` builds from a config."""

import contextlib
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from surgicalmamba.core.state import LaneState
from surgicalmamba.data.clips import ClipBatch, ClipLoader
from surgicalmamba.data.transforms import normalise
from surgicalmamba.errors import NonFiniteError
from surgicalmamba.model.recognizer import AnyRecognizer, Output, part_of_name
from surgicalmamba.train.config import OptimSettings
from surgicalmamba.train.distributed import World, part_of, whole, whole_copy
from surgicalmamba.train.losses import TERMS, ClipLoss, Objective
from surgicalmamba.train.state import RunState


def parameter_groups(model: nn.Module, settings: OptimSettings) -> list[dict[str, object]]:
    """Trainable parameters by learning rate and decay."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decay = settings.weight_decay if _is_decayed(name, parameter, settings.decay_on) else 0.0
            groups.setdefault((_learning_rate(name, settings), decay), []).append(parameter)
    return [
        {"params": members, "lr": lr, "initial_lr": lr, "weight_decay": decay}
        for (lr, decay), members in groups.items()
    ]


def adamw(model: nn.Module, settings: OptimSettings) -> torch.optim.AdamW:
    """The optimizer of a run."""
    return torch.optim.AdamW(parameter_groups(model, settings), lr=settings.lr, eps=settings.eps)


def _learning_rate(name: str, settings: OptimSettings) -> float:
    """The temporal model's rate, or the backbone's, which is lower for every stage below the last. The stem
    is below the first stage."""
    if not name.startswith("backbone."):
        return settings.lr
    stage = re.match(r"backbone\.stages\.(\d)\.", name)
    below_last = 3 - int(stage[1]) if stage else 4
    return settings.backbone_lr * settings.backbone_lr_decay**below_last


def _is_decayed(name: str, parameter: Tensor, rule: str) -> bool:
    """Rule `matrices` leaves out vectors: norms, biases, scales, A and D. Per-head biases are vectors, stored
    as one matrix."""
    last = name.rsplit(".", 1)[-1]
    if rule == "all":
        return last not in ("A_log", "D")
    return parameter.dim() >= 2 and last not in ("b1", "b2")


def learning_rate_share(step: int, n_steps: int, warmup_steps: int, final_share: float) -> float:
    """Linear warm-up to 1, then cosine to `final_share` at the last step. Steps are updates or videos."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, n_steps - 1 - warmup_steps)
    return final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def set_learning_rate(optimizer: torch.optim.Optimizer, share: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * share


class WeightAverage:
    """Exponential moving average of the trainable weights, with a smaller decay in the first updates."""

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


@dataclass(frozen=True)
class Clip:
    """One clip of every lane in the current TBPTT window: inputs, state before it, output and loss."""

    batch: ClipBatch
    features: Tensor  # (b, l, d_feature)
    before: LaneState
    output: Output[Any]
    labels: Tensor  # (b, l)
    target: Tensor  # (b, l)
    loss: ClipLoss


def explain(
    model: AnyRecognizer, objective: Objective, window: Sequence[Clip], update: int
) -> NonFiniteError:
    """Find why the loss of a window is not finite: run its clips again. `model` must not be sharded."""
    for clip in window:
        n_frames = torch.from_numpy(clip.batch.n_frames).to(clip.features.device)
        try:
            with torch.no_grad():
                model.forward_features(clip.features, clip.before, n_frames)
        except NonFiniteError as error:
            return NonFiniteError(f"{error} {place(clip.batch, error.lane, update)}", error.lane)
    for clip in window:
        for lane in range(len(clip.batch.videos)):
            if found := _broken_term(objective, clip, lane):
                return NonFiniteError(f"{found}. {place(clip.batch, lane, update)}", lane)
    videos = "; ".join(place(clip.batch, None, update) for clip in window)
    return NonFiniteError(
        f"the loss is not finite, and running the clips of this process again does not reproduce it. {videos}"
    )


def _broken_term(objective: Objective, clip: Clip, lane: int) -> str | None:
    """The first term of the loss that is not finite for one lane, and the logits it comes from."""
    one = slice(lane, lane + 1)
    logits, intensity = clip.output.logits[one].detach(), clip.output.intensity_logits
    intensity = None if intensity is None else intensity[one].detach()
    alone = Output(logits, intensity, clip.output.state)
    sums = objective.of_clip(alone, clip.labels[one], clip.target[one]).sums
    for name, value in zip(TERMS, sums, strict=False):  # without the network's own loss
        if not torch.isfinite(value):
            source, largest = "logits of the head", float(logits.abs().max())
            if name == "transition" and intensity is not None:
                by_block = intensity.abs().amax((0, 1))
                source = f"intensity logits of block {int(by_block.argmax())}"
                largest = float(by_block.max())
            return f"the {name} loss is not finite, from {source} up to {largest:.3g}"
    return None


def gradient_error(broken: str, window: Sequence[Clip], update: int) -> NonFiniteError:
    """For a gradient that is not finite: the parameter, its block, and every clip of the window."""
    clips = "; ".join(_spans(clip.batch, None) for clip in window)
    problem = f"the gradient of {broken!r} in {part_of_name(broken)} is not finite"
    return NonFiniteError(f"{problem}. It comes from {clips}; update {update}.")


def place(batch: ClipBatch, lane: int | None, update: int) -> str:
    """Which clip of which video, for one lane or for all of them."""
    return f"This is {_spans(batch, lane)}; update {update}."


def _spans(batch: ClipBatch, lane: int | None) -> str:
    if lane is None:
        lanes = [number for number, video in enumerate(batch.videos) if video is not None]
        return ", ".join(_spans(batch, number) for number in lanes)
    clip_len = batch.labels.shape[1]
    first, n = int(batch.first_sample[lane]), int(batch.is_frame[lane].sum())
    return f"video {batch.videos[lane]}, clip {first // clip_len + 1} (samples {first} to {first + n - 1})"


AfterUpdate = Callable[["Trainer", dict[str, float]], None]


@dataclass
class Trainer:
    """A run in progress. `run_epoch` advances it; `capture` and `restore` save and resume it, bit for bit."""

    model: AnyRecognizer
    loader: ClipLoader
    objective: Objective
    optimizer: torch.optim.Optimizer
    settings: OptimSettings
    epochs: int
    n_updates: int
    device: torch.device
    world: World
    autocast: bool = False
    average: WeightAverage | None = None
    sharded: bool = False
    update: int = 0
    lanes: LaneState | None = None
    seed: int = 0

    @property
    def epoch(self) -> int:
        return self.loader.epoch

    def updates_per_epoch(self) -> int:
        return -(-len(self.loader) // self.settings.clips_per_update)

    def run_epoch(self, after_update: AfterUpdate) -> None:
        """Train to the end of the loader's epoch. The callback `after_update` gets the losses of each update,
        and may capture the run."""
        self.model.train()
        n_batches = len(self.loader)
        window: list[Clip] = []
        for batch in self._batches():
            window.append(self._clip(batch))
            if len(window) == self.settings.clips_per_update or self.loader.step == n_batches:
                after_update(self, self._step(window))
                window = []
        self.lanes = None  # every procedure has ended

    def _batches(self) -> Iterator[ClipBatch]:
        return iter(self.loader)

    def _clip(self, batch: ClipBatch) -> Clip:
        """Forward one clip of every lane. The lanes' state keeps its gradient history until the window
        ends."""
        starting = [lane for lane, starts in enumerate(batch.starts) if starts]
        lanes = self.lanes if self.lanes is not None else self.model.initial_state(len(batch.videos))
        before = lanes.reset(starting)
        length = self._length(batch)
        inputs = torch.from_numpy(batch.frames[:, :length]).to(self.device)
        labels = torch.from_numpy(batch.labels[:, :length]).to(self.device)
        assert batch.target is not None
        target = torch.from_numpy(batch.target[:, :length]).to(self.device)
        n_frames = torch.from_numpy(batch.n_frames).to(self.device)
        self._seed_clip()
        bf16 = torch.autocast(self.device.type, torch.bfloat16) if self.autocast else contextlib.nullcontext()
        try:
            with bf16:
                features = self._features(inputs)
                output = self._temporal(features, before, n_frames)
        except NonFiniteError as error:
            raise NonFiniteError(f"{error} {place(batch, error.lane, self.update)}", error.lane) from None
        self.lanes = output.state
        network_loss = self.model.training_loss(output, labels, target, self.objective.class_weights)
        loss = self.objective.of_clip(output, labels, target, network_loss)
        return Clip(batch, features, before, output, labels, target, loss)

    def _length(self, batch: ClipBatch) -> int:
        """Frames of a clip to compute: those of the longest lane of all processes, because sharded processes
        run in step."""
        return int(self.world.join(torch.tensor([batch.n_frames.max()], device=self.device)).max())

    def _seed_clip(self) -> None:
        """Seed torch by the clip's position in the run, so that a resumed run draws the same random numbers
        (dropout)."""
        position = (self.seed, self.loader.epoch, self.loader.step, self.world.rank)
        torch.manual_seed(int.from_bytes(hashlib.sha256(repr(position).encode()).digest()[:6], "big"))

    def _features(self, inputs: Tensor) -> Tensor:
        """Features (b, l, d) as they are, or the backbone's for RGB bytes (b, l, h, w, 3)."""
        if inputs.dtype != torch.uint8:
            return inputs
        backbone = self.model.config.backbone
        assert backbone is not None
        frames = normalise(inputs, backbone.mean_rgb, backbone.std_rgb)
        return self.model.encode(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])

    def _temporal(self, features: Tensor, before: LaneState, n_frames: Tensor) -> Output[Any]:
        """Run the network. `forward_features` also checks for values that are not finite. A sharded process
        must not stop alone, because the others would wait for it: there `_step` checks the common loss."""
        run = self.model.advance if self.sharded else self.model.forward_features
        return run(features, before, n_frames)

    def _step(self, window: list[Clip]) -> dict[str, float]:
        """One optimizer update from the clips of a window; the lanes' history ends here."""
        loss, terms = self.objective.total(
            sum((clip.loss for clip in window[1:]), window[0].loss), self.world
        )
        if not torch.isfinite(terms).all():
            with self.whole_model(in_every_process=True) as model:
                raise explain(model, self.objective, window, self.update)
        self._backward(loss)
        share, norm = self._apply(window)
        assert self.lanes is not None
        self.lanes = self.lanes.detach()
        self.update += 1
        losses = dict(zip(TERMS, (float(term) for term in terms), strict=False))
        total = float((self.objective.weights_of(terms) * terms).sum())
        return {"loss": total, **losses, "gradient_norm": norm, "lr_share": share}

    def _backward(self, loss: Tensor) -> None:
        """Compute the gradients, summed over all processes. FSDP sums those of a sharded model itself."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if not self.sharded:
            self.world.sum_gradients(self.model.parameters())

    def _apply(self, window: list[Clip]) -> tuple[float, float]:
        """Update the weights and their average. Returns the share of the learning rate and the gradient's
        norm."""
        share = self._learning_rate_share(len(window))
        set_learning_rate(self.optimizer, share)
        norm = whole(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm))
        if not torch.isfinite(norm):
            grads = ((name, whole(p.grad)) for name, p in self.model.named_parameters() if p.grad is not None)
            broken = [name for name, grad in grads if not torch.isfinite(grad).all()]
            raise gradient_error(broken[0], window, self.update)
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self.model, self.update)
        return share, float(norm)

    def _learning_rate_share(self, n_clips: int) -> float:
        """The share of the peak learning rate for this update, which covers the last `n_clips` clips."""
        warmup_epochs, final_share = self.settings.warmup_epochs, self.settings.final_lr_share
        if self.settings.lr_step == "update":
            warmup = round(warmup_epochs * self.updates_per_epoch())
            return learning_rate_share(self.update, self.n_updates, warmup, final_share)
        n_videos = self.loader.n_videos
        ended = self.epoch * n_videos + self.loader.videos_ended(self.loader.step - n_clips)
        warmup = round(warmup_epochs * n_videos)
        return learning_rate_share(ended, self.epochs * n_videos, warmup, final_share)

    @contextlib.contextmanager
    def whole_model(self, averaged: bool = False, in_every_process: bool = False) -> Iterator[AnyRecognizer]:
        """The model with all of its weights in the first process, or in every process; with `averaged`, the
        averaged weights where the run keeps an average.

        All processes call it together. A process without the whole model gets its sharded one, and must not
        run it."""
        average = self.average if averaged else None
        if average is not None:
            average.swap(self.model)
        try:
            copy = whole_copy(self.model, self.world.is_first or in_every_process) if self.sharded else None
            yield copy if copy is not None else self.model
        finally:
            if average is not None:
                average.swap(self.model)

    def capture(self) -> RunState:
        """The complete state of the run, returned in the first process. All processes call it, between
        updates."""
        tensors: dict[str, Tensor] = {}

        def keep(name: str, value: Tensor) -> None:
            value = whole(value)
            if self.world.is_first:
                tensors[name] = value if value.dim() else value.reshape(1)

        for name, value in self.model.state_dict().items():
            keep(f"model.{name}", value)
        for name, parameter in self.model.named_parameters():
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                keep(f"optim.{moment}.{name}", value)
        for name, value in ({} if self.average is None else self.average.values).items():
            keep(f"average.{name}", value)
        values: dict[str, object] = {"update": self.update, "loader": self.loader.state_dict()}
        values |= {"frame_index": None, "n_lanes": self.loader.n_lanes * self.world.size}
        if self.lanes is not None:  # of all processes, so that any number of processes can resume
            lengths = self.world.join(torch.tensor([self.lanes.length], device=self.device))
            for i, value in enumerate(self.lanes.with_length(int(lengths.max())).tensors()):
                keep(f"lanes.{i}", self.world.join(value))
            frame_index = torch.tensor(self.lanes.frame_index, device=self.device)
            values["frame_index"] = self.world.join(frame_index).tolist()
        return RunState(tensors, values)

    @torch.no_grad()
    def restore(self, state: RunState) -> None:
        """Resume from a captured state, in any number of processes that divides the lanes."""
        tensors, values = state.tensors, state.values
        for name, value in self.model.state_dict().items():
            value.copy_(part_of(tensors[f"model.{name}"], value))
        for name, parameter in self.model.named_parameters():
            moments = {
                key.split(".")[1]: t
                for key, t in tensors.items()
                if key.startswith("optim.") and key.split(".", 2)[2] == name
            }
            if moments:
                self.optimizer.state[parameter] = {
                    key: t.reshape(()) if key == "step" else part_of(t, parameter)
                    for key, t in moments.items()
                }
        if self.average is not None:
            for name, value in self.average.values.items():
                value.copy_(part_of(tensors[f"average.{name}"], value))
        self.update = int(str(values["update"]))
        self.loader.load_state_dict(values["loader"])  # type: ignore[arg-type]
        self.lanes = None
        if values["frame_index"] is not None:
            frame_index: list[int] = values["frame_index"]  # type: ignore[assignment]
            n_parts = sum(name.startswith("lanes.") for name in tensors)
            parts = (tensors[f"lanes.{i}"].to(self.device) for i in range(n_parts))
            lanes = self.model.initial_state(len(frame_index)).map(lambda _: next(parts)).at(frame_index)
            first = self.world.rank * self.loader.n_lanes
            self.lanes = lanes.select(range(first, first + self.loader.n_lanes))
