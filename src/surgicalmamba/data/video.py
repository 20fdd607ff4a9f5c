"""Recorded video through PyAV: what a file is, and the frames of it that become samples.

A file is read twice: once for its packets only (see packets.py), which costs little and says which frame lies where, and once to
decode. Decoding leaves out what no sample needs: stretches before the next clean start, and pictures nobody refers to. Both are
exact; `skip=False` decodes everything and gives the same pixels. A packet that cannot be decoded is counted, and the last readable
picture stands in where it was wanted, so samples stay in step with label rows."""

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
import errno
import re
from collections import deque
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from surgicalmamba.data.records import By, Frame, IndexSampling, ReadReport, TimeSampling, VideoInfo
from surgicalmamba.errors import DataError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


# A recording's packets, read without decoding: order, timestamps, and where decoding may safely begin.
#
# Decoding may begin at an instantaneous decoder refresh (IDR) of H.264 and HEVC, and at every packet of codecs that code each
# picture alone. Nothing after such a packet refers to anything before it, by the standards, so leaving out a stretch that ends
# there changes no later pixel. Keyframe marks of containers promise less (open GOPs, gradual refresh) and are not trusted.


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


_TRIAL_PACKETS = 8
_TEXT_CODECS = frozenset({"ansi", "bintext", "xbin", "idf"})
"""FFmpeg draws text files as pictures; a label file given as a video must not pass."""


def open_container(path: Path) -> tuple["InputContainer", "VideoStream"]:
    """Open a file and find its picture stream, or say in one line what the file is instead."""
    import av

    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path}: the file is empty (0 bytes); copy it again.")
        container = av.open(str(path))
    except av.FFmpegError as error:
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
            raise DataError(f"{path}: no permission to read it.") from None
        if _is_text(path):
            raise DataError(f"{path}: a text file, not a video.") from None
        raise DataError(f"{path}: not a video file that can be opened ({error.strerror}); it may be cut off or not a video.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    pictures = [s for s in container.streams.video if not _is_cover(s) and s.codec_context is not None]
    if pictures and pictures[0].codec_context.name in _TEXT_CODECS:
        container.close()
        raise DataError(f"{path}: a text file, not a video.")
    if not pictures:
        kinds = sorted({stream.type for stream in container.streams})
        container.close()
        raise DataError(f"{path}: no video stream in it, only {' and '.join(kinds) or 'nothing'}; give the file with the pictures.")
    stream = pictures[0]
    stream.codec_context.thread_type = "NONE"
    stream.codec_context.thread_count = 1
    return container, stream


def _is_cover(stream: "VideoStream") -> bool:
    """A picture attached to an audio file."""
    from av.stream import Disposition

    return bool(stream.disposition & Disposition.attached_pic)


def _is_text(path: Path) -> bool:
    """Whether a file begins like text; a label file under a video's name is told as such."""
    with path.open("rb") as stream:
        head = stream.read(1024)
    return all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head)


