"""Numeric arrays from .npy and .npz files of others: never unpickled, checked for shape, type and finite values."""

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.errors import DataError


def load_npy(path: Path) -> NDArray[np.generic]:
    """One array of a .npy file."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: {_reason(error)}") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError(f"{path}: an .npz archive under the name .npy; rename it.")
    return array


def npz_names(path: Path) -> list[str]:
    """The array names of a .npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    except zipfile.BadZipFile:
        raise DataError(f"{path}: not an .npz archive, or a damaged one.") from None


def load_npz(path: Path, name: str) -> NDArray[np.generic]:
    """One array of a .npz file."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            array: NDArray[np.generic] = archive[name]
            return array
    except KeyError:
        raise DataError(f"{path}: no array {name!r} in it.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: array {name!r}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "pickle" in text.lower():
        return "holds Python objects, which are never loaded; save plain numbers."
    return f"not a readable array ({text})."


def as_features(array: NDArray[np.generic], where: str) -> NDArray[np.float32]:
    """(n, d) float32 from any real numbers; wrong shapes, text and non-finite values are refused with their place."""
    if array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{where}: features have shape {array.shape}, expected (samples, features).")
    if array.dtype.kind not in "fiub":
        raise DataError(f"{where}: features are of type {array.dtype}, expected numbers.")
    features = np.ascontiguousarray(array, dtype=np.float32)
    bad = np.argwhere(~np.isfinite(features))
    if len(bad):
        raise DataError(f"{where}: row {bad[0][0]}, column {bad[0][1]} is {features[tuple(bad[0])]}; features must be finite.")
    return features


def as_phases(array: NDArray[np.generic], n_phases: int, where: str) -> NDArray[np.int64]:
    """(n,) phase ids, -1 for unlabelled."""
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(f"{where}: labels are {array.dtype} of shape {array.shape}, expected whole numbers of shape (samples,).")
    phases = array.astype(np.int64)
    bad = np.flatnonzero((phases < -1) | (phases >= n_phases))
    if len(bad):
        raise DataError(f"{where}: row {bad[0]} has phase {phases[bad[0]]}, outside 0 to {n_phases - 1} (-1 for unlabelled).")
    return phases


def same_length(n_features: int, n_labels: int, where: str) -> None:
    """Refuse features and labels of different length."""
    if n_features != n_labels:
        raise DataError(f"{where}: {n_features} feature rows and {n_labels} labels; they must be the same number.")
