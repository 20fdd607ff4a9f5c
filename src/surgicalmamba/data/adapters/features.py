"""Features of a user's own making: `phases.yaml`, and per procedure `NAME.npy` with a label file, or `NAME.npz` with x and y."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from surgicalmamba.data.adapters.base import (
    FeatureAdapter,
    FeatureSequence,
    Found,
    Procedure,
    as_features,
    as_phases,
    load_npy,
    load_npz,
    npz_names,
    same_length,
    walk,
)
from surgicalmamba.data.adapters.custom import description_settings, label_files, own_id, own_splits, phases_file, read_description
from surgicalmamba.data.labels import PhaseVocabulary, RowLabels, load_vocabulary, read_any
from surgicalmamba.data.manifest import Setting, Split
from surgicalmamba.errors import DataError
from surgicalmamba.files import natural_key


class Features(FeatureAdapter):
    """One vector per sample at `fps:` of phases.yaml (1 if absent). Labels are phase ids, or any label format with a row per sample."""

    name = "features"

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.fps = read_description(phases_file(source)).image_fps or Fraction(1)

    @property
    def vocabulary(self) -> PhaseVocabulary:
        return load_vocabulary(phases_file(self.source))

    def label_settings(self) -> dict[str, Setting]:
        return {**super().label_settings(), **description_settings(self.source)}

    def find(self) -> Found:
        files = walk(self.source)
        media: dict[str, Path] = {}
        for path in files:
            if path.suffix.lower() in (".npy", ".npz") and not path.stem.endswith(("-labels", "_labels")):
                key = own_id(path.stem, path)
                if key in media:
                    raise DataError(f"two feature files called {key}: {media[key]} and {path}; rename one.")
                media[key] = path
        if not media:
            raise DataError(f"{self.source}: no .npy or .npz features in it.")
        labels = label_files(files, media)
        for key, path in media.items():
            if key not in labels and (beside := path.with_name(f"{path.stem}_labels.npy")).is_file():
                labels[key] = beside
        labels = {key: path for key, path in labels.items() if media[key].suffix != ".npz"}  # archives hold their own
        procedures = [Procedure(key, path, (labels[key],) if key in labels else ()) for key, path in media.items()]
        return Found(sorted(procedures, key=lambda procedure: natural_key(procedure.id)))

    def load(self, procedure: Procedure) -> FeatureSequence:
        path, n_phases = procedure.media, len(self.vocabulary)
        if path.suffix.lower() == ".npz":
            if not {"x", "y"} <= set(npz_names(path)):
                names = ", ".join(npz_names(path)) or "none"
                raise DataError(f"{path}: expected arrays x (samples, features) and y (samples,), found {names}.")
            features = as_features(load_npz(path, "x"), f"{path}: x")
            phases = as_phases(load_npz(path, "y"), n_phases, f"{path}: y")
        else:
            features = as_features(load_npy(path), str(path))
            if not procedure.annotations:
                raise DataError(f"{path}: no labels for it; expected {path.stem}.csv, {path.stem}.txt or {path.stem}_labels.npy.")
            label_path = procedure.annotations[0]
            if label_path.suffix == ".npy":
                phases = as_phases(load_npy(label_path), n_phases, str(label_path))
            else:
                rows = np.arange(len(features))
                labels = read_any(label_path, self.vocabulary, read_description(phases_file(self.source)).first_row)
                by_row = isinstance(labels, RowLabels)
                phases = labels.phases if by_row else labels.phase_of(rows, rows / float(self.fps), self.fps)
        same_length(len(features), len(phases), str(path))
        return FeatureSequence(features, phases, self.fps, np.arange(len(features)))

    def splits(self, procedures: Sequence[Procedure]) -> dict[str, Split]:
        return own_splits(self.source, procedures)
