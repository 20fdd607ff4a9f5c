"""Where chunks open and close, for any length and position. All boundary arithmetic of the package is here.

A lane is one row of a batch: one running procedure. Lanes may be at different frames, so a boundary belongs
to some lanes and not to others. The same function cuts a call at clip ends, with the clip length as
`chunk_len`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Segment:
    """Frames `start` to `stop` of a call, no boundary inside; the `closing` lanes end a chunk at `stop`."""

    start: int
    stop: int
    closing: tuple[int, ...]


def closes_after(frames_seen: int, chunk_len: int, clip_len: int | None) -> bool:
    """Whether a chunk ends once a lane has seen this many frames of its procedure.

    Without `clip_len`, chunks are counted through the whole procedure. With it, they are counted from the
    start of each clip, and the end of a clip closes nothing: the state is reset there, so nothing is
    rotated."""
    if clip_len is None:
        return frames_seen % chunk_len == 0
    seen_in_clip = frames_seen % clip_len
    return seen_in_clip != 0 and seen_in_clip % chunk_len == 0


def closing_lanes(frame_index: Sequence[int], chunk_len: int, clip_len: int | None = None) -> tuple[int, ...]:
    """The lanes whose chunk ends at the frames they have now seen."""
    return tuple(lane for lane, seen in enumerate(frame_index) if closes_after(seen, chunk_len, clip_len))


def chunk_segments(
    length: int, frame_index: Sequence[int], chunk_len: int | None, clip_len: int | None = None
) -> list[Segment]:
    """Cut a call of `length` frames at every chunk boundary of every lane.

    frame_index[i] is the number of frames lane i has seen before the call. Nothing closes if chunk_len is
    None, or if frame_index is empty: then the caller closes chunks."""
    if chunk_len is None:
        return [Segment(0, length, ())]
    closing: dict[int, list[int]] = {length: []} if length else {}
    for lane, seen in enumerate(frame_index):
        for stop in _closings(length, seen % (clip_len or chunk_len), chunk_len, clip_len):
            closing.setdefault(stop, []).append(lane)
    stops = sorted(closing)
    starts = [0, *stops[:-1]]
    return [Segment(start, stop, tuple(closing[stop])) for start, stop in zip(starts, stops, strict=False)]


@lru_cache(maxsize=4096)
def _closings(length: int, seen: int, chunk_len: int, clip_len: int | None) -> tuple[int, ...]:
    """Where chunks of one lane end within a call; cached, since every path of a network needs the same."""
    return tuple(stop for stop in range(1, length + 1) if closes_after(seen + stop, chunk_len, clip_len))
