"""What the REST interface takes and gives. The OpenAPI description is made of these."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from surgicalmamba.serve.records import Row
from surgicalmamba.serve.rooms import Life, Room
from surgicalmamba.serve.store import Stored

METADATA_KEYS = ("room", "procedure", "device", "study", "case")
"""What may be said about a session. Nothing that names a patient: `case` is meant for a pseudonym of the study."""

SessionId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$", description="As given by the server when the session was created.")]
Name = Annotated[str, Field(pattern=r"^[\w][\w .:#/+-]{0,63}$", description="Shown on the page. No patient's name.")]
MetadataKey = Literal["room", "procedure", "device", "study", "case"]
MetadataValue = Annotated[str, Field(max_length=80, pattern=r"^[^\x00-\x1f\x7f]*$")]


Run = Annotated[list[float], Field(min_length=3, max_length=3)]


class Body(BaseModel):
    """A request body; unknown names are refused."""

    model_config = ConfigDict(extra="forbid")


class CreateSession(Body):
    """A new session."""

    name: Name
    model: Annotated[str, Field(max_length=200)] | None = Field(None, description="Must be the server's model, where given.")
    fps: Annotated[float, Field(ge=0.001, le=120)] | None = Field(
        None, description="Estimates per second of source time; the model's own if absent."
    )
    when_behind: Literal["wait", "drop"] = Field("drop", description="wait loses nothing (a recording); drop keeps up (a camera).")
    metadata: dict[MetadataKey, MetadataValue] = Field({}, description="No patient's name.")
    source: Annotated[str, Field(max_length=64)] | None = Field(None, description="A source of the server's settings, read by the server.")


class SessionView(BaseModel):
    """A session."""

    id: str
    name: str
    life: Literal["waiting", "live", "finishing", "finished"]
    created_s: float = Field(description="Seconds since 1970.")
    finished_s: float | None
    note: str = Field(description="Why it ended, where it did not end as usual.")
    fps: float
    phases: list[str]
    model: str
    when_behind: Literal["wait", "drop"]
    source: str | None
    metadata: dict[str, str]
    rows: int = Field(description="Estimates so far.")
    next_index: int = Field(description="The frame the server expects next; -1 once finished.")
    acknowledged: int
    durable: int
    keep_from: int
    dropped: int
    refused: int
    queued: int
    latency_ms: float | None = Field(description="Median of the last estimates, from arrival to estimate.")
    phase: int | None
    confidence: float | None
    segments: list[Run] = Field(description="Phase, from second, to second.")


class SessionList(BaseModel):
    """Sessions that go on, and finished ones, newest first."""

    live: list[SessionView]
    finished: list[SessionView]
    state: Literal["ok", "degraded"]


class Estimates(BaseModel):
    """Estimates by column."""

    session: str
    row: list[int]
    frame: list[int]
    time_s: list[float]
    phase: list[int]
    intensity: list[float | None]
    confidence: list[float]
    probabilities: list[list[float]] | None = Field(description="Only where asked for.")
    is_complete: bool = Field(description="False when there are more than fit into one answer.")


class About(BaseModel):
    """The server."""

    version: str
    model: str
    engine: str
    fingerprint: str
    phases: list[str]
    fps: float
    rate: str = Field(description="The same as an exact fraction.")
    sampling: Literal["auto", "index", "time"] = Field(description="How frames of a recording become samples.")
    state: Literal["ok", "degraded"]
    reason: str | None = Field(description="Why it is degraded.")
    demo: bool
    demo_model_is_trained: bool | None
    sources: list[str]
    role: Literal["viewer", "operator", "admin"]
    metadata_keys: list[str]
    frame_bytes: int
    frame_pixels: int
    research_only: str


class Health(BaseModel):
    """Whether the process runs; whether it is ready for frames."""

    status: Literal["ok", "starting", "degraded", "failed"]


class Problem(BaseModel):
    """What went wrong, in a sentence."""

    detail: str


def view_room(room: Room) -> SessionView:
    """A session that goes on."""
    info, latency = room.info, sorted(room.latency_ms)
    with room.lock:
        return SessionView(
            id=info.id,
            name=info.name,
            life=room.life.value,
            created_s=info.created_s,
            finished_s=None,
            note=room.note,
            fps=_rate(info.fps),
            phases=list(info.phases),
            model=info.model,
            when_behind=info.when_behind,
            source=info.source,
            metadata=info.metadata,
            rows=room.n_rows,
            next_index=room.next_index,
            acknowledged=room.acknowledged,
            durable=room.durable,
            keep_from=room.keep_from,
            dropped=room.counters.dropped,
            refused=room.counters.refused,
            queued=len(room.queue),
            latency_ms=latency[len(latency) // 2] if latency else None,
            phase=None if room.last is None else room.last.phase,
            confidence=None if room.last is None else room.last.unpacked()[room.last.phase],
            segments=[list(run) for run in room.runs],
        )


def view_stored(stored: Stored) -> SessionView:
    """A session as it is on record."""
    info, ending = stored.info, stored.ending
    return SessionView(
        id=info.id,
        name=info.name,
        life=Life.WAITING.value if ending is None else Life.FINISHED.value,
        created_s=info.created_s,
        finished_s=None if ending is None else ending.finished_s,
        note="" if ending is None else ending.note,
        fps=_rate(info.fps),
        phases=list(info.phases),
        model=info.model,
        when_behind=info.when_behind,
        source=info.source,
        metadata=info.metadata,
        rows=0 if ending is None else ending.rows,
        next_index=-1,
        acknowledged=stored.durable,
        durable=stored.durable,
        keep_from=stored.durable + 1,
        dropped=0 if ending is None else ending.dropped,
        refused=0,
        queued=0,
        latency_ms=None,
        phase=ending.segments[-1][0] if ending and ending.segments else None,
        confidence=None,
        segments=[] if ending is None else [list(run) for run in ending.segments],
    )


def view_rows(session: str, rows: list[Row], with_probabilities: bool, is_complete: bool) -> Estimates:
    """Estimates by column: a fifth of the size of one object each."""
    unpacked = [row.unpacked() for row in rows]
    return Estimates(
        session=session,
        row=[row.row for row in rows],
        frame=[row.frame for row in rows],
        time_s=[row.time_s for row in rows],
        phase=[row.phase for row in rows],
        intensity=[row.intensity for row in rows],
        confidence=[values[row.phase] for row, values in zip(rows, unpacked, strict=True)],
        probabilities=[list(values) for values in unpacked] if with_probabilities else None,
        is_complete=is_complete,
    )


def _rate(text: str) -> float:
    from fractions import Fraction

    return float(Fraction(text))
