"""Every recognizer of the package keeps the contract, and every check can fail."""

import re
from dataclasses import dataclass, replace

import pytest
import torch
from pydantic import Field
from torch import nn

import surgicalmamba as sm
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.registry import BUILT_IN, build
from surgicalmamba.peers.conformance import conformance, stir
from surgicalmamba.peers.conformance_memory import memory_class

PATH = {"d_state": 8, "d_head": 8, "chunk_len": 17, "rotation": {"rank": 2, "d_hidden": 8}}
SSM = {"d_model": 16, "n_blocks": 2, "d_state": 8, "d_head": 8}
PREFIX = {"d_model": 8, "n_blocks": 1, "path": {"rotation": None, "d_state": 4, "d_head": 8}}
SMALL = {
    "surgicalmamba": {
        "d_model": 16,
        "n_blocks": 2,
        "clip_len": 40,
        "block": {"slow": {**PATH, "intensity": {}}, "fast": {**PATH, "chunk_len": 16}},
        "head": {"path": {**PATH, "chunk_len": 15}},
    },
    "lstm": {"d_hidden": 8},
    "sv-rcnet": {"d_hidden": 8},
    "tecno": {"n_layers": 4, "n_maps": 8},
    "tecno-9-64": {"n_maps": 4},
    "mamba2": SSM,
    "mamba2-upstream": SSM,
    "tmrnet": {"d_hidden": 8, "clip_frames": 4, "bank_len": 9},
    "trans-svnet": {"n_layers": 4, "n_maps": 8, "window": 9, "n_heads": 2, "d_head": 4, "d_hidden": 8},
    "opera": {"d_model": 8, "n_layers": 2, "d_hidden": 16},
    "lovit": {"d_model": 8, "small_window": 7, "large_window": 13, "n_layers": 1, "n_heads": 2, "d_hidden": 16},
    "skit": {"d_model": 8, "window": 7, "n_layers": 1, "n_heads": 2, "d_hidden": 16, "d_key": 4},
    "surgformer": {"d_model": 12, "n_blocks": 1, "n_heads": 2},
    "dacat": {"d_hidden": 8},
    "sr-mamba": PREFIX,
    "sr-mamba-forward": PREFIX,
    "mttr-net": {"d_hidden": 8},
    "hmm": {},
}
"""Small sizes: windows, chunks and clips end several times within the sequences compared."""


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_recognizer_of_the_package_keeps_the_contract(name):
    torch.manual_seed(0)
    findings = list(conformance(stir(build(name, 5, 4, **SMALL[name])), n_frames=48, late=200))
    assert len(findings) == 10
    assert all(finding.ok for finding in findings), "\n".join(finding.text() for finding in findings)


class ToyConfig(sm.RecognizerConfig):
    window: int = Field(3, gt=0)


@dataclass(frozen=True)
class ToyState(sm.LaneState):
    total: torch.Tensor  # (b, d)


class Sound(sm.Recognizer[ToyState]):
    """The running sum of all features, classified. It keeps the contract; the networks below each break it in one place."""

    name = "toy"
    config_class = ToyConfig
    memory = "O(1)"

    def __init__(self, config):
        super().__init__(config)
        self.classifier = nn.Linear(config.feature_width, config.n_phases)

    def initial_state(self, n_lanes):
        return ToyState((0,) * n_lanes, self.zeros(n_lanes, self.feature_width))

    def temporal(self, features, state):
        sums = state.total[:, None] + features.cumsum(1)
        after = replace(state, total=sums[:, -1]).advance(features.shape[1])
        return sm.Output(self.classifier(sums), None, after)


class Forgets(Sound):
    """Every call begins anew."""

    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, state=self.initial_state(state.n_lanes).at(output.state.frame_index))


class ForgetsLongCalls(Sound):
    """Right frame by frame and in one call, wrong after a call of more than a few frames."""

    def temporal(self, features, state):
        output = super().temporal(features, state)
        return output if features.shape[1] < 6 else replace(output, state=replace(output.state, total=features[:, -1]))


class LooksAhead(Sound):
    """The mean of this frame and the next one of the same call."""

    def temporal(self, features, state):
        return super().temporal(features + torch.cat([features[:, 1:], features[:, -1:]], dim=1), state)


class Declares(Sound):
    lookahead = 2


class Leaks(Sound):
    """Lanes share their mean."""

    def temporal(self, features, state):
        return super().temporal(features - features.mean(0, keepdim=True), state)


class BeginsWithOnes(Sound):
    def initial_state(self, n_lanes):
        return replace(super().initial_state(n_lanes), total=torch.ones(n_lanes, self.feature_width))


class Stands(Sound):
    """Its clock does not move."""

    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, state=output.state.at(state.frame_index))


class Deaf(Sound):
    def temporal(self, features, state):
        return super().temporal(0 * features, state)


