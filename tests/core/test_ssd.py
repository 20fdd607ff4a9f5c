"""The chunked scan against its one-frame step and the recurrence written out by hand; which scan runs.

The fused kernel is a stand-in with mamba-ssm's signature, so the decision can be tested without a GPU."""

import math
import sys
import warnings
from types import ModuleType

import pytest
import torch

from surgicalmamba.core import ssd
from surgicalmamba.core.ssd import BLOCK_LEN, running_means, segment_sum, ssd_scan, ssd_step


def step_loop(x, dt, A, B, C, state):
    outputs = []
    for t in range(x.shape[1]):
        y, state = ssd_step(x[:, t], dt[:, t], A, B[:, t], C[:, t], state)
        outputs.append(y)
    return torch.stack(outputs, dim=1), state


def test_two_frames_by_hand():
    # one head of width 1, state width 1: h1 = e^{-0.5} 2 + 0.5*3*1, y1 = 4 h1;
    # h2 = e^{-1} h1 + 1*1*2, y2 = -h2
    def number(*values):
        return torch.tensor(values, dtype=torch.float64).reshape(1, -1, 1, 1)

    x, B, C = number(3.0, 1.0), number(1.0, 2.0), number(4.0, -1.0)
    dt = torch.tensor([[[0.5], [1.0]]], dtype=torch.float64)
    A = torch.tensor([-1.0], dtype=torch.float64)
    y, state = ssd_scan(x, dt, A, B, C, torch.full((1, 1, 1, 1), 2.0, dtype=torch.float64))
    h1 = math.exp(-0.5) * 2 + 1.5
    h2 = math.exp(-1.0) * h1 + 2
    torch.testing.assert_close(y.flatten(), torch.tensor([4 * h1, -h2], dtype=torch.float64))
    torch.testing.assert_close(state.flatten(), torch.tensor([h2], dtype=torch.float64))


def test_the_recurrence_is_the_zero_order_hold_of_the_continuous_system():
    # dh/dt = A h + B x with constant A = -0.7, B = 2, x = 3 has h(T) = (e^{AT} - 1) / A B x; the decay is
    # exact for any step, the write is first order in the step: B-bar = dt B instead of (e^{dt A} - 1) / A B
    A, duration = -0.7, 5.0
    exact = (math.exp(A * duration) - 1) / A * 6
    errors = []
    for steps in (50, 100, 200):
        ones = torch.ones(1, steps, 1, 1, dtype=torch.float64)
        dt = torch.full((1, steps, 1), duration / steps, dtype=torch.float64)
        empty = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
        _, state = ssd_scan(3 * ones, dt, torch.tensor([A], dtype=torch.float64), 2 * ones, ones, empty)
        errors.append(abs(float(state) - exact))
        per_step = float(dt[0, 0, 0])
        held = exact * per_step * A / math.expm1(per_step * A)  # the same sum with the approximate write
        assert float(state) == pytest.approx(held, rel=1e-12)
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05) and errors[1] / errors[2] == pytest.approx(
        2, rel=0.05
    )


