"""The plan of an epoch: every sample once, in order, in some lane."""

from hypothesis import given, settings
from hypothesis import strategies as st

from surgicalmamba.data.clips import Span, epoch_order, plan_lanes

lengths_of_videos = st.lists(st.integers(1, 60), min_size=1, max_size=12)


def test_two_lanes_and_three_videos_by_hand():
    """Video 1 (3 samples) and video 0 (5) start; video 2 (2) follows in the lane that is free first. Clips of
    2."""
    steps = plan_lanes([5, 3, 2], [1, 0, 2], n_lanes=2, clip_len=2)
    assert steps == [
        (Span(1, 0, 2, True, False), Span(0, 0, 2, True, False)),
        (Span(1, 2, 3, False, True), Span(0, 2, 4, False, False)),
        (Span(2, 0, 2, True, True), Span(0, 4, 5, False, True)),
    ]


def test_a_lane_with_nothing_left_is_empty():
    steps = plan_lanes([4, 1], [0, 1], n_lanes=2, clip_len=2)
    assert [step[1] for step in steps] == [Span(1, 0, 1, True, True), None]


@settings(max_examples=150, deadline=None)
@given(
    lengths=lengths_of_videos,
    n_lanes=st.integers(1, 5),
    clip_len=st.integers(1, 20),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 9),
)
def test_every_sample_occurs_once_in_order_and_no_lane_rests_while_a_video_waits(
    lengths, n_lanes, clip_len, seed, epoch
):
    order = epoch_order(lengths, n_lanes, seed, epoch)
    assert sorted(order) == list(range(len(lengths)))
    steps = plan_lanes(lengths, order, n_lanes, clip_len)
    seen = [[] for _ in lengths]
    for number, step in enumerate(steps):
        for lane, span in enumerate(step):
            if span is None:
                assert all(later[lane] is None for later in steps[number:])  # an idle lane stays idle
                assert all(
                    later is None or not later.is_first
                    for following in steps[number + 1 :]
                    for later in following
                )
                continue
            assert span.is_first == (span.start == 0) and span.is_last == (span.stop == lengths[span.video])
            assert span.stop - span.start == clip_len or span.is_last
            previous = steps[number - 1][lane] if number else None
            if not span.is_first:
                assert previous is not None and (previous.video, previous.stop) == (span.video, span.start)
            else:
                assert previous is None or previous.is_last
            seen[span.video] += range(span.start, span.stop)
    assert seen == [list(range(length)) for length in lengths]


def test_order_depends_on_seed_and_epoch_and_on_nothing_else():
    lengths = [10] * 20
    assert epoch_order(lengths, 2, 7, 3) == epoch_order(lengths, 2, 7, 3)
    orders = {tuple(epoch_order(lengths, 2, seed, epoch)) for seed in (7, 8) for epoch in (0, 1, 2)}
    assert len(orders) == 6


def test_the_last_videos_start_longest_first_so_that_lanes_finish_together():
    lengths = [(37 * k) % 90 + 10 for k in range(32)]
    order = epoch_order(lengths, 4, 0, 0)
    tail = [lengths[video] for video in order[-8:]]
    assert tail == sorted(tail, reverse=True)
    assert order[:24] != sorted(order[:24], key=lambda video: -lengths[video])