class HidesMemory(Sound):
    """Counts calls in itself, not in its state: a restored session shares the count, a reset does not undo it."""

    calls = 0

    def temporal(self, features, state):
        self.calls += 1
        return super().temporal(features + 1e-2 * self.calls, state)


class RemembersLess(Sound):
    def remember(self, features, state):
        return state.advance(features.shape[1])


class RemembersFromTheStart(Sound):
    """What it keeps in mind does not go on from what it knew."""

    def remember(self, features, state):
        return super().remember(features, self.initial_state(state.n_lanes).at(state.frame_index))


class ForgetsBeforeLongCalls(Sound):
    """Right in steps, in short calls, and in one call from the start; a long call that goes on begins anew."""

    def temporal(self, features, state):
        return super().temporal(features, replace(state, total=0 * state.total) if features.shape[1] > 9 else state)


class WrongInCallsOfFour(Sound):
    def temporal(self, features, state):
        return super().temporal(features * (1.1 if features.shape[1] == 4 else 1.0), state)


class HugeLogit(LooksAhead):
    """Looks ahead, and has a phase that it rules out: its logit must not hide the rest."""

    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, logits=torch.cat([output.logits[..., :-1], output.logits[..., -1:] - 1e4], dim=-1))


class TinyLogits(Forgets):
    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, logits=1e-5 * output.logits)


class LooksAheadLate(Sound):
    """From the fiftieth frame on."""

    def temporal(self, features, state):
        ahead = torch.cat([features[:, 1:], features[:, -1:]], dim=1)
        at = torch.arange(features.shape[1]) + state.frame_index[0]
        return super().temporal(torch.where((at >= 50)[None, :, None], ahead, features), state)


class BreaksLate(Sound):
    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, logits=output.logits * (torch.nan if state.frame_index[0] > 60 else 1.0))


class WrapsLate(Sound):
    """A call that leads over frame 64 loses what was before it."""

    def temporal(self, features, state):
        before, after = state.frame_index[0], state.frame_index[0] + features.shape[1]
        return super().temporal(features, replace(state, total=0 * state.total) if before < 64 < after else state)


class KeepsHandles(Sound):
    """Its state is a ticket; what it remembers lies in the network."""

    def __init__(self, config):
        super().__init__(config)
        self.kept = {}

    def temporal(self, features, state):
        known = torch.stack([self.kept.get(round(float(ticket), 3), torch.zeros(self.feature_width)) for ticket in state.total[:, 0]])
        output = super().temporal(features, replace(state, total=known))
        tickets = torch.zeros_like(known)
        tickets[:, 0] = output.state.total.abs().sum(1)
        self.kept |= {round(float(ticket), 3): total for ticket, total in zip(tickets[:, 0], output.state.total, strict=True)}
        return replace(output, state=replace(output.state, total=tickets))


@dataclass(frozen=True)
class CountState(ToyState):
    calls: int


class CountsInItsState(Sound):
    def initial_state(self, n_lanes):
        return CountState((0,) * n_lanes, self.zeros(n_lanes, self.feature_width), 0)


@dataclass(frozen=True)
class PairState(ToyState):
    pair: tuple[torch.Tensor, torch.Tensor]


class KeepsATuple(Sound):
    def initial_state(self, n_lanes):
        zeros = self.zeros(n_lanes, self.feature_width)
        return PairState((0,) * n_lanes, zeros, (zeros, zeros))


class GrowsInSteps(Sound):
    """A row for every call of a single frame; none in long calls, in which the memory is measured."""

    def temporal(self, features, state):
        output = super().temporal(features, state)
        more = torch.cat([output.state.total, output.state.total[:, :1]], dim=1) if features.shape[1] == 1 else output.state.total
        return replace(output, state=replace(output.state, total=more))

    def initial_state(self, n_lanes):
        return ToyState((0,) * n_lanes, self.zeros(n_lanes, self.feature_width))

    def forward_features(self, features, state=None, n_frames=None):
        known = None if state is None else replace(state, total=state.total[:, : self.feature_width])
        output = super().forward_features(features, known)
        extra = 0 if state is None else state.total.shape[1] - self.feature_width
        rows = torch.zeros(features.shape[0], extra)
        return replace(output, state=replace(output.state, total=torch.cat([output.state.total, rows], dim=1)))


class WritesIntoItsState(Sound):
    """In calls of a single frame."""

    def temporal(self, features, state):
        output = super().temporal(features, state)
        if features.shape[1] == 1 and state.frame_index[0]:
            state.total.copy_(output.state.total)
        return output


@dataclass(frozen=True)
class KeepsSome(ToyState):
    def reset(self, lanes):
        return replace(super().reset(lanes), total=torch.where(self.total > 2, self.total, super().reset(lanes).total))


