"""A source streamed to a server: what `surgicalmamba stream --server` does."""

import json
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.pictures import encode_jpeg
from surgicalmamba.errors import ConfigError, ServerError
from surgicalmamba.server.wire import VERSION, Reason, pack_frame

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection
from collections.abc import Callable
from fractions import Fraction

from surgicalmamba.data.records import Gap
from surgicalmamba.live.sources import open_source

# A client that survives: it keeps the frames that the server may need again, and sends them again after a lost connection.
#
# client = surgicalmamba.Client("http://127.0.0.1:8571", token="...")
# with client.create("Room 1") as remote:
#     for frame_rgb, time_s in camera:
#         for estimate in remote.push(frame_rgb, time_s):
#             print(estimate.time_s, estimate.name)


Json = Mapping[str, object]
_IN_FLIGHT = 32
"""Frames sent and not acknowledged after which `push` waits for the server."""
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class RemoteEstimate:
    """An estimate of the server. `row` counts the session's estimates, `frame` is the pushed frame that led to it."""

    row: int
    frame: int
    time_s: float
    phase: int
    name: str
    probabilities: tuple[float, ...]
    intensity: float | None
    quality: str


class Client:
    """A server, by its address. `patience_s` is how long a call keeps trying when the server is away."""

    def __init__(self, url: str, token: str | None = None, patience_s: float = 120.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"{url!r} is not the address of a server; give one such as http://127.0.0.1:8571.")
        self.url, self.patience_s = f"{parts.scheme}://{parts.netloc}", patience_s
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def request(self, method: str, path: str, body: Json | None = None) -> dict[str, object]:
        """One REST call; waits for a server that is away. Raises ServerError with what the server said."""
        data = None if body is None else json.dumps(body).encode()
        headers = {**self.headers, "Content-Type": "application/json"}
        for _ in self.attempts(f"{method} {path}"):
            try:
                with urlopen(Request(self.url + path, data, headers, method=method), timeout=_TIMEOUT_S) as answer:
                    content = answer.read()
                return json.loads(content) if content else {}
            except HTTPError as error:
                if error.code not in (429, 503):
                    raise ServerError(f"{self.url} refused {method} {path}: {error.code}, {_detail(error.read())}") from None
            except (URLError, OSError):
                pass
        raise AssertionError("attempts end with an error")

    def attempts(self, what: str) -> Iterator[int]:
        """Numbers with growing pauses in between, until patience ends in a ServerError."""
        end_s, pause_s, number = time.monotonic() + self.patience_s, 0.05, 0
        while True:
            yield number
            number += 1
            if time.monotonic() + pause_s > end_s:
                raise ServerError(f"{self.url} did not answer {what} for {self.patience_s:g} s; is the server running?")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    def create(
        self,
        name: str,
        fps: float | None = None,
        when_behind: Literal["wait", "drop"] = "wait",
        metadata: Mapping[str, str] | None = None,
    ) -> "RemoteSession":
        """Begin a session."""
        body = {"name": name, "fps": fps, "when_behind": when_behind, "metadata": dict(metadata or {})}
        return RemoteSession(self, str(self.request("POST", "/v1/sessions", body)["id"]))

    def open(self, session: str, can_resend: bool = False) -> "RemoteSession":
        """Go on with a session. After a crash the server may want frames again: a caller who has them says `can_resend` and pushes from
        `next_index` on; otherwise the record stands as it is, and the recognizer goes on without having seen them."""
        self.request("GET", f"/v1/sessions/{session}")
        remote = RemoteSession(self, session)
        if not can_resend:
            remote.skip()
        return remote


