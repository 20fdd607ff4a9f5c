"""Random SSD inputs of any size, in float64 unless said otherwise."""

import pytest
import torch


@pytest.fixture
def ssd_inputs():
    """ssd_inputs(length) -> x, dt, A, B, C, state, all requiring gradients."""

    def make(length, batch=2, heads=3, d_head=4, d_state=5, dtype=torch.float64, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, dtype=dtype, generator=generator)

        x = normal(batch, length, heads, d_head)
        dt = torch.rand(batch, length, heads, dtype=dtype, generator=generator) * 0.5 + 0.01
        A = -torch.rand(heads, dtype=dtype, generator=generator) * 2 - 0.1
        B, C = normal(batch, length, heads, d_state), normal(batch, length, heads, d_state)
        state = normal(batch, heads, d_head, d_state)
        return [t.requires_grad_() for t in (x, dt, A, B, C, state)]

    return make


@pytest.fixture
def planes():
    """planes() -> U, V with unit columns and theta, random."""

    def make(batch=1, heads=2, d_state=8, rank=3, angle=1.0, dtype=torch.float64, seed=0):
        generator = torch.Generator().manual_seed(seed)
        U = torch.nn.functional.normalize(
            torch.randn(batch, heads, d_state, rank, dtype=dtype, generator=generator), dim=-2
        )
        V = torch.nn.functional.normalize(
            torch.randn(batch, heads, d_state, rank, dtype=dtype, generator=generator), dim=-2
        )
        theta = torch.rand(batch, heads, rank, dtype=dtype, generator=generator) * 2 * angle
        return U, V, theta

    return make
