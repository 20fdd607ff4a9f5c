"""What travels over the frame connection, version 1.

A frame is one binary message: the envelope below, then a JPEG or PNG file as it is.

    "SMFR"   version u8 = 1   kind u8 (1 JPEG, 2 PNG)   zero u16   index i64   time_s f64      (24 bytes, little-endian)

`index` counts the client's frames from 0. `time_s` is the source time in seconds; NaN says that every frame is the next sample. The
server answers in JSON; every answer carries `acknowledged` (the last frame whose estimates are computed), `durable` (the last frame
whose estimates are in the database) and `keep_from` (the first frame the client must be able to send again); -1 stands for none."""

import json
import math
import struct
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Literal

from surgicalmamba.errors import InputError

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
