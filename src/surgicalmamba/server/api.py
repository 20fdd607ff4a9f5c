"""The REST interface: its schemas, from which the OpenAPI description is made, and its handlers."""

import json
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from surgicalmamba.data.labels import PhaseVocabulary
from surgicalmamba.errors import SessionError
from surgicalmamba.eval.files import prediction_lines
from surgicalmamba.live.estimate import Fed, Quality, ServedEstimate, to_columns, to_prediction
from surgicalmamba.server.config import Role
from surgicalmamba.server.push import event_stream
from surgicalmamba.server.record import SessionInfo, Stored, WhenBehind
from surgicalmamba.server.rooms import Life, Room
from surgicalmamba.server.security import Caller, Gate
from surgicalmamba.server.service import Service
from surgicalmamba.server.sources import DEMO
from surgicalmamba.version import __version__

PAGE_ROWS = 25_000
"""Estimates in one answer."""
State = Literal["ok", "degraded"]
MetadataKey = Literal["room", "procedure", "device", "study", "case"]
"""What may be stored about a session. Nothing that names a patient: `case` is meant for a pseudonym of the
study."""
MetadataValue = Annotated[str, Field(max_length=80, pattern=r"^[^\x00-\x1f\x7f]*$")]
Name = Annotated[str, Field(pattern=r"^[\w][\w .:#/+-]{0,63}$", description="No patient's name.")]
Run = Annotated[list[float], Field(min_length=3, max_length=3)]
Rate = Annotated[float, Field(ge=0.001, le=120)]
SessionId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$", description="As returned by its creation.")]


class CreateSession(BaseModel):
    """A new session; unknown names are refused."""

    model_config = ConfigDict(extra="forbid")
    name: Name
    model: Annotated[str, Field(max_length=200)] | None = Field(None, description="Must be the server's.")
    fps: Rate | None = Field(None, description="Estimates per second of source time; null: the model's.")
    when_behind: WhenBehind = Field(
        "drop", description="wait loses no frame (recording); drop keeps up (camera)."
    )
    metadata: dict[MetadataKey, MetadataValue] = Field({}, description="No patient's name.")
    source: Annotated[str, Field(max_length=64)] | None = Field(None, description="A source in the settings.")


class SessionView(BaseModel):
    """A session."""

    id: str
    name: str
    life: Literal["waiting", "live", "finishing", "finished"]
    created_s: float = Field(description="Seconds since 1970.")
    finished_s: float | None = None
    note: str = Field("", description="Why it ended, where it did not end as usual.")
    fps: float
    phases: list[str]
    model: str
    when_behind: WhenBehind
    source: str | None
    metadata: dict[str, str]
    rows: int = Field(0, description="Estimates so far.")
    next_index: int = Field(-1, description="The frame the server expects next; -1 once finished.")
    acknowledged: int
    durable: int
    keep_from: int
    dropped: int = 0
    refused: int = 0
    queued: int = 0
    latency_ms: float | None = Field(None, description="Recent median, from arrival to estimate.")
    phase: int | None = None
    confidence: float | None = None
    segments: list[Run] = Field([], description="Phase, from second, to second.")


class SessionList(BaseModel):
    """Open sessions, and finished ones, newest first."""

    live: list[SessionView]
    finished: list[SessionView]
    state: State


class Estimates(BaseModel):
    """Estimates by column: a list per field. The large columns are null unless they are requested."""

    session: str
    row: list[int]
    frame: list[int]
    frame_index: list[int]
    tick: list[int]
    time_s: list[float]
    phase: list[int]
    confidence: list[float]
    probabilities: list[tuple[float, ...]] | None
    intensity: list[float | None]
    quality: list[Quality]
    fed: list[Fed]
    counts: list[dict[str, int]] | None = Field(description="Counters of the session that are not zero.")
    is_complete: bool = Field(description="False when there are more than fit into one answer.")


_LARGE = ("probabilities", "counts")


class About(BaseModel):
    """The server."""

    version: str
    model: str
    engine: str
    fingerprint: str
    phases: list[str]
    fps: float
    rate: str = Field(description="The same as an exact fraction.")
    sampling: Literal["auto", "index", "time"] = Field(description="How a recording is sampled.")
    state: State
    reason: str | None = Field(description="Why it is degraded.")
    demo: bool
    demo_model_is_trained: bool | None
    sources: list[str]
    role: Role
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


Responses = dict[int | str, dict[str, object]]


def _problems(**texts: str) -> Responses:
    return {int(code[1:]): {"model": Problem, "description": text} for code, text in texts.items()}


def _text(media_type: str) -> Responses:
    return {200: {"content": {media_type: {"schema": {"type": "string"}}}}}


