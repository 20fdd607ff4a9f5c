"""Boundary arithmetic, checked against a frame-by-frame count."""

from hypothesis import given
from hypothesis import strategies as st

from surgicalmamba.core.chunks import Segment, chunk_segments, closes_after, closing_lanes


def test_a_fresh_call_of_ten_frames_is_cut_after_every_fourth():
    assert chunk_segments(10, (0,), 4) == [Segment(0, 4, (0,)), Segment(4, 8, (0,)), Segment(8, 10, ())]


def test_a_call_continues_the_chunk_the_last_one_left_open():
    assert chunk_segments(3, (6,), 4) == [Segment(0, 2, (0,)), Segment(2, 3, ())]


def test_each_lane_closes_its_own_chunk():
    assert chunk_segments(4, (0, 2), 4) == [Segment(0, 2, (1,)), Segment(2, 4, (0,))]


def test_the_grid_starts_anew_every_clip_and_the_clips_end_closes_nothing():
    # clips of 6, chunks of 4: in a clip only its fourth frame closes a chunk; the sixth empties the state
    # instead
    closing = [seen for seen in range(1, 19) if closes_after(seen, 4, clip_len=6)]
    assert closing == [4, 10, 16]
    # chunks of 3 would close on the sixth frame, where the clip ends
    assert [seen for seen in range(1, 13) if closes_after(seen, 3, clip_len=6)] == [3, 9]


def test_without_a_chunk_length_nothing_closes():
    assert chunk_segments(5, (7, 8), None) == [Segment(0, 5, ())]


@given(
    length=st.integers(1, 40),
    frame_index=st.lists(st.integers(0, 500), min_size=1, max_size=3),
    chunk_len=st.integers(1, 20),
    clip_len=st.one_of(st.none(), st.integers(1, 30)),
)
def test_segments_cover_the_call_and_close_exactly_where_a_single_frame_call_would(
    length, frame_index, chunk_len, clip_len
):
    segments = chunk_segments(length, frame_index, chunk_len, clip_len)
    assert [s.start for s in segments] == [0, *(s.stop for s in segments[:-1])]
    assert segments[-1].stop == length
    one_by_one = {}
    for t in range(length):
        (single,) = chunk_segments(1, [seen + t for seen in frame_index], chunk_len, clip_len)
        if single.closing:
            one_by_one[t + 1] = single.closing
    assert {s.stop: s.closing for s in segments if s.closing} == one_by_one


def test_the_lanes_that_have_just_reached_the_end_of_a_chunk_are_named():
    assert closing_lanes((4, 5, 8, 0, 12), 4) == (
        0,
        2,
        3,
        4,
    )  # a lane that has seen nothing stands at an end too, and closes zeros
    assert closing_lanes((4, 6, 10, 12), 4, clip_len=6) == (0, 2)


def test_without_clocks_a_call_is_one_piece_and_nothing_closes():
    assert chunk_segments(10, (), 4) == [Segment(0, 10, ())]
