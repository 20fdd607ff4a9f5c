"""Pictures from the network: bounded before they are decoded, refused with a reason when they are not what they claim."""

import json
import math
import struct
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.errors import InputError
from surgicalmamba.server.config import LimitsConfig

# What travels over the frame connection, version 1.
#
# A frame is one binary message: the envelope below, then a JPEG or PNG file as it is.
#
#     "SMFR"   version u8 = 1   kind u8 (1 JPEG, 2 PNG)   zero u16   index i64   time_s f64      (24 bytes, little-endian)
#
# `index` counts the client's frames from 0. `time_s` is the source time in seconds; NaN says that every frame is the next sample. The
# server answers in JSON; every answer carries `acknowledged` (the last frame whose estimates are computed), `durable` (the last frame
# whose estimates are in the database) and `keep_from` (the first frame the client must be able to send again); -1 stands for none.


VERSION = 1
MAGIC = b"SMFR"
_ENVELOPE = struct.Struct("<4sBBHqd")
ENVELOPE_BYTES = _ENVELOPE.size
KINDS = {1: "jpeg", 2: "png"}
LARGEST_INDEX = 2**53 - 1


class Reason(str, Enum):
    """Why a message was refused. The value is what the client reads."""

    TEXT = "text"  # a text message the protocol does not know
    SHORT = "short"  # no whole envelope
    MAGIC = "magic"
    VERSION = "version"
    KIND = "kind"
    INDEX = "index"  # negative or absurd
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
    """A message that is not accepted: the reason's name, and a sentence that says what to do."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason, self.text = reason, text


@dataclass(frozen=True)
class FrameMessage:
    """A frame as it came."""

    index: int
    time_s: float | None
    kind: Literal["jpeg", "png"]
    data: bytes


def pack_frame(index: int, time_s: float | None, data: bytes) -> bytes:
    """A frame as one binary message. The kind is read from the file's first bytes."""
    if data[:2] == b"\xff\xd8":
        kind = 1
    elif data[:8] == b"\x89PNG\r\n\x1a\n":
        kind = 2
    else:
        raise InputError("a frame is sent as a JPEG or PNG file; these bytes are neither.")
    return _ENVELOPE.pack(MAGIC, VERSION, kind, 0, index, math.nan if time_s is None else time_s) + data


def unpack_frame(message: bytes) -> FrameMessage:
    """The reverse of `pack_frame`, or a RefusalError."""
    if len(message) < ENVELOPE_BYTES:
        raise RefusalError(Reason.SHORT, f"the message has {len(message)} bytes; the envelope alone has {ENVELOPE_BYTES}.")
    magic, version, kind, zero, index, time_s = _ENVELOPE.unpack_from(message)
    if magic != MAGIC:
        raise RefusalError(Reason.MAGIC, "the message does not begin with SMFR; send frames in the envelope of the protocol.")
    if version != VERSION or zero != 0:
        raise RefusalError(Reason.VERSION, f"the envelope has version {version}; this server reads {VERSION}.")
    if kind not in KINDS:
        raise RefusalError(Reason.KIND, f"kind {kind} is unknown; 1 is JPEG, 2 is PNG.")
    if not 0 <= index <= LARGEST_INDEX:
        raise RefusalError(Reason.INDEX, f"frame index {index} is out of range; count from 0.")
    if math.isinf(time_s):
        raise RefusalError(Reason.TIME, "time_s is infinite; give seconds, or NaN for the next sample.")
    return FrameMessage(index, None if math.isnan(time_s) else time_s, "jpeg" if kind == 1 else "png", message[ENVELOPE_BYTES:])


@dataclass(frozen=True)
class Marks:
    """How far a session has come, in the client's frame numbers; -1 is before the first."""

    acknowledged: int
    durable: int
    keep_from: int


@dataclass(frozen=True)
class Hello:
    """The server's first message: send `next_index` next, and whatever followed it."""

    session: str
    next_index: int
    fps: float
    phases: tuple[str, ...]
    frame_bytes: int
    frame_pixels: int


@dataclass(frozen=True)
class EstimateMessage:
    """One estimate. `row` counts the estimates of the session; `frame` is the client's frame that led to it."""

    session: str
    row: int
    frame: int
    time_s: float
    phase: int
    name: str
    probabilities: tuple[float, ...]
    intensity: float | None
    quality: str
    fed: str
    latency_ms: float
    replayed: bool
    """The estimate was on record before the server started anew."""


@dataclass(frozen=True)
class Progress:
    """Frames were acknowledged or written; sent when no estimate says so."""

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
    """The session has ended; nothing more is accepted."""

    session: str
    rows: int
    note: str


Message = Hello | EstimateMessage | Progress | Refused | Finished
TYPES: dict[type, str] = {Hello: "hello", EstimateMessage: "estimate", Progress: "progress", Refused: "refused", Finished: "finished"}


def to_json(message: Message, marks: Marks, state: str, dropped: int) -> str:
    """An answer as it travels. `state` is the server's (ok or degraded), `dropped` counts the session's dropped frames."""
    about = {"v": VERSION, "type": TYPES[type(message)], **asdict(message), **asdict(marks), "state": state, "dropped": dropped}
    return json.dumps(about, separators=(",", ":"), allow_nan=False)


PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
LEAST_SIDE = 16
LARGEST_ASPECT = 16
MOST_SCANS = 64
"""A progressive JPEG with thousands of scans costs minutes to decode; cameras write one, image tools about ten."""


def decode(frame: FrameMessage, limits: LimitsConfig) -> NDArray[np.uint8]:
    """The picture (h, w, 3), red first. Raises RefusalError."""
    if len(frame.data) > limits.frame_bytes:
        raise RefusalError(Reason.BYTES, f"the picture has {len(frame.data)} bytes; the limit is {limits.frame_bytes}.")
    height, width = _jpeg_size(frame.data) if frame.kind == "jpeg" else _png_size(frame.data)
    _check_size(height, width, limits)
    rgb = _decode_jpeg(frame.data) if frame.kind == "jpeg" else _decode_png(frame.data)
    if rgb.shape != (height, width, 3):
        raise RefusalError(Reason.IMAGE, f"the header says {width} x {height}, the picture is {rgb.shape[1]} x {rgb.shape[0]}.")
    return rgb


def _check_size(height: int, width: int, limits: LimitsConfig) -> None:
    if height * width > limits.frame_pixels:
        raise RefusalError(Reason.PIXELS, f"the picture is {width} x {height}; the limit is {limits.frame_pixels} pixels.")
    short, long = sorted((height, width))
    if short < LEAST_SIDE or long > LARGEST_ASPECT * short:
        raise RefusalError(Reason.PIXELS, f"the picture is {width} x {height}; sides of at least {LEAST_SIDE} and no slivers, please.")


def _jpeg_size(data: bytes) -> tuple[int, int]:
    import simplejpeg

    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        raise RefusalError(Reason.IMAGE, f"not a JPEG file that can be read ({error}).") from None
    if data.count(b"\xff\xda") > MOST_SCANS:
        raise RefusalError(Reason.IMAGE, f"a JPEG with more than {MOST_SCANS} scans; write it as a baseline JPEG.")
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

    # A cut-off PNG would be decoded to its first rows; the end marker tells.
    if data[-8:-4] != b"IEND":
        raise RefusalError(Reason.IMAGE, "the PNG is truncated: its end marker is missing.")
    try:
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        bgr = None
    if bgr is None:
        raise RefusalError(Reason.IMAGE, "the PNG is damaged.")
    return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)

