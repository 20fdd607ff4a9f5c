"""From a config to a trained model in a run folder: build, train, validate, keep the best epoch, resume.

RUN/config.yaml   the resolved config
RUN/log.jsonl     losses per update, scores and measures per epoch
RUN/states/       what `--resume` needs
RUN/best, last    checkpoints; in best also the predictions on validation videos"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
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
from surgicalmamba.train.inside import Measured, boundary_frames, look_inside
from surgicalmamba.train.loop import Trainer, WeightAverage, adamw
from surgicalmamba.train.losses import Objective, class_weights_of, target_of
from surgicalmamba.train.predict import predict_video
from surgicalmamba.train.state import RunLog, RunState, complete_states, load_state, save_state

CONFIG_FILE = "config.yaml"


class Watcher:
    """Callbacks of a run. The command line shows bars and lines; these show nothing."""

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
    """Train from a config. With `resume`, continue from the newest state in the run folder."""
    run = Path(config.run)
    device = pick_device(config.device)
    world = join_world(device)
    watcher = watcher if watcher is not None and world.is_first else Watcher()
    try:
        if not resume and complete_states(run):
            advice = f"resume it (train --resume {run}), or give another folder with run=FOLDER."
            raise ConfigError(f"{run} already holds a run; {advice}")
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
    """Resume an interrupted run; everything it needs is in its folder."""
    config = load_config(TrainConfig, run / CONFIG_FILE).with_(run=str(run))
    return train(config, resume=True, watcher=watcher)


def open_dataset(config: TrainConfig) -> tuple[TrainConfig, PreparedDataset]:
    """The config with the name of its split, and the prepared dataset. Refuses a video in train and val."""
    if config.data.path is None:
        example = "data.path=prepared/cholec80-tools"
        raise ConfigError(f"data.path is missing: give a prepared dataset, such as {example}.")
    dataset = PreparedDataset.open(config.data.path)
    split = config.data.split or next(iter(dataset.splits), "paper")
    train_ids = {video.id for video in dataset.split(split, "train")}
    shared = sorted(train_ids & set(dataset.splits[split].get("val", ())))
    if shared and not config.data.allow_overlap:
        problem = f"split {split!r} of {dataset.folder} has {shared[0]} in both train and val"
        advice = "use another split, or data.allow_overlap=true to repeat a published one"
        raise ConfigError(f"{problem}; {advice}.")
    return config.with_(data=config.data.with_(split=split)), dataset


def fit_network(config: TrainConfig, dataset: PreparedDataset) -> TrainConfig:
    """The config with its network fitted to a dataset (phases, preparation, feature width) and variant."""
    stored = dataset.manifest.settings
    prepared = {key: stored[key] for key in ("box", "size", "jpeg_quality", "sampling") if key in stored}
    preprocess = PreprocessConfig().with_(**prepared, fps=str(dataset.fps))
    changes: dict[str, object] = {"n_phases": len(dataset.phases), "phases": dataset.phases}
    changes["preprocess"] = preprocess
    if dataset.kind == "features":
        changes |= {"backbone": None, "d_feature": dataset.d_feature}
    elif config.network.backbone is None:
        advice = "give a backbone or prepare features"
        raise ConfigError(f"{dataset.folder} holds images but recognizer.backbone is null; {advice}.")
    return config.with_network(config.network.with_(**changes).variant(config.recognizer.variant))


def check_network(config: TrainConfig) -> None:
    """Refuse a config, fitted to its dataset, whose frozen backbone stages would stay at random values."""
    backbone = config.network.backbone
    has_weights = config.backbone_weights is not None or config.init is not None
    if backbone is not None and backbone.frozen_stages and not has_weights and not config.allow_random_frozen:
        n_stages = f"{backbone.frozen_stages} stage{'s' if backbone.frozen_stages > 1 else ''}"
        raise ConfigError(
            f"backbone_weights is null, so the backbone's stem and {n_stages} would stay frozen at random "
            "values; give ImageNet weights (backbone_weights=FILE_OR_HUB_ID), train all stages "
            "(recognizer.backbone.frozen_stages=0), or accept it (allow_random_frozen=true)."
        )


def build_trainer(
    config: TrainConfig,
    dataset: PreparedDataset,
    device: torch.device,
    world: World,
    watcher: Watcher | None = None,
) -> Trainer:
    """Build every part of a run from its config."""
    torch.manual_seed(config.seed)
    network, data, loss, fps = config.network, config.data, config.loss, float(dataset.fps)
    model = network_of(config.recognizer.name)(network)
    if config.init is not None:
        mismatch = load_fitting(model, config.init)
        if mismatch and watcher is not None:
            rest = "The other weights start as without init."
            watcher.note(f"init={config.init} fits the network only in part: {mismatch}. {rest}")
    if config.backbone_weights is not None:
        load_backbone(model, config.backbone_weights)
    videos = _role(config, dataset, "train")
    has_features = dataset.kind == "features"
    features = [torch.from_numpy(np.array(video.features)) for video in videos] if has_features else []
    model.measure(features, [torch.from_numpy(video.labels.copy()) for video in videos])
    model.to(device)
    sharded = config.distributed == "shard" and world.size > 1
    if sharded:
        shard(model, world, device)

    def target(video: PreparedVideo) -> NDArray[np.float32]:
        return target_of(torch.from_numpy(video.labels.copy()), loss, fps, network.clip_len).numpy()

    loader = ClipLoader(
        videos,
        n_lanes=data.n_lanes,
        clip_len=network.clip_len,
        transform=_transform(config),
        disturb=FeatureNoise(data.feature_dropout, data.feature_jitter, data.feature_grain),
        seed=config.seed,
        workers=data.workers,
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
    """The config with the lanes of an interrupted run divided among the present processes."""
    n_lanes = int(str(state.values["n_lanes"]))
    if n_lanes % world.size:
        advice = f"resume it with a number of processes that divides them, not {world.size}"
        raise ConfigError(f"{config.run} has {n_lanes} lanes; {advice}.")
    return config.with_(data=config.data.with_(n_lanes=n_lanes // world.size))


def _role(config: TrainConfig, dataset: PreparedDataset, role: str) -> list[PreparedVideo]:
    """The videos of a role; none where the split lacks it, as leave-one-out splits lack val."""
    assert config.data.split is not None  # open_dataset names it
    return dataset.split(config.data.split, role) if dataset.splits[config.data.split].get(role) else []


def _transform(config: TrainConfig) -> Augment | WholeFrame | None:
    backbone, augment = config.network.backbone, config.data.augment
    if backbone is None:
        return None
    return WholeFrame(backbone.image_size) if augment is None else Augment(augment, backbone.image_size)


def _train(
    config: TrainConfig,
    dataset: PreparedDataset,
    run: Path,
    device: torch.device,
    world: World,
    watcher: Watcher,
) -> Result:
    state = load_state(run)
    start = config
    if state is not None:  # it holds all weights
        start = share_lanes(config.with_(init=None, backbone_weights=None), state, world)
    trainer = build_trainer(start, dataset, device, world, watcher)
    history: list[dict[str, float]] = []  # scores by epoch, empty for one without validation
    log_bytes = 0
    if state is not None:
        trainer.restore(state)
        history = list(state.values["history"])  # type: ignore[call-overload]
        log_bytes = int(str(state.values["log_bytes"]))
    watcher.begin(config.epochs, trainer.n_updates, trainer.update)
    last_loss = float("nan")
    with closing(RunLog(run, log_bytes, trainer.update, world.is_first)) as log:

        def save() -> None:
            captured = trainer.capture()
            if world.is_first:
                values = {**captured.values, "history": history, "log_bytes": log.length()}
                try:
                    save_state(run, trainer.update, RunState(captured.tensors, values))
                except OSError as error:
                    problem = f"the state of update {trainer.update} could not be saved ({error})"
                    watcher.note(f"{problem}; the last good one is {_last_state(run, 'none yet')}.")
            world.wait()

        def after_update(trainer: Trainer, losses: dict[str, float]) -> None:
            nonlocal last_loss
            last_loss = losses["loss"]
            log.write("update", trainer.update, losses)
            watcher.update(trainer.epoch, losses)
            if trainer.update % config.save_every == 0:
                save()

        while trainer.epoch < config.epochs:
            epoch = trainer.epoch
            try:
                trainer.run_epoch(after_update)
            except NonFiniteError as error:
                last_state = _last_state(run, "the start")
                raise NonFiniteError(f"{error} The last good state is {last_state}.") from None
            every = config.validate_every
            if every is None or (trainer.epoch % every and trainer.epoch < config.epochs):
                history.append({})
            elif videos := _role(config, dataset, "val"):
                with trainer.whole_model(averaged=True) as model:
                    if world.is_first:
                        scores, measured = _validate(config, dataset, model, videos, run, history, epoch)
                        history.append(scores)
                        log.write("epoch", epoch, scores)
                        text = "  ".join(f"{name} {value:.2f}" for name, value in scores.items())
                        watcher.epoch(epoch, f"{config.protocol}: {text}")
                        if values := measured.values():
                            log.write("inside", epoch, values)
                            watcher.inside(epoch, measured.line())
                    world.wait()
            save()
        _save_models(config, dataset, trainer, run, chosen=any(history))
    scored = [epoch for epoch, scores in enumerate(history) if scores]
    best = max(scored, key=lambda epoch: history[epoch][config.select_by], default=-1)
    return Result(run, best, history[best] if scored else {}, config.protocol, config.select_by, last_loss)


def _last_state(run: Path, without: str) -> str:
    states = complete_states(run)
    return str(states[-1]) if states else without


def _validate(
    config: TrainConfig,
    dataset: PreparedDataset,
    model: AnyRecognizer,
    videos: list[PreparedVideo],
    run: Path,
    history: list[dict[str, float]],
    epoch: int,
) -> tuple[dict[str, float], Measured]:
    """Score the validation videos and measure the inside of the model. If it is the best so far, save it with
    its predictions."""
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
    loss, fps, labels = config.loss, float(dataset.fps), [video.labels for video in videos]
    targets = [
        target_of(torch.from_numpy(part.copy()), loss, fps, config.network.clip_len).numpy()
        for part in labels
    ]
    return scores, inside.measure(boundary_frames(labels, targets, fps, loss.rise_s, loss.fall_s))


def _save_models(
    config: TrainConfig, dataset: PreparedDataset, trainer: Trainer, run: Path, chosen: bool
) -> None:
    """Save `last`, and the same epoch as `best` if no validation has chosen one."""
    about = provenance(config, dataset, config.epochs - 1)
    with trainer.whole_model() as model:
        if trainer.world.is_first:
            model.save(run / "last", provenance=about)
    with trainer.whole_model(averaged=True) as model:
        if trainer.world.is_first and not chosen:
            model.save(run / "best", provenance=about)
    trainer.world.wait()  # no process ends before the files exist


def summary(
    videos: list[PreparedVideo],
    predicted: dict[str, NDArray[np.int64]],
    dataset: PreparedDataset,
    protocol: str,
) -> dict[str, float]:
    """Mean accuracy, precision, recall and Jaccard of a set of videos under a protocol, in percent."""
    labels, phases = [video.labels for video in videos], [predicted[video.id] for video in videos]
    result = score(labels, phases, len(dataset.phases), protocol, fps=float(dataset.fps))
    assert isinstance(result, Score)
    return {name: result.metrics[name]["mean"] for name in ("accuracy", "jaccard", "precision", "recall")}


def provenance(config: TrainConfig, dataset: PreparedDataset, epoch: int) -> dict[str, object]:
    """What a checkpoint records about its training, beside its network's settings."""
    settings = json.loads(config.model_dump_json(exclude={"recognizer", "run"}))
    network = {key: getattr(config.recognizer, key) for key in ("name", "preset", "variant")}
    about = {"dataset": dataset.name, "split": config.data.split, "seed": config.seed, "epoch": epoch}
    return {**about, "training": {"recognizer": network, **settings}}


