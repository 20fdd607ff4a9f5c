"""Does a recognizer keep the contract? Every check gives one line; a failed one says what was found and what
to change.

The network is in evaluation mode and all that is compared comes from fixed seeds, so the same call says the
same."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise

import torch
from torch import Tensor

from surgicalmamba.core.state import LaneState, TensorRecord
from surgicalmamba.live.session import Session
from surgicalmamba.model.recognizer import AnyRecognizer, Memory

# What the checks of a recognizer compare: answers to random features from fixed seeds, cut into calls in different ways.


TOLERANCE = 1e-4
"""Largest difference of logits in units of their spread: what float32 leaves of two orders of summation."""
ROUNDING = 1e-6
"""And relative to a logit itself: some units in the last place of float32."""


class ContractError(Exception):
    """A check that did not hold."""


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
    """Logits of a procedure in calls of these lengths, and the memory after the last."""
    logits = []
    for piece in features.split(list(lengths), dim=1):
        output = model.forward_features(piece, state)
        state = output.state
        logits.append(output.logits)
    return torch.cat(logits, dim=1), state


def spread(logits: Tensor) -> float:
    """How far a phase's logits (b, l, k) go from their mean over time: that of the middle phase, so that one
    masked phase says nothing."""
    values = logits.double()
    return float((values - values.mean(1, keepdim=True)).abs().amax((0, 1)).median())


def excess(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """|a - b| in units of `scale`, less where a logit is so large that rounding alone moves it: up to
    TOLERANCE is equal."""
    allowed = scale + ROUNDING / TOLERANCE * b.double().abs()
    return ((a.double() - b.double()).abs() / allowed.clamp(min=1e-30)).nan_to_num(torch.inf, torch.inf)


def difference(a: Tensor, b: Tensor, scale: float | None = None) -> float:
    """The largest difference of logits in units of `scale` or the spread of b; infinite where one is not
    finite.

    A scale is for few frames, which have no spread of their own to speak of."""
    if a.shape != b.shape:
        raise ContractError(f"logits of shape {tuple(a.shape)} instead of {tuple(b.shape)}")
    return float(excess(a, b, spread(b) if scale is None else scale).max())


def require_equal(a: Tensor, b: Tensor, otherwise: str, scale: float | None = None) -> str:
    """Refuse logits that differ by more than rounding."""
    largest = difference(a, b, scale)
    if largest > TOLERANCE:
        raise ContractError(f"{otherwise} (largest difference {largest:.1e} of the logits' spread)")
    return f"largest difference {largest:.1e}"


# What a recognizer remembers: nothing but tensors of its state, restored to the bit, and of the size class that it declares.


SIZES = (10, 1_000, 10_000)
"""Frames after which the memory is measured."""
CALL = 500
"""Frames per call while a memory is filled."""
PUSHES = 30


def plain_memory(state: LaneState) -> None:
    """Refuse a field that is neither a tensor nor a record of them: reset, snapshots and batches would pass
    it over."""
    for field in fields(state):
        value = getattr(state, field.name)
        parts = value if isinstance(value, tuple) else (value,)
        if field.name != "frame_index" and not all(
            part is None or isinstance(part, Tensor | TensorRecord) for part in parts
        ):
            kind = type(next(part for part in parts if not isinstance(part, Tensor | TensorRecord))).__name__
            raise ContractError(
                f"the state's {field.name!r} holds a {kind}; a memory is tensors and records of them, lane first"
            )
        if isinstance(value, tuple) and any(isinstance(part, Tensor) for part in value):
            raise ContractError(
                f"the state's {field.name!r} is a tuple of tensors, which are passed over; name them in a TensorRecord"
            )


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
            raise ContractError(
                f"a session restored after {PUSHES} frames gives another estimate at frame {PUSHES + number}"
            )
    return f"equal to the bit over {PUSHES} frames after a restore, {len(blob):,} bytes"


def remembering(model: AnyRecognizer, n_frames: int) -> str:
    """`remember` keeps what `forward_features` keeps, from the start and later."""
    state = model.initial_state(2)
    for length in (n_frames, 4):
        features = draw(model, 2, length, seed=length)
        kept, state = model.remember(features, state), model.forward_features(features, state).state
        if kept.frame_index != state.frame_index:
            raise ContractError(
                f"remember leaves the clocks at {kept.frame_index}, forward_features at {state.frame_index}"
            )
        for name, a, b in zip(state.names(), kept.tensors(), state.tensors(), strict=True):
            if a.shape != b.shape or not torch.allclose(
                a.double(), b.double(), rtol=TOLERANCE, atol=TOLERANCE
            ):
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
        raise ContractError(
            f"it declares O(1) but its state grows: {told}{'; a window that fills up is O(W)' if fills_up else ''}"
        )
    if declared == "O(W)" and not fills_up:
        raise ContractError(f"it declares O(W) but its state still grows after {sizes[1]:,} frames: {told}")
    if declared == "O(T)" and not grows:
        raise ContractError(f"it declares O(T) but its state stays the same: {told}")
    if declared == "O(T)" and fills_up and len(later) > 1:
        raise ContractError(
            f"it declares O(T) but its state is full after {sizes[1]:,} frames, which is O(W): {told}"
        )
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


FEATURE_WIDTH, N_PHASES = 16, 7
"""Of a network that is built for the checks."""
LATE, LATER = 1_000, 8
"""Frames that a procedure has behind it when its answers are looked at again, and how many frames then
follow."""


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


def conformance(
    model: AnyRecognizer, n_frames: int = 150, sizes: Sequence[int] = SIZES, late: int = LATE
) -> Iterator[Finding]:
    """Every check in turn; only the first for a network that cannot be called at all.

    `n_frames` should lead over the ends of the network's own windows, chunks and clips; `late` frames are
    passed without comparing them."""
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


def stir(model: AnyRecognizer) -> AnyRecognizer:
    """The same network with every weight moved a little: parts that begin at zero would hide what they do.

    Matrices are moved by what their inputs are many, so that a wide network is stirred no more than a narrow
    one."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            size = 0.1 if parameter.dim() < 2 else 0.3 * parameter[0].numel() ** -0.5
            parameter.add_(size * torch.randn(parameter.shape, generator=generator).to(parameter))
    return model


