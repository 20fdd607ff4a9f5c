"""A cache of lanes that began at different times, against plain lists."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surgicalmamba.peers.caches import append, visible_in_cache

lanes_and_call = st.tuples(st.lists(st.integers(0, 6), min_size=1, max_size=3), st.integers(1, 5), st.one_of(st.none(), st.integers(1, 6)))


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
    x = torch.tensor([frames_of(lane, n, n + length) for lane, n in enumerate(seen)], dtype=torch.float32)[..., None]
    after = append(cache_of(seen, limit), x, seen, limit)
    assert torch.equal(after, cache_of([n + length for n in seen], limit))


@settings(max_examples=80, deadline=None)
@given(lanes_and_call)
def test_a_frame_sees_all_frames_up_to_it_and_no_empty_place(case):
    seen, length, limit = case
    cache = cache_of(seen, limit)
    x = torch.tensor([frames_of(lane, n, n + length) for lane, n in enumerate(seen)], dtype=torch.float32)[..., None]
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
