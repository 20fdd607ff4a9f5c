"""The REST interface. Handlers translate; the service thinks."""

import json
import time
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from surgicalmamba.data.labels import PhaseVocabulary
from surgicalmamba.errors import SessionError
from surgicalmamba.eval.files import VideoPrediction, prediction_lines
from surgicalmamba.server.config import Role
from surgicalmamba.server.push import event_stream
from surgicalmamba.server.record import Row, Stored
from surgicalmamba.server.rooms import Life, Room
from surgicalmamba.server.security import Caller, Gate
from surgicalmamba.server.service import Service
from surgicalmamba.server.sources import DEMO
from surgicalmamba.version import __version__

# What the REST interface takes and gives. The OpenAPI description is made of these.


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


PAGE_ROWS = 25_000
"""Estimates in one answer."""
GUARDED: dict[int | str, dict[str, object]] = {
    400: {"model": Problem, "description": "Not a request of this server."},
    401: {"model": Problem, "description": "No or unknown token."},
    403: {"model": Problem, "description": "Not in this role."},
    413: {"model": Problem, "description": "Body too large."},
    422: {"model": Problem, "description": "The request does not fit its description."},
    429: {"model": Problem, "description": "Too many requests."},
}
MISSING: dict[int | str, dict[str, object]] = {**GUARDED, 404: {"model": Problem, "description": "No such session."}}
TAKEN: dict[int | str, dict[str, object]] = {**GUARDED, 409: {"model": Problem, "description": "Not possible now; the text says why."}}

public = APIRouter()
api = APIRouter(prefix="/v1")


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def needs(role: Role) -> Callable[[Request], Caller]:
    """A dependency that lets a role, and those above it, pass."""

    def check(request: Request) -> Caller:
        gate: Gate = request.app.state.gate
        caller = gate.caller(request.headers.get("authorization"))
        if caller is None:
            raise HTTPException(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})
        if not caller.may(role):
            raise HTTPException(403, f"this needs the role {role}; the token of {caller.name} is a {caller.role}")
        return caller

    return check


Server = Annotated[Service, Depends(service_of)]
Viewer = Annotated[Caller, Depends(needs("viewer"))]
Operator = Annotated[Caller, Depends(needs("operator"))]
Admin = Annotated[Caller, Depends(needs("admin"))]


def room_or_404(service: Service, session: str) -> Room | SessionView:
    """A room that goes on, or a finished session's view."""
    room = service.recognizer.rooms.get(session)
    if room is not None:
        return room
    stored = service.session(session)
    if stored is None:
        raise HTTPException(404, "there is no such session")
    return view_stored(stored)


@public.get("/healthz", responses=GUARDED)
def healthz() -> Health:
    """Whether the process answers."""
    return Health(status="ok")


@public.get("/readyz", responses={**GUARDED, 503: {"model": Health, "description": "Not ready."}})
def readyz(service: Server, response: Response) -> Health:
    """Whether frames are recognized. A record that cannot be written degrades the server, it does not stop it."""
    if not service.is_ready:
        response.status_code = 503
        return Health(status="starting")
    if not service.recognizer.is_alive:
        response.status_code = 503
        return Health(status="failed")
    return Health(status="ok" if service.state == "ok" else "degraded")


@public.get("/metrics", responses={**GUARDED, 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}, response_class=Response)
def metrics(service: Server, caller: Viewer) -> Response:
    """Numbers for Prometheus."""
    return Response(service.metrics.text(service.gauges()), media_type="text/plain; version=0.0.4")


@api.get("/about", responses=GUARDED)
def about(service: Server, caller: Viewer) -> About:
    """The server, its model and its limits."""
    config, preprocess = service.config, service.engine.config.preprocess
    return About(
        version=__version__,
        model=service.model_name,
        engine=service.engine.name,
        fingerprint=service.engine.fingerprint,
        phases=list(service.phases),
        fps=float(preprocess.rate),
        rate=str(preprocess.rate),
        sampling=preprocess.sampling,
        state="ok" if service.state == "ok" else "degraded",
        reason=service.writer.failure,
        demo=config.demo,
        demo_model_is_trained=service.demo_model_is_trained,
        sources=sorted(config.sources),
        role=caller.role,
        metadata_keys=list(METADATA_KEYS),
        frame_bytes=config.limits.frame_bytes,
        frame_pixels=config.limits.frame_pixels,
        research_only="Research software, not a medical device.",
    )


@api.post("/sessions", status_code=201, responses=TAKEN)
def create(body: CreateSession, service: Server, caller: Operator) -> SessionView:
    """Begin a session. Push its frames over the WebSocket /v1/sessions/{session}/frames."""
    if body.model not in (None, service.model_name, service.engine.fingerprint):
        raise HTTPException(409, f"this server runs the model {service.model_name}")
    if body.source is not None and body.source not in service.config.sources:
        raise HTTPException(409, "there is no source of that name in the server's settings")
    try:
        room = service.create(body.name, body.fps, body.when_behind, {str(key): text for key, text in body.metadata.items()}, body.source)
    except SessionError:
        raise HTTPException(409, "all places are taken; finish a session first") from None
    return view_room(room)


@api.post("/demo", status_code=201, responses=TAKEN)
def demo(service: Server, caller: Operator) -> SessionView:
    """Begin a session of a synthetic procedure, where the settings offer it."""
    if not service.config.demo:
        raise HTTPException(409, "this server offers no demo; start it with --demo")
    try:
        room = service.create("Demo " + time.strftime("%H:%M:%S"), None, "wait", {"procedure": "synthetic"}, DEMO)
    except SessionError:
        raise HTTPException(409, "all places are taken; finish a session first") from None
    return view_room(room)


