"""A user's own features: `phases.yaml`, and per procedure `NAME.npy` with a label file, or `NAME.npz` with x
and y."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.adapters import base, custom
from surgicalmamba.data.adapters.base import FeatureAdapter, FeatureSequence, Found, Procedure
from surgicalmamba.data.labels import PhaseVocabulary, RowLabels, load_vocabulary, read_any
from surgicalmamba.data.manifest import Settings, Split
from surgicalmamba.errors import DataError
from surgicalmamba.files import natural_key


class Features(FeatureAdapter):
    """One vector per sample at `fps:` of phases.yaml (default 1). Labels are phase ids, or any label format
    with a row per sample."""

    name = "features"

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.fps = custom.describe(source).image_fps or Fraction(1)

    @property
    def vocabulary(self) -> PhaseVocabulary:
        return load_vocabulary(custom.phases_file(self.source))

    def label_settings(self) -> Settings:
        return super().label_settings() | custom.describe(self.source).settings

    def splits(self, procedures: Sequence[Procedure]) -> dict[str, Split]:
        return custom.own_splits(self.source, procedures)

    def find(self) -> Found:
        files = base.walk(self.source)
        media: dict[str, Path] = {}
        for path in files:
            if path.suffix.lower() in (".npy", ".npz") and not path.stem.endswith(("-labels", "_labels")):
                key = custom.own_id(path.stem, path)
                if key in media:
                    raise DataError(f"two feature files called {key}: {media[key]} and {path}; rename one.")
                media[key] = path
        if not media:
            raise DataError(f"{self.source}: no .npy or .npz features in it.")
        labels = custom.label_files(files, media)
        for key, path in media.items():
            if key not in labels and (beside := path.with_name(f"{path.stem}_labels.npy")).is_file():
                labels[key] = beside
            if path.suffix == ".npz":  # holds its own labels
                labels.pop(key, None)
        return Found(sorted(base.join(media, labels), key=lambda procedure: natural_key(procedure.id)))

    def load(self, procedure: Procedure) -> FeatureSequence:
        path = procedure.media
        if path.suffix.lower() == ".npz":
            names = base.npz_names(path)
            if not {"x", "y"} <= set(names):
                found = ", ".join(names) or "none"
                expected = "expected arrays x (samples, features) and y (samples,)"
                raise DataError(f"{path}: {expected}, found {found}.")
            features = base.as_features(base.load_npz(path, "x"), f"{path}: x")
            phases = base.as_phases(base.load_npz(path, "y"), len(self.vocabulary), f"{path}: y")
        else:
            features = base.as_features(base.load_npy(path), str(path))
            phases = self._phases(procedure, len(features))
        base.same_length(features, phases, str(path))
        return FeatureSequence(features, phases, self.fps, np.arange(len(features)))

    def _phases(self, procedure: Procedure, n_samples: int) -> NDArray[np.int64]:
        """The labels beside a .npy file: an array, or a label file."""
        stem = procedure.media.stem
        if not procedure.annotations:
            expected = f"{stem}.csv, {stem}.txt or {stem}_labels.npy"
            raise DataError(f"{procedure.media}: no labels for it; expected {expected}.")
        path = procedure.annotations[0]
        if path.suffix == ".npy":
            return base.as_phases(base.load_npy(path), len(self.vocabulary), str(path))
        labels = read_any(path, self.vocabulary, custom.describe(self.source).first_row)
        if isinstance(labels, RowLabels):
            return labels.phases
        rows = np.arange(n_samples)
        return labels.phase_of(rows, rows / float(self.fps), self.fps)
