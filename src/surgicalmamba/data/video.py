"""Recorded video through PyAV: what a file is, and the frames of it that become samples.

A file is read twice: once for its packets only, which is cheap and gives the position of every frame, and
once to decode. Decoding skips what no sample needs: stretches before the next clean start, and pictures that
no other picture refers to. Both are exact; `skip=False` decodes everything and gives the same pixels. A
packet that cannot be decoded is counted, and the last readable picture replaces it, so samples stay aligned
with label rows.

A clean start is an instantaneous decoder refresh (IDR) of H.264 and HEVC, or any packet of a codec that codes
each picture alone. By the standards, nothing after it refers to anything before it. Keyframe marks of
containers promise less (open GOPs, gradual refresh) and are not trusted."""

import errno
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.pictures import ImageFolder
from surgicalmamba.data.records import By, Frame, IndexSampling, ReadReport, TimeSampling, VideoInfo
from surgicalmamba.errors import DataError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_INTRA_ONLY = {"mjpeg", "png", "prores", "dnxhd", "dvvideo", "rawvideo", "ffvhuff", "huffyuv", "jpeg2000"}
_IDR_TYPES = {"h264": {5}, "hevc": {19, 20}}
_SLICE_TYPES = {"h264": {1, 2, 5}, "hevc": set(range(32))}
_TEXT_CODECS = {"ansi", "bintext", "xbin", "idf"}  # FFmpeg draws text files as pictures
_TRIAL_PACKETS = 8

Wanted = dict[int, tuple[int, list[float]]]
"""Packet number → (frame index, times of the samples that show it)."""


@dataclass(frozen=True)
class PacketTable:
    """One row per packet of the video stream, in file order."""

    pts: NDArray[np.int64]
    """Presentation time in ticks; meaningless where `has_pts` is false."""
    has_pts: NDArray[np.bool_]
    is_clean: NDArray[np.bool_]
    """Decoding may begin here."""
    is_shown: NDArray[np.bool_]
    """False for packets hidden by an edit list: they serve as references only."""
    is_corrupt: NDArray[np.bool_]
    time_base: Fraction
    error: str | None
    """Why reading ended before the end of the file, if it did."""

    @property
    def is_ordered(self) -> bool:
        """Every shown packet has its own timestamp, so display order is known without decoding."""
        pts = self.pts[self.is_shown]
        return bool(self.has_pts[self.is_shown].all()) and len(np.unique(pts)) == len(pts)

    @property
    def display_order(self) -> NDArray[np.int64]:
        """Packet numbers of the shown packets, by presentation time."""
        shown = np.flatnonzero(self.is_shown)
        return shown[np.argsort(self.pts[shown], kind="stable")]

    @property
    def intervals(self) -> NDArray[np.int64]:
        """Ticks between the shown packets, in order of time."""
        pts = np.sort(self.pts[self.is_shown & self.has_pts])
        return pts[1:] - pts[:-1]

    @property
    def is_variable(self) -> bool:
        """More than one interval in a hundred differs from the median by over a tenth and by over a tick."""
        if len(self.intervals) < 2:
            return False
        median = float(np.median(self.intervals))
        return bool((np.abs(self.intervals - median) > max(1.01, median / 10)).mean() > 0.01)

    @property
    def fps(self) -> Fraction | None:
        """The frame rate according to the median interval."""
        median = float(np.median(self.intervals)) if len(self.intervals) else 0.0
        return (1 / (Fraction(median) * self.time_base)).limit_denominator(1001) if median > 0 else None


def scan(container: "InputContainer", stream: "VideoStream") -> PacketTable:
    """Read every packet of a newly opened file. A read error ends the table and is stored in it."""
    import av

    codec, header = stream.codec_context.name, stream.codec_context.extradata or b""
    rows: list[tuple[int, bool, bool, bool, bool]] = []
    error = None
    try:
        for packet in _packets(container, stream):
            is_clean = packet.is_keyframe and (codec in _INTRA_ONLY or is_idr(codec, header, bytes(packet)))
            has_pts = packet.pts is not None
            rows.append((packet.pts or 0, has_pts, is_clean, not packet.is_discard, packet.is_corrupt))
    except av.FFmpegError as problem:
        error = problem.strerror
    stamps, *flags = list(zip(*rows, strict=True)) or [()] * 5
    has_pts_, clean, shown, corrupt = (np.array(column, np.bool_) for column in flags)
    assert stream.time_base is not None
    time_base = Fraction(stream.time_base)
    return PacketTable(np.array(stamps, np.int64), has_pts_, clean, shown, corrupt, time_base, error)


def _packets(container: "InputContainer", stream: "VideoStream") -> Iterator["Packet[VideoStream]"]:
    """Packets that hold data, in file order."""
    return (packet for packet in container.demux(stream) if packet.size)


def is_idr(codec: str, header: bytes, packet: bytes) -> bool:
    """Whether a packet's first coded slice belongs to an IDR picture; False for codecs without them."""
    for unit in _nal_units(codec, header, packet) if codec in _IDR_TYPES else ():
        kind = unit & 0x1F if codec == "h264" else (unit >> 1) & 0x3F
        if kind in _SLICE_TYPES[codec]:
            return kind in _IDR_TYPES[codec]
    return False