FROM_DATASET = ("n_phases", "phases", "d_feature", "preprocess")
"""Settings of a network that its dataset decides (`fit_network`)."""
UNUSED_ON = {
    "features": ("data.augment", "optim.backbone_lr", "optim.backbone_lr_decay"),
    "frames": ("data.feature_dropout", "data.feature_jitter", "data.feature_grain"),
}
"""Settings without effect on a dataset of this kind."""


def flatten(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested settings by their dotted names."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def given_names(overrides: Sequence[str], section: type[Section] = TrainConfig) -> list[str]:
    """Dotted names of the settings that overrides set: data.path for `data.path=x` and `data={path: x}`."""
    return list(flatten(section.overridden({}, overrides)))


def is_below(name: str, part: str) -> bool:
    """Whether a dotted name is this part of the settings, or inside it."""
    return name == part or name.startswith(f"{part}.")


def refuse_unused(overrides: Sequence[str], config: TrainConfig, dataset: PreparedDataset) -> None:
    """Raise for the first override that training on this dataset would not use. `config` contains them all.

    null means the default, and is never refused."""
    asked, trained = flatten(config.model_dump()), flatten(fit_network(config, dataset).model_dump())
    for name in given_names(overrides):
        value = asked.get(name)
        if value is not None and (why := _why_unused(name, value, trained, config, dataset)) is not None:
            raise ConfigError(f"{name}={value} would not be used: {why}. Leave it out.")


def _why_unused(
    name: str, value: object, trained: Mapping[str, object], config: TrainConfig, dataset: PreparedDataset
) -> str | None:
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
