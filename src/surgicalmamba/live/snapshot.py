"""A live session as bytes: versioned, checksummed, bound to its model. Nothing in it is code.

    magic (8)  format (u32)  length of all (u64)  SHA-256 of what follows (32)
    length of header (u32)  header (JSON)  tensors (safetensors)

The header holds package version, model fingerprint, engine, clock, counters, policy and output stage; the
tensors are the model's state, the last features and the last thumbnail. Numbers of the header read back to
the bit."""

import hashlib
import json
import struct
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, from_numpy

from surgicalmamba.core.state import LaneState
from surgicalmamba.engines.engine import Engine
from surgicalmamba.errors import SnapshotError, SurgicalMambaError
from surgicalmamba.live.estimate import Counts
from surgicalmamba.live.output import OutputStage
from surgicalmamba.live.track import Clock, Policy, Track
from surgicalmamba.version import __version__

FORMAT = 1
MAGIC = b"SMSNAP\r\n"
_PREFIX = struct.Struct("<8sIQ32s")
_LENGTH = struct.Struct("<I")
Header = dict[str, Any]


def save_snapshot(engine: Engine, track: Track, state: LaneState) -> bytes:
    """A stream between two frames, as bytes."""
    tensors = {f"state.{i:04d}": tensor for i, tensor in enumerate(state.tensors())}
    if track.features is not None:
        tensors["features"] = track.features
    if track.small is not None:
        tensors["small"] = from_numpy(track.small)
    header: Header = {
        "surgicalmamba": __version__,
        "model": engine.fingerprint,
        "engine": engine.name,
        "frame_index": list(state.frame_index),
        "clock": {**asdict(track.clock), "fps": str(track.clock.fps)},
        "next_tick": track.next_tick,
        "n_frames": track.n_frames,
        "counts": asdict(track.counts),
        "policy": track.policy.model_dump(mode="json"),
        "output_stage": track.stage.model_dump(mode="json"),
        "belief": None if track.belief is None else track.belief.tolist(),
    }
    text = json.dumps(header).encode()
    payload = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    body = _LENGTH.pack(len(text)) + text + payload
    return _PREFIX.pack(MAGIC, FORMAT, _PREFIX.size + len(body), hashlib.sha256(body).digest()) + body


def _open(blob: bytes) -> tuple[Header, bytes]:
    """The header and the tensors' bytes of a whole snapshot; any other is refused with its reason."""
    if len(blob) < _PREFIX.size or not blob.startswith(MAGIC):
        is_cut = MAGIC.startswith(blob[: len(MAGIC)])
        what = "is empty" if not blob else "is cut off" if is_cut else "is no snapshot of a session"
        raise SnapshotError(
            f"the snapshot {what} ({len(blob)} bytes); give the bytes that snapshot() returned."
        )
    _, version, length, digest = _PREFIX.unpack_from(blob)
    if version != FORMAT:
        advice = f"this package reads {FORMAT}; use the version that wrote it"
        raise SnapshotError(f"the snapshot has format version {version}, {advice}.")
    if len(blob) != length:
        state = "cut off" if len(blob) < length else "followed by other bytes"
        raise SnapshotError(f"the snapshot is {state}: {len(blob)} bytes of {length}; copy it again.")
    body = blob[_PREFIX.size :]
    if hashlib.sha256(body).digest() != digest:
        advice = "copy it again or use an earlier one"
        raise SnapshotError(f"the snapshot is corrupted: its checksum does not match; {advice}.")
    (size,) = _LENGTH.unpack_from(body)
    return json.loads(body[_LENGTH.size : _LENGTH.size + size]), body[_LENGTH.size + size :]


def engine_of(blob: bytes) -> str:
    """The engine a session ran on."""
    return str(_open(blob)[0]["engine"])


def load_snapshot(engine: Engine, blob: bytes) -> tuple[Track, LaneState]:
    """The stream that `save_snapshot` was called with."""
    header, payload = _open(blob)
    if header["model"] != engine.fingerprint:
        models = f"{header['model'][:12]}, this one is {engine.fingerprint[:12]}"
        advice = "load the checkpoint it was taken with"
        raise SnapshotError(f"the snapshot belongs to another model ({models}); {advice}.")
    try:
        return _rebuild(engine, header, load(payload))
    except (KeyError, TypeError, ValueError, SafetensorError, SurgicalMambaError) as error:
        versions = f"written by version {header.get('surgicalmamba')}, does not fit version {__version__}"
        raise SnapshotError(f"the snapshot, {versions} ({error}).") from None


def _rebuild(engine: Engine, header: Header, tensors: dict[str, Tensor]) -> tuple[Track, LaneState]:
    clock = header["clock"]
    track = Track(
        engine.config, clock["fps"], Policy(**header["policy"]), OutputStage(**header["output_stage"])
    )
    track.clock = Clock(**{**clock, "fps": Fraction(clock["fps"])})
    track.next_tick, track.n_frames = int(header["next_tick"]), int(header["n_frames"])
    track.counts = Counts(**header["counts"])
    track.belief = None if header["belief"] is None else np.array(header["belief"], np.float64)
    state = _state(engine.initial_state(1), tensors, tuple(header["frame_index"]))
    if "features" in tensors:
        track.features = tensors["features"].to(next((tensor.device for tensor in state.tensors()), "cpu"))
    if "small" in tensors:
        track.small = tensors["small"].numpy()
    return track, state


def _state(empty: LaneState, tensors: dict[str, Tensor], frame_index: tuple[int, ...]) -> LaneState:
    """The stored state, in the form of an empty one. Only growing tensors may have another length."""
    found = []
    for i, (name, like) in enumerate(zip(empty.names(), empty.tensors(), strict=True)):
        tensor = tensors[f"state.{i:04d}"]
        grown = (*like.shape[:1], *tensor.shape[1:2], *like.shape[2:])
        expected = grown if name in empty.GROWING else tuple(like.shape)
        if tuple(tensor.shape) != expected or tensor.dtype != like.dtype:
            raise ValueError(f"{name} is {tuple(tensor.shape)}, expected {expected}")
        found.append(tensor.to(like.device))
    return replace(empty.with_tensors(found), frame_index=frame_index)
