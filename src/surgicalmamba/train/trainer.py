"""The training loop: lanes of procedures, clip by clip, the slow state carried on, one update per TBPTT window.

It receives built parts and wires nothing; `train/run.py` builds them from a config."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from surgicalmamba.core.state import ModelState
from surgicalmamba.data.clips import ClipBatch, ClipLoader
from surgicalmamba.data.transforms import normalise
from surgicalmamba.errors import NonFiniteError
from surgicalmamba.model.recognizer import Output
from surgicalmamba.model.surgical_mamba import SurgicalMamba
from surgicalmamba.train.config import OptimSettings
from surgicalmamba.train.distributed import World
from surgicalmamba.train.objective import TERMS, ClipLoss, Objective
from surgicalmamba.train.optim import WeightAverage, learning_rate_share, set_learning_rate
from surgicalmamba.train.runstate import RunState

AFTER_UPDATE = Callable[["Trainer", dict[str, float]], None]


@dataclass
class Trainer:
    """A run in progress. `run_epoch` advances it; `capture` and `restore` move it between processes, bit for bit."""

    model: SurgicalMamba
    loader: ClipLoader
    objective: Objective
    optimizer: torch.optim.Optimizer
    settings: OptimSettings
    n_updates: int
    device: torch.device
    world: World
    autocast: bool = False
    average: WeightAverage | None = None
    update: int = 0
    lanes: ModelState | None = None
    _window: list[tuple[str | None, ...]] = field(default_factory=list)

    @property
    def epoch(self) -> int:
        return self.loader.epoch

    def warmup_updates(self) -> int:
        return round(self.settings.warmup_epochs * self.updates_per_epoch())

    def updates_per_epoch(self) -> int:
        return -(-len(self.loader) // self.settings.clips_per_update)

    def run_epoch(self, after_update: AFTER_UPDATE) -> None:
        """Train to the end of the epoch the loader is in. `after_update` sees each update's losses, and may capture the run."""
        self.model.train()
        n_batches, window = len(self.loader), []
        for batch in self.loader:
            window.append(self._clip(batch))
            if len(window) == self.settings.clips_per_update or self.loader.step == n_batches:
                after_update(self, self._step(sum(window[1:], window[0])))
                window = []
        self.lanes = None  # every procedure has ended

    def _clip(self, batch: ClipBatch) -> ClipLoss:
        """Forward one clip of every lane; the lanes' memory goes on with its history until the window ends."""
        starting = [lane for lane, starts in enumerate(batch.starts) if starts]
        lanes = self.lanes if self.lanes is not None else self.model.initial_state(len(batch.videos))
        self._window.append(batch.videos)
        inputs = torch.from_numpy(batch.frames).to(self.device)
        labels = torch.from_numpy(batch.labels).to(self.device)
        assert batch.target is not None
        target = torch.from_numpy(batch.target).to(self.device)
        precision = torch.autocast(self.device.type, torch.bfloat16) if self.autocast else contextlib.nullcontext()
        try:
            with precision:
                output = self._forward(inputs, lanes.reset(starting))
        except NonFiniteError as error:
            raise NonFiniteError(f"{error} {self._where(batch)}") from None
        self.lanes = output.state
        return self.objective.of_clip(output, labels, target)

    def _forward(self, inputs: Tensor, lanes: ModelState) -> Output[ModelState]:
        if inputs.dtype != torch.uint8:
            return self.model.forward_features(inputs, lanes)
        backbone = self.model.config.backbone
        assert backbone is not None
        output: Output[ModelState] = self.model(normalise(inputs, backbone.mean_rgb, backbone.std_rgb), lanes)
        return output

    def _step(self, clips: ClipLoss) -> dict[str, float]:
        """One optimizer update from the clips of a window; the lanes' history ends here."""
        loss, terms = self.objective.total(clips, self.world)
        if not torch.isfinite(terms).all():
            names = ", ".join(name for name, term in zip(TERMS, terms, strict=True) if not torch.isfinite(term))
            raise NonFiniteError(f"the loss is not finite ({names}) at update {self.update}, videos {self._videos()}.")
        share = learning_rate_share(self.update, self.n_updates, self.warmup_updates(), self.settings.final_lr_share)
        set_learning_rate(self.optimizer, share)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.world.sum_gradients(self.model.parameters())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        if not torch.isfinite(norm):
            broken = [name for name, p in self.model.named_parameters() if p.grad is not None and not torch.isfinite(p.grad).all()]
            raise NonFiniteError(f"the gradient of {broken[0]!r} is not finite at update {self.update}, videos {self._videos()}.")
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self.model, self.update)
        assert self.lanes is not None
        self.lanes = self.lanes.detach()
        self._window.clear()
        self.update += 1
        losses = dict(zip(TERMS, (float(term) for term in terms), strict=True))
        total = float((self.objective.weights * terms.cpu()).sum())
        return {"loss": total, **losses, "gradient_norm": float(norm), "lr_share": share}

    def _videos(self) -> str:
        return ", ".join(sorted({video for videos in self._window for video in videos if video is not None}))

    def _where(self, batch: ClipBatch) -> str:
        places = (f"{video} from sample {first}" for video, first in zip(batch.videos, batch.first_sample, strict=True) if video)
        return f"Lanes hold {', '.join(places)}; update {self.update}."

    def capture(self) -> RunState:
        """Everything that decides what comes next. Only between updates, when no history is pending."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optim.{moment}.{name}"] = value if value.dim() else value.reshape(1)
        if self.average is not None:
            tensors |= {f"average.{name}": value for name, value in self.average.values.items()}
        values: dict[str, object] = {"update": self.update, "loader": self.loader.state_dict(), "frame_index": None}
        if self.lanes is not None:
            tensors |= {f"lanes.{i}": value for i, value in enumerate(self.lanes.tensors())}
            values["frame_index"] = list(self.lanes.frame_index)
        return RunState(tensors, values)

    def restore(self, state: RunState) -> None:
        """Go on from a captured state."""
        tensors, values = state.tensors, state.values
        self.model.load_state_dict({name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")})
        for name, parameter in self.model.named_parameters():
            moments = {key.split(".")[1]: t for key, t in tensors.items() if key.startswith("optim.") and key.split(".", 2)[2] == name}
            if moments:
                moments["step"] = moments["step"].reshape(())
                self.optimizer.state[parameter] = {key: t.to(parameter.device) if key != "step" else t for key, t in moments.items()}
        if self.average is not None:
            for name, value in self.average.values.items():
                value.copy_(tensors[f"average.{name}"])
        self.update = int(str(values["update"]))
        self.loader.load_state_dict(values["loader"])  # type: ignore[arg-type]
        self.lanes = None
        if values["frame_index"] is not None:
            frame_index: list[int] = values["frame_index"]  # type: ignore[assignment]
            parts = iter(tensors[f"lanes.{i}"].to(self.device) for i in range(sum(name.startswith("lanes.") for name in tensors)))
            empty = self.model.initial_state(len(frame_index))
            self.lanes = empty.map(lambda _: next(parts)).at(frame_index)

