"""Does a recognizer keep the contract? Every check is one line; a failed one names the problem and what to
change.

`conformance` runs the checks, which follow in its order; the comparisons they share stand at the end. The
network is in evaluation mode and its inputs are random features from fixed seeds, so results are
reproducible."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise

import torch
from torch import Tensor

from surgicalmamba.core.state import LaneState, TensorRecord
from surgicalmamba.live.session import Session
from surgicalmamba.model.recognizer import AnyRecognizer, Memory

FEATURE_WIDTH, N_PHASES = 16, 7
"""Of a network that is built for the checks."""
TOLERANCE = 1e-4
"""Largest difference of logits in units of their spread: float32 rounding in another order of summation."""
ROUNDING = 1e-6
"""And relative to a logit itself: some units in the last place of float32."""
LATE, LATER = 1_000, 8
"""Frames before the check late in a procedure, and frames that it compares."""
SIZES = (10, 1_000, 10_000)
"""Frames after which the size of the state is measured."""
CALL = 500
"""Frames per call while a state is filled."""
PUSHES = 30
"""Frames before and after the restore of a session."""


class ContractError(Exception):
    """A check that failed."""


@dataclass(frozen=True)
class Finding:
    """One check and its result."""

    check: str
    ok: bool
    found: str

    def text(self) -> str:
        return f"{'ok    ' if self.ok else 'FAILED'}  {self.check}: {self.found}"

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def conformance(
    model: AnyRecognizer, n_frames: int = 150, sizes: Sequence[int] = SIZES, late: int = LATE
) -> Iterator[Finding]:
    """Run every check; only the first for a network that cannot be called at all.

    `n_frames` should exceed the network's windows, chunks and clips. `late` is the number of frames before
    the check late in a procedure."""
    checks: dict[str, Callable[[], str]] = {
        "shapes and initial state": lambda: shapes(model, n_frames),
        "step loop equals whole sequence": lambda: step_loop(model, n_frames),
        "any cut equals whole sequence": lambda: any_cut(model, n_frames),
        "causal, look-ahead zero": lambda: causality(model, n_frames),
        "the same late in a procedure": lambda: late_answers(model, late),
        "reset equals fresh": lambda: reset(model, n_frames),
        "lanes are independent": lambda: lanes(model, n_frames),
        "snapshot is exact": lambda: snapshot(model),
        "remembering equals answering": lambda: remembering(model, n_frames),
        "memory is of the declared class": lambda: memory_class(model, sizes),
    }
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for name, check in checks.items():
                finding, has_raised = _run(name, check)
                yield finding
                if has_raised and name == "shapes and initial state":
                    return
    finally:
        model.train(was_training)


def _run(name: str, check: Callable[[], str]) -> tuple[Finding, bool]:
    """The result of a check, and whether the network raised an error of its own."""
    try:
        return Finding(name, True, check()), False
    except ContractError as failure:
        return Finding(name, False, str(failure)), False
    except (Exception, SystemExit) as error:  # foreign code may raise anything; that is a finding too
        reason = (str(error).strip() or "no message").splitlines()[0]
        return Finding(name, False, f"raised {type(error).__name__}: {reason}"), True


def stir(model: AnyRecognizer) -> AnyRecognizer:
    """The same network with random noise on every weight: parts that are initialised to zero would hide
    errors. The noise of a matrix shrinks with the number of its inputs."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            size = 0.1 if parameter.dim() < 2 else 0.3 * parameter[0].numel() ** -0.5
            parameter.add_(size * torch.randn(parameter.shape, generator=generator).to(parameter))
    return model


