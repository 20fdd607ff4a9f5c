"""A dataset as a study divides it: the splits it came with, folds cut from it, and splits with videos held out for tuning.

OUT/data is a prepared dataset like any other, so that every command takes it: a manifest with more splits, and a link to the videos."""

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from surgicalmamba.data.manifest import Manifest
from surgicalmamba.data.store import MANIFEST, PreparedDataset, finish
from surgicalmamba.errors import ConfigError, StudyError

Splits = dict[str, dict[str, list[str]]]


def divided(dataset: PreparedDataset, out: Path, more: Mapping[str, Mapping[str, Sequence[str]]]) -> PreparedDataset:
    """The dataset with more splits, in OUT/data. A folder that already holds a study of other videos is refused."""
    place = out / "data"
    splits = {**dataset.splits, **more}
    fields = {**dataset.manifest.model_dump(), "splits": {name: {role: list(ids) for role, ids in s.items()} for name, s in splits.items()}}
    manifest = Manifest.model_validate(fields)
    if (place / MANIFEST).is_file():
        before = Manifest.read(place / MANIFEST)
        if before.videos != manifest.videos or before.phases != manifest.phases:
            raise StudyError(f"{out} holds a study of other videos ({before.name}) than {dataset.folder}; give another --out.")
    place.mkdir(parents=True, exist_ok=True)
    link, videos = place / "videos", (dataset.folder / "videos").resolve()
    try:
        if link.is_symlink() and link.resolve() != videos:
            link.unlink()
        if not link.is_symlink():
            os.symlink(videos, link, target_is_directory=True)
    except OSError as error:
        raise StudyError(f"{link} cannot be made a link to {videos}: {error.strerror}; allow links, or use a folder that can.") from None
    finish(place, manifest)
    return PreparedDataset.open(place)


def divide(
    dataset: PreparedDataset, out: Path, pattern: str | None, n_folds: int | None, train_folds: int | None = None
) -> tuple[PreparedDataset, list[str]]:
    """The dataset in OUT/data and the splits a study goes through: those that match, or folds cut for it."""
    more = {} if n_folds is None else fold_splits(dataset, n_folds, train_folds)
    chosen = list(more) or chosen_splits(dataset, pattern)
    return divided(dataset, out, more), chosen


def chosen_splits(dataset: PreparedDataset, pattern: str | None) -> list[str]:
    """The splits whose name matches; the dataset's first without a pattern."""
    chosen = [name for name in dataset.splits if fnmatch(name, pattern)] if pattern else list(dataset.splits)[:1]
    if not chosen:
        raise ConfigError(f"no split of {dataset.folder} matches {pattern!r}; it has {', '.join(dataset.splits)}.")
    return chosen


def fold_splits(dataset: PreparedDataset, n_folds: int, train_folds: int | None = None) -> Splits:
    """The training and validation videos of the first split, cut into folds: every n-th id in sorted order is one fold's test. Each
    video is tested once by a model that has not seen it, and no epoch is chosen by it. Test videos of the dataset stay out. With
    `train_folds` a model learns from that many folds after the tested one only: what few operations teach."""
    first = next(iter(dataset.splits.values()), {})
    videos = sorted({video for role in ("train", "val") for video in first.get(role, ())})
    if not 2 <= n_folds <= len(videos):
        raise ConfigError(f"--folds {n_folds}: {dataset.folder} has {len(videos)} videos to cut; give 2 to {len(videos)}.")
    if train_folds is not None and not 1 <= train_folds < n_folds:
        raise ConfigError(f"--train-folds {train_folds}: of {n_folds} folds one is tested; give 1 to {n_folds - 1}.")
    folds = [videos[k::n_folds] for k in range(n_folds)]
    splits: Splits = {}
    for k, test in enumerate(folds):
        taught = [folds[(k + 1 + step) % n_folds] for step in range(train_folds or n_folds - 1)]
        name = f"fold{k + 1}of{n_folds}" + ("" if train_folds is None else f"-train{train_folds}")
        splits[name] = {"train": sorted(video for fold in taught for video in fold), "test": test}
    return splits


def with_tuning(view: PreparedDataset, out: Path, chosen: Sequence[str]) -> tuple[PreparedDataset, str]:
    """A divided dataset with a split to tune on, and its name."""
    name, roles = tuning_split(view.splits, chosen)
    return divided(view, out, {name: roles}), name


def tuning_split(splits: Mapping[str, Mapping[str, Sequence[str]]], chosen: Sequence[str]) -> tuple[str, dict[str, list[str]]]:
    """A split to tune on: the first of the chosen ones, with validation videos. Where it has none, the test videos of the next chosen
    split are held out of its training, so that users or patients that belong together stay together."""
    name = chosen[0]
    roles = splits[name]
    if roles.get("val"):
        return name, {role: list(ids) for role, ids in roles.items()}
    held = sorted(set(roles["train"]) & set(splits[chosen[1]].get("test", ()))) if len(chosen) > 1 else []
    if not held:
        raise ConfigError(f"split {name!r} has no validation videos to choose a learning rate by, and no second split lends any.")
    return f"tune-{name}", {"train": [video for video in roles["train"] if video not in held], "val": held}
