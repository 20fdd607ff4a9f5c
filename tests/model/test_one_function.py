"""One function for any length: however a procedure is cut into calls, logits, final state and gradients are
the same."""

import random

import pytest
import torch

from surgicalmamba.core.state import ModelState
from surgicalmamba.model.surgical_mamba import VARIANTS

FRAMES = 203


def random_cuts(seed):
    rng = random.Random(seed)
    cuts = []
    while sum(cuts) < FRAMES:
        cuts.append(min(rng.choice([1, 2, 3, 11, 30, 77]), FRAMES - sum(cuts)))
    return cuts


def even_cuts(size):
    return [min(size, FRAMES - start) for start in range(0, FRAMES, size)]


def run(model, features, cuts):
    """Logits, intensity logits and the final state of a procedure given in pieces."""
    state, outputs, start = None, [], 0
    for length in cuts:
        output = model.forward_features(features[:, start : start + length], state)
        outputs.append(output)
        state, start = output.state, start + length
    intensity = [o.intensity_logits for o in outputs if o.intensity_logits is not None]
    return torch.cat([o.logits for o in outputs], 1), torch.cat(intensity, 1) if intensity else None, state


def assert_states_close(a, b, tolerance):
    assert a.frame_index == b.frame_index
    for ours, reference in zip(a.tensors(), b.tensors(), strict=True):
        torch.testing.assert_close(ours, reference, rtol=tolerance, atol=tolerance)


CUTS = {"1": even_cuts(1), "5": even_cuts(5), "16": even_cuts(16), "50": even_cuts(50), "128": even_cuts(128)}
CUTS |= {f"random-{seed}": random_cuts(seed) for seed in (0, 1)}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("cut", CUTS)
def test_any_cut_of_a_procedure_gives_the_same_logits_state_and_gradients(build, features, variant, cut):
    model = build(variant)
    x = features(FRAMES).requires_grad_()
    results = []
    for cuts in ([FRAMES], CUTS[cut]):
        logits, intensity, state = run(model, x, cuts)
        loss = (logits * torch.linspace(-1, 1, logits.numel(), dtype=x.dtype).reshape(logits.shape)).sum()
        loss = (
            loss
            + sum(t.square().mean() for t in state.tensors())
            + (0 if intensity is None else intensity.square().sum())
        )
        model.zero_grad()
        (dx,) = torch.autograd.grad(loss, x, retain_graph=True)
        loss.backward()
        results.append(
            (
                logits,
                intensity,
                state,
                dx,
                {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None},
            )
        )
    (logits, intensity, state, dx, grads), (logits_cut, intensity_cut, state_cut, dx_cut, grads_cut) = results
    torch.testing.assert_close(logits_cut, logits, rtol=1e-9, atol=1e-9)
    if intensity is not None:
        torch.testing.assert_close(intensity_cut, intensity, rtol=1e-9, atol=1e-9)
    assert_states_close(state_cut, state, 1e-9)
    torch.testing.assert_close(dx_cut, dx, rtol=1e-9, atol=1e-9)
    assert grads.keys() == grads_cut.keys() and grads
    for name, grad in grads.items():
        scale = float(grad.abs().max()) + 1e-30
        torch.testing.assert_close(
            grads_cut[name], grad, rtol=1e-9, atol=1e-9 * max(1.0, scale), msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_single_frames_agree_with_the_whole_in_float32(build, features, variant):
    model = build(variant, dtype=torch.float32)
    x = features(FRAMES).float()
    with torch.no_grad():
        whole, _, state = run(model, x, [FRAMES])
        steps, _, state_steps = run(model, x, CUTS["1"])
    torch.testing.assert_close(steps, whole, rtol=1e-4, atol=1e-4)
    assert_states_close(state_steps, state, 1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("t", [0, 15, 16, 49, 50, 120])
def test_changing_a_frame_changes_no_logit_before_it_and_does_change_its_own(build, features, variant, t):
    model = build(variant)
    x = features(130)
    changed = x.clone()
    changed[:, t] += 1.0
    with torch.no_grad():
        before, after = model.forward_features(x), model.forward_features(changed)
    assert torch.equal(before.logits[:, :t], after.logits[:, :t])
    assert (before.logits[:, t] - after.logits[:, t]).abs().max() > 1e-6
    if before.intensity_logits is not None:
        assert torch.equal(before.intensity_logits[:, :t], after.intensity_logits[:, :t])


def test_the_past_before_the_clip_reaches_the_present_through_the_slow_path(build, features):
    model, x = build(), features(130)
    changed = x.clone()
    changed[:, 10] += 1.0  # first clip; frame 110 lies in the third
    with torch.no_grad():
        difference = (
            (model.forward_features(x).logits - model.forward_features(changed).logits)[:, 100:].abs().max()
        )
    assert difference > 1e-9


@pytest.mark.parametrize("variant", VARIANTS)
def test_lanes_at_different_frames_of_their_procedures_do_not_disturb_each_other(build, features, variant):
    model = build(variant)
    starts, more = (0, 13, 50, 96), 60
    procedures = features(max(starts) + more, lanes=len(starts))
    with torch.no_grad():
        alone = [
            model.forward_features(procedures[i : i + 1, : start + more]) for i, start in enumerate(starts)
        ]
        prefixes = [model.initial_state(1)]
        prefixes += [
            model.forward_features(procedures[i : i + 1, :start]).state
            for i, start in enumerate(starts)
            if start
        ]
        together = torch.stack([procedures[i, start : start + more] for i, start in enumerate(starts)])
        output = model.forward_features(together, ModelState.stack(prefixes))
    for i, start in enumerate(starts):
        torch.testing.assert_close(output.logits[i], alone[i].logits[0, start:], rtol=1e-9, atol=1e-9)
        assert_states_close(output.state.select([i]), alone[i].state, 1e-9)


def test_a_lane_that_is_reset_starts_like_a_fresh_one(build, features):
    model, x = build(), features(70, lanes=2)
    with torch.no_grad():
        state = model.forward_features(x[:, :40]).state.reset([1])
        continued = model.forward_features(x[:, 40:], state)
        fresh = model.forward_features(x[1:, 40:])
        whole = model.forward_features(x[:1])
    torch.testing.assert_close(continued.logits[1:], fresh.logits, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(continued.logits[:1], whole.logits[:, 40:], rtol=1e-9, atol=1e-9)


def test_the_state_does_not_grow_with_the_procedure(build, features):
    model = build()
    with torch.no_grad():
        sizes = {model.forward_features(features(frames)).state.nbytes for frames in (1, 60, 400)}
    assert sizes == {model.initial_state(1).nbytes}


def test_a_detached_state_stops_gradients_at_the_clip_boundary(build, features):
    model, x = build(), features(80).requires_grad_()
    state = model.forward_features(x[:, :50]).state.detach()
    model.forward_features(x[:, 50:], state).logits.sum().backward()
    assert (x.grad[:, :50] == 0).all() and (x.grad[:, 50:] != 0).any()
