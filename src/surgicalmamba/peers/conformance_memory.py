"""What a recognizer remembers: nothing but tensors of its state, restored to the bit, and of the size class that it declares."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import pairwise

import torch
from torch import Tensor

from surgicalmamba.core.state import LaneState, TensorRecord
from surgicalmamba.model.recognizer import AnyRecognizer, Memory
from surgicalmamba.peers.comparing import TOLERANCE, ContractError, draw
from surgicalmamba.stream.session import Session

SIZES = (10, 1_000, 10_000)
"""Frames after which the memory is measured."""
CALL = 500
"""Frames per call while a memory is filled."""
PUSHES = 30


def plain_memory(state: LaneState) -> None:
    """Refuse a field that is neither a tensor nor a record of them: reset, snapshots and batches would pass it over."""
    for field in fields(state):
        value = getattr(state, field.name)
        parts = value if isinstance(value, tuple) else (value,)
        if field.name != "frame_index" and not all(part is None or isinstance(part, Tensor | TensorRecord) for part in parts):
            kind = type(next(part for part in parts if not isinstance(part, Tensor | TensorRecord))).__name__
            raise ContractError(f"the state's {field.name!r} holds a {kind}; a memory is tensors and records of them, lane first")
        if isinstance(value, tuple) and any(isinstance(part, Tensor) for part in value):
            raise ContractError(f"the state's {field.name!r} is a tuple of tensors, which are passed over; name them in a TensorRecord")


def snapshot(model: AnyRecognizer) -> str:
    """A live session, frozen and restored in the middle by a network that has not seen it, to the bit."""
    untouched = copy.deepcopy(model)
    vectors = draw(model, 1, 2 * PUSHES, seed=8)[0].float().cpu()
    session = Session(model, engine="eager")
    for vector in vectors[:PUSHES]:
        session.push_features(vector)
    blob = session.snapshot()
    resumed = Session.restore(untouched, blob)
    for number, vector in enumerate(vectors[PUSHES:]):
        uninterrupted, own = session.push_features(vector), resumed.push_features(vector)
        if uninterrupted != own:
            raise ContractError(f"a session restored after {PUSHES} frames gives another estimate at frame {PUSHES + number}")
    return f"equal to the bit over {PUSHES} frames after a restore, {len(blob):,} bytes"


def remembering(model: AnyRecognizer, n_frames: int) -> str:
    """`remember` keeps what `forward_features` keeps, from the start and later."""
    state = model.initial_state(2)
    for length in (n_frames, 4):
        features = draw(model, 2, length, seed=length)
        kept, state = model.remember(features, state), model.forward_features(features, state).state
        if kept.frame_index != state.frame_index:
            raise ContractError(f"remember leaves the clocks at {kept.frame_index}, forward_features at {state.frame_index}")
        for name, a, b in zip(state.names(), kept.tensors(), state.tensors(), strict=True):
            if a.shape != b.shape or not torch.allclose(a.double(), b.double(), rtol=TOLERANCE, atol=TOLERANCE):
                raise ContractError(f"remember leaves another {name} than forward_features")
    return "the memory is the same with and without answers"


def memory_class(model: AnyRecognizer, sizes: Sequence[int] = SIZES) -> str:
    """Bytes of the state after so many frames, against the class that the network declares."""
    measured = dict(zip(sizes, state_bytes(model, sizes), strict=True))
    told = ", ".join(f"{size:,} bytes at {n:,}" for n, size in measured.items())
    first, *later = measured.values()
    declared: Memory = model.memory
    if declared not in ("O(1)", "O(W)", "O(T)"):
        raise ContractError(f"memory={declared!r}; declare O(1), O(W) or O(T)")
    grows, fills_up = any(size != first for size in later), len(set(later)) <= 1
    if declared == "O(1)" and grows:
        raise ContractError(f"it declares O(1) but its state grows: {told}{'; a window that fills up is O(W)' if fills_up else ''}")
    if declared == "O(W)" and not fills_up:
        raise ContractError(f"it declares O(W) but its state still grows after {sizes[1]:,} frames: {told}")
    if declared == "O(T)" and not grows:
        raise ContractError(f"it declares O(T) but its state stays the same: {told}")
    if declared == "O(T)" and fills_up and len(later) > 1:
        raise ContractError(f"it declares O(T) but its state is full after {sizes[1]:,} frames, which is O(W): {told}")
    points = list(measured.items())
    slopes = [(b - a) / (m - n) for (n, a), (m, b) in pairwise(points)]
    if any(after > 1.01 * before for before, after in pairwise(slopes)):
        raise ContractError(f"its state grows faster than the time: {told}")
    return f"{declared}: {told}"


def state_bytes(model: AnyRecognizer, sizes: Sequence[int]) -> Iterator[int]:
    """Bytes of one lane's state after each number of frames, in ascending order."""
    state, seen = model.initial_state(1), 0
    for size in sizes:
        while seen < size:
            length = min(CALL, size - seen)
            state = model.remember(draw(model, 1, length, seed=seen), state)
            seen += length
        yield state.nbytes