GUARDED = _problems(
    _400="Not a request of this server.",
    _401="No or unknown token.",
    _403="Not in this role.",
    _413="Body too large.",
    _422="The request does not fit its description.",
    _429="Too many requests.",
)
MISSING: Responses = {**GUARDED, **_problems(_404="No such session.")}
TAKEN: Responses = {**GUARDED, **_problems(_409="Not possible now; the text has the reason.")}
CSV: Responses = {**MISSING, **_text("text/csv")}
EVENTS: Responses = {**MISSING, **TAKEN, **_text("text/event-stream")}


def view_info(info: SessionInfo, **values: object) -> SessionView:
    """A session as it was created, and the values of now."""
    return SessionView(**{**vars(info), "fps": Fraction(info.fps), **values})


def view_room(room: Room) -> SessionView:
    """A session that is open."""
    with room.lock:
        latency, last = sorted(room.latency_ms), room.last
        return view_info(
            room.info,
            life=room.life.value,
            note=room.note,
            rows=room.n_rows,
            next_index=room.next_index,
            **vars(room.marks),
            dropped=room.n_dropped,
            refused=room.n_refused,
            queued=len(room.queue),
            latency_ms=latency[len(latency) // 2] if latency else None,
            phase=None if last is None else last.phase,
            confidence=None if last is None else last.confidence,
            segments=room.segments,
        )


def view_stored(stored: Stored) -> SessionView:
    """A session on record."""
    durable, ending = stored.durable, stored.ending
    values: dict[str, object] = {"acknowledged": durable, "durable": durable, "keep_from": durable + 1}
    if ending is None:
        return view_info(stored.info, life=Life.WAITING.value, **values)
    phase = ending.segments[-1][0] if ending.segments else None
    return view_info(stored.info, life=Life.FINISHED.value, phase=phase, **vars(ending), **values)


def view_rows(session: str, rows: list[ServedEstimate], is_full: bool, is_complete: bool) -> Estimates:
    """Estimates by column: a fifth of the size of one object each."""
    columns: dict[str, list[object] | None] = {
        **to_columns(rows),
        **({} if is_full else dict.fromkeys(_LARGE)),
    }
    confidence = [row.confidence for row in rows]
    return Estimates(session=session, confidence=confidence, is_complete=is_complete, **columns)


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
            found = f"the token of {caller.name} is a {caller.role}"
            raise HTTPException(403, f"this needs the role {role}; {found}")
        return caller

    return check


Server = Annotated[Service, Depends(service_of)]
Viewer = Annotated[Caller, Depends(needs("viewer"))]
Operator = Annotated[Caller, Depends(needs("operator"))]
Admin = Annotated[Caller, Depends(needs("admin"))]


def _find(service: Service, session: str) -> Room | Stored:
    """A session that is open, or on record."""
    found = service.worker.rooms.get(session) or service.session(session)
    if found is None:
        raise HTTPException(404, "there is no such session")
    return found


def _view(found: Room | Stored) -> SessionView:
    return view_room(found) if isinstance(found, Room) else view_stored(found)


@public.get("/healthz", responses=GUARDED)
def healthz() -> Health:
    """Whether the process answers."""
    return Health(status="ok")


@public.get("/readyz", responses={**GUARDED, 503: {"model": Health, "description": "Not ready."}})
def readyz(service: Server, response: Response) -> Health:
    """Whether frames are recognized. A record that cannot be written degrades the server; recognition
    continues."""
    if service.is_ready and service.worker.is_alive:
        return Health(status=service.state)
    response.status_code = 503
    return Health(status="failed" if service.is_ready else "starting")


@public.get("/metrics", responses={**GUARDED, **_text("text/plain")}, response_class=Response)
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
        state=service.state,
        reason=service.writer.failure,
        demo=config.demo,
        demo_model_is_trained=service.demo_model_is_trained,
        sources=sorted(config.sources),
        role=caller.role,
        metadata_keys=list(get_args(MetadataKey)),
        frame_bytes=config.limits.frame_bytes,
        frame_pixels=config.limits.frame_pixels,
        research_only="Research software, not a medical device.",
    )


@api.post("/sessions", status_code=201, responses=TAKEN)
def create(body: CreateSession, service: Server, caller: Operator) -> SessionView:
    """Start a session. Push its frames over the WebSocket /v1/sessions/{session}/frames."""
    if body.model not in (None, service.model_name, service.engine.fingerprint):
        raise HTTPException(409, f"this server runs the model {service.model_name}")
    if body.source is not None and body.source not in service.config.sources:
        raise HTTPException(409, "there is no source of that name in the server's settings")
    return _create(service, body, body.source)


@api.post("/demo", status_code=201, responses=TAKEN)
def demo(service: Server, caller: Operator) -> SessionView:
    """Start a session of a synthetic procedure, where the settings offer it."""
    if not service.config.demo:
        raise HTTPException(409, "this server offers no demo; start it with --demo")
    name = "Demo " + time.strftime("%H:%M:%S")
    return _create(
        service, CreateSession(name=name, when_behind="wait", metadata={"procedure": "synthetic"}), DEMO
    )


