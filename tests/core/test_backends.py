"""Which scan runs. The kernel is a stand-in with mamba-ssm's signature, so the decision can be tested without a GPU."""

import sys
from types import ModuleType

import pytest
import torch

from surgicalmamba.core import ssd as backends
from surgicalmamba.core.ssd import ssd_scan


@pytest.fixture
def kernel(monkeypatch):
    """Install a fake mamba_ssm whose kernel is the reference plus `error`; returns the list of its calls."""
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
        return calls

    yield install
    backends.choose_scan("auto")


def inputs(length):
    x, B, C = torch.randn(1, length, 2, 4), torch.randn(1, length, 2, 3), torch.randn(1, length, 2, 3)
    return x, torch.rand(1, length, 2), -torch.ones(2), B, C, torch.zeros(1, 2, 4, 3)


def test_on_a_cpu_the_reference_runs_even_where_a_kernel_is_installed(kernel):
    calls = kernel()
    backends.scan(*inputs(5))
    assert calls == []


def test_a_named_kernel_runs_after_its_parity_check_and_only_one_check_is_made(kernel):
    calls = kernel()
    backends.choose_scan("mamba-ssm")
    for _ in range(2):
        given = inputs(5)
        for ours, reference in zip(backends.scan(*given), ssd_scan(*given), strict=True):
            torch.testing.assert_close(ours, reference)
    assert calls == [67, 5, 5]


def test_single_frames_never_go_through_a_kernel(kernel):
    calls = kernel()
    backends.choose_scan("mamba-ssm")
    backends.scan(*inputs(1))
    assert calls == []


def test_a_kernel_that_disagrees_is_refused_with_the_difference(kernel):
    kernel(error=0.5)
    backends.choose_scan("mamba-ssm")
    with pytest.raises(RuntimeError, match="differs from the reference"):
        backends.scan(*inputs(5))


def test_a_kernel_that_is_asked_for_and_absent_is_an_error(kernel):
    backends.choose_scan("mamba-ssm")
    with pytest.raises(RuntimeError, match="not installed"):
        backends.scan(*inputs(5))


def test_in_auto_mode_a_disagreeing_kernel_is_warned_about_and_not_used(kernel, monkeypatch):
    kernel(error=float("nan"))
    monkeypatch.setattr(backends, "_choice", "auto")
    with pytest.warns(RuntimeWarning, match="not used: it differs"):
        assert backends._fused_for(torch.device("cpu")) is None