class VideoFile:
    """One recorded video. `info` comes from its packets; `samples` decodes. Each call of `samples` reads the file anew."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        container, stream = open_container(self.path)
        with container:
            self._table = scan(container, stream)
            announced_n, announced_s = stream.frames, _announced(container, stream)
            fps = stream.average_rate or stream.guessed_rate
            context = stream.codec_context
            codec, size_hw = context.name, (context.height, context.width)
        shown = self._table.pts[self._table.is_shown & self._table.has_pts]
        n_frames = int(self._table.is_shown.sum())
        if n_frames == 0:
            raise DataError(f"{self.path}: the header announces {announced_n or 'some'} frames but none can be read; copy the file again.")
        if not fps:
            fps = _rate_of(shown, self._table.time_base)
        if not fps:
            raise DataError(f"{self.path}: neither the header nor the timestamps tell the frame rate; remux the file with ffmpeg -r.")
        span_s = float((int(shown.max()) - int(shown.min())) * self._table.time_base) if len(shown) else (n_frames - 1) / float(fps)
        if announced_n and announced_n > len(self._table.pts):
            announced_s = max(announced_s or 0.0, announced_n / float(fps))
        is_variable = self._table.is_ordered and self._table.is_variable()
        self.info = VideoInfo(str(self.path), codec, size_hw, Fraction(fps), n_frames, span_s + 1 / float(fps), is_variable, announced_s)
        self.report = ReadReport()

    def sampling(self, fps: Fraction, by: By | Literal["auto"]) -> IndexSampling | TimeSampling:
        """The rule for this file: `auto` goes by time where frames are unevenly spaced, by index elsewhere."""
        if by == "time" or (by == "auto" and self.info.is_variable):
            return TimeSampling(fps, self._table.time_base)
        return IndexSampling.between(self.info.fps, fps)

    def samples(self, fps: Fraction, by: By | Literal["auto"] = "auto", skip: bool = True) -> Iterator[Frame]:
        """Decode the frames that become samples, in order. `report` is renewed and complete when the iterator ends."""
        self.report = report = ReadReport(n_frames=self.info.n_frames)
        rule = self.sampling(fps, by)
        wanted = self._wanted_packets(rule) if self._table.is_ordered and self._trial_agrees() else None
        frames = self._count_frames(rule) if wanted is None else self._pick_frames(wanted, skip)
        last_s = 0.0
        for frame in frames:
            last_s = frame.time_s
            yield frame
        if self.info.is_truncated or self._table.error:
            announced = f" of {self.info.announced_s:.1f} s announced" if self.info.announced_s else ""
            reached = self.info.duration_s if wanted is not None else last_s
            report.warnings.append(f"{self.path}: cut off; readable up to {reached:.1f} s{announced}.")
        if report.n_corrupt:
            times = "" if not report.held else f"; the picture before stands in for frame {_list(report.held)}"
            report.warnings.append(f"{self.path}: {report.n_corrupt} corrupt packets or frames skipped{times}.")
        if report.n_decoded == 0:
            raise DataError(f"{self.path}: no frame could be decoded ({self.info.codec}); the file is damaged.")

    def _wanted_packets(self, rule: IndexSampling | TimeSampling) -> dict[int, tuple[int, list[float]]]:
        """Packet number → (frame index, times of the samples that show it)."""
        table, order = self._table, self._table.display_order
        pts = table.pts[order].tolist()
        numbers = order.tolist()
        if isinstance(rule, IndexSampling):
            picks = [rule.frame_of(k) for k in range(rule.n_samples(len(numbers)))]
            return {numbers[i]: (i, [float((pts[i] - pts[0]) * table.time_base)]) for i in picks if i < len(numbers)}
        times = [(p - pts[0]) * table.time_base for p in pts]
        wanted = {}
        for i, start in enumerate(times):
            shows = rule.samples_of(start, times[i + 1] if i + 1 < len(times) else None)
            if len(shows):
                wanted[numbers[i]] = (i, [float(k / rule.fps) for k in shows])
        return wanted

    def _trial_agrees(self) -> bool:
        """Decode the first packets and see whether frames are what the table says: one per packet, in order of time."""
        import av

        container, stream = open_container(self.path)
        table = self._table
        n = min(_TRIAL_PACKETS, len(table.pts))
        got: list[int | None] = []
        with container:
            try:
                for number, packet in enumerate(video_packets(container, stream)):
                    if number == n:
                        break
                    got += [frame.pts for frame in stream.codec_context.decode(packet)]
                got += [frame.pts for frame in stream.codec_context.decode(None)]
            except av.FFmpegError:
                return True  # damage, not disorder: corrupt packets are dealt with one by one
        expected = sorted(table.pts[:n][table.is_shown[:n]].tolist())
        return bool(table.is_corrupt[:n].any()) or got == expected

    def _actions(self, wanted: dict[int, tuple[int, list[float]]], skip: bool) -> NDArray[np.int8]:
        """Per packet: 0 leave out, 1 feed as reference only, 2 feed and show."""
        n = len(self._table.pts)
        is_wanted = np.zeros(n, np.bool_)
        is_wanted[list(wanted)] = True
        if not skip:
            return np.full(n, 2, np.int8)
        as_reference = 1 if self.info.codec in REFERENCE_FREE_SKIP else 2
        actions = np.where(is_wanted, 2, as_reference).astype(np.int8)
        starts = np.flatnonzero(self._table.is_clean)
        starts = starts[starts > 0]
        for begin, end in zip([0, *starts.tolist()], [*starts.tolist(), n], strict=True):
            needed = np.flatnonzero(is_wanted[begin:end])
            actions[begin + (int(needed[-1]) + 1 if len(needed) else 0) : end] = 0
        return actions

    def _pick_frames(self, wanted: dict[int, tuple[int, list[float]]], skip: bool) -> Iterator[Frame]:
        """Feed what is needed and hand out wanted frames as they emerge; what does not emerge is held."""
        actions = self._actions(wanted, skip)
        table = self._table
        waiting = deque(sorted((int(table.pts[number]), *shows) for number, shows in wanted.items()))
        last: VideoFrame | None = None
        for frame in self._decode(actions):
            while waiting and frame.pts is not None and waiting[0][0] < frame.pts:
                yield from self._show(waiting.popleft(), last or frame, is_held=True)
            last = frame
            if waiting and waiting[0][0] == frame.pts:
                yield from self._show(waiting.popleft(), frame, is_held=False)
        while waiting and last is not None:
            yield from self._show(waiting.popleft(), last, is_held=True)

    def _show(self, entry: tuple[int, int, list[float]], frame: "VideoFrame", is_held: bool) -> Iterator[Frame]:
        _, index, times = entry
        if is_held:
            self.report.held.append(index)
        rgb = rgb_of(frame)
        for time_s in times:
            yield Frame(index, time_s, rgb)

    def _decode(self, actions: NDArray[np.int8] | None) -> Iterator["VideoFrame"]:
        """Decoded frames in display order; packets with action 0 are not fed, and the decoder is emptied where feeding stops."""
        import av

        container, stream = open_container(self.path)
        decoder, report = stream.codec_context, self.report
        is_fed = False
        with container:
            for number, packet in enumerate(chain(readable(video_packets(container, stream)), [None])):
                if packet is not None and number >= len(self._table.pts):
                    continue  # the file has grown since it was scanned
                action = 0 if packet is None else 2 if actions is None else actions[number]
                if action and packet is not None and packet.is_corrupt:
                    report.n_corrupt += 1
                    continue
                frames: list[VideoFrame] = []
                try:
                    if action:
                        decoder.skip_frame = "NONREF" if action == 1 else "DEFAULT"
                        frames = decoder.decode(packet)
                        is_fed = True
                    elif is_fed:
                        frames = decoder.decode(None)
                        decoder.flush_buffers()
                        is_fed = False
                except av.FFmpegError:
                    report.n_corrupt += 1
                for frame in frames:
                    report.n_decoded += 1
                    report.n_corrupt += frame.is_corrupt
                    yield frame

    def _count_frames(self, rule: IndexSampling | TimeSampling) -> Iterator[Frame]:
        """Decode everything and count: for streams whose packets do not tell the display order."""
        start: Fraction | None = None
        held: tuple[int, Fraction, VideoFrame] | None = None
        index = -1
        for index, frame in enumerate(self._decode(None)):
            stamp = index / self.info.fps if frame.pts is None else frame.pts * self._table.time_base
            start = stamp if start is None else start
            time = stamp - start
            if isinstance(rule, IndexSampling):
                if rule.sample_of(index) is not None:
                    yield Frame(index, float(time), rgb_of(frame))
                continue
            if held is not None:
                yield from _repeat(held, rule, time)
            held = (index, time, frame)
        if held is not None and isinstance(rule, TimeSampling):
            yield from _repeat(held, rule, None)
        self.report.n_frames = index + 1


def _repeat(shown: tuple[int, Fraction, "VideoFrame"], rule: TimeSampling, following: Fraction | None) -> Iterator[Frame]:
    index, time, frame = shown
    shows = rule.samples_of(time, following)
    if len(shows):
        rgb = rgb_of(frame)
        for k in shows:
            yield Frame(index, float(k / rule.fps), rgb)


def rgb_of(frame: "VideoFrame") -> NDArray[np.uint8]:
    """A decoded frame as (h, w, 3) red first, turned upright as its rotation mark asks."""
    rgb = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
    turns = round(frame.rotation / 90) % 4
    return np.ascontiguousarray(np.rot90(rgb, turns)) if turns else rgb


def _announced(container: "InputContainer", stream: "VideoStream") -> float | None:
    """Duration in seconds that the header gives the pictures; sound may be longer, so the container's counts only without any."""
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    if match := re.fullmatch(r"([0-9]+):([0-9]{2}):([0-9.]+)", stream.metadata.get("DURATION", "")):  # Matroska
        return int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3])
    return container.duration / 1_000_000 if container.duration is not None and len(container.streams) == 1 else None


def _rate_of(pts: NDArray[np.int64], time_base: Fraction) -> Fraction | None:
    """The rate that the median distance of timestamps suggests."""
    if len(pts) < 2:
        return None
    median = float(np.median(np.diff(np.sort(pts))))
    return (1 / (Fraction(median) * time_base)).limit_denominator(1001) if median > 0 else None


def _list(numbers: list[int], most: int = 5) -> str:
    shown = ", ".join(str(n) for n in numbers[:most])
    return shown if len(numbers) <= most else f"{shown} and {len(numbers) - most} more"

