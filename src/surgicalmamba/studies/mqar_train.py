"""One training run of the recall study: from settings to an accuracy, going on after kill -9 with the same bits.

OUT/cells/RUN/states        what it needs to go on        OUT/cells/RUN/result.json      accuracies; written last, so the run is done"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from surgicalmamba.data.store import write_atomic
from surgicalmamba.errors import StudyError
from surgicalmamba.studies.mqar_config import PAIR_SHARES, Cell, MqarConfig, Variant
from surgicalmamba.studies.mqar_data import Batch, make_batch
from surgicalmamba.studies.mqar_model import RecallModel
from surgicalmamba.train.config import OptimSettings
from surgicalmamba.train.optim import learning_rate_share, parameter_groups, set_learning_rate
from surgicalmamba.train.runstate import RunState, load_state, save_state

WARMUP_SHARE = 0.05
LOG_EVERY = 48
"""Updates between two losses that are kept: a multiple of four, so that all of them are losses with T/4 pairs."""
_TRAIN, _CHOOSE, _REPORT = range(3)  # streams of random numbers that share nothing


@dataclass(frozen=True)
class RecallRun:
    """A cell, a variant, a learning rate and a seed."""

    config: MqarConfig
    cell: Cell
    variant: Variant
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.cell.name}-{self.variant}-lr{self.rate:g}-seed{self.seed}"

    def folder(self, out: Path) -> Path:
        return out / "cells" / self.name

    def settings(self) -> dict[str, object]:
        """What decides this run's outcome; a study may be widened without training again."""
        ignored = {"lengths", "states", "widths", "rates", "save_every"}
        return {**json.loads(self.config.model_dump_json(exclude=ignored)), "run": self.name}

    def result(self, out: Path) -> dict[str, object] | None:
        """What a finished run found; None before. A run of other settings is refused."""
        file = self.folder(out) / "result.json"
        if not file.is_file():
            return None
        found: dict[str, object] = json.loads(file.read_text(encoding="utf-8"))
        self.refuse_other(found["settings"], out)
        return found

    def refuse_other(self, settings: object, out: Path) -> None:
        """Raise if a folder was made with other settings, naming the first that differs."""
        assert isinstance(settings, Mapping)
        mine = self.settings()
        for key in sorted({*mine, *settings}):
            if mine.get(key) != settings.get(key):
                raise StudyError(f"{self.folder(out)} was made with {key}={settings.get(key)}, not {mine.get(key)}; give another --out.")


def training_batch(run: RecallRun, update: int) -> Batch:
    """The batch of an update: one of each dataset in turn, so that no number of pairs is forgotten, until all are through; then again.
    The variant plays no part."""
    size = run.config.batch(run.cell)
    per_dataset = max(1, run.config.examples // size)
    number, dataset = divmod(update, len(PAIR_SHARES))
    rng = np.random.default_rng([run.seed, _TRAIN, dataset, number % per_dataset])
    return make_batch(size, run.cell.length, run.cell.length // PAIR_SHARES[dataset], run.config.vocabulary, rng)


def build(run: RecallRun) -> tuple[RecallModel, torch.optim.Optimizer]:
    """The untrained model and its optimizer. Both variants of a seed begin with the same weights, those of the rotation apart."""
    model = _drawn(run, run.variant)
    if run.variant != "plain":
        model.load_state_dict(_drawn(run, "plain").state_dict(), strict=False)
    settings = OptimSettings(lr=run.rate, weight_decay=run.config.weight_decay)
    return model, torch.optim.AdamW(parameter_groups(model, settings), lr=run.rate)


def _drawn(run: RecallRun, variant: Variant) -> RecallModel:
    torch.manual_seed(run.seed)
    config = run.config
    path = config.path(run.cell, variant)
    return RecallModel(config.vocabulary, run.cell.d_model, config.n_layers, path, run.cell.length, config.embedding_std)


def train_run(run: RecallRun, out: Path) -> dict[str, object]:
    """Train from the newest saved state to the end and write result.json. A rate at which the loss is no number ends early, at 0 %."""
    if (done := run.result(out)) is not None:
        return done
    torch.set_num_threads(1)
    model, optimizer = build(run)
    folder, n_updates = run.folder(out), run.config.updates(run.cell)
    update, log, seconds = _restore(run, out, model, optimizer)
    start, finite = time.monotonic(), True
    while update < n_updates and finite:
        loss = _step(run, model, optimizer, update, n_updates)
        update += 1
        finite = bool(np.isfinite(loss))
        if update % LOG_EVERY == 0 or update == n_updates:
            log.append([update, loss])
        if update % run.config.save_every == 0 and update < n_updates:
            values = {"update": update, "log": log, "seconds": seconds + time.monotonic() - start, "settings": run.settings()}
            save_state(folder, update, RunState(_tensors(model, optimizer), values))
    result: dict[str, object] = {
        "settings": run.settings(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "updates": update,
        "finite": finite,
        "chosen_by": accuracy(run, model, _CHOOSE) if finite else 0.0,
        "accuracy": accuracy(run, model, _REPORT) if finite else 0.0,
        "seconds": seconds + time.monotonic() - start,
        "log": log,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    return result


def _step(run: RecallRun, model: RecallModel, optimizer: torch.optim.Optimizer, update: int, n_updates: int) -> float:
    batch = training_batch(run, update)
    logits = model(torch.from_numpy(batch.tokens), torch.from_numpy(batch.places))
    loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.answers).flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    set_learning_rate(optimizer, learning_rate_share(update, n_updates, int(WARMUP_SHARE * n_updates), 0.0))
    optimizer.step()
    return float(loss.detach())


@torch.inference_mode()
def accuracy(run: RecallRun, model: RecallModel, stream: int) -> float:
    """Share of questions answered rightly, in percent, with T/4 pairs and examples of a stream that training does not use."""
    size = run.config.batch(run.cell)
    right = asked = 0
    for number in range(-(-run.config.test_examples // size)):
        rng = np.random.default_rng([run.seed, stream, number])
        batch = make_batch(size, run.cell.length, run.cell.length // PAIR_SHARES[-1], run.config.vocabulary, rng)
        guess = model(torch.from_numpy(batch.tokens), torch.from_numpy(batch.places)).argmax(-1).numpy()
        right += int((guess == batch.answers).sum())
        asked += guess.size
    return 100.0 * right / asked


def _tensors(model: RecallModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            tensors[f"{moment}.{name}"] = value.reshape(1) if value.dim() == 0 else value
    return tensors


def _restore(run: RecallRun, out: Path, model: RecallModel, optimizer: torch.optim.Optimizer) -> tuple[int, list[list[float]], float]:
    """The newest saved state into model and optimizer: updates done, the log so far, seconds spent."""
    state = load_state(run.folder(out))
    if state is None:
        return 0, [], 0.0
    run.refuse_other(state.values["settings"], out)
    model.load_state_dict({name.removeprefix("model."): value for name, value in state.tensors.items() if name.startswith("model.")})
    for name, parameter in model.named_parameters():
        moments = {moment: state.tensors[f"{moment}.{name}"] for moment in ("step", "exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {**moments, "step": moments["step"].reshape(())}
    log: list[list[float]] = state.values["log"]  # type: ignore[assignment]
    return int(str(state.values["update"])), log, float(str(state.values["seconds"]))
