"""Does a recognizer keep the contract? Every check gives one line; a failed one says what was found and what to change.

Random features from a fixed seed, the network in evaluation mode, answers compared relative to the largest logit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import torch
from torch import Tensor

from surgicalmamba.core.state import LaneState
from surgicalmamba.model.recognizer import AnyRecognizer, Memory
from surgicalmamba.stream.session import Session

TOLERANCE = 1e-4
"""Largest difference of logits, relative to the largest logit or 1: what float32 leaves of two orders of summation."""
SIZES = (10, 1_000, 10_000)
"""Frames after which the memory is measured."""
CALL = 500
"""Frames per call while a memory is filled."""
FEATURE_WIDTH, N_PHASES = 16, 7
"""Of a network that is built for the checks."""
LARGEST_CUT = 17
PUSHES = 30


@dataclass(frozen=True)
class Finding:
    """One check and what came of it."""

    check: str
    ok: bool
    found: str

    def text(self) -> str:
        return f"{'ok    ' if self.ok else 'FAILED'}  {self.check}: {self.found}"

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def conformance(model: AnyRecognizer, n_frames: int = 150, sizes: Sequence[int] = SIZES) -> Iterator[Finding]:
    """Every check in turn. `n_frames` should lead over the ends of the network's own windows, chunks and clips."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for name, check in CHECKS.items():
                yield _run(name, lambda check=check: check(model, n_frames))  # type: ignore[misc]
            yield _run("memory is of the declared class", lambda: memory_class(model, sizes))
    finally:
        model.train(was_training)


def stir(model: AnyRecognizer) -> AnyRecognizer:
    """The same network with every weight moved a little: parts that begin at zero would hide what they do."""
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw).to(parameter))
    return model


def _run(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, check())
    except ContractError as failure:
        return Finding(name, False, str(failure))
    except Exception as error:  # foreign code fails in its own ways; that too is a finding
        reason = (str(error).strip() or "no message").splitlines()[0]
        return Finding(name, False, f"raised {type(error).__name__}: {reason}")


class ContractError(Exception):
    """A check that did not hold."""


def _features(model: AnyRecognizer, n_lanes: int, n_frames: int, seed: int = 0) -> Tensor:
    drawn = torch.randn(n_lanes, n_frames, model.feature_width, generator=torch.Generator().manual_seed(seed))
    return drawn.to(model.device, model.dtype)


def _whole(model: AnyRecognizer, features: Tensor) -> Tensor:
    logits: Tensor = model.forward_features(features).logits
    return logits


