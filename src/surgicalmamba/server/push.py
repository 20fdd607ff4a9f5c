"""The live connections: frames in and answers out over a WebSocket, and server-sent events for viewers."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from surgicalmamba.server import wire
from surgicalmamba.server.rooms import Life, Room
from surgicalmamba.server.security import Gate
from surgicalmamba.server.service import Service
from surgicalmamba.server.wire import Reason, RefusalError

HEARTBEAT_S = 5.0
PAST_ROWS = 2_000
"""Past estimates sent as single events; the page loads a longer past by column before it listens."""
_POLL_S = 0.005
_TOO_BUSY = 1013
push = APIRouter()


async def event_stream(service: Service, session: str | None, after: int) -> AsyncIterator[str]:
    """Text of the event stream: first the record, then what is new. Rows are sent once each and in order."""
    listener = service.hub.add(session)
    last = after
    try:
        yield _event(wire.pack(type="state", state=service.state))
        if session is not None:
            for row in await run_in_threadpool(service.rows, session, after, PAST_ROWS):
                last = row.row
                yield _event(
                    wire.pack(**wire.content(wire.Estimated(session, row, latency_ms=None, replayed=True)))
                )
        while not listener.is_lost and not service.hub.is_closed:
            try:
                text = await asyncio.wait_for(listener.queue.get(), HEARTBEAT_S)
            except asyncio.TimeoutError:
                yield _event(wire.pack(type="state", state=service.state))
                continue
            if text is None:
                return
            if session is not None:
                message = json.loads(text)
                if message["type"] == "estimate":
                    if message["row"] <= last:
                        continue
                    last = message["row"]
            yield _event(text)
    finally:
        service.hub.remove(listener)


def _event(text: str) -> str:
    return f"data: {text}\n\n"


@push.websocket("/v1/sessions/{session}/frames")
async def frames(websocket: WebSocket, session: str) -> None:
    """One connection pushes one session; wire.py describes the messages."""
    service: Service = websocket.app.state.service
    gate: Gate = websocket.app.state.gate
    caller = gate.caller(websocket.headers.get("authorization"))
    room = service.worker.rooms.get(session)
    if caller is None:
        status, text = 401, "a bearer token is needed"
    elif not caller.may("operator"):
        status, text = 403, "this needs the role operator"
    elif room is None or not room.is_open:
        stored = await asyncio.to_thread(service.session, session)
        status, text = (404, "there is no such session") if stored is None else (409, "the session has ended")
    elif room.info.source is not None:
        status, text = 409, "the server reads this session's source itself"
    else:
        await websocket.accept()
        return await Connection(service, room, websocket).serve()
    return await websocket.send_denial_response(JSONResponse({"detail": text}, status))


class Connection:
    """A connected client. The newest connection of a session pushes it; an older one is notified and
    closed."""

    def __init__(self, service: Service, room: Room, websocket: WebSocket) -> None:
        self._service, self._room, self._socket = service, room, websocket
        self._limits = service.config.limits
        self._listener = service.hub.add(room.info.id, is_client=True)
        self._malformed = 0
        self._free_at = 0.0

    async def serve(self) -> None:
        service, key = self._service, self._room.info.id
        before = service.pushers.get(key)
        service.pushers[key] = self
        if before is not None:
            before.replace()
        self._change_life(Life.WAITING, Life.LIVE)
        reader, writer = asyncio.create_task(self._read()), asyncio.create_task(self._write())
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer):
                task.cancel()
            service.hub.remove(self._listener)
            if service.pushers.get(key) is self:
                del service.pushers[key]
                self._change_life(Life.LIVE, Life.WAITING)
            # Last, because this task may be cancelled again while it waits. `wait` keeps the reason of the
            # cancellation, `gather` loses it.
            await asyncio.wait({reader, writer})

    def _change_life(self, before: Life, after: Life) -> None:
        with self._room.lock:
            self._room.life = after if self._room.life is before else self._room.life
        self._service.announce(self._room)

    def replace(self) -> None:
        """Close it: another connection pushes the session now."""
        text = "another connection pushes this session now."
        self._send(wire.Refused(self._room.info.id, None, Reason.REPLACED.value, text))
        self._listener.put(None)

    def _send(self, message: wire.Message) -> None:
        self._listener.put(self._service.text_of(self._room, message))

    def _hello(self) -> wire.Hello:
        room, limits = self._room, self._limits
        info = room.info
        return wire.Hello(
            info.id, room.next_index, room.fps, info.phases, limits.frame_bytes, limits.frame_pixels
        )

    def _refuse(self, frame: int | None, refusal: RefusalError, is_malformed: bool = True) -> None:
        """Send the reason. Too many malformed messages close the connection."""
        reason = refusal.reason.value
        self._room.n_refused += 1
        self._service.metrics.refused.add(reason=reason)
        self._send(wire.Refused(self._room.info.id, frame, reason, refusal.text))
        self._malformed += is_malformed
        if self._malformed >= self._limits.malformed:
            self._listener.put(None)

    async def _write(self) -> None:
        try:
            await self._socket.send_text(self._service.text_of(self._room, self._hello()))
            while True:
                text = await self._listener.queue.get()
                if text is None or self._listener.is_lost:
                    return await self._socket.close(_TOO_BUSY if self._listener.is_lost else 1001)
                await self._socket.send_text(text)
                if '"type":"finished"' in text[:40]:
                    return await self._socket.close(1000)
        except (WebSocketDisconnect, RuntimeError):
            return None

    async def _read(self) -> None:
        while self._malformed < self._limits.malformed:
            try:
                message = await asyncio.wait_for(self._socket.receive(), self._limits.idle_s)
            except asyncio.TimeoutError:
                text = f"no message for {self._limits.idle_s:g} s; connect again to continue."
                self._refuse(None, RefusalError(Reason.IDLE, text), is_malformed=False)
                self._listener.put(None)
                break
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            try:
                if data is None:
                    await self._command(message.get("text") or "")
                else:
                    await self._take(wire.unpack_frame(data))
            except RefusalError as refusal:
                self._refuse(None, refusal)
        await asyncio.sleep(1)  # the writer closes the connection once the reason is sent

    async def _command(self, text: str) -> None:
        """The only text a client sends: `skip`, when it cannot send again the frames that the server
        needs."""
        if text != "skip":
            raise RefusalError(Reason.TEXT, "frames are binary messages; the only text is: skip")
        while not self._room.is_idle:
            await asyncio.sleep(_POLL_S)
        await asyncio.to_thread(self._service.worker.skip, self._room)
        self._send(self._hello())

    async def _take(self, frame: wire.FrameMessage) -> None:
        room, service = self._room, self._service
        try:
            room.check(frame)
        except RefusalError as refusal:  # a client that sends frames again may overlap
            self._refuse(frame.index, refusal, is_malformed=refusal.reason is not Reason.DUPLICATE)
            return
        await self._pace()
        while room.must_wait(frame.index) or service.writer.waiting_rows > self._limits.waiting_rows:
            await asyncio.sleep(_POLL_S)
        rgb = None
        try:
            rgb = await asyncio.to_thread(wire.decode, frame, self._limits)
        except RefusalError as refusal:  # the frame keeps its place as unreadable, and the next one may come
            self._refuse(frame.index, refusal, is_malformed=False)
        if service.config.keep_images and rgb is not None:
            await asyncio.to_thread(service.keep_picture, room.info.id, frame)
        try:
            room.take(frame, rgb, time.time())
        except RefusalError as refusal:  # finished, or pushed by another connection, meanwhile
            self._refuse(frame.index, refusal, is_malformed=False)
            return
        service.worker.wake()

    async def _pace(self) -> None:
        """Read no more frames per second than allowed: a faster sender waits, held back by TCP."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now - 1.0) + 1.0 / self._limits.frames_per_s
        await asyncio.sleep(max(0.0, self._free_at - now))
