"""Every recognizer of the package keeps the contract, and every check can fail."""

import re
from dataclasses import replace

import pytest
import torch

from peers.toys import (
    BeginsWithOnes,
    BreaksLate,
    CountsInItsState,
    Deaf,
    Declares,
    FillsUp,
    FillsUpEarly,
    FillsUpInSecret,
    Forgets,
    ForgetsBeforeLongCalls,
    ForgetsLongCalls,
    Grows,
    GrowsInSecret,
    GrowsInSteps,
    HidesMemory,
    HugeLogit,
    KeepsATuple,
    KeepsHandles,
    Leaks,
    LeaksAmongFour,
    LeaksInSteps,
    LooksAhead,
    LooksAheadLate,
    RemembersFromTheStart,
    RemembersLess,
    ResetsHalf,
    ResetsLaneZero,
    Sound,
    SoundWithAnOffset,
    SoundWithARuledOutPhase,
    SoundWithTinyLogits,
    Stands,
    Stays,
    TinyLogits,
    ToyConfig,
    WrapsLate,
    WritesIntoItsState,
    WrongInCallsOfFour,
    WrongIntensity,
)
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
    "lovit": {
        "d_model": 8,
        "small_window": 7,
        "large_window": 13,
        "n_layers": 1,
        "n_heads": 2,
        "d_hidden": 16,
    },
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


def toy(network):
    torch.manual_seed(0)
    return network(ToyConfig(d_feature=4, n_phases=3))


def check(network):
    return conformance(toy(network), n_frames=30, sizes=(10, 100, 1_000), late=150)


@pytest.mark.parametrize(
    "network", [Sound, Grows, SoundWithAnOffset, SoundWithARuledOutPhase, SoundWithTinyLogits]
)
def test_a_sound_network_of_a_users_own_passes_every_check(network):
    findings = list(check(network))
    assert len(findings) == 10
    assert [finding.text() for finding in findings if not finding.ok] == []


@pytest.mark.parametrize(
    ("network", "name", "said"),
    [
        (Forgets, "step loop equals whole sequence", "frame by frame gives other logits"),
        (
            ForgetsLongCalls,
            "any cut equals whole sequence",
            "cut into calls of 1, 2, 3, ... frames it gives other logits",
        ),
        (
            ForgetsBeforeLongCalls,
            "any cut equals whole sequence",
            "cut into calls of 1, 29 frames it gives other logits",
        ),
        (
            WrongInCallsOfFour,
            "any cut equals whole sequence",
            "cut into calls of 1, 2, 3, ... frames it gives other logits",
        ),
        (HugeLogit, "causal, look-ahead zero", "it looks at least 1 frame"),
        (TinyLogits, "step loop equals whole sequence", "frame by frame gives other logits"),
        (
            LooksAheadLate,
            "the same late in a procedure",
            "frames after 3 change the logits of frame 3|frame by frame after 150 frames",
        ),
        (BreaksLate, "the same late in a procedure", "raised NonFiniteError|gives other logits"),
        (
            WrapsLate,
            "the same late in a procedure",
            "the answers after 150 frames depend on the calls in which these came",
        ),
        (
            KeepsHandles,
            "snapshot is exact",
            "a session restored after 30 frames gives another estimate at frame 30",
        ),
        (
            CountsInItsState,
            "shapes and initial state",
            "the state's 'calls' holds a int; a memory is tensors",
        ),
        (KeepsATuple, "shapes and initial state", "the state's 'pair' is a tuple of tensors"),
        (
            GrowsInSteps,
            "step loop equals whole sequence",
            "frame by frame leaves a memory of .* bytes, one call one of",
        ),
        (
            WritesIntoItsState,
            "step loop equals whole sequence",
            r"a call of 1 frame\(s\) writes into the state it was given",
        ),
        (ResetsHalf, "reset equals fresh", "a reset of lane . leaves 'total' as it was"),
        (ResetsLaneZero, "reset equals fresh", "a reset of lane 1 leaves 'total' as it was"),
        (LeaksInSteps, "lanes are independent", "frame by frame a lane's logits depend on its neighbours"),
        (LeaksAmongFour, "lanes are independent", "a lane's logits depend on its neighbours"),
        (RemembersFromTheStart, "remembering equals answering", "remember leaves another total"),
        (WrongIntensity, "shapes and initial state", r"intensity_logits of shape \(2, 2\)"),
        (FillsUpEarly, "memory is of the declared class", "is full after 100 frames, which is O.W."),
        (
            LooksAhead,
            "causal, look-ahead zero",
            r"frames after 0 change the logits of frame 0: it looks at least 1 frame\(s\) ahead",
        ),
        (Declares, "causal, look-ahead zero", "declares a look-ahead of 2 frames"),
        (Leaks, "lanes are independent", "a lane's logits depend on its neighbours"),
        (BeginsWithOnes, "shapes and initial state", "the initial state is not zero"),
        (BeginsWithOnes, "reset equals fresh", "a lane that was reset answers unlike a fresh one"),
        (Stands, "shapes and initial state", r"clocks are \(0, 0\) after 30 frames"),
        (Deaf, "shapes and initial state", "the logits do not depend on the features"),
        (
            HidesMemory,
            "snapshot is exact",
            "a session restored after 30 frames gives another estimate at frame 30",
        ),
        (RemembersLess, "remembering equals answering", "remember leaves another total"),
        (
            GrowsInSecret,
            "memory is of the declared class",
            "declares O.W. but its state still grows after 100 frames",
        ),
        (
            FillsUpInSecret,
            "memory is of the declared class",
            "declares O.1. but its state grows: .*; a window that fills up is O.W.",
        ),
        (Stays, "memory is of the declared class", "declares O.T. but its state stays the same"),
    ],
)
def test_a_broken_network_fails_the_check_that_is_meant_for_it_with_one_readable_line(network, name, said):
    (finding,) = (finding for finding in check(network) if finding.check == name)
    assert not finding.ok and "\n" not in finding.text()
    assert re.search(said, finding.found), finding.text()


def test_a_window_that_fills_up_is_of_the_class_of_its_window():
    assert memory_class(toy(FillsUp), (10, 100, 1_000)).startswith(
        "O(W): 160 bytes at 10, 800 bytes at 100, 800 bytes at 1,000"
    )


@pytest.mark.parametrize("error", [RuntimeError("out of luck\nand a second line"), SystemExit(0)])
def test_a_network_that_cannot_be_called_is_one_finding_and_not_a_crash(error):
    class Raises(Sound):
        def temporal(self, features, state):
            raise error

    (finding,) = check(Raises)
    assert not finding.ok and finding.found in ("raised RuntimeError: out of luck", "raised SystemExit: 0")


def test_a_stirred_network_of_published_width_still_rounds_alike_in_every_cut():
    """A wide network that is stirred too strongly amplifies rounding until the comparison fails, though
    nothing is wrong."""
    torch.manual_seed(0)
    model = stir(build("mamba2", 16, 7, n_blocks=2)).eval()
    with torch.no_grad():
        features = torch.randn(1, 40, 16)
        whole = model.forward_features(features)
        first = model.forward_features(features[:, :13])
        rest = model.forward_features(features[:, 13:], first.state)
    assert whole.logits.abs().max() < 50
    torch.testing.assert_close(
        torch.cat([first.logits, rest.logits], dim=1), whole.logits, atol=1e-5, rtol=1e-5
    )


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