class RemoteSession:
    """One session on a server. Frames count from 0 in the order they are pushed; estimates come once each and in order."""

    def __init__(self, client: Client, session: str) -> None:
        self._client, self.id = client, session
        self._socket: ClientConnection | None = None
        self._open = ExitStack()  # closes the connection
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._sent = -1
        """The last frame sent over this connection."""
        self._next = 0
        self._last_row = -1
        self._ready: list[RemoteEstimate] = []
        self.acknowledged = self.durable = -1
        self.dropped = 0
        self.state = "ok"
        self.reconnects = 0
        self.refused: list[tuple[int | None, str, str]] = []
        """Frames that were not accepted: index, reason, text."""
        self.phases: tuple[str, ...] = ()
        self._connect()
        self._next = self._sent + 1  # of a session that is gone on with: what the server expects

    def __enter__(self) -> "RemoteSession":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.finish()
        self.close()

    @property
    def next_index(self) -> int:
        """The number of the next frame."""
        return self._next

    def push(self, frame: NDArray[np.uint8] | bytes, time_s: float | None = None) -> list[RemoteEstimate]:
        """Send a picture (h, w, 3) or the bytes of a JPEG or PNG file; returns the estimates that have come in meanwhile."""
        data = frame if isinstance(frame, bytes) else encode_jpeg(frame)
        self._kept[self._next] = pack_frame(self._next, time_s, data)
        self._next += 1
        self._send_what_is_due()
        while self._next - 1 - self.acknowledged > _IN_FLIGHT:
            self._receive(_TIMEOUT_S)
        while self._receive(0):
            pass
        return self._take_ready()

    def listen(self, timeout_s: float) -> list[RemoteEstimate]:
        """Wait a moment for news without sending anything; returns the estimates that came."""
        if self._receive(timeout_s, is_due=False):
            while self._receive(0):
                pass
        return self._take_ready()

    def skip(self) -> None:
        """Tell the server that nothing before the next frame can be sent again."""
        assert self._socket is not None
        before, self._sent = self._sent, -2
        self._socket.send("skip")
        while self._sent == -2:  # until the server's new greeting
            if not self._receive(_TIMEOUT_S):
                self._sent = before
                return
        self._next = self._sent + 1

    def wait(self, durable: bool = True) -> list[RemoteEstimate]:
        """Until every frame pushed is acknowledged, and on record where asked for; returns the estimates that came meanwhile."""
        while (self.durable if durable else self.acknowledged) < self._next - 1:
            self._receive(_TIMEOUT_S)
        return self._take_ready()

    def finish(self) -> list[RemoteEstimate]:
        """Wait for the last estimate and end the session."""
        last = self.wait(durable=False)
        self._client.request("POST", f"/v1/sessions/{self.id}/finish")
        self.close()
        return last

    def export_csv(self) -> str:
        """The record as a prediction file."""
        request = Request(f"{self._client.url}/v1/sessions/{self.id}/export.csv", headers=self._client.headers)
        with urlopen(request, timeout=_TIMEOUT_S) as answer:
            return str(answer.read().decode("utf-8"))

    def close(self) -> None:
        """Leave; the session stays on the server."""
        self._socket = None
        self._open.close()

    def _take_ready(self) -> list[RemoteEstimate]:
        ready, self._ready = self._ready, []
        return ready

    def _connect(self) -> None:
        from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException
        from websockets.sync.client import connect

        address = f"ws{self._client.url.removeprefix('http')}/v1/sessions/{self.id}/frames"
        for _ in self._client.attempts("the frame connection"):
            try:
                made = connect(address, additional_headers=self._client.headers, open_timeout=_TIMEOUT_S, compression=None)
                self._socket = self._open.enter_context(made)
                self._read(str(self._socket.recv(_TIMEOUT_S)))
            except InvalidStatus as error:
                if error.response.status_code not in (429, 502, 503):
                    said = _detail(bytes(error.response.body or b""))
                    raise ServerError(f"{self._client.url} refused the session {self.id}: {error.response.status_code}, {said}") from None
            except (InvalidHandshake, WebSocketException, OSError):
                self.close()
            else:
                break
        self._catch_up()

    def _reconnect(self) -> None:
        self.close()
        self.reconnects += 1
        self._connect()
        self._send_what_is_due()

    def _catch_up(self) -> None:
        """Estimates that were on their way when the connection was lost."""
        path = f"/v1/sessions/{self.id}/estimates?probabilities=true&after={self._last_row}"
        found = self._client.request("GET", path)
        columns = [found[key] for key in ("row", "frame", "time_s", "phase", "probabilities", "intensity")]
        for row, frame, time_s, phase, probabilities, intensity in zip(*columns, strict=True):
            self._note(RemoteEstimate(row, frame, time_s, phase, self.phases[phase], tuple(probabilities), intensity, "ok"))

    def _send_what_is_due(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            for index, message in list(self._kept.items()):
                if index > self._sent:
                    assert self._socket is not None
                    self._socket.send(message)
                    self._sent = index
        except (ConnectionClosed, OSError):
            self._reconnect()

    def _receive(self, timeout_s: float, is_due: bool = True) -> bool:
        """Read one message. False when none came in time; a connection that is lost, or silent when news is due, is made anew."""
        from websockets.exceptions import ConnectionClosed

        assert self._socket is not None
        try:
            self._read(str(self._socket.recv(timeout_s)))
        except TimeoutError:
            if timeout_s and is_due:
                self._reconnect()
            return False
        except (ConnectionClosed, OSError):
            self._reconnect()
        return True

    def _read(self, text: str) -> None:
        message = json.loads(text)
        if message.get("v") != VERSION:
            raise ServerError(f"{self._client.url} speaks version {message.get('v')}; this client reads {VERSION}. Use matching versions.")
        self.acknowledged = max(self.acknowledged, message["acknowledged"])
        self.durable = max(self.durable, message["durable"])
        self.dropped, self.state = message["dropped"], message["state"]
        if message["type"] == "hello":
            self._greet(message)
        elif message["type"] == "estimate":
            names = ("row", "frame", "time_s", "phase", "name", "probabilities", "intensity", "quality")
            values = {name: message[name] for name in names}
            self._note(RemoteEstimate(**{**values, "probabilities": tuple(values["probabilities"])}))
        elif message["type"] == "refused":
            self._refused(message)
        while self._kept and next(iter(self._kept)) < message["keep_from"]:
            self._kept.popitem(last=False)

    def _greet(self, message: dict[str, object]) -> None:
        phases, index = message["phases"], message["next_index"]
        assert isinstance(phases, list) and isinstance(index, int)
        self.phases = tuple(phases)
        self._sent = index - 1
        self.acknowledged = min(self.acknowledged, index - 1)

    def _refused(self, message: dict[str, object]) -> None:
        reason, frame, text = str(message["reason"]), message["frame"], str(message["text"])
        if reason == Reason.DUPLICATE.value:
            return  # sent again what the server had after all
        if reason in (Reason.FINISHED.value, Reason.REPLACED.value):
            raise ServerError(f"{self._client.url}, session {self.id}: {text}")
        self.refused.append((frame if isinstance(frame, int) else None, reason, text))

    def _note(self, estimate: RemoteEstimate) -> None:
        if estimate.row > self._last_row:
            self._last_row = estimate.row
            self._ready.append(estimate)


def _detail(body: bytes) -> str:
    """The sentence in a refusal."""
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")[:200] or "no reason given"


@dataclass(frozen=True)
class RemoteSummary:
    """What a session on a server gave."""

    server: str
    session: str
    frames: int
    estimates: int
    dropped: int
    refused: int
    reconnects: int

    def text(self) -> str:
        return (
            f"session {self.session} on {self.server}: {self.frames} frames, {self.estimates} estimates, {self.dropped} dropped, "
            f"{self.refused} refused, {self.reconnects} reconnects"
        )


def stream_to_server(
    client: Client,
    source: str,
    name: str,
    fps: Fraction | None,
    image_fps: Fraction | None,
    on_estimate: Callable[[RemoteEstimate], None],
) -> tuple[RemoteSummary, RemoteSession]:
    """Push a source's pictures until it ends. A recording loses nothing; a camera keeps up, and what is late is dropped and counted."""
    about = client.request("GET", "/v1/about")
    rate = fps or Fraction(str(about["rate"]))
    sampling = cast(Literal["auto", "index", "time"], about["sampling"])
    pictures = open_source(source, sampling, rate, image_fps)
    remote = client.create(name, float(rate) if fps else None, when_behind="drop" if pictures.is_paced else "wait")
    count = 0
    with remote:
        for item in pictures.frames:
            if isinstance(item, Gap):
                continue
            for estimate in remote.push(item.rgb, None if pictures.is_sampled else item.time_s):
                count += 1
                on_estimate(estimate)
        for estimate in remote.finish():
            count += 1
            on_estimate(estimate)
    summary = RemoteSummary(client.url, remote.id, remote.next_index, count, remote.dropped, len(remote.refused), remote.reconnects)
    return summary, remote

