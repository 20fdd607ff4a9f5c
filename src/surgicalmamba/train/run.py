"""From a config to a trained model in a run folder: build, train, validate, keep the best, go on after an interruption.

RUN/config.yaml      the resolved config            RUN/log.jsonl     losses per update, scores and a look inside per epoch
RUN/states/          what `--resume` needs          RUN/best, last    checkpoints, and predictions on the validation videos"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from surgicalmamba.config import Section, load_config, save_config
from surgicalmamba.data.clips import ClipLoader, FeatureNoise
from surgicalmamba.data.labels import PhaseVocabulary
from surgicalmamba.data.store import PreparedDataset, PreparedVideo
from surgicalmamba.data.transforms import Augment, WholeFrame
from surgicalmamba.devices import pick_device
from surgicalmamba.errors import ConfigError, NonFiniteError
from surgicalmamba.eval.files import RunInfo, write_predictions, write_run
from surgicalmamba.eval.protocols import score
from surgicalmamba.eval.score import Score
from surgicalmamba.model.checkpoint import load_backbone, load_fitting
from surgicalmamba.model.recognizer import AnyRecognizer, PreprocessConfig
from surgicalmamba.model.registry import network_of
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.distributed import World, join_world, leave_world, shard
from surgicalmamba.train.inside import BoundaryFrames, Measured, boundary_frames, look_inside
from surgicalmamba.train.loop import Trainer, WeightAverage, adamw
from surgicalmamba.train.losses import Objective, class_weights_of, target_of
from surgicalmamba.train.predict import predict_video
from surgicalmamba.train.state import JsonLines, RunState, Sink, TensorBoard, complete_states, load_state, save_state

CONFIG_FILE = "config.yaml"


class Watcher:
    """What a person sees of a run. The command line shows bars and lines; a library caller may see nothing."""

    def begin(self, epochs: int, updates: int, done: int) -> None: ...
    def update(self, epoch: int, losses: dict[str, float]) -> None: ...
    def epoch(self, epoch: int, text: str) -> None: ...
    def inside(self, epoch: int, text: str) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Result:
    """What a finished run reports."""

    run: Path
    best_epoch: int
    best: dict[str, float]
    protocol: str
    select_by: str
    last_loss: float


def train(config: TrainConfig, resume: bool = False, watcher: Watcher | None = None) -> Result:
    """Train from a config. With `resume`, go on where the run folder's newest state stands."""
    run = Path(config.run)
    device = pick_device(config.device)
    world = join_world(device)
    watcher = watcher if watcher is not None and world.is_first else Watcher()
    try:
        if not resume and complete_states(run):
            raise ConfigError(f"{run} already holds a run; resume it (train --resume {run}), or give another folder with run=FOLDER.")
        config, dataset = open_dataset(config)
        config = fit_network(config, dataset)
        if not resume:
            check_network(config)
        run.mkdir(parents=True, exist_ok=True)
        if world.is_first:
            save_config(config, run / CONFIG_FILE)
        return _train(config, dataset, run, device, world, watcher)
    finally:
        leave_world()


def resume(run: Path, watcher: Watcher | None = None) -> Result:
    """Go on with an interrupted run; everything it needs is in its folder."""
    config = load_config(TrainConfig, run / CONFIG_FILE).with_(run=str(run))
    return train(config, resume=True, watcher=watcher)


def open_dataset(config: TrainConfig) -> tuple[TrainConfig, PreparedDataset]:
    """The prepared dataset and the config with its split named. Training and validation may not share a video."""
    if config.data.path is None:
        raise ConfigError("data.path is missing: give a prepared dataset, such as data.path=prepared/cholec80-tools.")
    dataset = PreparedDataset.open(config.data.path)
    split = config.data.split or next(iter(dataset.splits), "paper")
    train_ids = {video.id for video in dataset.split(split, "train")}
    shared = sorted(train_ids & set(dataset.splits[split].get("val", ())))
    if shared and not config.data.allow_overlap:
        what = f"split {split!r} of {dataset.folder} has {shared[0]} in both train and val"
        raise ConfigError(f"{what}; use another split, or data.allow_overlap=true to repeat a published one.")
    return config.with_(data=config.data.with_(split=split)), dataset


