"""A cache of lanes that began at different times, against plain lists."""

import copy
import pickle
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surgicalmamba.model.registry import build
from surgicalmamba.peers.attention import append, join_cache, visible_in_cache

lanes_and_call = st.tuples(
    st.lists(st.integers(0, 6), min_size=1, max_size=3),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(1, 6)),
)

calls_on_any_cache = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), min_size=1, max_size=25)


def frames_of(lane, start, stop):
    """Frame t of a lane is the number 100 lane + t + 1, never zero."""
    return [100 * lane + t + 1 for t in range(start, stop)]


def cache_of(seen, limit):
    kept = [frames_of(lane, max(0, n - (limit or n)), n) for lane, n in enumerate(seen)]
    length = max(map(len, kept))
    return torch.tensor([lane + [0] * (length - len(lane)) for lane in kept], dtype=torch.float32)[..., None]


@settings(max_examples=80, deadline=None)
@given(lanes_and_call)
def test_frames_go_behind_each_lanes_own_and_only_the_newest_stay_within_a_limit(case):
    seen, length, limit = case
    x = torch.tensor([frames_of(lane, n, n + length) for lane, n in enumerate(seen)], dtype=torch.float32)[
        ..., None
    ]
    after = append(cache_of(seen, limit), x, seen, limit)
    assert torch.equal(after, cache_of([n + length for n in seen], limit))


@settings(max_examples=80, deadline=None)
@given(lanes_and_call)
def test_a_frame_sees_all_frames_up_to_it_and_no_empty_place(case):
    seen, length, limit = case
    cache = cache_of(seen, limit)
    x = torch.tensor([frames_of(lane, n, n + length) for lane, n in enumerate(seen)], dtype=torch.float32)[
        ..., None
    ]
    line = torch.cat([cache, x], dim=1)[..., 0]
    visible = visible_in_cache(seen, length, cache.shape[1], limit)
    for lane, n in enumerate(seen):
        for j in range(length):
            first = 0 if limit is None else max(0, n + j + 1 - limit)
            assert line[lane, visible[lane, j]].tolist() == frames_of(lane, first, n + j + 1)


def test_gradients_flow_through_lanes_of_different_length():
    x = torch.ones(2, 2, 1, requires_grad=True)
    append(torch.ones(2, 3, 1), x, [3, 1]).sum().backward()
    assert x.grad.flatten().tolist() == [1.0, 1.0, 1.0, 1.0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), min_size=1, max_size=25),
    st.one_of(st.none(), st.integers(1, 9)),
    st.booleans(),
)
def test_a_cache_that_grows_in_place_leaves_every_earlier_one_as_it_was(calls, limit, in_inference_mode):
    """Any of the caches so far may be continued, several times: each is what plain lists say, also
    after all calls."""
    with torch.inference_mode(in_inference_mode), torch.no_grad():
        histories, caches = [[]], [torch.zeros(1, 0, 1)]
        for number, (which, length) in enumerate(calls):
            parent = which % len(caches)
            new = [100 * (number + 1) + i for i in range(length)]
            x = torch.tensor(new, dtype=torch.float32).reshape(1, length, 1)
            line, cache = join_cache(caches[parent], x, [len(histories[parent])], limit)
            kept = histories[parent][-limit:] if limit else histories[parent]
            assert line.flatten().tolist() == kept + new
            histories.append(histories[parent] + new)
            caches.append(cache)
        for history, cache in zip(histories, caches, strict=True):
            assert cache.flatten().tolist() == (history[-limit:] if limit else history)


def test_a_state_of_inference_mode_is_gone_on_with_outside_of_it():
    with torch.inference_mode():
        inside = append(torch.zeros(1, 0, 1), torch.ones(1, 1, 1), [0])
    with torch.no_grad():
        assert append(inside, torch.full((1, 1, 1), 2.0), [1]).flatten().tolist() == [1.0, 2.0]
    assert append(inside, torch.full((1, 1, 1), 3.0), [1]).flatten().tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))], ids=["deepcopy", "pickle"]
)
def test_a_copied_cache_goes_on_by_itself(copied):
    with torch.no_grad():
        cache = append(torch.zeros(1, 0, 1), torch.ones(1, 2, 1), [0])
        other = copied(cache)
        assert append(cache, torch.full((1, 1, 1), 2.0), [2]).flatten().tolist() == [1.0, 1.0, 2.0]
        assert append(other, torch.full((1, 1, 1), 3.0), [2]).flatten().tolist() == [1.0, 1.0, 3.0]


@pytest.mark.parametrize("name", ["opera", "lovit", "dacat", "sr-mamba"])
def test_a_live_memory_is_copied_now_and_then_and_not_for_every_frame(name):
    small = {
        "opera": {"d_model": 8, "n_layers": 2},
        "lovit": {"d_model": 8, "d_hidden": 8, "n_heads": 2},
        "dacat": {"d_hidden": 8, "cache_len": 40},
    }
    prefix = {"d_model": 8, "n_blocks": 1, "path": {"rotation": None, "d_state": 4, "d_head": 8}}
    model = build(name, 4, 3, **small.get(name, prefix)).eval()
    state, buffers = model.initial_state(1), []
    with torch.inference_mode():
        for frame in torch.randn(1, 120, 4).split(1, dim=1):
            state = model.forward_features(frame, state).state
            buffers.append(state.cache.untyped_storage().data_ptr())
    moves = sum(a != b for a, b in pairwise(buffers))
    assert moves <= 20  # half as much room again at every move
