"""Frames over a WebSocket: one connection pushes one session, and hears what comes of it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from surgicalmamba.server.record import Row
from surgicalmamba.server.rooms import Life, Listener, Room
from surgicalmamba.server.security import Gate
from surgicalmamba.server.service import Service
from surgicalmamba.server.wire import VERSION, FrameMessage, Hello, Message, Reason, RefusalError, Refused, decode, to_json, unpack_frame

# Server-sent events for viewers: first what is on record, then what comes. A viewer never touches the recognizer.


HEARTBEAT_S = 5.0
PAST_ROWS = 2_000
"""Estimates of the past sent as single events; a page loads a longer past by column before it listens."""


async def event_stream(service: Service, session: str | None, after: int) -> AsyncIterator[str]:
    """Text of the event stream. Rows are sent once each and in order."""
    listener = service.hub.add(session)
    last = after
    try:
        yield _event({"v": VERSION, "type": "state", "state": service.state})
        if session is not None:
            for row in await run_in_threadpool(service.rows, session, after, PAST_ROWS):
                last = row.row
                yield _event(_past(service, session, row))
        while not listener.is_lost and not service.hub.is_closed:
            try:
                text = await asyncio.wait_for(listener.queue.get(), HEARTBEAT_S)
            except asyncio.TimeoutError:
                yield _event({"v": VERSION, "type": "state", "state": service.state})
                continue
            if text is None:
                return
            if session is not None:
                message = json.loads(text)
                if message["type"] == "estimate":
                    if message["row"] <= last:
                        continue
                    last = message["row"]
            yield f"data: {text}\n\n"
    finally:
        service.hub.remove(listener)


def _event(message: dict[str, object]) -> str:
    return f"data: {json.dumps(message, separators=(',', ':'))}\n\n"


def _past(service: Service, session: str, row: Row) -> dict[str, object]:
    """A row on record, as the estimate it was. Its latency is history."""
    return {
        "v": VERSION,
        "type": "estimate",
        "session": session,
        "row": row.row,
        "frame": row.frame,
        "time_s": row.time_s,
        "phase": row.phase,
        "name": service.phases[row.phase] if row.phase < len(service.phases) else str(row.phase),
        "probabilities": row.unpacked(),
        "intensity": row.intensity,
        "quality": row.quality,
        "fed": row.fed,
        "latency_ms": None,
        "replayed": True,
    }


push = APIRouter()
_LOOK_AGAIN_S = 0.005
_TOO_BUSY = 1013


@push.websocket("/v1/sessions/{session}/frames")
async def frames(websocket: WebSocket, session: str) -> None:
    """See messages.py for what travels."""
    service: Service = websocket.app.state.service
    gate: Gate = websocket.app.state.gate
    caller = gate.caller(websocket.headers.get("authorization"))
    room = service.recognizer.rooms.get(session)
    if caller is None or not caller.may("operator"):
        status, text = (401, "a bearer token is needed") if caller is None else (403, "this needs the role operator")
        await websocket.send_denial_response(JSONResponse({"detail": text}, status))
    elif room is None or room.life not in (Life.WAITING, Life.LIVE):
        stored = await asyncio.to_thread(service.session, session)
        status, text = (404, "there is no such session") if stored is None else (409, "the session is finished")
        await websocket.send_denial_response(JSONResponse({"detail": text}, status))
    elif room.info.source is not None:
        await websocket.send_denial_response(JSONResponse({"detail": "the server reads this session's source itself"}, 409))
    else:
        await websocket.accept()
        await Connection(service, room, websocket).serve()


class Connection:
    """A client on its way. The newest connection of a session has it; an older one is told so and closed."""

    def __init__(self, service: Service, room: Room, websocket: WebSocket) -> None:
        self._service, self._room, self._socket = service, room, websocket
        self._limits = service.config.limits
        self._listener: Listener = service.hub.add(room.info.id, is_client=True)
        self._malformed = 0
        self._free_at = 0.0

    async def serve(self) -> None:
        service, key = self._service, self._room.info.id
        before = service.pushers.get(key)
        service.pushers[key] = self
        if before is not None:
            before.replace()
        with self._room.lock:
            self._room.life = Life.LIVE if self._room.life is Life.WAITING else self._room.life
        service.announce(self._room)
        reader, writer = asyncio.create_task(self._read()), asyncio.create_task(self._write())
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer):
                task.cancel()
            service.hub.remove(self._listener)
            if service.pushers.get(key) is self:
                del service.pushers[key]
                with self._room.lock:
                    self._room.life = Life.WAITING if self._room.life is Life.LIVE else self._room.life
                service.announce(self._room)
            # Last: whoever cancelled this may do so again while it waits. And `wait`: it keeps their reason, which `gather` loses.
            await asyncio.wait({reader, writer})

    def replace(self) -> None:
        """Another connection has the session now."""
        self._say(Refused(self._room.info.id, None, Reason.REPLACED.value, "another connection pushes this session now."))
        self._listener.put(None)

    def _say(self, message: Message) -> None:
        self._listener.put(to_json(message, self._room.marks, self._service.state, self._room.counters.dropped))

    async def _write(self) -> None:
        room, limits = self._room, self._limits
        hello = Hello(room.info.id, room.next_index, _fps(room), room.info.phases, limits.frame_bytes, limits.frame_pixels)
        try:
            await self._socket.send_text(to_json(hello, room.marks, self._service.state, room.counters.dropped))
            while True:
                text = await self._listener.queue.get()
                if text is None or self._listener.is_lost:
                    await self._socket.close(_TOO_BUSY if self._listener.is_lost else 1001)
                    return
                await self._socket.send_text(text)
                if '"type":"finished"' in text[:40]:
                    await self._socket.close(1000)
                    return
        except (WebSocketDisconnect, RuntimeError):
            return

    async def _read(self) -> None:
        while True:
            try:
                message = await asyncio.wait_for(self._socket.receive(), self._limits.idle_s)
            except asyncio.TimeoutError:
                self._refuse(None, RefusalError(Reason.IDLE, f"nothing came for {self._limits.idle_s:g} s; connect again to go on."))
                self._listener.put(None)
                return await asyncio.sleep(1)  # the writer closes the connection once the reason is sent
            if message["type"] == "websocket.disconnect":
                return None
            data = message.get("bytes")
            try:
                if data is None:
                    await self._command(message.get("text") or "")
                else:
                    await self._take(unpack_frame(data))
            except RefusalError as refusal:
                self._refuse(None, refusal)
                self._malformed += 1
                if self._malformed >= self._limits.malformed:
                    self._listener.put(None)
                    return await asyncio.sleep(1)

    async def _command(self, text: str) -> None:
        """The only text a client sends: `skip`, when it cannot send again what the server asks for."""
        if text != "skip":
            raise RefusalError(Reason.TEXT, "frames are binary messages; the only text is: skip")
        while not self._room.is_idle:
            await asyncio.sleep(_LOOK_AGAIN_S)
        await asyncio.to_thread(self._service.recognizer.skip, self._room)
        room = self._room
        self._say(Hello(room.info.id, room.next_index, _fps(room), room.info.phases, self._limits.frame_bytes, self._limits.frame_pixels))

    async def _take(self, frame: FrameMessage) -> None:
        room, service = self._room, self._service
        try:
            room.check(frame)
        except RefusalError as refusal:
            self._refuse(frame.index, refusal)
            self._malformed += refusal.reason is not Reason.DUPLICATE  # a client that resends may overlap
            if self._malformed >= self._limits.malformed:
                self._listener.put(None)
            return
        await self._pace()
        while room.must_wait(frame.index) or service.writer.waiting_rows > self._limits.waiting_rows:
            await asyncio.sleep(_LOOK_AGAIN_S)
        rgb = None
        try:
            rgb = await asyncio.to_thread(decode, frame, self._limits)
        except RefusalError as refusal:
            # The frame keeps its place: the recognizer is told that it was unreadable, and the next frame may come.
            self._refuse(frame.index, refusal)
        if service.config.keep_images and rgb is not None:
            await asyncio.to_thread(service.keep_picture, room.info.id, frame.index, frame.kind, frame.data)
        try:
            room.take(frame, rgb, time.time())
        except RefusalError as refusal:  # the session was finished, or taken over, meanwhile
            self._refuse(frame.index, refusal)
            return
        service.recognizer.wake()

    async def _pace(self) -> None:
        """No more frames per second than allowed: a faster sender waits, and TCP holds it back."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now - 1.0) + 1.0 / self._limits.frames_per_s
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)

    def _refuse(self, frame: int | None, refusal: RefusalError) -> None:
        self._room.counters.refused += 1
        self._service.metrics.refused.add(reason=refusal.reason.value)
        self._say(Refused(self._room.info.id, frame, refusal.reason.value, refusal.text))


def _fps(room: Room) -> float:
    from fractions import Fraction

    return float(Fraction(room.info.fps))