def fit_network(config: TrainConfig, dataset: PreparedDataset) -> TrainConfig:
    """The config with its network fitted to this dataset: its phases, its preparation, its feature width, the variant."""
    stored = dataset.manifest.settings
    made_with: dict[str, object] = {key: stored[key] for key in ("box", "size", "jpeg_quality", "sampling") if key in stored}
    preprocess = PreprocessConfig().with_(**made_with, fps=str(dataset.fps))
    changes: dict[str, object] = {"n_phases": len(dataset.phases), "phases": dataset.phases, "preprocess": preprocess}
    if dataset.kind == "features":
        changes |= {"backbone": None, "d_feature": dataset.d_feature}
    elif config.network.backbone is None:
        raise ConfigError(f"{dataset.folder} holds images but recognizer.backbone is null; give a backbone or prepare features.")
    return config.with_network(config.network.with_(**changes).variant(config.recognizer.variant))


def check_network(config: TrainConfig) -> None:
    """Refuse a config, fitted to its dataset, whose frozen backbone stages would stay at random values."""
    backbone = config.network.backbone
    has_weights = config.backbone_weights is not None or config.init is not None
    if backbone is not None and backbone.frozen_stages and not has_weights and not config.allow_random_frozen:
        n_stages = f"{backbone.frozen_stages} stage{'s' if backbone.frozen_stages > 1 else ''}"
        raise ConfigError(
            f"backbone_weights is null, so the backbone's stem and {n_stages} would stay frozen at random values; "
            "give ImageNet weights (backbone_weights=FILE_OR_HUB_ID), train all stages "
            "(recognizer.backbone.frozen_stages=0), or accept it (allow_random_frozen=true)."
        )


def build_trainer(
    config: TrainConfig, dataset: PreparedDataset, device: torch.device, world: World, watcher: Watcher | None = None
) -> Trainer:
    """Every part of a run, from seeds and settings alone."""
    torch.manual_seed(config.seed)
    network = config.network
    model = network_of(config.recognizer.name)(network)
    if config.init is not None:
        mismatch = load_fitting(model, config.init)
        if mismatch and watcher is not None:
            watcher.note(f"init={config.init} fits the network only in part: {mismatch}. The other weights start as without init.")
    if config.backbone_weights is not None:
        load_backbone(model, config.backbone_weights)
    videos = _role(config, dataset, "train")
    given = [torch.from_numpy(np.array(video.features)) for video in videos] if dataset.kind == "features" else []
    model.measure(given, [torch.from_numpy(video.labels.copy()) for video in videos])
    model.to(device)
    sharded = config.distributed == "shard" and world.size > 1
    if sharded:
        shard(model, world, device)
    loss = config.loss
    fps = float(dataset.fps)

    def target(video: PreparedVideo) -> NDArray[np.float32]:
        return target_of(torch.from_numpy(video.labels.copy()), loss, fps, network.clip_len).numpy()

    loader = ClipLoader(
        videos,
        n_lanes=config.data.n_lanes,
        clip_len=network.clip_len,
        transform=_transform(config),
        disturb=FeatureNoise(config.data.feature_dropout, config.data.feature_jitter, config.data.feature_grain),
        seed=config.seed,
        workers=config.data.workers,
        rank=world.rank,
        world_size=world.size,
        target=target,
    )
    weights = class_weights_of([video.labels for video in videos], len(dataset.phases), loss.class_weights)
    trainer = Trainer(
        model=model,
        loader=loader,
        objective=Objective(loss, None if weights is None else weights.to(device)),
        optimizer=adamw(model, config.optim),
        settings=config.optim,
        epochs=config.epochs,
        n_updates=0,
        device=device,
        world=world,
        autocast=config.precision == "bf16",
        average=WeightAverage(model, config.optim.average_decay) if config.optim.average_decay else None,
        sharded=sharded,
        seed=config.seed,
    )
    trainer.n_updates = config.epochs * trainer.updates_per_epoch()
    return trainer


