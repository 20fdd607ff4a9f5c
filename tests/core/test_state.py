"""The state records: lanes can be taken out, put back, emptied and stacked without touching the others."""

from dataclasses import dataclass

import pytest
import torch

from surgicalmamba.core.state import BlockState, LaneState, ModelState, PathState


def path_state(lanes, seed):
    g = torch.Generator().manual_seed(seed)
    return PathState(
        torch.randn(lanes, 2, 3, 4, generator=g),
        torch.randn(lanes, 3, 6, generator=g),
        torch.randn(lanes, 2, 3, generator=g),
    )


@pytest.fixture
def state():
    blocks = (BlockState(path_state(3, 0), path_state(3, 1)), BlockState(path_state(3, 2), None))
    return ModelState(frame_index=(7, 20, 33), blocks=blocks, head=path_state(3, 3))


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
    assert names[:4] == [
        "blocks.0.slow.ssm",
        "blocks.0.slow.conv_tail",
        "blocks.0.slow.chunk_sum",
        "blocks.0.fast.ssm",
    ]
    assert names[-1] == "head.chunk_sum" and len(names) == len(state.tensors()) == 12


def test_a_record_is_rebuilt_from_its_tensors(state):
    assert_equal(state.map(torch.zeros_like).with_tensors(state.tensors()), state)


def test_a_group_is_taken_out_and_put_back_without_touching_the_others(state):
    assert [len(state.group(group)) for group in ("slow", "fast", "head")] == [2, 1, 1]
    assert torch.equal(state.group("slow")[1].ssm, state.blocks[1].slow.ssm)
    for group in ("slow", "head"):
        emptied = state.with_group(group, [path.map(torch.zeros_like) for path in state.group(group)])
        changed = [
            name
            for name, a, b in zip(state.names(), state.tensors(), emptied.tensors(), strict=True)
            if not torch.equal(a, b)
        ]
        assert changed == [name for name in state.names() if group in name]


@dataclass(frozen=True)
class Growing(LaneState):
    """A memory that keeps one number per frame."""

    GROWING = frozenset({"cache"})
    cache: torch.Tensor


def growing(*lengths: int) -> Growing:
    cache = torch.zeros(len(lengths), max(lengths), 1)
    for lane, length in enumerate(lengths):
        cache[lane, :length] = 10.0 * lane + torch.arange(1, length + 1)[:, None]
    return Growing(lengths, cache)


def test_a_growing_memory_keeps_lanes_of_different_length_and_is_as_long_as_the_longest():
    state = growing(3, 1)
    short = state.select([1])
    assert short.length == 1 and short.cache[0, :, 0].tolist() == [11.0]
    joined = Growing.stack([short, state.select([0])])
    assert joined.frame_index == (1, 3) and joined.cache[:, :, 0].tolist() == [
        [11.0, 0.0, 0.0],
        [1.0, 2.0, 3.0],
    ]


def test_a_longer_procedure_put_into_a_growing_memory_makes_room_and_leaves_the_others():
    written = growing(1, 2).put([0], growing(4))
    assert written.frame_index == (4, 2) and written.cache[:, :, 0].tolist() == [
        [1.0, 2.0, 3.0, 4.0],
        [11.0, 12.0, 0.0, 0.0],
    ]
    assert written.reset([0]).cache[0].abs().sum() == 0 and written.reset([0]).frame_index == (0, 2)