@api.get("/sessions", responses=GUARDED)
def sessions(
    service: Server,
    caller: Viewer,
    limit: Annotated[int, Query(ge=1, le=200, description="Finished sessions to list.")] = 50,
    before_s: Annotated[float | None, Query(ge=0, le=1e11, description="Only those created before; for the next page.")] = None,
) -> SessionList:
    """Every session that goes on, and the newest finished ones."""
    live = [view_room(room) for room in sorted(service.recognizer.rooms.values(), key=lambda room: room.info.created_s)]
    finished = [view_stored(stored) for stored in service.finished(limit, before_s)]
    return SessionList(live=live, finished=finished, state="ok" if service.state == "ok" else "degraded")


@api.get("/sessions/{session}", responses=MISSING)
def inspect(session: SessionId, service: Server, caller: Viewer) -> SessionView:
    """One session."""
    found = room_or_404(service, session)
    return view_room(found) if isinstance(found, Room) else found


@api.post("/sessions/{session}/finish", responses=MISSING)
def finish(session: SessionId, service: Server, caller: Operator) -> SessionView:
    """Take no more frames, work off those that wait, close the record. Doing it twice changes nothing."""
    found = room_or_404(service, session)
    if isinstance(found, Room):
        service.recognizer.finish(found)
        end = time.monotonic() + 20
        while found.life is not Life.FINISHED and time.monotonic() < end:
            time.sleep(0.005)
        service.writer.flush(2.0)
        found = room_or_404(service, session)
    return view_room(found) if isinstance(found, Room) else found


@api.delete("/sessions/{session}", status_code=204, responses=MISSING)
def delete(session: SessionId, service: Server, caller: Admin) -> Response:
    """Delete a session and its record."""
    room_or_404(service, session)
    service.delete(session)
    return Response(status_code=204)


@api.get("/sessions/{session}/estimates", responses=MISSING)
def estimates(
    session: SessionId,
    service: Server,
    caller: Viewer,
    after: Annotated[int, Query(ge=-1, le=2**53, description="Only rows beyond this one.")] = -1,
    limit: Annotated[int, Query(ge=1, le=PAGE_ROWS)] = PAGE_ROWS,
    probabilities: Annotated[bool, Query(description="With the probability of every phase.")] = False,
) -> Estimates:
    """Estimates by column, also those that are not in the database yet."""
    room_or_404(service, session)
    rows = service.rows(session, after, limit + 1)
    return view_rows(session, rows[:limit], probabilities, is_complete=len(rows) <= limit)


def _whole(service: Service, session: str) -> tuple[tuple[str, ...], list[Row], str]:
    found = room_or_404(service, session)
    info_phases = found.info.phases if isinstance(found, Room) else tuple(found.phases)
    name = found.info.name if isinstance(found, Room) else found.name
    return info_phases, service.rows(session, -1, -1), name


CSV: dict[int | str, dict[str, object]] = {**MISSING, 200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}


@api.get("/sessions/{session}/export.csv", responses=CSV, response_class=Response)
def export_csv(session: SessionId, service: Server, caller: Viewer) -> Response:
    """The record as a prediction file, which `surgicalmamba evaluate` reads."""
    phases, rows, _ = _whole(service, session)
    prediction = VideoPrediction(
        np.array([row.row for row in rows], np.int64),
        np.array([row.time_s for row in rows]),
        np.array([row.phase for row in rows], np.int64),
        np.array([row.unpacked() for row in rows]).reshape(len(rows), len(phases)),
        None if any(row.intensity is None for row in rows) else np.array([row.intensity for row in rows], np.float64),
    )
    text = "".join(prediction_lines(prediction, PhaseVocabulary("session", phases)))
    return Response(text, media_type="text/csv", headers={"Content-Disposition": f'attachment; filename="{session}.csv"'})


@api.get("/sessions/{session}/export.json", responses=MISSING)
def export_json(session: SessionId, service: Server, caller: Viewer) -> Estimates:
    """The record by column, whole, with probabilities."""
    _, rows, _ = _whole(service, session)
    return view_rows(session, rows, with_probabilities=True, is_complete=True)


EVENTS: dict[int | str, dict[str, object]] = {
    **TAKEN,
    404: MISSING[404],
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
}


@api.get("/sessions/{session}/events", responses=EVENTS, response_class=StreamingResponse)
def session_events(
    session: SessionId,
    request: Request,
    service: Server,
    caller: Viewer,
    after: Annotated[int, Query(ge=-1, le=2**53, description="Begin with the rows beyond this one.")] = -1,
) -> StreamingResponse:
    """Server-sent events: every estimate of a session beyond a row, then each new one as it comes."""
    room_or_404(service, session)
    return _events(service, session, after)


@api.get("/events", responses=EVENTS, response_class=StreamingResponse)
def all_events(service: Server, caller: Viewer) -> StreamingResponse:
    """Server-sent events: each new estimate of every session, and sessions that come and go."""
    return _events(service, None, -1)


def _events(service: Service, session: str | None, after: int) -> StreamingResponse:
    if len(service.hub) >= service.config.limits.viewers + service.config.limits.sessions:
        raise HTTPException(409, "too many live views are open")
    return StreamingResponse(event_stream(service, session, after), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


@api.get("/openapi.json", responses=GUARDED, response_class=Response)
def openapi(request: Request, caller: Viewer) -> Response:
    """This description."""
    return Response(json.dumps(request.app.openapi()), media_type="application/json")