@dataclass(frozen=True)
class ResetsTheFirst(ToyState):
    def reset(self, lanes):
        return replace(super().reset(lanes), total=super().reset([0]).total)


class ResetsHalf(Sound):
    def initial_state(self, n_lanes):
        return KeepsSome((0,) * n_lanes, self.zeros(n_lanes, self.feature_width))


class ResetsLaneZero(Sound):
    def initial_state(self, n_lanes):
        return ResetsTheFirst((0,) * n_lanes, self.zeros(n_lanes, self.feature_width))


class LeaksInSteps(Sound):
    """Single frames of lanes with different clocks take the first lane's memory: what a pool of live sessions would meet."""

    def temporal(self, features, state):
        mixed = features.shape[1] == 1 and len(set(state.frame_index)) > 1
        return super().temporal(features, replace(state, total=state.total[:1].expand_as(state.total)) if mixed else state)


class LeaksAmongFour(Sound):
    def temporal(self, features, state):
        return super().temporal(features + (features.mean() if len(features) > 3 else 0.0), state)


class WrongIntensity(Sound):
    def temporal(self, features, state):
        return replace(super().temporal(features, state), intensity_logits=torch.zeros(len(features), 2))


@dataclass(frozen=True)
class CacheState(sm.LaneState):
    GROWING = frozenset({"cache"})
    cache: torch.Tensor  # (b, t, d)


class Grows(sm.Recognizer[CacheState]):
    """Keeps every frame; sound as O(T)."""

    name = "cache"
    config_class = ToyConfig
    memory = "O(T)"

    def __init__(self, config):
        super().__init__(config)
        self.classifier = nn.Linear(config.feature_width, config.n_phases)

    def initial_state(self, n_lanes):
        return CacheState((0,) * n_lanes, self.zeros(n_lanes, 0, self.feature_width))

    def temporal(self, features, state):
        length = features.shape[1]
        cache = state.with_length(max(state.frame_index) + length).cache.clone()
        logits = []
        for lane, seen in enumerate(state.frame_index):
            cache[lane, seen : seen + length] = features[lane]
            logits.append(self.classifier(cache[lane, : seen + length].cumsum(0)[seen:]))
        return sm.Output(torch.stack(logits), None, replace(state, cache=cache).advance(length))


class GrowsInSecret(Grows):
    memory = "O(W)"


class FillsUp(Grows):
    """Keeps the last frames, at most fifty; sound as O(W), whose memory may be allocated as it is needed."""

    memory = "O(W)"

    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, state=output.state.with_length(min(output.state.frame_index[0], 50)))


class FillsUpInSecret(FillsUp):
    memory = "O(1)"


class FillsUpEarly(FillsUp):
    memory = "O(T)"


class Stays(Sound):
    memory = "O(T)"


def toy(network):
    torch.manual_seed(0)
    return network(ToyConfig(d_feature=4, n_phases=3))


class SoundWithAnOffset(Sound):
    """All logits far from zero, which changes no probability but leaves float32 less room."""

    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, logits=output.logits + 1e3)


class SoundWithARuledOutPhase(Sound):
    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, logits=torch.cat([output.logits[..., :-1], output.logits[..., -1:] - 1e9], dim=-1))


class SoundWithTinyLogits(Sound):
    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, logits=1e-5 * output.logits)


def check(network):
    return conformance(toy(network), n_frames=30, sizes=(10, 100, 1_000), late=150)


@pytest.mark.parametrize("network", [Sound, Grows, SoundWithAnOffset, SoundWithARuledOutPhase, SoundWithTinyLogits])
def test_a_sound_network_of_a_users_own_passes_every_check(network):
    findings = list(check(network))
    assert len(findings) == 10
    assert [finding.text() for finding in findings if not finding.ok] == []


