"""Server-sent events for viewers: first what is on record, then what comes. A viewer never touches the recognizer."""

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi.concurrency import run_in_threadpool

from surgicalmamba.serve.messages import VERSION
from surgicalmamba.serve.records import Row
from surgicalmamba.serve.service import Service

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