def shapes(model: AnyRecognizer, n_frames: int) -> str:
    """Types and shapes of states and outputs, and that the logits depend on the features at all."""
    state = model.initial_state(2)
    if not isinstance(state, LaneState):
        raise ContractError(f"the state is a {type(state).__name__}; derive it from LaneState")
    plain_memory(state)
    require(
        all(tensor.shape[0] == 2 for tensor in state.tensors()),
        "a tensor of the state does not have the lane as its first axis",
    )
    require(
        not any(bool(tensor.any()) for tensor in state.tensors()) and state.frame_index == (0, 0),
        "the initial state is not zero; a reset zeroes a lane, so zero must mean that nothing was seen",
    )
    features = draw(model, 2, n_frames)
    output = model.forward_features(features)
    shape, expected = tuple(output.logits.shape), (2, n_frames, model.n_phases)
    require(shape == expected, f"logits of shape {shape}; expected (lanes, frames, phases) {expected}")
    intensity = output.intensity_logits
    if intensity is not None and (intensity.dim() != 3 or intensity.shape[:2] != (2, n_frames)):
        advice = f"give (2, {n_frames}, n), or None without an intensity"
        raise ContractError(f"intensity_logits of shape {tuple(intensity.shape)}; {advice}")
    clocks = output.state.frame_index
    require(
        clocks == (n_frames, n_frames),
        f"the state's clocks are {clocks} after {n_frames} frames; return state.advance(l)",
    )
    plain_memory(output.state)
    depends = difference(whole(model, features + 1.0), output.logits) >= 1e-7
    require(depends, "the logits do not depend on the features")
    return f"logits {shape}, state of {len(state.tensors())} tensors"


def plain_memory(state: LaneState) -> None:
    """Refuse a field that is neither a tensor nor a record of tensors: reset, snapshots and batches would
    skip it."""
    for field in fields(state):
        value = getattr(state, field.name)
        parts = value if isinstance(value, tuple) else (value,)
        foreign = [part for part in parts if part is not None and not isinstance(part, Tensor | TensorRecord)]
        if foreign and field.name != "frame_index":
            problem = f"the state's {field.name!r} holds a {type(foreign[0]).__name__}"
            raise ContractError(f"{problem}; a memory is tensors and records of them, lane first")
        if isinstance(value, tuple) and any(isinstance(part, Tensor) for part in value):
            problem = f"the state's {field.name!r} is a tuple of tensors, which would be skipped"
            raise ContractError(f"{problem}; name them in a TensorRecord")


def step_loop(model: AnyRecognizer, n_frames: int) -> str:
    """Frame by frame gives the same logits and size of state; and no call writes into the state passed to
    it."""
    features = draw(model, 2, n_frames)
    stepped, state = in_pieces(model, features, [1] * n_frames)
    result = require_equal(stepped, whole(model, features), "frame by frame gives other logits")
    once = model.forward_features(features).state
    assert isinstance(state, LaneState)
    require(
        state.nbytes == once.nbytes,
        f"frame by frame leaves a memory of {state.nbytes:,} bytes, one call one of {once.nbytes:,}",
    )
    for length in (1, n_frames):
        before = [tensor.clone() for tensor in once.tensors()]
        model.forward_features(features[:, :length], once)
        require(
            all(torch.equal(a, b) for a, b in zip(before, once.tensors(), strict=True)),
            f"a call of {length} frame(s) writes into the state it was given; return a new one",
        )
    return result


