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
from surgicalmamba.peers.conformance import conformance, memory_class, stir

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
    findings = list(conformance(stir(build(name, 5, 4, **SMALL[name])), n_frames=48))
    assert len(findings) == 9
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


class Stays(Sound):
    memory = "O(T)"


def toy(network):
    torch.manual_seed(0)
    return network(ToyConfig(d_feature=4, n_phases=3))


@pytest.mark.parametrize("network", [Sound, Grows])
def test_a_sound_network_of_a_users_own_passes_every_check(network):
    findings = list(conformance(toy(network), n_frames=20, sizes=(10, 100, 1_000)))
    assert [finding.text() for finding in findings if not finding.ok] == []


@pytest.mark.parametrize(
    ("network", "check", "said"),
    [
        (Forgets, "step loop equals whole sequence", "frame by frame gives other logits"),
        (ForgetsLongCalls, "any cut equals whole sequence", "cut into calls it gives other logits"),
        (LooksAhead, "causal, look-ahead zero", r"frames after 0 change the logits of frame 0: it looks at least 1 frame\(s\) ahead"),
        (Declares, "causal, look-ahead zero", "declares a look-ahead of 2 frames"),
        (Leaks, "lanes are independent", "a lane's logits depend on its neighbours"),
        (BeginsWithOnes, "shapes and initial state", "the initial state is not zero"),
        (BeginsWithOnes, "reset equals fresh", "a lane that was reset answers unlike a fresh one"),
        (Stands, "shapes and initial state", r"clocks are \(0, 0\) after 20 frames"),
        (Deaf, "shapes and initial state", "the logits do not depend on the features"),
        (HidesMemory, "snapshot is exact", "a session restored after 30 frames gives another estimate at frame 30"),
        (RemembersLess, "remembering equals answering", "remember leaves another total"),
        (GrowsInSecret, "memory is of the declared class", "declares O.W. but its state still grows after 100 frames"),
        (FillsUpInSecret, "memory is of the declared class", "declares O.1. but its state grows: .*; a window that fills up is O.W."),
        (Stays, "memory is of the declared class", "declares O.T. but its state stays the same"),
    ],
)
def test_a_broken_network_fails_the_check_that_is_meant_for_it_with_one_readable_line(network, check, said):
    (finding,) = (f for f in conformance(toy(network), n_frames=20, sizes=(10, 100, 1_000)) if f.check == check)
    assert not finding.ok and "\n" not in finding.text()
    assert re.search(said, finding.found), finding.text()


def test_a_window_that_fills_up_is_of_the_class_of_its_window():
    assert memory_class(toy(FillsUp), (10, 100, 1_000)).startswith("O(W): 160 bytes at 10, 800 bytes at 100, 800 bytes at 1,000")


def test_a_network_that_raises_is_a_finding_and_not_a_crash():
    class Raises(Sound):
        def temporal(self, features, state):
            raise RuntimeError("out of luck\nand a second line")

    findings = list(conformance(toy(Raises), n_frames=20, sizes=(10,)))
    assert not any(finding.ok for finding in findings[:2]) and "raised RuntimeError: out of luck" in findings[1].text()


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
