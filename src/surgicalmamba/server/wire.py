"""What travels over the frame connection, version 1: frames to the server, answers back.

A frame is one binary message: the envelope below, then a JPEG or PNG file as it is.

    "SMFR"  version u8 = 1  kind u8 (1 JPEG, 2 PNG)  zero u16  index i64  time_s f64   little-endian, 24 bytes

`index` counts the client's frames from 0. `time_s` is the source time in seconds; NaN makes every frame the
next sample. The server answers in JSON. Every answer carries `acknowledged` (the last frame whose estimates
are computed), `durable` (the last frame whose estimates are in the database) and `keep_from` (the first frame
the client must be able to send again); -1 stands for none."""

import json
import math
import struct
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.errors import InputError
from surgicalmamba.live.estimate import ServedEstimate
from surgicalmamba.server.config import LimitsConfig

VERSION = 1
MAGIC = b"SMFR"
_ENVELOPE = struct.Struct("<4sBBHqd")
ENVELOPE_BYTES = _ENVELOPE.size
LARGEST_INDEX = 2**53 - 1
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
LEAST_SIDE = 16
LARGEST_ASPECT = 16
MOST_SCANS = 64
"""A progressive JPEG with thousands of scans takes minutes to decode; image tools write about ten."""


class Reason(str, Enum):
    """Why a message was refused, as the client reads it."""

    TEXT = "text"  # a text message that is no command
    SHORT = "short"  # no whole envelope
    MAGIC = "magic"
    VERSION = "version"
    KIND = "kind"
    INDEX = "index"  # negative or too large
    DUPLICATE = "duplicate"
    GAP = "gap"
    TIME = "time"
    BYTES = "bytes"
    PIXELS = "pixels"
    IMAGE = "image"  # cannot be decoded
    FINISHED = "finished"
    RECOGNIZER = "recognizer"  # the model failed on this frame
    FULL = "full"  # too many estimates wait for the database
    IDLE = "idle"
    REPLACED = "replaced"  # another connection pushes this session now


