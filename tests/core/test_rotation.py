"""State regramming: everything the paper states as an identity (section 3.5, appendix Matrix view)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surgicalmamba.core.rotation import (
    cayley,
    faster_form,
    generator,
    regram,
    rotate_state,
    rotate_state_low_rank,
    solve_by_blocks,
    unit_columns,
)
from surgicalmamba.core.ssd import ssd_scan


def rotations(planes, count, **sizes):
    return [cayley(generator(*planes(seed=seed, **sizes)))[0] for seed in range(count)]


def test_one_plane_in_two_dimensions_turns_by_twice_the_arctangent_of_half_the_angle():
    U, V = torch.eye(2, dtype=torch.float64).reshape(1, 1, 2, 2).split(1, dim=-1)
    theta = torch.tensor([[[0.8]]], dtype=torch.float64)
    turn = 2 * math.atan(0.4)
    expected = torch.tensor(
        [[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]], dtype=torch.float64
    )
    torch.testing.assert_close(cayley(generator(U, V, theta))[0, 0], expected)


def test_columns_are_normalised_over_the_state_dimension():
    lengths = unit_columns(torch.randn(2, 3, 8, 4)).norm(dim=-2)
    torch.testing.assert_close(lengths, torch.ones(2, 3, 4))


@given(
    seed=st.integers(0, 10_000),
    d_state=st.integers(2, 12),
    rank=st.integers(1, 6),
    angle=st.floats(0.0, 50.0),
)
@settings(max_examples=60, deadline=None)
def test_generator_is_skew_of_rank_2r_and_the_rotation_is_orthogonal_for_any_planes_and_angles(
    seed, d_state, rank, angle
):
    g = torch.Generator().manual_seed(seed)
    U, V = (
        unit_columns(torch.randn(1, 1, d_state, rank, dtype=torch.float64, generator=g)) for _ in range(2)
    )
    theta = torch.rand(1, 1, rank, dtype=torch.float64, generator=g) * angle
    S = generator(U, V, theta)
    torch.testing.assert_close(S, -S.transpose(-1, -2))
    assert torch.linalg.matrix_rank(S[0, 0], atol=1e-9) <= min(2 * rank, d_state)
    Z = cayley(S)[0, 0]
    torch.testing.assert_close(Z @ Z.T, torch.eye(d_state, dtype=torch.float64), rtol=0, atol=1e-10)
    assert torch.linalg.det(Z) > 0


@pytest.mark.parametrize(("d_state", "rank"), [(64, 16), (64, 1), (16, 8), (16, 16), (5, 4)])
def test_the_low_rank_form_equals_the_dense_one_in_value_and_gradient(planes, d_state, rank):
    inputs = [t.requires_grad_() for t in planes(batch=2, heads=3, d_state=d_state, rank=rank)]
    state = torch.randn(2, 3, 4, d_state, dtype=torch.float64, requires_grad=True)
    weight = torch.randn_like(state)
    low, dense = rotate_state_low_rank(state, *inputs), rotate_state(state, cayley(generator(*inputs)))
    torch.testing.assert_close(low, dense, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad((weight * out).sum(), [state, *inputs]) for out in (low, dense)]
    for ours, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-9)


def test_the_two_forms_agree_in_float32_under_autocast(planes):
    inputs = planes(heads=4, d_state=64, rank=16, dtype=torch.float32)
    state = torch.randn(1, 4, 8, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low, dense = (regram(state, *inputs, form) for form in ("low-rank", "dense"))
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, dense, rtol=1e-4, atol=1e-5)


def test_the_low_rank_form_is_chosen_when_its_system_is_smaller():
    assert faster_form(64, 16) == "low-rank"
    assert faster_form(16, 8) == "dense"


@pytest.mark.parametrize("form", ["low-rank", "dense"])
def test_the_norm_is_kept_over_a_thousand_boundaries_in_float32(planes, form):
    state = torch.randn(1, 2, 16, 64)
    norm = state.norm()
    for seed in range(1000):
        state = regram(state, *planes(d_state=64, rank=16, dtype=torch.float32, seed=seed), form)
    assert abs(state.norm() / norm - 1) < 1e-4


def test_a_product_of_a_thousand_rotations_is_still_orthogonal_in_float32(planes):
    product = torch.eye(64)[None, None].expand(1, 2, 64, 64)
    for seed in range(1000):
        product = regram(product, *planes(d_state=64, rank=16, dtype=torch.float32, seed=seed), "low-rank")
    assert (product @ product.transpose(-1, -2) - torch.eye(64)).abs().max() < 1e-4


def test_decay_and_rotation_commute(planes):
    state = torch.randn(1, 2, 3, 8, dtype=torch.float64)
    decay = torch.rand(1, 2, 1, 1, dtype=torch.float64)
    Z = cayley(generator(*planes()))
    torch.testing.assert_close(rotate_state(decay * state, Z), decay * rotate_state(state, Z))


def test_turning_state_write_and_read_together_changes_nothing_while_turning_the_state_alone_does(
    ssd_inputs, planes
):
    x, dt, A, B, C, state = (t.detach() for t in ssd_inputs(12, batch=1, heads=2, d_state=8))
    Q = cayley(generator(*planes()))  # (1, h, n, n)

    def turn(v):
        return torch.einsum("blhn,bhnm->blhm", v, Q)

    y, last = ssd_scan(x, dt, A, B, C, state)
    y_all, last_all = ssd_scan(x, dt, A, turn(B), turn(C), rotate_state(state, Q))
    torch.testing.assert_close(y_all, y)
    torch.testing.assert_close(last_all, rotate_state(last, Q))
    y_state_only, _ = ssd_scan(x, dt, A, B, C, rotate_state(state, Q))
    assert (y_state_only - y).abs().max() > 0.1


def scan_with_rotations(x, dt, A, B, C, chunk_len, Z):
    """The map the model computes for one head: SSD chunks with h <- h Z^(c) in between, from an empty
    state."""
    state = torch.zeros(1, 1, x.shape[-1], B.shape[-1], dtype=x.dtype)
    outputs = []
    for c, start in enumerate(range(0, x.shape[1], chunk_len)):
        part = slice(start, start + chunk_len)
        y, state = ssd_scan(x[:, part], dt[:, part], A, B[:, part], C[:, part], state)
        state = rotate_state(state, Z[c])
        outputs.append(y)
    return torch.cat(outputs, dim=1)


def transfer_matrix(dt, A, B, C, chunk_len, Z):
    """M of eqs. (intra), (cross_one), (general): M[t, s] = a(t:s) B_s^T Z_{c(s),c(t)} C_t, with the step in
    the write."""
    length, n = B.shape[1], B.shape[-1]
    a = torch.exp(dt[0, :, 0] * A[0])
    M = torch.zeros(length, length, dtype=B.dtype)
    for t in range(length):
        for s in range(t + 1):
            path = torch.eye(n, dtype=B.dtype)
            for c in range(s // chunk_len, t // chunk_len):
                path = path @ Z[c]
            M[t, s] = a[s + 1 : t + 1].prod() * (B[0, s, 0] @ path @ C[0, t, 0]) * dt[0, s, 0]
    return M


@pytest.fixture
def one_head(ssd_inputs, planes):
    """Four chunks of six frames of one head of width one, state width 4, with a rotation for each
    boundary."""
    x, dt, A, B, C, _ = (t.detach() for t in ssd_inputs(24, batch=1, heads=1, d_head=1, d_state=4))
    return x, dt, A, B, C, 6, [Z[0] for Z in rotations(planes, 4, heads=1, d_state=4, rank=2)]


def test_the_cross_chunk_matrix_form_equals_the_scan(one_head):
    x, dt, A, B, C, chunk_len, Z = one_head
    M = transfer_matrix(dt, A, B, C, chunk_len, Z)
    y = scan_with_rotations(x, dt, A, B, C, chunk_len, Z)
    torch.testing.assert_close(M @ x[0, :, 0, 0], y[0, :, 0, 0], rtol=1e-10, atol=1e-12)


def test_off_diagonal_blocks_have_rank_at_most_n(one_head):
    _, dt, A, B, C, chunk_len, Z = one_head
    M = transfer_matrix(dt, A, B, C, chunk_len, Z)
    for cut in range(
        chunk_len, 24, chunk_len
    ):  # every lower-left block below a boundary, which is what semiseparable means
        assert torch.linalg.matrix_rank(M[cut:, :cut], atol=1e-10) <= 4
    assert torch.linalg.matrix_rank(M, atol=1e-10) == 24


def test_the_rotation_can_be_moved_into_the_read_out(one_head):
    # effective read-out and SMA view, eq. (sma_general): Q_t W K_s^T with W = Z_{c(s),c(t)}^T
    _, dt, A, B, C, chunk_len, Z = one_head
    M = transfer_matrix(dt, A, B, C, chunk_len, Z)
    t, s = 20, 2  # chunks 3 and 0
    read = Z[0] @ Z[1] @ Z[2] @ C[0, t, 0]
    decay = torch.exp((dt[0, s + 1 : t + 1, 0] * A[0]).sum())
    torch.testing.assert_close(M[t, s], decay * dt[0, s, 0] * (B[0, s, 0] @ read))
    W = (Z[0] @ Z[1] @ Z[2]).T
    torch.testing.assert_close(M[t, s], decay * dt[0, s, 0] * (C[0, t, 0] @ W @ B[0, s, 0]))


def test_a_constant_rotation_is_only_a_relative_position_code_of_chunks(one_head):
    # B_s Z^-c(s) and Z^c(t) C_t carry it all: a plain scan without rotation gives the same output
    x, dt, A, B, C, chunk_len, Z = one_head
    constant = [Z[0]] * 4
    rotated = scan_with_rotations(x, dt, A, B, C, chunk_len, constant)
    power = torch.stack([torch.matrix_power(Z[0], t // chunk_len) for t in range(24)])
    B_coded = torch.einsum("tn,tmn->tm", B[0, :, 0], power)[
        None, :, None
    ]  # Z^c Bs: transposes undo each other in B^T Z^-c
    C_coded = torch.einsum("tmn,tn->tm", power, C[0, :, 0])[None, :, None]
    plain, _ = ssd_scan(x, dt, A, B_coded, C_coded, torch.zeros(1, 1, 1, 4, dtype=x.dtype))
    torch.testing.assert_close(plain, rotated, rtol=1e-10, atol=1e-12)


def test_what_lies_between_two_frames_changes_what_one_reads_of_the_other(one_head):
    _, dt, A, B, C, chunk_len, Z = one_head
    M = transfer_matrix(dt, A, B, C, chunk_len, Z)
    other = transfer_matrix(
        dt, A, B, C, chunk_len, [Z[0], Z[2], Z[1], Z[3]]
    )  # same rotations, another order in between
    assert (M[18:, :6] - other[18:, :6]).abs().max() > 0.1 * M[18:, :6].abs().max()
    torch.testing.assert_close(M[:6, :6], other[:6, :6])


def test_the_same_write_lands_in_another_direction_after_another_path(planes):
    Z = rotations(planes, 2, heads=1, d_state=8)
    B = torch.nn.functional.normalize(torch.randn(8, dtype=torch.float64), dim=0)
    first, second = B @ Z[0][0], B @ Z[1][0]
    assert float(first @ second) < 0.95
    torch.testing.assert_close(first.norm(), second.norm())


def test_interval_factors_of_plane_rotations_commute_while_ours_keep_the_order(planes):
    # eq. (m3_interval): rotations that share their planes add angles; dense ones do not commute
    def in_planes(*angles):
        turns = [[[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]] for a in angles]
        return torch.block_diag(*(torch.tensor(turn, dtype=torch.float64) for turn in turns))

    R1, R2 = in_planes(0.3, 1.1), in_planes(-0.7, 0.4)
    torch.testing.assert_close(R1 @ R2, R2 @ R1)
    torch.testing.assert_close(R1 @ R2, in_planes(-0.4, 1.5))
    Z1, Z2 = (Z[0] for Z in rotations(planes, 2, heads=1, d_state=4, rank=2))
    assert (Z1 @ Z2 - Z2 @ Z1).abs().max() > 0.05


@given(
    seed=st.integers(0, 10_000),
    d_state=st.integers(1, 12),
    rank=st.integers(1, 9),
    angle=st.floats(0.0, 50.0),
)
@settings(max_examples=60, deadline=None)
def test_the_solver_made_of_products_rotates_as_the_library_solver_does(seed, d_state, rank, angle):
    g = torch.Generator().manual_seed(seed)
    U, V = (
        unit_columns(torch.randn(2, 3, d_state, rank, dtype=torch.float64, generator=g)) for _ in range(2)
    )
    theta = torch.rand(2, 3, rank, dtype=torch.float64, generator=g) * angle
    state = torch.randn(2, 3, 4, d_state, dtype=torch.float64, generator=g)
    for form in ("low-rank", "dense"):
        ours = regram(state, U, V, theta, form, solve_by_blocks)
        torch.testing.assert_close(ours, regram(state, U, V, theta, form), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("form", ["low-rank", "dense"])
@pytest.mark.parametrize("angle", [0.01, 1.0, 3.0])
def test_the_solver_made_of_products_is_as_exact_as_the_library_solver_in_float32(planes, form, angle):
    U, V, theta = planes(batch=2, heads=8, d_state=64, rank=16)
    theta, state = theta / theta.max() * angle, torch.randn(2, 8, 4, 64, dtype=torch.float64)
    exact = regram(state, U, V, theta, form)
    single = regram(*(t.float() for t in (state, U, V, theta)), form, solve_by_blocks)
    torch.testing.assert_close(single.double(), exact, rtol=0, atol=1e-5)


def test_planes_that_cancel_each_other_do_not_break_the_solver_that_never_exchanges_rows():
    g = torch.Generator().manual_seed(0)
    U, V = (unit_columns(torch.randn(1, 1, 8, 1, dtype=torch.float64, generator=g)) for _ in range(2))
    U, V, theta = (
        torch.cat([U, U], -1),
        torch.cat([V, -V], -1),
        torch.full((1, 1, 2), 9.0, dtype=torch.float64),
    )
    state = torch.randn(1, 1, 3, 8, dtype=torch.float64, generator=g)
    torch.testing.assert_close(regram(state, U, V, theta, "low-rank", solve_by_blocks), state)


@given(seed=st.integers(0, 10_000), size=st.integers(1, 11), columns=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_the_solver_solves_systems_of_any_size_whose_symmetric_part_is_positive(seed, size, columns):
    g = torch.Generator().manual_seed(seed)
    half = torch.randn(3, size, size, dtype=torch.float64, generator=g)
    A = torch.eye(size, dtype=torch.float64) + half - half.transpose(-1, -2)
    B = torch.randn(3, size, columns, dtype=torch.float64, generator=g)
    torch.testing.assert_close(solve_by_blocks(A, B), torch.linalg.solve(A, B), rtol=1e-9, atol=1e-9)