def _create(service: Service, body: CreateSession, source: str | None) -> SessionView:
    metadata = {str(key): text for key, text in body.metadata.items()}
    try:
        return view_room(service.create(body.name, body.fps, body.when_behind, metadata, source))
    except SessionError:
        raise HTTPException(409, "all places are taken; finish a session first") from None


@api.get("/sessions", responses=GUARDED)
def sessions(
    service: Server,
    caller: Viewer,
    limit: Annotated[int, Query(ge=1, le=200, description="Finished sessions to list.")] = 50,
    before_s: Annotated[float | None, Query(ge=0, le=1e11, description="Only those created before.")] = None,
) -> SessionList:
    """Every open session, and the newest finished ones."""
    rooms = sorted(service.worker.rooms.values(), key=lambda room: room.info.created_s)
    finished = service.finished(limit, before_s)
    live, past = [view_room(room) for room in rooms], [view_stored(stored) for stored in finished]
    return SessionList(live=live, finished=past, state=service.state)


@api.get("/sessions/{session}", responses=MISSING)
def inspect(session: SessionId, service: Server, caller: Viewer) -> SessionView:
    """One session."""
    return _view(_find(service, session))


@api.post("/sessions/{session}/finish", responses=MISSING)
def finish(session: SessionId, service: Server, caller: Operator) -> SessionView:
    """Accept no more frames, process those in the queue, close the record. A second call changes nothing."""
    found = _find(service, session)
    if isinstance(found, Room):
        service.worker.finish(found)
        end = time.monotonic() + 20
        while found.life is not Life.FINISHED and time.monotonic() < end:
            time.sleep(0.005)
        service.writer.flush(2.0)
        found = _find(service, session)
    return _view(found)


@api.delete("/sessions/{session}", status_code=204, responses=MISSING)
def delete(session: SessionId, service: Server, caller: Admin) -> Response:
    """Delete a session and its record."""
    _find(service, session)
    service.delete(session)
    return Response(status_code=204)


@api.get("/sessions/{session}/estimates", responses=MISSING)
def estimates(
    session: SessionId,
    service: Server,
    caller: Viewer,
    after: Annotated[int, Query(ge=-1, le=2**53, description="Only rows after this one.")] = -1,
    limit: Annotated[int, Query(ge=1, le=PAGE_ROWS)] = PAGE_ROWS,
    probabilities: Annotated[bool, Query(description="With probabilities and counters.")] = False,
) -> Estimates:
    """Estimates by column, including those that are not in the database yet."""
    _find(service, session)
    rows = service.rows(session, after, limit + 1)
    return view_rows(session, rows[:limit], probabilities, is_complete=len(rows) <= limit)


@api.get("/sessions/{session}/export.csv", responses=CSV, response_class=Response)
def export_csv(session: SessionId, service: Server, caller: Viewer) -> Response:
    """The record as a prediction file, which `surgicalmamba evaluate` reads."""
    phases, rows = _find(service, session).info.phases, service.rows(session)
    prediction = to_prediction([row.row for row in rows], rows, len(phases))
    text = "".join(prediction_lines(prediction, PhaseVocabulary("session", phases)))
    name = {"Content-Disposition": f'attachment; filename="{session}.csv"'}
    return Response(text, media_type="text/csv", headers=name)


@api.get("/sessions/{session}/export.json", responses=MISSING)
def export_json(session: SessionId, service: Server, caller: Viewer) -> Estimates:
    """The whole record by column, with probabilities."""
    _find(service, session)
    return view_rows(session, service.rows(session), is_full=True, is_complete=True)


@api.get("/sessions/{session}/events", responses=EVENTS, response_class=StreamingResponse)
def session_events(
    session: SessionId,
    service: Server,
    caller: Viewer,
    after: Annotated[int, Query(ge=-1, le=2**53, description="Start with the rows after this one.")] = -1,
) -> StreamingResponse:
    """Server-sent events: every estimate of a session after a row, then each new one."""
    _find(service, session)
    return _events(service, session, after)


@api.get("/events", responses=EVENTS, response_class=StreamingResponse)
def all_events(service: Server, caller: Viewer) -> StreamingResponse:
    """Server-sent events: each new estimate of every session, and sessions that start and end."""
    return _events(service, None, -1)


def _events(service: Service, session: str | None, after: int) -> StreamingResponse:
    if len(service.hub) >= service.config.limits.viewers + service.config.limits.sessions:
        raise HTTPException(409, "too many live views are open")
    text, unbuffered = event_stream(service, session, after), {"X-Accel-Buffering": "no"}
    return StreamingResponse(text, media_type="text/event-stream", headers=unbuffered)


@api.get("/openapi.json", responses=GUARDED, response_class=Response)
def openapi(request: Request, caller: Viewer) -> Response:
    """This description."""
    return Response(json.dumps(request.app.openapi()), media_type="application/json")
