"""One training run of the recall study, to the accuracy at the plateau. After kill -9 it resumes to the same
bits.

OUT/cells/RUN/states        what it needs to resume
OUT/cells/RUN/result.json   accuracies; written last, so the run is done

The learning rate rises, stays until the loss is flat or recall is solved, then falls to zero. Recall is
learned as a jump after a long flat stretch, so a schedule of fixed length would compare when runs jump,
not what they reach."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surgicalmamba.core.state import BlockState
from surgicalmamba.errors import StudyError
from surgicalmamba.files import write_atomic
from surgicalmamba.model.surgical_mamba import DualPathBlock, PathConfig
from surgicalmamba.train.config import OptimSettings
from surgicalmamba.train.loop import adamw, set_learning_rate
from surgicalmamba.train.state import RunState, load_state, save_state
from surgicalmamba_lab.studies.mqar_task import Batch, Cell, MqarConfig, Variant, make_batch


class RecallModel(nn.Module):
    """Embedding, single-path blocks without feed-forward layer as in Mamba-2, and the embedding again as
    the output. Without rotation in `path` it is the baseline; nothing else differs."""

    def __init__(
        self,
        vocabulary: int,
        d_model: int,
        n_layers: int,
        path: PathConfig,
        length: int,
        embedding_std: float,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, d_model)
        nn.init.normal_(self.embedding.weight, std=embedding_std)
        self.layers = nn.ModuleList(
            DualPathBlock(d_model, path, None, ffn_ratio=None, clip_len=length, slow_carries=True)
            for _ in range(n_layers)
        )
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """tokens (b, T), places (b, m) -> logits (b, m, vocabulary), only at the questions: logits are the
        main cost."""
        x = self.embedding(tokens)
        start = [0] * len(tokens)
        for layer in self.layers:
            assert isinstance(layer, DualPathBlock)
            state = layer.slow.initial_state(len(tokens), x.dtype, x.device)
            x, _, _ = layer(x, BlockState(state, None), start)
        asked = torch.take_along_dim(x, places[..., None], dim=1)  # (b, m, d)
        return F.linear(self.norm(asked), self.embedding.weight)


LOG_EVERY = 64
"""Updates between two entries of the log, which are means over the batches with T/4 pairs since the last
entry."""
_TRAIN, _CHOOSE, _REPORT = range(3)  # streams of random numbers that share nothing
Loss = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


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
        """The settings that decide the result of this run; others may change without training again."""
        ignored = {"cells", "variants", "rates", "rate_seeds", "save_every"}
        return {**json.loads(self.config.model_dump_json(exclude=ignored)), "run": self.name}

    def result(self, out: Path) -> dict[str, object] | None:
        """The result of a finished run; None before. A run with other settings is refused."""
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
                raise StudyError(
                    f"{self.folder(out)} was made with {key}={settings.get(key)}, not {mine.get(key)}; give "
                    "another --out."
                )


@dataclass
class Progress:
    """How far a run is. `log` holds [update, loss, recall] of sequences with T/4 pairs; at `stopped_at`
    the rate began to fall."""

    update: int = 0
    stopped_at: int | None = None
    log: list[list[float]] = field(default_factory=list)
    since: list[list[float]] = field(default_factory=list)
    """Loss and recall of each update since the last entry."""
    seconds: float = 0.0

    def note(self, loss: float, recall: float, scored: bool) -> None:
        """Count an update; `scored`: its batch had T/4 pairs."""
        self.update += 1
        if scored:
            self.since.append([loss, recall])
        if self.update % LOG_EVERY == 0 and self.since:
            self.log.append([self.update, *np.mean(self.since, axis=0).tolist()])
            self.since = []

    def end(self, config: MqarConfig) -> int | None:
        """The number of updates of the whole run, once it is known."""
        return (
            None
            if self.stopped_at is None
            else self.stopped_at + max(1, round(config.decay_share * self.stopped_at))
        )

    def should_stop(self, config: MqarConfig) -> bool:
        """Whether the rate should fall: recall is solved, or the loss is flat, or there were enough
        updates."""
        if self.log and self.log[-1][0] == self.update and self.log[-1][2] >= config.solved:
            return True
        if self.update < config.min_updates:
            return False
        if self.update >= config.max_updates:
            return True
        entries = config.flat_window // LOG_EVERY
        if self.update % LOG_EVERY or len(self.log) < 2 * entries:
            return False
        losses = [loss for _, loss, _ in self.log]
        return float(np.mean(losses[-entries:])) > (1 - config.flat_share) * float(
            np.mean(losses[-2 * entries : -entries])
        )


def rate_share(progress: Progress, config: MqarConfig) -> float:
    """The next update's share of the learning rate."""
    end = progress.end(config)
    if end is None:
        return min(1.0, (progress.update + 1) / config.warmup_updates)
    assert progress.stopped_at is not None
    return (end - progress.update) / (end - progress.stopped_at)


