"""Who listens to what. Lives on the event loop; other threads hand messages over with `send`."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

QUEUE = 2048


@dataclass(eq=False)
class Listener:
    """One connection that wants to hear. A listener that reads too slowly loses the connection, never the server its memory."""

    session: str | None
    """None hears every session."""
    is_client: bool
    """Clients push frames and hear every step; viewers hear what is new."""
    queue: asyncio.Queue[str | None] = field(default_factory=lambda: asyncio.Queue(QUEUE))
    is_lost: bool = False

    def put(self, text: str | None) -> None:
        """None ends the connection."""
        try:
            self.queue.put_nowait(text)
        except asyncio.QueueFull:
            self.is_lost = True


@dataclass(frozen=True)
class News:
    """A message as text, and who may hear it."""

    session: str
    text: str
    audience: Literal["all", "clients", "viewers"] = "all"


class Hub:
    """Owns the listeners for as long as the server runs."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_closed = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __len__(self) -> int:
        return len(self._listeners)

    def add(self, session: str | None, is_client: bool = False) -> Listener:
        listener = Listener(session, is_client)
        self._listeners.add(listener)
        return listener

    def remove(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def send(self, news: Iterable[News]) -> None:
        """From any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._publish, list(news))

    def _publish(self, news: list[News]) -> None:
        for item in news:
            for listener in self._listeners:
                own = "clients" if listener.is_client else "viewers"
                if listener.session in (None, item.session) and item.audience in ("all", own):
                    listener.put(item.text)

    def close(self) -> None:
        """End every connection that listens."""
        self.is_closed = True
        for listener in self._listeners:
            listener.put(None)
