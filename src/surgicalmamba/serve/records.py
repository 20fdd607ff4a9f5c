"""What the server keeps about sessions: plain records that the store writes and reads."""

import struct
from dataclasses import dataclass, field
from typing import Literal

from surgicalmamba.stream.estimate import PhaseEstimate

WhenBehind = Literal["wait", "drop"]
"""wait   frames are taken no faster than they are worked off; nothing is lost (a recording)
drop   a full queue drops its oldest waiting frame; what is shown is the newest (a camera)"""

Segment = tuple[int, float, float]
"""A phase id and the seconds from which to which it lasted."""


@dataclass(frozen=True)
class SessionInfo:
    """A session as it was created."""

    id: str
    name: str
    created_s: float
    """Seconds since 1970."""
    fps: str
    """The rate the recognizer runs at, as a fraction."""
    phases: tuple[str, ...]
    model: str
    """Fingerprint of the model."""
    when_behind: WhenBehind
    source: str | None
    """The server reads this source itself; None where a client pushes."""
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One estimate on record. Equal rows are equal to the last bit."""

    row: int
    frame: int
    """The client's frame that led to it."""
    time_s: float
    phase: int
    probabilities: bytes
    """Packed 64-bit floats, little-endian."""
    intensity: float | None
    quality: str
    fed: str

    @classmethod
    def of(cls, estimate: PhaseEstimate, frame: int, offset: int) -> "Row":
        """`offset` rows of this session were made of frames that the recognizer's memory does not know (see Room.skip)."""
        packed = struct.pack(f"<{len(estimate.probabilities)}d", *estimate.probabilities)
        row = estimate.frame_index + offset
        return cls(row, frame, estimate.time_s, estimate.phase, packed, estimate.intensity, estimate.quality, estimate.fed)

    def unpacked(self) -> tuple[float, ...]:
        return struct.unpack(f"<{len(self.probabilities) // 8}d", self.probabilities)


@dataclass(frozen=True)
class Ending:
    """How a session ended."""

    finished_s: float
    note: str
    rows: int
    dropped: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Snapshot:
    """The recognizer's memory after a client's frame."""

    frame: int
    rows: int
    """Estimates up to and including that frame."""
    offset: int
    """Rows among them that the memory does not know."""
    blob: bytes


@dataclass(frozen=True)
class Unfinished:
    """A session that the server was in the middle of when it stopped."""

    info: SessionInfo
    snapshot: Snapshot | None
    later_rows: tuple[Row, ...]
    """On record beyond the snapshot: computing them anew must give the same."""
    durable: int
    """The last frame that is worked off on record."""
    drops: frozenset[int]
    """Frames beyond the snapshot that were dropped, on record."""
    n_dropped: int
    segments: tuple[Segment, ...]