class RefusalError(Exception):
    """A message that is not accepted: the reason, and a sentence with the remedy."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason, self.text = reason, text


@dataclass(frozen=True)
class FrameMessage:
    """A frame as received, not decoded."""

    index: int
    time_s: float | None
    kind: Literal["jpeg", "png"]
    data: bytes


def pack_frame(index: int, time_s: float | None, data: bytes) -> bytes:
    """A frame as one binary message. The kind is read from the first bytes of the file."""
    kind = 1 if data.startswith(b"\xff\xd8") else 2 if data.startswith(PNG_SIGNATURE) else None
    if kind is None:
        raise InputError("a frame is sent as a JPEG or PNG file; these bytes are neither.")
    return _ENVELOPE.pack(MAGIC, VERSION, kind, 0, index, math.nan if time_s is None else time_s) + data


def unpack_frame(message: bytes) -> FrameMessage:
    """The reverse of `pack_frame`. Raises RefusalError."""
    if len(message) < ENVELOPE_BYTES:
        raise RefusalError(Reason.SHORT, f"{len(message)} bytes; the envelope has {ENVELOPE_BYTES}.")
    magic, version, kind, zero, index, time_s = _ENVELOPE.unpack_from(message)
    if magic != MAGIC:
        raise RefusalError(Reason.MAGIC, "the message does not begin with SMFR; use the envelope.")
    if version != VERSION or zero != 0:
        raise RefusalError(Reason.VERSION, f"an envelope of version {version}; this server reads {VERSION}.")
    if kind not in (1, 2):
        raise RefusalError(Reason.KIND, f"kind {kind} is unknown; 1 is JPEG, 2 is PNG.")
    if not 0 <= index <= LARGEST_INDEX:
        raise RefusalError(Reason.INDEX, f"frame index {index} is out of range; count from 0.")
    if math.isinf(time_s):
        raise RefusalError(Reason.TIME, "time_s is infinite; send seconds, or NaN for the next sample.")
    data = message[ENVELOPE_BYTES:]
    return FrameMessage(index, None if math.isnan(time_s) else time_s, "jpeg" if kind == 1 else "png", data)


def decode(frame: FrameMessage, limits: LimitsConfig) -> NDArray[np.uint8]:
    """The picture (h, w, 3), red first. Size and length are checked before decoding. Raises RefusalError."""
    if len(frame.data) > limits.frame_bytes:
        raise RefusalError(Reason.BYTES, f"{len(frame.data)} bytes; the limit is {limits.frame_bytes}.")
    height, width = _jpeg_size(frame.data) if frame.kind == "jpeg" else _png_size(frame.data)
    size, (short, long) = f"{width} x {height}", sorted((height, width))
    if height * width > limits.frame_pixels:
        raise RefusalError(Reason.PIXELS, f"a picture of {size}; the limit is {limits.frame_pixels} pixels.")
    if short < LEAST_SIDE or long > LARGEST_ASPECT * short:
        rule = f"a side has at least {LEAST_SIDE} pixels, at most {LARGEST_ASPECT} times the other"
        raise RefusalError(Reason.PIXELS, f"the picture is {size}; {rule}.")
    rgb = _decode_jpeg(frame.data) if frame.kind == "jpeg" else _decode_png(frame.data)
    if rgb.shape != (height, width, 3):
        raise RefusalError(Reason.IMAGE, f"the header declares {size}, the picture has shape {rgb.shape}.")
    return rgb


def _jpeg_size(data: bytes) -> tuple[int, int]:
    import simplejpeg

    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        raise RefusalError(Reason.IMAGE, f"not a JPEG file that can be read ({error}).") from None
    if data.count(b"\xff\xda") > MOST_SCANS:
        raise RefusalError(Reason.IMAGE, f"a JPEG of more than {MOST_SCANS} scans; save it as baseline.")
    return int(height), int(width)


def _png_size(data: bytes) -> tuple[int, int]:
    if len(data) < 33 or not data.startswith(PNG_SIGNATURE) or data[12:16] != b"IHDR":
        raise RefusalError(Reason.IMAGE, "not a PNG file: it does not begin with a PNG header.")
    width, height = struct.unpack(">II", data[16:24])
    return height, width


def _decode_jpeg(data: bytes) -> NDArray[np.uint8]:
    import simplejpeg

    try:
        return np.asarray(simplejpeg.decode_jpeg(data, "RGB", strict=True), np.uint8)
    except ValueError as error:
        raise RefusalError(Reason.IMAGE, f"the JPEG is truncated or damaged ({error}).") from None


def _decode_png(data: bytes) -> NDArray[np.uint8]:
    import cv2

    if data[-8:-4] != b"IEND":  # OpenCV would decode the first rows of a truncated PNG
        raise RefusalError(Reason.IMAGE, "the PNG is truncated: its end marker is missing.")
    try:
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        bgr = None
    if bgr is None:
        raise RefusalError(Reason.IMAGE, "the PNG is damaged.")
    return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)


@dataclass(frozen=True)
class Marks:
    """Progress of a session, in the client's frame numbers; -1 is before the first."""

    acknowledged: int
    durable: int
    keep_from: int


@dataclass(frozen=True)
class Hello:
    """The first answer: the client sends `next_index` next."""

    session: str
    next_index: int
    fps: float
    phases: tuple[str, ...]
    frame_bytes: int
    frame_pixels: int


@dataclass(frozen=True)
class Estimated:
    """One estimate; its fields travel beside the others."""

    session: str
    estimate: ServedEstimate
    latency_ms: float | None
    """From the arrival of the frame; None for an estimate read from the record."""
    replayed: bool
    """The estimate was on record already."""


@dataclass(frozen=True)
class Progress:
    """Frames were acknowledged or written, and no estimate carries the news."""

    session: str


@dataclass(frozen=True)
class Refused:
    """A message was not accepted. `frame` is its index where it could be read."""

    session: str
    frame: int | None
    reason: str
    text: str


@dataclass(frozen=True)
class Finished:
    """The session has ended; no more frames are accepted."""

    session: str
    rows: int
    note: str


Message = Hello | Estimated | Progress | Refused | Finished


def to_json(message: Message, marks: Marks, state: str, dropped: int) -> str:
    """An answer as text, with the server's state and the number of frames the session has dropped."""
    return pack(**content(message), **vars(marks), state=state, dropped=dropped)


def content(message: Message) -> dict[str, object]:
    """Type and fields of a message."""
    if isinstance(message, Estimated):
        fields = {name: value for name, value in vars(message).items() if name != "estimate"}
        return {"type": "estimate", **fields, **message.estimate.as_dict()}
    return {"type": type(message).__name__.lower(), **vars(message)}


def pack(**document: object) -> str:
    """A versioned message as compact JSON."""
    return json.dumps({"v": VERSION, **document}, separators=(",", ":"), allow_nan=False)
