"""The state records: lanes can be taken out, put back, emptied and stacked without touching the others."""

import pytest
import torch

from surgicalmamba.core.state import BlockState, ModelState, PathState


def path_state(lanes, seed):
    g = torch.Generator().manual_seed(seed)
    return PathState(torch.randn(lanes, 2, 3, 4, generator=g), torch.randn(lanes, 3, 6, generator=g), torch.randn(lanes, 2, 3, generator=g))


@pytest.fixture
def state():
    blocks = (BlockState(path_state(3, 0), path_state(3, 1)), BlockState(path_state(3, 2), None))
    return ModelState(blocks, path_state(3, 3), (7, 20, 33))


def assert_equal(a, b):
    assert a.frame_index == b.frame_index
    for x, y in zip(a.tensors(), b.tensors(), strict=True):
        assert torch.equal(x, y)


def test_nbytes_counts_every_tensor(state):
    per_path = 3 * (2 * 3 * 4 + 3 * 6 + 2 * 3) * 4
    assert state.nbytes == 4 * per_path


def test_selected_lanes_stack_back_to_the_whole(state):
    assert_equal(ModelState.stack([state.select([0]), state.select([1, 2])]), state)


def test_put_writes_only_the_named_lanes(state):
    swapped = state.put([2, 0], state.select([0, 2]))
    assert swapped.frame_index == (33, 20, 7)
    assert_equal(swapped.select([0]), state.select([2]))
    assert_equal(swapped.select([1]), state.select([1]))


def test_reset_begins_a_new_procedure_in_the_named_lanes_only(state):
    fresh = state.reset([1])
    assert fresh.frame_index == (7, 0, 33)
    assert all((t == 0).all() for t in fresh.select([1]).tensors())
    assert_equal(fresh.select([0, 2]), state.select([0, 2]))


def test_a_new_clip_empties_fast_paths_and_head_and_keeps_slow_paths_and_clock(state):
    fresh = state.reset_clip([0])
    assert fresh.frame_index == state.frame_index
    assert torch.equal(fresh.blocks[0].slow.ssm, state.blocks[0].slow.ssm)
    assert (fresh.blocks[0].fast.ssm[0] == 0).all() and (fresh.head.conv_tail[0] == 0).all()
    assert torch.equal(fresh.head.chunk_sum[1:], state.head.chunk_sum[1:])


def test_clearing_a_lane_removes_even_a_nan(state):
    state.head.ssm[1] = float("nan")
    assert torch.isfinite(state.reset([1]).head.ssm).all()


def test_detach_cuts_the_history(state):
    grown = state.map(lambda t: t.requires_grad_() * 2)
    assert all(t.requires_grad for t in grown.tensors())
    assert not any(t.requires_grad for t in grown.detach().tensors())


def test_no_lanes_is_a_valid_choice(state):
    assert_equal(state.reset([]), state)
    assert_equal(state.reset_clip([]), state)
    assert_equal(state.put([], state.select([])), state)
    assert state.select([]).n_lanes == 0


def test_every_tensor_has_a_name_in_the_order_of_the_tensors(state):
    names = state.names()
    assert names[:4] == ["blocks.0.slow.ssm", "blocks.0.slow.conv_tail", "blocks.0.slow.chunk_sum", "blocks.0.fast.ssm"]
    assert names[-1] == "head.chunk_sum" and len(names) == len(state.tensors()) == 12


def test_a_record_is_rebuilt_from_its_tensors(state):
    assert_equal(state.map(torch.zeros_like).with_tensors(state.tensors()), state)


def test_a_group_is_taken_out_and_put_back_without_touching_the_others(state):
    assert [len(state.group(group)) for group in ("slow", "fast", "head")] == [2, 1, 1]
    assert torch.equal(state.group("slow")[1].ssm, state.blocks[1].slow.ssm)
    for group in ("slow", "head"):
        emptied = state.with_group(group, [path.map(torch.zeros_like) for path in state.group(group)])
        changed = [name for name, a, b in zip(state.names(), state.tensors(), emptied.tensors(), strict=True) if not torch.equal(a, b)]
        assert changed == [name for name in state.names() if group in name]