def training_batch(run: RecallRun, update: int) -> Batch:
    """The batch of an update: one of each number of pairs in turn, the same for every variant."""
    config, size = run.config, run.config.batch(run.cell)
    number, dataset = divmod(update, len(config.pair_shares))
    if config.examples is not None:
        number %= max(1, config.examples // size)
    rng = np.random.default_rng([run.seed, _TRAIN, dataset, number])
    return make_batch(
        size, run.cell.length, run.cell.length // config.pair_shares[dataset], run.cell.vocabulary, rng
    )


def build(run: RecallRun) -> tuple[RecallModel, torch.optim.Optimizer]:
    """The untrained model and its optimizer. All variants of a seed start with the same weights, except
    the rotators."""
    model = _drawn(run, run.variant)
    if run.variant != "plain":
        model.load_state_dict(_drawn(run, "plain").state_dict(), strict=False)
    return model, adamw(model, OptimSettings(lr=run.rate, weight_decay=run.config.weight_decay))


def _drawn(run: RecallRun, variant: Variant) -> RecallModel:
    torch.manual_seed(run.seed)
    path = run.config.path(run.cell, variant)
    return RecallModel(
        run.cell.vocabulary,
        run.cell.d_model,
        run.config.n_layers,
        path,
        run.cell.length,
        run.config.embedding_std,
    )


def train_run(run: RecallRun, out: Path, device: str = "cpu") -> dict[str, object]:
    """Train from the newest saved state to the plateau and write result.json. A run whose loss becomes NaN
    or infinite ends early, at 0 %."""
    if (done := run.result(out)) is not None:
        return done
    torch.set_num_threads(1)
    config, folder = run.config, run.folder(out)
    model, optimizer = build(run)
    model.to(device)
    progress = _restore(run, out, model, optimizer)
    loss_of = _loss(model, config.compile)
    seconds, start, finite = progress.seconds, time.monotonic(), True
    while finite and progress.update != progress.end(config):
        scored = progress.update % len(config.pair_shares) == len(config.pair_shares) - 1
        loss, recall = _step(run, loss_of, model, optimizer, progress)
        finite = bool(np.isfinite(loss))
        progress.note(loss, recall, scored)
        if progress.stopped_at is None and progress.should_stop(config):
            progress.stopped_at = progress.update
        if progress.update % config.save_every == 0 and finite:
            progress.seconds = seconds + time.monotonic() - start
            save_state(
                folder,
                progress.update,
                RunState(_tensors(model, optimizer), {**vars(progress), "settings": run.settings()}),
            )
    chosen_by, accuracy = (_accuracies(run, model, stream, finite) for stream in (_CHOOSE, _REPORT))
    result: dict[str, object] = {
        "settings": run.settings(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "updates": progress.update,
        "updates_to_half": next((int(update) for update, _, recall in progress.log if recall >= 50.0), None),
        "finite": finite,
        "chosen_by": float(np.mean(chosen_by)),
        "accuracy": float(np.mean(accuracy)),
        "accuracy_by_batch": accuracy,
        "seconds": seconds + time.monotonic() - start,
        "log": progress.log,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    return result


def _loss(model: RecallModel, compiled: bool) -> Loss:
    """Mean cross-entropy at the questions, and the share of right answers in percent."""

    def loss_of(tokens: Tensor, places: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(tokens, places)
        right = (logits.detach().argmax(-1) == answers).float().mean()
        return F.cross_entropy(logits.flatten(0, 1), answers.flatten()), 100 * right

    return torch.compile(loss_of) if compiled else loss_of


def _step(
    run: RecallRun, loss_of: Loss, model: RecallModel, optimizer: torch.optim.Optimizer, progress: Progress
) -> tuple[float, float]:
    batch = training_batch(run, progress.update)
    loss, recall = loss_of(*_on(batch, model))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    set_learning_rate(optimizer, rate_share(progress, run.config))
    optimizer.step()
    return float(loss.detach()), float(recall)


def _on(batch: Batch, model: RecallModel) -> tuple[Tensor, Tensor, Tensor]:
    device = model.embedding.weight.device
    tokens, places, answers = (
        torch.from_numpy(part).to(device) for part in (batch.tokens, batch.places, batch.answers)
    )
    return tokens, places, answers


@torch.inference_mode()
def _accuracies(run: RecallRun, model: RecallModel, stream: int, finite: bool) -> list[float]:
    """Right answers in percent, for each of the test batches: T/4 pairs, not used in training, the same
    for every run. Zeros for a model whose loss was not finite."""
    size = min(run.config.batch(run.cell), run.config.test_examples)
    shares = []
    n_batches = -(-run.config.test_examples // size)
    if not finite:
        return [0.0] * n_batches
    for number in range(n_batches):
        rng = np.random.default_rng([stream, number])
        tokens, places, answers = _on(
            make_batch(size, run.cell.length, run.cell.n_pairs, run.cell.vocabulary, rng), model
        )
        shares.append(100.0 * float((model(tokens, places).argmax(-1) == answers).float().mean()))
    return shares


def _tensors(model: RecallModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            tensors[f"{moment}.{name}"] = value.reshape(1) if value.dim() == 0 else value
    return tensors


def _restore(run: RecallRun, out: Path, model: RecallModel, optimizer: torch.optim.Optimizer) -> Progress:
    """Load the newest saved state into model and optimizer."""
    state = load_state(run.folder(out))
    if state is None:
        return Progress()
    values = dict(state.values)
    run.refuse_other(values.pop("settings"), out)
    model.load_state_dict(
        {
            name.removeprefix("model."): value
            for name, value in state.tensors.items()
            if name.startswith("model.")
        }
    )
    for name, parameter in model.named_parameters():
        moments = {
            moment: state.tensors[f"{moment}.{name}"].to(parameter.device)
            for moment in ("exp_avg", "exp_avg_sq")
        }
        optimizer.state[parameter] = {**moments, "step": state.tensors[f"step.{name}"].reshape(())}
    return Progress(**values)  # type: ignore[arg-type]