@pytest.mark.parametrize("length", [1, 2, BLOCK_LEN - 1, BLOCK_LEN, BLOCK_LEN + 1, 203])
def test_scan_and_step_agree_in_value_final_state_and_every_gradient(ssd_inputs, length):
    inputs = ssd_inputs(length)
    scan, loop = ssd_scan(*inputs), step_loop(*inputs)
    weights = [torch.randn_like(part) for part in scan]
    gradients = []
    for outputs in (scan, loop):
        for part in outputs:
            assert torch.isfinite(part).all()
        gradients.append(
            torch.autograd.grad(sum((w * o).sum() for w, o in zip(weights, outputs, strict=True)), inputs)
        )
    for ours, reference in zip((*scan, *gradients[0]), (*loop, *gradients[1]), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("block_len", [1, 3, 16, 64, 500])
def test_the_block_length_changes_no_value(ssd_inputs, block_len):
    inputs = ssd_inputs(50)
    y, state = ssd_scan(*inputs, block_len=block_len)
    reference_y, reference_state = ssd_scan(*inputs)
    torch.testing.assert_close(y, reference_y, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(state, reference_state, rtol=1e-11, atol=1e-11)


def test_scanning_in_pieces_equals_scanning_at_once(ssd_inputs):
    x, dt, A, B, C, state = ssd_inputs(40)
    whole, last = ssd_scan(x, dt, A, B, C, state)
    pieces = []
    for part in (slice(0, 7), slice(7, 8), slice(8, 40)):
        y, state = ssd_scan(x[:, part], dt[:, part], A, B[:, part], C[:, part], state)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(state, last, rtol=1e-11, atol=1e-11)


def test_segment_sum_holds_sums_between_two_frames():
    sums = segment_sum(torch.tensor([1.0, 2.0, 4.0]))
    inf = math.inf
    assert sums.tolist() == [[0.0, -inf, -inf], [2.0, 0.0, -inf], [6.0, 4.0, 0.0]]


def test_a_frame_that_forgets_everything_does_not_spoil_the_precision_of_later_ones(ssd_inputs):
    # a running total would reach -1e6 at frame 5, and float32 differences of it would lose the small decays
    # that follow
    x, dt, A, B, C, state = (t.detach().float() for t in ssd_inputs(30))
    dt = dt.clone()
    dt[:, 5] = 1e6
    y, _ = ssd_scan(x, dt, A, B, C, state)
    reference, _ = step_loop(*(t.double() for t in (x, dt, A, B, C, state)))
    torch.testing.assert_close(
        y[:, 6:].double(), reference[:, 6:], rtol=1e-4, atol=1e-4 * float(reference[:, 6:].abs().max())
    )


def test_autocast_does_not_touch_the_scan(ssd_inputs):
    inputs = [t.detach().float() for t in ssd_inputs(20)]
    expected = ssd_scan(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = ssd_scan(*inputs)
    assert y.dtype == state.dtype == torch.float32
    assert torch.equal(y, expected[0]) and torch.equal(state, expected[1])


def test_half_precision_inputs_are_lifted_to_float32(ssd_inputs):
    inputs = [t.detach().bfloat16() for t in ssd_inputs(20)]
    y, state = ssd_scan(*inputs)
    reference, _ = ssd_scan(*(t.float() for t in inputs))
    assert state.dtype == torch.float32
    assert torch.equal(y, reference)


@pytest.mark.parametrize("length", [1, BLOCK_LEN - 1, BLOCK_LEN + 1, 150])
def test_running_means_move_by_a_share_of_the_distance_to_each_frame(length):
    torch.manual_seed(0)
    x, means, frames = (
        torch.randn(2, length, 3, dtype=torch.float64),
        torch.randn(2, 2, 3, dtype=torch.float64),
        torch.tensor([4.0, 50.0]),
    )
    y, after = running_means(x, frames.double(), means)
    for t in range(length):
        means = means + (x[:, t, None] - means) / frames[:, None]
        torch.testing.assert_close(y[:, t], means)
    torch.testing.assert_close(after, means)


@pytest.fixture
def kernel(monkeypatch):
    """Install a fake mamba_ssm for the CPU whose kernel is the reference plus `error`; returns its calls."""
    calls = []

    def install(error=0.0):
        def mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, initial_states, return_final_states):
            calls.append(x.shape[1])
            y, state = ssd_scan(x, dt, A, B, C, initial_states)
            return y + error, state

        names = ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton", "mamba_ssm.ops.triton.ssd_combined")
        for name in names:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        sys.modules[names[-1]].mamba_chunk_scan_combined = mamba_chunk_scan_combined
        monkeypatch.setattr(ssd, "FUSED_DEVICES", ("cpu",))
        return calls

    ssd._fused_scan.cache_clear()
    yield install
    ssd._fused_scan.cache_clear()


def scan_inputs(length):
    x, B, C = torch.randn(1, length, 2, 4), torch.randn(1, length, 2, 3), torch.randn(1, length, 2, 3)
    return x, torch.rand(1, length, 2), -torch.ones(2), B, C, torch.zeros(1, 2, 4, 3)


def test_on_a_cpu_the_reference_runs_even_where_a_kernel_is_installed(kernel, monkeypatch):
    calls = kernel()
    monkeypatch.setattr(ssd, "FUSED_DEVICES", ("cuda",))
    ssd.scan(*scan_inputs(5))
    assert calls == []


def test_a_kernel_runs_after_its_parity_check_and_only_one_check_is_made(kernel):
    calls = kernel()
    for _ in range(2):
        inputs = scan_inputs(5)
        for ours, reference in zip(ssd.scan(*inputs), ssd_scan(*inputs), strict=True):
            torch.testing.assert_close(ours, reference)
    assert calls == [67, 5, 5]


def test_single_frames_never_go_through_a_kernel(kernel):
    calls = kernel()
    ssd.scan(*scan_inputs(1))
    assert calls == []


@pytest.mark.parametrize("error", [0.5, float("nan")])
def test_a_kernel_that_disagrees_is_warned_about_once_and_not_used(kernel, error):
    calls, inputs = kernel(error), scan_inputs(5)
    with pytest.warns(RuntimeWarning, match="not used: it differs from the reference by"):
        found = ssd.scan(*inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = ssd.scan(*inputs)
    assert calls == [67] and torch.equal(found[0], ssd_scan(*inputs)[0]) and torch.equal(again[0], found[0])


def test_an_absent_kernel_is_no_reason_for_a_warning(kernel, monkeypatch):
    monkeypatch.setattr(ssd, "FUSED_DEVICES", ("cpu",))
    inputs = scan_inputs(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ssd.scan(*inputs)
    assert torch.equal(found[0], ssd_scan(*inputs)[0])