def share_lanes(config: TrainConfig, state: RunState, world: World) -> TrainConfig:
    """The config with the lanes of an interrupted run divided among the processes there are now."""
    n_lanes = int(str(state.values["n_lanes"]))
    if n_lanes % world.size:
        raise ConfigError(f"{config.run} has {n_lanes} lanes; resume it with a number of processes that divides them, not {world.size}.")
    return config.with_(data=config.data.with_(n_lanes=n_lanes // world.size))


def _role(config: TrainConfig, dataset: PreparedDataset, role: str) -> list[PreparedVideo]:
    """The videos of a role; none where the split has no such role, as leave-one-out splits have no val."""
    assert config.data.split is not None  # named by open_dataset
    return dataset.split(config.data.split, role) if dataset.splits[config.data.split].get(role) else []


def _transform(config: TrainConfig) -> Augment | WholeFrame | None:
    backbone = config.network.backbone
    if backbone is None:
        return None
    size = backbone.image_size
    return WholeFrame(size) if config.data.augment is None else Augment(config.data.augment, size)


def _train(config: TrainConfig, dataset: PreparedDataset, run: Path, device: torch.device, world: World, watcher: Watcher) -> Result:
    state = load_state(run)
    begun = config if state is None else share_lanes(config.with_(init=None, backbone_weights=None), state, world)  # all is in the state
    trainer = build_trainer(begun, dataset, device, world, watcher)
    history: list[dict[str, float]] = []  # scores by epoch, empty for one without validation
    log_bytes = 0
    if state is not None:
        trainer.restore(state)
        history = list(state.values["history"])  # type: ignore[call-overload]
        log_bytes = int(str(state.values["log_bytes"]))
    watcher.begin(config.epochs, trainer.n_updates, trainer.update)
    with _sinks(run, log_bytes, trainer.update, world) as (log, sinks):
        last = {"loss": float("nan")}

        def save() -> None:
            captured = trainer.capture()
            if world.is_first:
                values = {**captured.values, "history": history, "log_bytes": log.length()}
                try:
                    save_state(run, trainer.update, RunState(captured.tensors, values))
                except OSError as error:
                    kept = complete_states(run)
                    place = kept[-1] if kept else "none yet"
                    watcher.note(f"the state of update {trainer.update} could not be saved ({error}); the last good one is {place}.")
            world.wait()

        def after_update(trainer: Trainer, losses: dict[str, float]) -> None:
            last.update(losses)
            for sink in sinks:
                sink.write("update", trainer.update, losses)
            watcher.update(trainer.epoch, losses)
            if trainer.update % config.save_every == 0:
                save()

        while trainer.epoch < config.epochs:
            epoch = trainer.epoch
            try:
                trainer.run_epoch(after_update)
            except NonFiniteError as error:
                kept = complete_states(run)
                raise NonFiniteError(f"{error} The last good state is {kept[-1] if kept else 'the start'}.") from None
            every = config.validate_every
            if every is None or (trainer.epoch % every and trainer.epoch < config.epochs):
                history.append({})
            elif videos := _role(config, dataset, "val"):
                with trainer.whole_model(averaged=True) as model:
                    if world.is_first:
                        scores, measured = _validate(config, dataset, model, videos, run, history, epoch)
                        history.append(scores)
                        for sink in sinks:
                            sink.write("epoch", epoch, scores)
                        watcher.epoch(epoch, f"{config.protocol}: " + "  ".join(f"{name} {value:.2f}" for name, value in scores.items()))
                        if values := measured.values():
                            for sink in sinks:
                                sink.write("inside", epoch, values)
                            watcher.inside(epoch, measured.line())
                    world.wait()
            save()
        _save_models(config, dataset, trainer, run, chosen=any(history))
    if not any(history):
        return Result(run, -1, {}, config.protocol, config.select_by, last["loss"])
    best = max((epoch for epoch, scores in enumerate(history) if scores), key=lambda epoch: history[epoch][config.select_by])
    return Result(run, best, history[best], config.protocol, config.select_by, last["loss"])


@contextmanager
def _sinks(run: Path, log_bytes: int, update: int, world: World) -> Iterator[tuple[JsonLines, list[Sink]]]:
    """The first process writes the log; the others write nothing."""
    name = "log.jsonl" if world.is_first else f".log-{world.rank}.jsonl"
    log = JsonLines(run / name, log_bytes)
    sinks: list[Sink] = [log] if world.is_first else []
    try:
        if world.is_first:
            with suppress(ImportError):
                sinks.append(TensorBoard(run / "tensorboard", update))
        yield log, sinks
    finally:
        for sink in sinks:
            sink.close()
        if not world.is_first:
            (run / name).unlink(missing_ok=True)


def _validate(
    config: TrainConfig,
    dataset: PreparedDataset,
    model: AnyRecognizer,
    videos: list[PreparedVideo],
    run: Path,
    history: list[dict[str, float]],
    epoch: int,
) -> tuple[dict[str, float], Measured]:
    """Score the validation videos and look inside the model; keep it and its predictions if it is the best."""
    model.eval()
    device = next(model.parameters()).device
    with look_inside(model) as inside:
        predictions = {video.id: predict_video(model, video, device, inside.observe) for video in videos}
    scores = summary(videos, {name: p.phase for name, p in predictions.items()}, dataset, config.protocol)
    if scores[config.select_by] > max((past[config.select_by] for past in history if past), default=-1.0):
        model.save(run / "best", provenance={**provenance(config, dataset, epoch), **scores})
        vocabulary = PhaseVocabulary(dataset.name, dataset.phases)
        for name, prediction in predictions.items():
            write_predictions(run / "best" / "val", name, prediction, vocabulary)
        info = RunInfo(dataset.name, dataset.phases, float(dataset.fps), config.data.split, config.seed)
        write_run(run / "best" / "val", info)
    return scores, inside.measure(_boundary_frames(config, dataset, videos))


def _boundary_frames(config: TrainConfig, dataset: PreparedDataset, videos: list[PreparedVideo]) -> BoundaryFrames:
    """The frames of these videos with the transition target that the loss uses."""
    loss, fps, labels = config.loss, float(dataset.fps), [video.labels for video in videos]
    targets = [target_of(torch.from_numpy(part.copy()), loss, fps, config.network.clip_len).double().numpy() for part in labels]
    return boundary_frames(labels, targets, fps, loss.rise_s, loss.fall_s)


def _save_models(config: TrainConfig, dataset: PreparedDataset, trainer: Trainer, run: Path, chosen: bool) -> None:
    """Write `last`; and, where validation has chosen no epoch, the last one as `best`."""
    about = provenance(config, dataset, config.epochs - 1)
    with trainer.whole_model() as model:
        if trainer.world.is_first:
            model.save(run / "last", provenance=about)
    with trainer.whole_model(averaged=True) as model:
        if trainer.world.is_first and not chosen:
            model.save(run / "best", provenance=about)
    trainer.world.wait()  # nobody leaves before the files are there


def summary(
    videos: list[PreparedVideo], predicted: dict[str, NDArray[np.int64]], dataset: PreparedDataset, protocol: str
) -> dict[str, float]:
    """Mean accuracy, precision, recall and Jaccard of a set of videos under a protocol, in percent."""
    result = score(
        [video.labels for video in videos], [predicted[video.id] for video in videos], len(dataset.phases), protocol, fps=float(dataset.fps)
    )
    assert isinstance(result, Score)
    return {name: result.metrics[name]["mean"] for name in ("accuracy", "jaccard", "precision", "recall")}


def provenance(config: TrainConfig, dataset: PreparedDataset, epoch: int) -> dict[str, object]:
    """What a checkpoint says about where it comes from."""
    settings = json.loads(config.model_dump_json(exclude={"recognizer", "run"}))
    network = {key: getattr(config.recognizer, key) for key in ("name", "preset", "variant")}  # its settings are the checkpoint's own
    about = {"dataset": dataset.name, "split": config.data.split, "seed": config.seed, "epoch": epoch}
    return {**about, "training": {"recognizer": network, **settings}}


# Overrides of a command line stand in what is trained: one that something else decides is refused, never dropped.


FROM_DATASET = ("n_phases", "phases", "d_feature", "preprocess")
"""Settings of a network that its dataset decides (`fit_network`)."""
UNUSED_ON = {
    "features": ("data.augment", "optim.backbone_lr", "optim.backbone_lr_decay"),
    "frames": ("data.feature_dropout", "data.feature_jitter", "data.feature_grain"),
}
"""Settings that mean nothing on a dataset of this kind."""


def flatten(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested settings by their dotted names."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def given_names(overrides: Sequence[str], section: type[Section] = TrainConfig) -> list[str]:
    """The dotted names of the settings that overrides give, such as data.path; `data={path: x}` names the same."""
    return list(flatten(section.overridden({}, overrides)))


def is_below(name: str, part: str) -> bool:
    """Whether a dotted name is this part of the settings, or lies in it."""
    return name == part or name.startswith(f"{part}.")


def refuse_unused(overrides: Sequence[str], config: TrainConfig, dataset: PreparedDataset) -> None:
    """Refuse the first override, of those already put into the config, that training on this dataset would not use.

    null asks for whatever is usual, and is never refused."""
    asked, trained = flatten(config.model_dump()), flatten(fit_network(config, dataset).model_dump())
    for name in given_names(overrides):
        if (value := asked.get(name)) is not None and (why := _why_unused(name, value, trained, config, dataset)) is not None:
            raise ConfigError(f"{name}={value} would not be used: {why}. Leave it out.")


def _why_unused(name: str, value: object, trained: Mapping[str, object], config: TrainConfig, dataset: PreparedDataset) -> str | None:
    if any(is_below(name, part) for part in UNUSED_ON[dataset.kind]):
        return f"{dataset.folder} holds {dataset.kind}"
    if not is_below(name, "recognizer") or trained.get(name) == value:
        return None
    setting = name.removeprefix("recognizer.")
    if any(is_below(setting, part) for part in FROM_DATASET):
        return f"{dataset.folder} decides it ({trained.get(name)})"
    if is_below(setting, "backbone"):
        return f"{dataset.folder} holds {dataset.kind}, so there is no backbone"
    return f"variant={config.recognizer.variant} has no such part"