def _nal_units(codec: str, header: bytes, packet: bytes) -> Iterator[int]:
    """First byte of every NAL unit, whether units are framed by lengths (MP4, Matroska) or by start codes."""
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


def _open_container(path: Path) -> tuple["InputContainer", "VideoStream"]:
    """Open a file and find its picture stream; the error for another kind of file names that kind."""
    import av
    from av.stream import Disposition

    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path}: the file is empty (0 bytes); copy it again.")
        container = av.open(str(path))
    except av.FFmpegError as error:
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
            raise DataError(f"{path}: no permission to read it.") from None
        with path.open("rb") as file:
            if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in file.read(1024)):
                raise DataError(f"{path}: a text file, not a video.") from None
        reason = f"not a video file that can be opened ({error.strerror})"
        raise DataError(f"{path}: {reason}; it may be cut off or not a video.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    cover = Disposition.attached_pic  # the picture of an audio file
    videos = container.streams.video
    streams = [s for s in videos if s.codec_context is not None and not s.disposition & cover]
    if not streams:
        kinds = " and ".join(sorted({stream.type for stream in container.streams})) or "nothing"
        container.close()
        raise DataError(f"{path}: no video stream in it, only {kinds}; give the file with the pictures.")
    context = streams[0].codec_context
    if context.name in _TEXT_CODECS:
        container.close()
        raise DataError(f"{path}: a text file, not a video.")
    context.thread_type, context.thread_count = "NONE", 1
    return container, streams[0]


class VideoFile:
    """One recorded video. `info` comes from its packets; every call of `samples` decodes the file."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        container, stream = _open_container(self.path)
        with container:
            table = self._table = scan(container, stream)
            announced_n, announced_s = stream.frames, _announced(container, stream)
            fps = stream.average_rate or stream.guessed_rate or table.fps
            context = stream.codec_context
            codec, size_hw = context.name, (context.height, context.width)
        n_frames = int(table.is_shown.sum())
        if n_frames == 0:
            announced = f"the header announces {announced_n or 'some'} frames"
            raise DataError(f"{self.path}: {announced} but none can be read; copy the file again.")
        if not fps:
            unknown = "neither the header nor the timestamps give the frame rate"
            raise DataError(f"{self.path}: {unknown}; remux the file with ffmpeg -r.")
        if announced_n and announced_n > len(table.pts):
            announced_s = max(announced_s or 0.0, announced_n / float(fps))
        timed = bool((table.is_shown & table.has_pts).any())
        span_s = float(int(table.intervals.sum()) * table.time_base) if timed else (n_frames - 1) / float(fps)
        duration_s, is_variable = span_s + 1 / float(fps), table.is_ordered and table.is_variable
        self.info = VideoInfo(
            str(self.path), codec, size_hw, Fraction(fps), n_frames, duration_s, is_variable, announced_s
        )
        self.report = ReadReport()

    def sampling(self, fps: Fraction, by: By) -> IndexSampling | TimeSampling:
        """The rule that picks this file's samples."""
        if by == "time" or (by == "auto" and self.info.is_variable):
            return TimeSampling(fps, self._table.time_base)
        return IndexSampling.between(self.info.fps, fps)

    def samples(self, fps: Fraction, by: By = "auto", skip: bool = True) -> Iterator[Frame]:
        """Decode the frames that become samples, in order. `report` is complete when the iterator ends."""
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
            more = f" and {len(report.held) - 5} more" if len(report.held) > 5 else ""
            frames_held = ", ".join(map(str, report.held[:5])) + more
            held = f"; the previous picture replaces frame {frames_held}" if report.held else ""
            skipped = f"{report.n_corrupt} corrupt packets or frames skipped"
            report.warnings.append(f"{self.path}: {skipped}{held}.")
        if report.n_decoded == 0:
            codec = self.info.codec
            raise DataError(f"{self.path}: no frame could be decoded ({codec}); the file is damaged.")

    def _wanted_packets(self, rule: IndexSampling | TimeSampling) -> Wanted:
        """The packets whose frames become samples."""
        table, numbers = self._table, self._table.display_order.tolist()
        pts = table.pts[numbers].tolist()
        times = [(p - pts[0]) * table.time_base for p in pts]
        if isinstance(rule, IndexSampling):
            picks = [rule.frame_of(k) for k in range(rule.n_samples(len(numbers)))]
            return {numbers[i]: (i, [float(times[i])]) for i in picks if i < len(numbers)}
        shows = [rule.samples_of(start, end) for start, end in zip(times, [*times[1:], None], strict=True)]
        return {numbers[i]: (i, [float(k / rule.fps) for k in ks]) for i, ks in enumerate(shows) if len(ks)}

    def _trial_agrees(self) -> bool:
        """Decode the first packets and compare with the table: one frame per packet, in order of time."""
        import av

        table, n = self._table, min(_TRIAL_PACKETS, len(self._table.pts))
        decoded: list[int | None] = []
        container, stream = _open_container(self.path)
        with container:
            try:
                for _, packet in zip(range(n), _packets(container, stream), strict=False):
                    decoded += [frame.pts for frame in stream.codec_context.decode(packet)]
                decoded += [frame.pts for frame in stream.codec_context.decode(None)]
            except av.FFmpegError:
                return True  # damage, not disorder: corrupt packets are handled one by one
        expected = sorted(table.pts[:n][table.is_shown[:n]].tolist())
        return bool(table.is_corrupt[:n].any()) or decoded == expected

    def _actions(self, wanted: Wanted, skip: bool) -> NDArray[np.int8]:
        """Per packet: 0 leave out, 1 decode as reference only, 2 decode and show."""
        n = len(self._table.pts)
        actions = np.full(n, 2, np.int8)
        if not skip:
            return actions
        is_wanted = np.zeros(n, np.bool_)
        is_wanted[list(wanted)] = True
        if self.info.codec in _IDR_TYPES:  # their decoders can skip pictures that no other picture refers to
            actions[~is_wanted] = 1
        starts = [0, *(np.flatnonzero(self._table.is_clean[1:]) + 1).tolist()]
        for begin, end in zip(starts, [*starts[1:], n], strict=True):
            needed = np.flatnonzero(is_wanted[begin:end])
            actions[begin + (int(needed[-1]) + 1 if len(needed) else 0) : end] = 0
        return actions

    def _pick_frames(self, wanted: Wanted, skip: bool) -> Iterator[Frame]:
        """Yield the sampled frames; one that cannot be decoded repeats the picture before."""
        waiting = deque(sorted((int(self._table.pts[number]), *shows) for number, shows in wanted.items()))
        last: VideoFrame | None = None

        def show(frame: "VideoFrame", is_held: bool) -> Iterator[Frame]:
            _, index, times = waiting.popleft()
            if is_held:
                self.report.held.append(index)
            rgb = rgb_of(frame)
            return (Frame(index, time_s, rgb) for time_s in times)

        for frame in self._decode(self._actions(wanted, skip)):
            while waiting and frame.pts is not None and waiting[0][0] < frame.pts:
                yield from show(last or frame, is_held=True)
            last = frame
            if waiting and waiting[0][0] == frame.pts:
                yield from show(frame, is_held=False)
        while waiting and last is not None:
            yield from show(last, is_held=True)

    def _decode(self, actions: NDArray[np.int8] | None) -> Iterator["VideoFrame"]:
        """Decoded frames in display order. The decoder is flushed where packets are left out (action 0)."""
        import av

        container, stream = _open_container(self.path)
        decoder, report = stream.codec_context, self.report
        is_fed = False
        with container:
            for number, packet in enumerate(chain(_readable(_packets(container, stream)), [None])):
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
        """Decode everything and count: for streams whose packets do not give the display order."""

        def show(frame: "VideoFrame", index: int, time: Fraction, end: Fraction | None) -> Iterator[Frame]:
            if isinstance(rule, IndexSampling):
                times = [time] if rule.sample_of(index) is not None else []
            else:
                times = [k / rule.fps for k in rule.samples_of(time, end)]
            if times:
                rgb = rgb_of(frame)
                yield from (Frame(index, float(shown_at), rgb) for shown_at in times)

        start: Fraction | None = None
        last: tuple[VideoFrame, int, Fraction] | None = None
        index = -1
        for index, frame in enumerate(self._decode(None)):
            stamp = index / self.info.fps if frame.pts is None else frame.pts * self._table.time_base
            start = stamp if start is None else start
            if last is not None:
                yield from show(*last, stamp - start)
            last = (frame, index, stamp - start)
        if last is not None:
            yield from show(*last, None)
        self.report.n_frames = index + 1


def _readable(packets: Iterator["Packet[VideoStream]"]) -> Iterator["Packet[VideoStream]"]:
    """Packets up to the first one that cannot be read, which is noted in the packet table."""
    import av

    with suppress(av.FFmpegError):
        yield from packets


def rgb_of(frame: "VideoFrame") -> NDArray[np.uint8]:
    """A decoded frame as (h, w, 3) red first, turned upright according to its rotation mark."""
    rgb = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
    turns = round(frame.rotation / 90) % 4
    return np.ascontiguousarray(np.rot90(rgb, turns)) if turns else rgb


def _announced(container: "InputContainer", stream: "VideoStream") -> float | None:
    """Duration of the pictures in seconds according to the header. Sound may be longer, so the
    container's own duration counts only when it has no other stream."""
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    matroska = stream.metadata.get("DURATION", "")
    if match := re.fullmatch(r"([0-9]+):([0-9]{2}):([0-9.]+)", matroska):
        return int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3])
    alone = len(container.streams) == 1
    return container.duration / 1_000_000 if alone and container.duration is not None else None


Recording = VideoFile | ImageFolder


def open_recording(path: Path, image_fps: Fraction | None = None) -> Recording:
    """A video file, or a folder of images taken at `image_fps` per second."""
    if not path.is_dir():
        return VideoFile(path)
    assert image_fps is not None
    return ImageFolder(path, image_fps)