@pytest.mark.parametrize(
    ("network", "name", "said"),
    [
        (Forgets, "step loop equals whole sequence", "frame by frame gives other logits"),
        (ForgetsLongCalls, "any cut equals whole sequence", "cut into calls of 1, 2, 3, ... frames it gives other logits"),
        (ForgetsBeforeLongCalls, "any cut equals whole sequence", "cut into calls of 1, 29 frames it gives other logits"),
        (WrongInCallsOfFour, "any cut equals whole sequence", "cut into calls of 1, 2, 3, ... frames it gives other logits"),
        (HugeLogit, "causal, look-ahead zero", "it looks at least 1 frame"),
        (TinyLogits, "step loop equals whole sequence", "frame by frame gives other logits"),
        (LooksAheadLate, "the same late in a procedure", "frames after 3 change the logits of frame 3|frame by frame after 150 frames"),
        (BreaksLate, "the same late in a procedure", "raised NonFiniteError|gives other logits"),
        (WrapsLate, "the same late in a procedure", "the answers after 150 frames depend on the calls in which these came"),
        (KeepsHandles, "snapshot is exact", "a session restored after 30 frames gives another estimate at frame 30"),
        (CountsInItsState, "shapes and initial state", "the state's 'calls' holds a int; a memory is tensors"),
        (KeepsATuple, "shapes and initial state", "the state's 'pair' is a tuple of tensors"),
        (GrowsInSteps, "step loop equals whole sequence", "frame by frame leaves a memory of .* bytes, one call one of"),
        (WritesIntoItsState, "step loop equals whole sequence", r"a call of 1 frame\(s\) writes into the state it was given"),
        (ResetsHalf, "reset equals fresh", "a reset of lane . leaves 'total' as it was"),
        (ResetsLaneZero, "reset equals fresh", "a reset of lane 1 leaves 'total' as it was"),
        (LeaksInSteps, "lanes are independent", "frame by frame a lane's logits depend on its neighbours"),
        (LeaksAmongFour, "lanes are independent", "a lane's logits depend on its neighbours"),
        (RemembersFromTheStart, "remembering equals answering", "remember leaves another total"),
        (WrongIntensity, "shapes and initial state", r"intensity_logits of shape \(2, 2\)"),
        (FillsUpEarly, "memory is of the declared class", "is full after 100 frames, which is O.W."),
        (LooksAhead, "causal, look-ahead zero", r"frames after 0 change the logits of frame 0: it looks at least 1 frame\(s\) ahead"),
        (Declares, "causal, look-ahead zero", "declares a look-ahead of 2 frames"),
        (Leaks, "lanes are independent", "a lane's logits depend on its neighbours"),
        (BeginsWithOnes, "shapes and initial state", "the initial state is not zero"),
        (BeginsWithOnes, "reset equals fresh", "a lane that was reset answers unlike a fresh one"),
        (Stands, "shapes and initial state", r"clocks are \(0, 0\) after 30 frames"),
        (Deaf, "shapes and initial state", "the logits do not depend on the features"),
        (HidesMemory, "snapshot is exact", "a session restored after 30 frames gives another estimate at frame 30"),
        (RemembersLess, "remembering equals answering", "remember leaves another total"),
        (GrowsInSecret, "memory is of the declared class", "declares O.W. but its state still grows after 100 frames"),
        (FillsUpInSecret, "memory is of the declared class", "declares O.1. but its state grows: .*; a window that fills up is O.W."),
        (Stays, "memory is of the declared class", "declares O.T. but its state stays the same"),
    ],
)
def test_a_broken_network_fails_the_check_that_is_meant_for_it_with_one_readable_line(network, name, said):
    (finding,) = (finding for finding in check(network) if finding.check == name)
    assert not finding.ok and "\n" not in finding.text()
    assert re.search(said, finding.found), finding.text()


def test_a_window_that_fills_up_is_of_the_class_of_its_window():
    assert memory_class(toy(FillsUp), (10, 100, 1_000)).startswith("O(W): 160 bytes at 10, 800 bytes at 100, 800 bytes at 1,000")


@pytest.mark.parametrize("error", [RuntimeError("out of luck\nand a second line"), SystemExit(0)])
def test_a_network_that_cannot_be_called_is_one_finding_and_not_a_crash(error):
    class Raises(Sound):
        def temporal(self, features, state):
            raise error

    (finding,) = check(Raises)
    assert not finding.ok and finding.found in ("raised RuntimeError: out of luck", "raised SystemExit: 0")


def test_a_stirred_network_of_published_width_still_rounds_alike_in_every_cut():
    """A wide network that is stirred too strongly amplifies rounding until the comparison fails, though nothing is wrong."""
    torch.manual_seed(0)
    model = stir(build("mamba2", 16, 7, n_blocks=2)).eval()
    with torch.no_grad():
        features = torch.randn(1, 40, 16)
        whole = model.forward_features(features)
        first = model.forward_features(features[:, :13])
        rest = model.forward_features(features[:, 13:], first.state)
    assert whole.logits.abs().max() < 50
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], dim=1), whole.logits, atol=1e-5, rtol=1e-5)


def test_a_state_that_grows_faster_than_time_is_not_linear():
    class Squares(Grows):
        def temporal(self, features, state):
            output = super().temporal(features, state)
            return replace(output, state=output.state.with_length(output.state.frame_index[0] ** 2))

    with pytest.raises(Exception, match="grows faster than the time"):
        memory_class(toy(Squares), (10, 20, 40))


def test_an_unknown_name_suggests_the_nearest_and_unknown_settings_too():
    with pytest.raises(ConfigError, match="unknown recognizer 'teckno': did you mean 'tecno'"):
        build("teckno", 4, 3)
    with pytest.raises(ConfigError, match="unknown setting 'n_layer': did you mean 'n_layers'"):
        build("tecno", 4, 3, n_layer=3)