def _run(name: str, check: Callable[[], str]) -> tuple[Finding, bool]:
    """What came of a check, and whether the network raised an error of its own."""
    try:
        return Finding(name, True, check()), False
    except ContractError as failure:
        return Finding(name, False, str(failure)), False
    except (Exception, SystemExit) as error:  # foreign code fails in its own ways; that too is a finding
        reason = (str(error).strip() or "no message").splitlines()[0]
        return Finding(name, False, f"raised {type(error).__name__}: {reason}"), True


def shapes(model: AnyRecognizer, n_frames: int) -> str:
    """The form of what goes in and out, and that there is an answer to the input at all."""
    state = model.initial_state(2)
    if not isinstance(state, LaneState):
        raise ContractError(f"the state is a {type(state).__name__}; derive it from LaneState")
    plain_memory(state)
    if any(tensor.shape[0] != 2 for tensor in state.tensors()):
        raise ContractError("a tensor of the state has not the lane as its first axis")
    if any(bool(tensor.any()) for tensor in state.tensors()) or state.frame_index != (0, 0):
        raise ContractError(
            "the initial state is not zero; a lane that begins anew is zeroed, so zero must mean nothing seen"
        )
    features = draw(model, 2, n_frames)
    output = model.forward_features(features)
    if output.logits.shape != (2, n_frames, model.n_phases):
        raise ContractError(
            f"logits of shape {tuple(output.logits.shape)} for {n_frames} frames of 2 lanes and {model.n_phases} phases"
        )
    intensity = output.intensity_logits
    if intensity is not None and (intensity.dim() != 3 or intensity.shape[:2] != (2, n_frames)):
        raise ContractError(
            f"intensity_logits of shape {tuple(intensity.shape)}; give (2, {n_frames}, n), or None without an intensity"
        )
    if output.state.frame_index != (n_frames, n_frames):
        raise ContractError(
            f"the state's clocks are {output.state.frame_index} after {n_frames} frames; return state.advance(l)"
        )
    plain_memory(output.state)
    if difference(whole(model, features + 1.0), output.logits) < 1e-7:
        raise ContractError("the logits do not depend on the features")
    return f"logits {tuple(output.logits.shape)}, state of {len(state.tensors())} tensors"


def step_loop(model: AnyRecognizer, n_frames: int) -> str:
    """Frame by frame, the memory included; and no call may write into the memory it was given."""
    features = draw(model, 2, n_frames)
    stepped, state = in_pieces(model, features, [1] * n_frames)
    told = require_equal(stepped, whole(model, features), "frame by frame gives other logits")
    once = model.forward_features(features).state
    assert isinstance(state, LaneState)
    if state.nbytes != once.nbytes:
        raise ContractError(
            f"frame by frame leaves a memory of {state.nbytes:,} bytes, one call one of {once.nbytes:,}"
        )
    for length in (1, n_frames):
        before = [tensor.clone() for tensor in once.tensors()]
        model.forward_features(features[:, :length], once)
        if any(not torch.equal(kept, now) for kept, now in zip(before, once.tensors(), strict=True)):
            raise ContractError(
                f"a call of {length} frame(s) writes into the state it was given; return a new one"
            )
    return told


def any_cut(model: AnyRecognizer, n_frames: int) -> str:
    """Calls of every short length, long calls that go on from a memory, and calls as long as a training
    clip."""
    features = draw(model, 2, n_frames)
    expected, told = whole(model, features), ""
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
        told = require_equal(
            in_pieces(model, features, lengths)[0],
            expected,
            f"cut into calls of {calls} frames it gives other logits",
        )
    return told