def _difference(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest logit; infinite where one is not finite."""
    if a.shape != b.shape:
        raise ContractError(f"logits of shape {tuple(a.shape)} instead of {tuple(b.shape)}")
    value = float((a.double() - b.double()).abs().max() / max(1.0, float(b.double().abs().max())))
    return value if value == value else float("inf")


def _require_equal(a: Tensor, b: Tensor, otherwise: str) -> str:
    difference = _difference(a, b)
    if difference > TOLERANCE:
        raise ContractError(f"{otherwise} (largest difference {difference:.1e} of the largest logit)")
    return f"largest difference {difference:.1e}"


def shapes(model: AnyRecognizer, n_frames: int) -> str:
    """The form of what goes in and out, and that there is an answer to the input at all."""
    state = model.initial_state(2)
    if not isinstance(state, LaneState):
        raise ContractError(f"the state is a {type(state).__name__}; derive it from LaneState")
    if any(tensor.shape[0] != 2 for tensor in state.tensors()):
        raise ContractError("a tensor of the state has not the lane as its first axis")
    if any(bool(tensor.any()) for tensor in state.tensors()) or state.frame_index != (0, 0):
        raise ContractError("the initial state is not zero; a lane that begins anew is zeroed, so zero must mean nothing seen")
    features = _features(model, 2, n_frames)
    output = model.forward_features(features)
    if output.logits.shape != (2, n_frames, model.n_phases):
        raise ContractError(f"logits of shape {tuple(output.logits.shape)} for {n_frames} frames of 2 lanes and {model.n_phases} phases")
    if output.state.frame_index != (n_frames, n_frames):
        raise ContractError(f"the state's clocks are {output.state.frame_index} after {n_frames} frames; return state.advance(l)")
    if _difference(_whole(model, features + 1.0), output.logits) < 1e-7:
        raise ContractError("the logits do not depend on the features")
    return f"logits {tuple(output.logits.shape)}, state of {len(state.tensors())} tensors"


def step_loop(model: AnyRecognizer, n_frames: int) -> str:
    features = _features(model, 2, n_frames)
    return _require_equal(_in_pieces(model, features, [1] * n_frames), _whole(model, features), "frame by frame gives other logits")


def any_cut(model: AnyRecognizer, n_frames: int) -> str:
    """Calls of mixed lengths, the first of a single frame."""
    features = _features(model, 2, n_frames)
    draw = torch.Generator().manual_seed(1)
    lengths = [1]
    while sum(lengths) < n_frames:
        lengths.append(min(int(torch.randint(1, LARGEST_CUT + 1, (), generator=draw)), n_frames - sum(lengths)))
    return _require_equal(_in_pieces(model, features, lengths), _whole(model, features), "cut into calls it gives other logits")


def _in_pieces(model: AnyRecognizer, features: Tensor, lengths: Sequence[int]) -> Tensor:
    state, logits = None, []
    for piece in features.split(list(lengths), dim=1):
        output = model.forward_features(piece, state)
        state = output.state
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


def causality(model: AnyRecognizer, n_frames: int) -> str:
    """Change everything after a frame: the logits up to it must stay."""
    if model.lookahead != 0:
        raise ContractError(f"it declares a look-ahead of {model.lookahead} frames; an online recognizer has none")
    features, other = _features(model, 1, n_frames), _features(model, 1, n_frames, seed=2)
    before = _whole(model, features)
    worst = 0.0
    for t in sorted({0, 1, n_frames // 3, n_frames // 2, n_frames - 2}):
        changed = torch.cat([features[:, : t + 1], 10 * other[:, t + 1 :]], dim=1)
        after = _whole(model, changed)
        moved = ((after - before)[0, : t + 1].abs().amax(-1) > TOLERANCE * max(1.0, float(before.abs().max()))).nonzero()
        if len(moved):
            ahead = t + 1 - int(moved[0])
            raise ContractError(f"frames after {t} change the logits of frame {int(moved[0])}: it looks at least {ahead} frame(s) ahead")
        worst = max(worst, _difference(after[:, : t + 1], before[:, : t + 1]))
    return f"no frame changes a logit before it (largest difference {worst:.1e})"


def reset(model: AnyRecognizer, n_frames: int) -> str:
    """One lane begins a new procedure, the other goes on."""
    first, then = _features(model, 2, n_frames), _features(model, 2, n_frames, seed=3)
    state = model.forward_features(first).state
    emptied = state.reset([0])
    if emptied.frame_index != (0, n_frames):
        raise ContractError(f"the clocks after a reset of lane 0 are {emptied.frame_index}; expected {(0, n_frames)}")
    began, went_on = model.forward_features(then, emptied).logits, model.forward_features(then, state).logits
    told = _require_equal(began[:1], _whole(model, then[:1]), "a lane that was reset answers unlike a fresh one")
    _require_equal(began[1:], went_on[1:], "a reset of lane 0 changes lane 1")
    return told


def lanes(model: AnyRecognizer, n_frames: int) -> str:
    """Three procedures at different frames, in one batch and each alone."""
    spent = [n_frames // 2, 0, 3]
    states, expected = [], []
    then = _features(model, 3, n_frames // 2, seed=4)
    for lane, n_before in enumerate(spent):
        state = model.initial_state(1)
        if n_before:
            state = model.forward_features(_features(model, 1, n_before, seed=10 + lane), state).state
        states.append(state)
        expected.append(model.forward_features(then[lane : lane + 1], state).logits)
    together = model.forward_features(then, type(states[0]).stack(states))
    told = _require_equal(together.logits, torch.cat(expected), "a lane's logits depend on its neighbours")
    taken_out = together.state.select([2])
    again = _features(model, 1, 5, seed=5)
    _require_equal(
        model.forward_features(again, taken_out).logits,
        model.forward_features(again, model.forward_features(then[2:], states[2]).state).logits,
        "a lane taken out of a batch goes on otherwise than one that was alone",
    )
    return told


def snapshot(model: AnyRecognizer, n_frames: int) -> str:
    """A live session, frozen and restored in the middle, to the bit."""
    vectors = _features(model, 1, 2 * PUSHES)[0].float().cpu()
    session = Session(model, engine="eager")
    for vector in vectors[:PUSHES]:
        session.push_features(vector)
    blob = session.snapshot()
    resumed = Session.restore(model, blob)
    for number, vector in enumerate(vectors[PUSHES:]):
        uninterrupted, own = session.push_features(vector), resumed.push_features(vector)
        if uninterrupted != own:
            raise ContractError(f"a session restored after {PUSHES} frames gives another estimate at frame {PUSHES + number}")
    return f"equal to the bit over {PUSHES} frames after a restore, {len(blob):,} bytes"


def remembering(model: AnyRecognizer, n_frames: int) -> str:
    """`remember` keeps what `forward_features` keeps."""
    features = _features(model, 2, n_frames)
    kept, full = model.remember(features, model.initial_state(2)), model.forward_features(features).state
    if kept.frame_index != full.frame_index:
        raise ContractError(f"remember leaves the clocks at {kept.frame_index}, forward_features at {full.frame_index}")
    for name, a, b in zip(full.names(), kept.tensors(), full.tensors(), strict=True):
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
    points = list(measured.items())
    slopes = [(b - a) / (m - n) for (n, a), (m, b) in pairwise(points)]
    if any(later > 1.01 * earlier for earlier, later in pairwise(slopes)):
        raise ContractError(f"its state grows faster than the time: {told}")
    return f"{declared}: {told}"


def state_bytes(model: AnyRecognizer, sizes: Sequence[int]) -> Iterator[int]:
    """Bytes of one lane's state after each number of frames, in ascending order."""
    state, seen = model.initial_state(1), 0
    for size in sizes:
        while seen < size:
            length = min(CALL, size - seen)
            state = model.remember(_features(model, 1, length, seed=seen), state)
            seen += length
        yield state.nbytes


CHECKS: dict[str, Callable[[AnyRecognizer, int], str]] = {
    "shapes and initial state": shapes,
    "step loop equals whole sequence": step_loop,
    "any cut equals whole sequence": any_cut,
    "causal, look-ahead zero": causality,
    "reset equals fresh": reset,
    "lanes are independent": lanes,
    "snapshot is exact": snapshot,
    "remembering equals answering": remembering,
}
"""The checks by name, in order; the size of the memory comes last."""
