"""The REST interface. Handlers translate; the service thinks."""

import json
import time
from collections.abc import Callable
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse

from surgicalmamba.data.vocabulary import PhaseVocabulary
from surgicalmamba.errors import SessionError
from surgicalmamba.eval.predictions import VideoPrediction, prediction_lines
from surgicalmamba.serve.auth import Caller, Gate
from surgicalmamba.serve.config import Role
from surgicalmamba.serve.events import event_stream
from surgicalmamba.serve.records import Row
from surgicalmamba.serve.rooms import Life, Room
from surgicalmamba.serve.schema import (
    METADATA_KEYS,
    About,
    CreateSession,
    Estimates,
    Health,
    Problem,
    SessionId,
    SessionList,
    SessionView,
    view_room,
    view_rows,
    view_stored,
)
from surgicalmamba.serve.service import Service
from surgicalmamba.serve.sources import DEMO
from surgicalmamba.version import __version__

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
