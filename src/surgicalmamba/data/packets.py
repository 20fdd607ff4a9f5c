"""A recording's packets, read without decoding: order, timestamps, and where decoding may safely begin.

Decoding may begin at an instantaneous decoder refresh (IDR) of H.264 and HEVC, and at every packet of codecs that code each
picture alone. Nothing after such a packet refers to anything before it, by the standards, so leaving out a stretch that ends
there changes no later pixel. Keyframe marks of containers promise less (open GOPs, gradual refresh) and are not trusted."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

INTRA_ONLY = frozenset({"mjpeg", "png", "prores", "dnxhd", "dvvideo", "rawvideo", "ffvhuff", "huffyuv", "jpeg2000"})
REFERENCE_FREE_SKIP = frozenset({"h264", "hevc"})
"""Codecs whose decoder can be told to leave out pictures that no other picture refers to."""
_IDR_TYPES = {"h264": frozenset({5}), "hevc": frozenset({19, 20})}
_SLICE_TYPES = {"h264": frozenset({1, 2, 5}), "hevc": frozenset(range(32))}


@dataclass(frozen=True)
class PacketTable:
    """One row per packet of the video stream, in file order."""

    pts: NDArray[np.int64]
    """Presentation time in ticks; meaningless where `has_pts` is false."""
    has_pts: NDArray[np.bool_]
    is_clean: NDArray[np.bool_]
    """Decoding may begin here."""
    is_shown: NDArray[np.bool_]
    """False for packets that an edit list hides: they serve as references only."""
    is_corrupt: NDArray[np.bool_]
    time_base: Fraction
    error: str | None
    """Why reading ended before the end of the file, if it did."""

    @property
    def is_ordered(self) -> bool:
        """Every shown packet has its own timestamp, so that display order is known without decoding."""
        pts = self.pts[self.is_shown]
        return bool(self.has_pts[self.is_shown].all()) and len(np.unique(pts)) == len(pts)

    @property
    def display_order(self) -> NDArray[np.int64]:
        """Packet numbers of the shown packets, by presentation time."""
        shown = np.flatnonzero(self.is_shown)
        return shown[np.argsort(self.pts[shown], kind="stable")]

    def is_variable(self) -> bool:
        """More than one interval in a hundred is off the median by over a tenth and by over a tick."""
        intervals = np.diff(np.sort(self.pts[self.is_shown & self.has_pts]))
        if len(intervals) < 2:
            return False
        median = float(np.median(intervals))
        off = np.abs(intervals.astype(np.float64) - median) > max(1.01, median / 10)
        return bool(off.mean() > 0.01)


def video_packets(container: "InputContainer", stream: "VideoStream") -> Iterator["Packet[VideoStream]"]:
    """Packets that hold data, in file order."""
    for packet in container.demux(stream):
        if packet.size:
            yield packet


def readable(packets: Iterator["Packet[VideoStream]"]) -> Iterator["Packet[VideoStream]"]:
    """Packets up to the first one that cannot be read, which `scan` has noted in the table."""
    import av

    with suppress(av.FFmpegError):
        yield from packets


def scan(container: "InputContainer", stream: "VideoStream") -> PacketTable:
    """Read every packet of a freshly opened file. A read error ends the table and is kept in it."""
    import av

    codec = stream.codec_context.name
    header = stream.codec_context.extradata or b""
    rows: list[tuple[int, bool, bool, bool, bool]] = []
    error = None
    try:
        for packet in video_packets(container, stream):
            is_clean = packet.is_keyframe and (codec in INTRA_ONLY or (codec in _IDR_TYPES and begins_anew(codec, header, bytes(packet))))
            pts = packet.pts
            rows.append((0 if pts is None else pts, pts is not None, is_clean, not packet.is_discard, packet.is_corrupt))
    except av.FFmpegError as problem:
        error = problem.strerror
    stamps, *flags = list(zip(*rows, strict=True)) or [()] * 5
    has_pts, clean, shown, corrupt = (np.array(column, np.bool_) for column in flags)
    assert stream.time_base is not None
    return PacketTable(np.array(stamps, np.int64), has_pts, clean, shown, corrupt, Fraction(stream.time_base), error)


def begins_anew(codec: str, header: bytes, packet: bytes) -> bool:
    """Whether a packet's first coded slice belongs to an IDR picture."""
    for unit in _nal_units(codec, header, packet):
        kind = unit & 0x1F if codec == "h264" else (unit >> 1) & 0x3F
        if kind in _SLICE_TYPES[codec]:
            return kind in _IDR_TYPES[codec]
    return False


def _nal_units(codec: str, header: bytes, packet: bytes) -> Iterator[int]:
    """First byte of every NAL unit, in either of the two ways packets are framed: by lengths (MP4, Matroska) or by start codes."""
    if header[:1] == b"\x01":
        place = 4 if codec == "h264" else 21
        n_length = (header[place] & 3) + 1 if len(header) > place else 4
        position = 0
        while position + n_length < len(packet):
            length = int.from_bytes(packet[position : position + n_length], "big")
            position += n_length
            yield packet[position]
            position += max(length, 1)
        return
    position = packet.find(b"\x00\x00\x01")
    while 0 <= position < len(packet) - 3:
        yield packet[position + 3]
        position = packet.find(b"\x00\x00\x01", position + 3)