def any_cut(model: AnyRecognizer, n_frames: int) -> str:
    """Calls of every short length, long calls after short ones, and calls as long as a training clip."""
    features = draw(model, 2, n_frames)
    expected, result = whole(model, features), ""
    mixed: list[int] = []
    while sum(mixed) + len(mixed) + 1 <= n_frames:
        mixed.append(len(mixed) + 1)
    half, clip = n_frames // 2, min(model.config.clip_len, n_frames // 3)
    cuts = [
        [*mixed, n_frames - sum(mixed)],
        [1, n_frames - 1],
        [half, n_frames - half],
        [clip] * (n_frames // clip) + [n_frames % clip],
    ]
    for cut in cuts:
        lengths = [length for length in cut if length]
        calls = ", ".join(map(str, lengths[:3])) + (", ..." if len(lengths) > 3 else "")
        problem = f"cut into calls of {calls} frames it gives other logits"
        result = require_equal(in_pieces(model, features, lengths)[0], expected, problem)
    return result


def causality(model: AnyRecognizer, n_frames: int) -> str:
    """Change everything after a frame: the logits up to it must stay."""
    ahead = model.lookahead
    require(ahead == 0, f"it declares a look-ahead of {ahead} frames; an online recognizer has none")
    features, other = draw(model, 1, n_frames), draw(model, 1, n_frames, seed=2)
    before = whole(model, features)
    worst = 0.0
    for t in sorted({0, 1, n_frames // 3, n_frames // 2, n_frames - 2}):
        changed = torch.cat([features[:, : t + 1], 10 * other[:, t + 1 :]], dim=1)
        worst = max(worst, _unmoved(whole(model, changed)[:, : t + 1], before[:, : t + 1], spread(before), t))
    return f"no frame changes a logit before it (largest difference {worst:.1e})"


def _unmoved(after: Tensor, before: Tensor, scale: float, t: int) -> float:
    """The largest difference of the logits up to frame t. Raises with the first frame that depends on frames
    after t."""
    moved = excess(after, before, scale).amax((0, 2))
    if bool((moved > TOLERANCE).any()):
        first = int((moved > TOLERANCE).nonzero()[0])
        problem = f"frames after {t} change the logits of frame {first}"
        raise ContractError(f"{problem}: it looks at least {t + 1 - first} frame(s) ahead")
    return float(moved.max())


def late_answers(model: AnyRecognizer, late: int) -> str:
    """After many frames, in long calls or in short ones: the same logits in steps and at once, and no
    look-ahead."""
    past, now = draw(model, 1, late, seed=6), draw(model, 1, LATER, seed=7)
    in_long_calls, in_short_calls = (_state_after(model, past, call) for call in (late // 2, 33))
    together = model.forward_features(now, in_long_calls).logits
    scale = max(spread(together), spread(whole(model, past[:, :LATER])))
    stepped, _ = in_pieces(model, now, [1] * LATER, in_long_calls)
    problem = f"frame by frame after {late:,} frames it gives other logits"
    result = require_equal(stepped, together, problem, scale)
    problem = f"the answers after {late:,} frames depend on the calls in which these came"
    require_equal(model.forward_features(now, in_short_calls).logits, together, problem, scale)
    middle = LATER // 2
    changed = torch.cat([now[:, :middle], 10 * now[:, middle:] + 1.0], dim=1)
    moved = model.forward_features(changed, in_long_calls).logits
    _unmoved(moved[:, :middle], together[:, :middle], scale, middle - 1)
    return f"after {late:,} frames, {result}"


def _state_after(model: AnyRecognizer, features: Tensor, call: int) -> LaneState:
    """The state after these frames in calls of one length."""
    state: LaneState = model.initial_state(features.shape[0])
    for piece in features.split(call, dim=1):
        state = model.remember(piece, state)
    return state


def reset(model: AnyRecognizer, n_frames: int) -> str:
    """One lane begins a new procedure, the other continues; each of them in turn."""
    first, then = draw(model, 2, n_frames), draw(model, 2, n_frames, seed=3)
    state = model.forward_features(first).state
    continued, result = model.forward_features(then, state).logits, ""
    for lane in (0, 1):
        emptied = state.reset([lane])
        clocks = tuple(0 if number == lane else n_frames for number in (0, 1))
        require(
            emptied.frame_index == clocks,
            f"the clocks after a reset of lane {lane} are {emptied.frame_index}; expected {clocks}",
        )
        for name, tensor in zip(emptied.names(), emptied.tensors(), strict=True):
            problem = f"a reset of lane {lane} leaves {name!r} as it was; a reset lane must be all zeros"
            require(not bool(tensor[lane].any()), problem)
        began = model.forward_features(then, emptied).logits
        one, other = slice(lane, lane + 1), slice(1 - lane, 2 - lane)
        problem = "a lane that was reset answers unlike a fresh one"
        result = require_equal(began[one], whole(model, then[one]), problem)
        require_equal(began[other], continued[other], f"a reset of lane {lane} changes lane {1 - lane}")
    return result


def lanes(model: AnyRecognizer, n_frames: int) -> str:
    """Four procedures at different frames, in one batch and each alone, in one call and in steps."""
    length = max(n_frames // 2, 2)
    states, then = [], draw(model, 4, length, seed=4)
    for lane, n_before in enumerate((n_frames // 2, 0, 3, n_frames // 3)):
        state = model.initial_state(1)
        if n_before:
            state = model.forward_features(draw(model, 1, n_before, seed=10 + lane), state).state
        states.append(state)
    alone = [model.forward_features(then[lane : lane + 1], state) for lane, state in enumerate(states)]
    expected, stacked = torch.cat([output.logits for output in alone]), type(states[0]).stack(states)
    scale = spread(expected)
    together = model.forward_features(then, stacked)
    problem = "a lane's logits depend on its neighbours"
    result = require_equal(together.logits, expected, problem)
    few = min(length, 5)
    stepped, _ = in_pieces(model, then[:, :few], [1] * few, stacked)
    require_equal(stepped, expected[:, :few], f"frame by frame {problem}", scale)
    again = draw(model, 1, 5, seed=5)
    selected = model.forward_features(again, together.state.select([2])).logits
    kept = model.forward_features(again, alone[2].state).logits
    require_equal(selected, kept, "a lane selected from a batch continues unlike one that was alone", scale)
    return result


def snapshot(model: AnyRecognizer) -> str:
    """A live session, saved and restored by a fresh copy of the network, continues to the bit."""
    untouched = copy.deepcopy(model)
    vectors = draw(model, 1, 2 * PUSHES, seed=8)[0].float().cpu()
    session = Session(model, engine="eager")
    for vector in vectors[:PUSHES]:
        session.push_features(vector)
    blob = session.snapshot()
    restored = Session.restore(untouched, blob)
    for frame, vector in enumerate(vectors[PUSHES:], start=PUSHES):
        problem = f"a session restored after {PUSHES} frames gives another estimate at frame {frame}"
        require(session.push_features(vector) == restored.push_features(vector), problem)
    return f"equal to the bit over {PUSHES} frames after a restore, {len(blob):,} bytes"


def remembering(model: AnyRecognizer, n_frames: int) -> str:
    """`remember` leaves the same state as `forward_features`, from the start and later."""
    state = model.initial_state(2)
    for length in (n_frames, 4):
        features = draw(model, 2, length, seed=length)
        kept, state = model.remember(features, state), model.forward_features(features, state).state
        require(
            kept.frame_index == state.frame_index,
            f"remember leaves the clocks at {kept.frame_index}, forward_features at {state.frame_index}",
        )
        for name, a, b in zip(state.names(), kept.tensors(), state.tensors(), strict=True):
            same = a.shape == b.shape and torch.allclose(
                a.double(), b.double(), rtol=TOLERANCE, atol=TOLERANCE
            )
            require(same, f"remember leaves another {name} than forward_features")
    return "the memory is the same with and without answers"


def memory_class(model: AnyRecognizer, sizes: Sequence[int] = SIZES) -> str:
    """The size of the state after some numbers of frames, against the class that the network declares."""
    points = list(zip(sizes, state_bytes(model, sizes), strict=True))
    measured = ", ".join(f"{size:,} bytes at {n:,}" for n, size in points)
    first, *later = (size for _, size in points)
    declared: Memory = model.memory
    require(declared in ("O(1)", "O(W)", "O(T)"), f"memory={declared!r}; declare O(1), O(W) or O(T)")
    grows, fills_up = any(size != first for size in later), len(set(later)) <= 1
    if declared == "O(1)" and grows:
        hint = "; a window that fills up is O(W)" if fills_up else ""
        raise ContractError(f"it declares O(1) but its state grows: {measured}{hint}")
    problem = f"it declares {declared} but its state"
    if declared == "O(W)" and not fills_up:
        raise ContractError(f"{problem} still grows after {sizes[1]:,} frames: {measured}")
    if declared == "O(T)" and not grows:
        raise ContractError(f"{problem} stays the same: {measured}")
    if declared == "O(T)" and fills_up and len(later) > 1:
        raise ContractError(f"{problem} is full after {sizes[1]:,} frames, which is O(W): {measured}")
    slopes = [(b - a) / (m - n) for (n, a), (m, b) in pairwise(points)]
    faster = any(after > 1.01 * before for before, after in pairwise(slopes))
    require(not faster, f"its state grows faster than the time: {measured}")
    return f"{declared}: {measured}"


def state_bytes(model: AnyRecognizer, sizes: Sequence[int]) -> Iterator[int]:
    """Bytes of one lane's state after each number of frames, in ascending order."""
    state, seen = model.initial_state(1), 0
    for size in sizes:
        while seen < size:
            length = min(CALL, size - seen)
            state = model.remember(draw(model, 1, length, seed=seen), state)
            seen += length
        yield state.nbytes


def draw(model: AnyRecognizer, n_lanes: int, n_frames: int, seed: int = 0) -> Tensor:
    """Features (b, l, d), the same for the same seed."""
    drawn = torch.randn(n_lanes, n_frames, model.feature_width, generator=torch.Generator().manual_seed(seed))
    return drawn.to(model.device, model.dtype)


def whole(model: AnyRecognizer, features: Tensor) -> Tensor:
    """Logits of a procedure in one call."""
    logits: Tensor = model.forward_features(features).logits
    return logits


def in_pieces(
    model: AnyRecognizer, features: Tensor, lengths: Sequence[int], state: object = None
) -> tuple[Tensor, object]:
    """Logits of a procedure in calls of these lengths, and the state after the last."""
    logits = []
    for piece in features.split(list(lengths), dim=1):
        output = model.forward_features(piece, state)
        state = output.state
        logits.append(output.logits)
    return torch.cat(logits, dim=1), state


def spread(logits: Tensor) -> float:
    """Largest distance of a phase's logits (b, l, k) from their mean over time: the median over phases, so
    that one masked phase has no effect."""
    values = logits.double()
    return float((values - values.mean(1, keepdim=True)).abs().amax((0, 1)).median())


def excess(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """|a - b| in units of `scale`, reduced where a logit is so large that rounding alone moves it. Up to
    TOLERANCE counts as equal."""
    allowed = scale + ROUNDING / TOLERANCE * b.double().abs()
    return ((a.double() - b.double()).abs() / allowed.clamp(min=1e-30)).nan_to_num(torch.inf, torch.inf)


def difference(a: Tensor, b: Tensor, scale: float | None = None) -> float:
    """The largest difference of logits in units of `scale` or the spread of b; infinite where one is not
    finite. Pass a scale for few frames, whose own spread is too small."""
    require(a.shape == b.shape, f"logits of shape {tuple(a.shape)} instead of {tuple(b.shape)}")
    return float(excess(a, b, spread(b) if scale is None else scale).max())


def require_equal(a: Tensor, b: Tensor, otherwise: str, scale: float | None = None) -> str:
    """Refuse logits that differ by more than rounding."""
    largest = difference(a, b, scale)
    require(largest <= TOLERANCE, f"{otherwise} (largest difference {largest:.1e} of the logits' spread)")
    return f"largest difference {largest:.1e}"


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ContractError(otherwise)
