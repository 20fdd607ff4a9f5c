import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peers.contract import check_contract, frames, varied
from surgicalmamba.peers.skit import SKiT, SKiTConfig, running_maximum

SMALL = SKiTConfig(d_feature=5, n_phases=3, d_model=8, window=4, n_layers=1, n_heads=2, d_hidden=16, d_key=3)


def test_skit_keeps_the_contract():
    check_contract(SKiT(SMALL.with_(n_layers=2)))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 5), st.integers(1, 6))
def test_the_maximum_runs_over_all_frames_of_the_procedure_and_of_no_other(seed, n_before, length):
    values = (
        torch.randn(1, n_before + length, 2, generator=torch.Generator().manual_seed(seed)) - 1.0
    )  # mostly below zero
    before = (
        values[:, :n_before].amax(1) if n_before else torch.zeros(1, 2)
    )  # a fresh memory is zero and counts for nothing
    running = running_maximum(values[:, n_before:], before, (n_before,))
    for j in range(length):
        assert running[0, j].equal(values[0, : n_before + j + 1].amax(0))


def test_a_peak_never_decays():
    model = varied(SKiT(SMALL))
    features = 0.1 * frames(model, 1, 200)
    features[:, 3] *= 100
    state, peaks = None, []
    for part in features.split(50, dim=1):
        state = model.forward_features(part, state).state
        peaks.append(state.peaks)
    recorded = model.narrow(model.embed(features))[0]
    assert peaks[-1][0].equal(torch.stack(peaks)[:, 0].amax(0))
    torch.testing.assert_close(peaks[-1][0], recorded.amax(0), atol=1e-6, rtol=1e-6)


def test_what_no_window_reaches_is_known_through_the_peaks_alone():
    model = varied(SKiT(SMALL.with_(d_key=16)))
    features = frames(model, 1, 12)
    changed = features.clone()
    changed[:, 0] += 5.0  # with window 4 and one layer each, frame 0 is out of reach from frame 7 on
    outputs = [model.forward_features(x) for x in (features, changed)]
    assert (outputs[0].logits[0, -1] - outputs[1].logits[0, -1]).abs().max() > 1e-3
    late = frames(model, 1, 1, seed=9)
    same_peaks = [
        model.forward_features(
            late, type(o.state)(o.state.frame_index, o.state.local, outputs[0].state.peaks)
        )
        for o in outputs
    ]
    torch.testing.assert_close(same_peaks[0].logits, same_peaks[1].logits, atol=1e-7, rtol=0)