def causality(model: AnyRecognizer, n_frames: int) -> str:
    """Change everything after a frame: the logits up to it must stay."""
    if model.lookahead != 0:
        raise ContractError(
            f"it declares a look-ahead of {model.lookahead} frames; an online recognizer has none"
        )
    features, other = draw(model, 1, n_frames), draw(model, 1, n_frames, seed=2)
    before = whole(model, features)
    worst = 0.0
    for t in sorted({0, 1, n_frames // 3, n_frames // 2, n_frames - 2}):
        changed = torch.cat([features[:, : t + 1], 10 * other[:, t + 1 :]], dim=1)
        worst = max(worst, _unmoved(whole(model, changed)[:, : t + 1], before[:, : t + 1], spread(before), t))
    return f"no frame changes a logit before it (largest difference {worst:.1e})"


def _unmoved(after: Tensor, before: Tensor, scale: float, t: int) -> float:
    """The largest difference of the logits up to frame t, or a refusal that names the first frame that saw
    what comes after t."""
    moved = excess(after, before, scale).amax((0, 2))
    if bool((moved > TOLERANCE).any()):
        first = int((moved > TOLERANCE).nonzero()[0])
        raise ContractError(
            f"frames after {t} change the logits of frame {first}: it looks at least {t + 1 - first} frame(s) ahead"
        )
    return float(moved.max())


def late_answers(model: AnyRecognizer, late: int) -> str:
    """After many frames, come by in long calls or in short ones: the same answers in steps and at once, and
    still nothing ahead."""
    past, now = draw(model, 1, late, seed=6), draw(model, 1, LATER, seed=7)
    once, often = (_passed(model, past, call) for call in (late // 2, 33))
    together = model.forward_features(now, once).logits
    scale = max(spread(together), spread(whole(model, past[:, :LATER])))
    stepped, _ = in_pieces(model, now, [1] * LATER, once)
    told = require_equal(
        stepped, together, f"frame by frame after {late:,} frames it gives other logits", scale
    )
    in_short_calls = model.forward_features(now, often).logits
    require_equal(
        in_short_calls,
        together,
        f"the answers after {late:,} frames depend on the calls in which these came",
        scale,
    )
    middle = LATER // 2
    changed = torch.cat([now[:, :middle], 10 * now[:, middle:] + 1.0], dim=1)
    _unmoved(
        model.forward_features(changed, once).logits[:, :middle], together[:, :middle], scale, middle - 1
    )
    return f"after {late:,} frames, {told}"


def _passed(model: AnyRecognizer, features: Tensor, call: int) -> LaneState:
    """The memory after these frames in calls of one length."""
    state: LaneState = model.initial_state(features.shape[0])
    for piece in features.split(call, dim=1):
        state = model.remember(piece, state)
    return state


def reset(model: AnyRecognizer, n_frames: int) -> str:
    """One lane begins a new procedure, the other goes on; each of them in turn."""
    first, then = draw(model, 2, n_frames), draw(model, 2, n_frames, seed=3)
    state = model.forward_features(first).state
    went_on, told = model.forward_features(then, state).logits, ""
    for lane in (0, 1):
        emptied = state.reset([lane])
        clocks = tuple(0 if number == lane else n_frames for number in (0, 1))
        if emptied.frame_index != clocks:
            raise ContractError(
                f"the clocks after a reset of lane {lane} are {emptied.frame_index}; expected {clocks}"
            )
        for name, tensor in zip(emptied.names(), emptied.tensors(), strict=True):
            if bool(tensor[lane].any()):
                raise ContractError(
                    f"a reset of lane {lane} leaves {name!r} as it was; a lane that begins anew is all zeros"
                )
        began = model.forward_features(then, emptied).logits
        alone = whole(model, then[lane : lane + 1])
        told = require_equal(
            began[lane : lane + 1], alone, "a lane that was reset answers unlike a fresh one"
        )
        other = slice(1 - lane, 2 - lane)
        require_equal(began[other], went_on[other], f"a reset of lane {lane} changes lane {1 - lane}")
    return told


def lanes(model: AnyRecognizer, n_frames: int) -> str:
    """Four procedures at different frames, in one batch and each alone, in one call and in steps."""
    spent = [n_frames // 2, 0, 3, n_frames // 3]
    length = max(n_frames // 2, 2)
    states, then = [], draw(model, 4, length, seed=4)
    for lane, n_before in enumerate(spent):
        state = model.initial_state(1)
        states.append(
            model.forward_features(draw(model, 1, n_before, seed=10 + lane), state).state
            if n_before
            else state
        )
    alone = [model.forward_features(then[lane : lane + 1], state) for lane, state in enumerate(states)]
    expected, stacked = torch.cat([output.logits for output in alone]), type(states[0]).stack(states)
    together = model.forward_features(then, stacked)
    told = require_equal(together.logits, expected, "a lane's logits depend on its neighbours")
    few = min(length, 5)
    stepped, _ = in_pieces(model, then[:, :few], [1] * few, stacked)
    require_equal(
        stepped,
        expected[:, :few],
        "frame by frame a lane's logits depend on its neighbours",
        spread(expected),
    )
    again = draw(model, 1, 5, seed=5)
    taken_out, kept = (
        model.forward_features(again, state).logits for state in (together.state.select([2]), alone[2].state)
    )
    require_equal(
        taken_out,
        kept,
        "a lane taken out of a batch goes on otherwise than one that was alone",
        spread(expected),
    )
    return told
