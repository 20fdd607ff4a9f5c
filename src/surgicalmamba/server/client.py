"""A client that survives lost connections: it keeps the frames that the server may need again, and resends
them.

client = surgicalmamba.Client("http://127.0.0.1:8571", token="...")
with client.create("Room 1") as remote:
    for frame_rgb, time_s in camera:
        for estimate in remote.push(frame_rgb, time_s):
            print(estimate.time_s, estimate.name)

`stream_to_server` does this for a file, a camera or a network stream: `surgicalmamba stream --server`."""

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.pictures import encode_jpeg
from surgicalmamba.data.records import Gap
from surgicalmamba.errors import ConfigError, ServerError
from surgicalmamba.live.estimate import ServedEstimate, from_columns
from surgicalmamba.live.sources import open_source
from surgicalmamba.server.wire import VERSION, Reason, pack_frame

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

_IN_FLIGHT = 32
"""Frames sent and not acknowledged after which `push` waits for the server."""
_TIMEOUT_S = 20.0


class Client:
    """A server, by its address. A call retries for `patience_s` seconds when the server does not answer."""

    def __init__(self, url: str, token: str | None = None, patience_s: float = 120.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            remedy = "use one such as http://127.0.0.1:8571."
            raise ConfigError(f"{url!r} is not the address of a server; {remedy}")
        self.url, self.patience_s = f"{parts.scheme}://{parts.netloc}", patience_s
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, object]:
        """One REST call, retried while the server is away. Raises ServerError with the server's reason."""
        answer = self.fetch(method, path, None if body is None else json.dumps(body).encode())
        return json.loads(answer) if answer else {}

    def fetch(self, method: str, path: str, data: bytes | None = None) -> bytes:
        """As `request`, with the bytes of body and answer."""
        headers = {**self.headers, "Content-Type": "application/json"}
        for _ in self.attempts(f"{method} {path}"):
            try:
                request = Request(self.url + path, data, headers, method=method)
                with urlopen(request, timeout=_TIMEOUT_S) as answer:
                    return bytes(answer.read())
            except HTTPError as error:
                if error.code not in (429, 503):
                    text = f"{error.code}, {_detail(error.read())}"
                    raise ServerError(f"{self.url} refused {method} {path}: {text}") from None
            except (URLError, OSError):
                pass
        raise AssertionError("attempts end with an error")

    def attempts(self, what: str) -> Iterator[None]:
        """Yields with growing pauses in between; raises ServerError after `patience_s`."""
        end_s, pause_s = time.monotonic() + self.patience_s, 0.05
        while True:
            yield
            if time.monotonic() + pause_s > end_s:
                text = f"did not answer {what} for {self.patience_s:g} s; is the server running?"
                raise ServerError(f"{self.url} {text}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    def create(
        self,
        name: str,
        fps: float | None = None,
        when_behind: Literal["wait", "drop"] = "wait",
        metadata: Mapping[str, str] | None = None,
    ) -> "RemoteSession":
        """Start a session."""
        body = {"name": name, "fps": fps, "when_behind": when_behind, "metadata": dict(metadata or {})}
        return RemoteSession(self, str(self.request("POST", "/v1/sessions", body)["id"]))

    def open(self, session: str, can_resend: bool = False) -> "RemoteSession":
        """Continue a session. After a crash the server may need frames again: with `can_resend` the caller
        pushes them from `next_index` on; otherwise the record stays as it is, and the model resumes without
        them."""
        self.request("GET", f"/v1/sessions/{session}")
        remote = RemoteSession(self, session)
        if not can_resend:
            remote.skip()
        return remote


class RemoteSession:
    """One session on a server. Frames count from 0 in the order they are pushed; each estimate is returned
    once, in order, also those that were made while the connection was lost."""

    def __init__(self, client: Client, session: str) -> None:
        self._client, self.id = client, session
        self._socket: ClientConnection | None = None
        self._open = ExitStack()  # closes the connection
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._sent = -1
        """The last frame sent over this connection."""
        self._next = 0
        self._last_row = -1
        self._ready: list[ServedEstimate] = []
        self.acknowledged = self.durable = -1
        self.dropped = self.reconnects = 0
        self.state = "ok"
        self.refused: list[tuple[int | None, str, str]] = []
        """Frames that were not accepted: index, reason, text."""
        self.phases: tuple[str, ...] = ()
        self._connect()
        self._next = self._sent + 1  # the frame that the server expects, also in a session that is continued

    def __enter__(self) -> "RemoteSession":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        self.close()

    @property
    def next_index(self) -> int:
        """The number of the next frame."""
        return self._next

    def push(self, frame: NDArray[np.uint8] | bytes, time_s: float | None = None) -> list[ServedEstimate]:
        """Send a picture (h, w, 3) or the bytes of a JPEG or PNG file; returns the estimates received
        meanwhile."""
        data = frame if isinstance(frame, bytes) else encode_jpeg(frame)
        self._kept[self._next] = pack_frame(self._next, time_s, data)
        self._next += 1
        self._send_kept()
        while self._next - 1 - self.acknowledged > _IN_FLIGHT:
            self._receive(_TIMEOUT_S)
        return self._take_ready()

    def listen(self, timeout_s: float) -> list[ServedEstimate]:
        """Wait for messages without sending anything; returns the estimates received."""
        self._receive(timeout_s, is_due=False)
        return self._take_ready()

    def skip(self) -> None:
        """Tell the server that no frame before the next one can be sent again."""
        assert self._socket is not None
        before, self._sent = self._sent, -2
        self._socket.send("skip")
        while self._sent == -2:  # until the server's new hello
            if not self._receive(_TIMEOUT_S):
                self._sent = before
                return
        self._next = self._sent + 1

    def wait(self, durable: bool = True) -> list[ServedEstimate]:
        """Wait until every pushed frame is acknowledged, with `durable` also in the database; returns the
        estimates received meanwhile."""
        while (self.durable if durable else self.acknowledged) < self._next - 1:
            self._receive(_TIMEOUT_S)
        return self._take_ready()

    def finish(self) -> list[ServedEstimate]:
        """Wait for the last estimate and end the session."""
        last = self.wait(durable=False)
        self._client.request("POST", f"/v1/sessions/{self.id}/finish")
        self.close()
        return last

    def export_csv(self) -> str:
        """The record as a prediction file."""
        return self._client.fetch("GET", f"/v1/sessions/{self.id}/export.csv").decode()

    def close(self) -> None:
        """Disconnect; the session stays on the server."""
        self._socket = None
        self._open.close()

    def _take_ready(self) -> list[ServedEstimate]:
        while self._socket is not None and self._receive(0):
            pass
        ready, self._ready = self._ready, []
        return ready

    def _connect(self) -> None:
        from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException
        from websockets.sync.client import connect

        url, headers = self._client.url, self._client.headers
        address = f"ws{url.removeprefix('http')}/v1/sessions/{self.id}/frames"
        for _ in self._client.attempts("the frame connection"):
            try:
                made = connect(address, additional_headers=headers, open_timeout=_TIMEOUT_S, compression=None)
                self._socket = self._open.enter_context(made)
                self._read(str(self._socket.recv(_TIMEOUT_S)))
                break
            except InvalidStatus as error:
                status, body = error.response.status_code, bytes(error.response.body or b"")
                if status not in (429, 502, 503):
                    text = f"refused the session {self.id}: {status}, {_detail(body)}"
                    raise ServerError(f"{url} {text}") from None
            except (InvalidHandshake, WebSocketException, OSError):
                self.close()
        # Estimates that were sent while the connection was lost.
        query = f"probabilities=true&after={self._last_row}"
        missed = self._client.request("GET", f"/v1/sessions/{self.id}/estimates?{query}")
        self._add(*from_columns(missed, self.phases))

    def _reconnect(self) -> None:
        self.close()
        self.reconnects += 1
        self._connect()
        self._send_kept()

    def _send_kept(self) -> None:
        """Send the frames that this connection has not sent yet."""
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
        """Read one message; False on timeout. Reconnects after a lost connection, and after a timeout when a
        message is due."""
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
            versions = f"version {message.get('v')}; this client reads {VERSION}"
            raise ServerError(f"{self._client.url} sends {versions}. Use matching versions.")
        self.acknowledged = max(self.acknowledged, message["acknowledged"])
        self.durable = max(self.durable, message["durable"])
        self.dropped, self.state = message["dropped"], message["state"]
        if message["type"] == "hello":
            self.phases = tuple(message["phases"])
            self._sent = message["next_index"] - 1
            self.acknowledged = min(self.acknowledged, self._sent)
        elif message["type"] == "estimate":
            self._add(ServedEstimate.from_dict(message))
        elif message["type"] == "refused":
            self._note_refusal(message["frame"], message["reason"], message["text"])
        while self._kept and next(iter(self._kept)) < message["keep_from"]:
            self._kept.popitem(last=False)

    def _note_refusal(self, frame: int | None, reason: str, text: str) -> None:
        if reason in (Reason.FINISHED.value, Reason.REPLACED.value):
            raise ServerError(f"{self._client.url}, session {self.id}: {text}")
        if reason != Reason.DUPLICATE.value:  # the server had a frame that was sent again
            self.refused.append((frame, reason, text))

    def _add(self, *estimates: ServedEstimate) -> None:
        for estimate in estimates:
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
    """The result of a session on a server."""

    server: str
    session: str
    frames: int
    estimates: int
    dropped: int
    refused: int
    reconnects: int

    def text(self) -> str:
        names = ("frames", "estimates", "dropped", "refused", "reconnects")
        counts = ", ".join(f"{vars(self)[name]} {name}" for name in names)
        return f"session {self.session} on {self.server}: {counts}"


def stream_to_server(
    client: Client,
    source: str,
    name: str,
    fps: Fraction | None,
    image_fps: Fraction | None,
    on_estimate: Callable[[ServedEstimate], None],
) -> tuple[RemoteSummary, RemoteSession]:
    """Push the pictures of a source until it ends. No frame of a recording is lost; frames of a camera that
    are late are dropped and counted."""
    about = client.request("GET", "/v1/about")
    rate = fps or Fraction(str(about["rate"]))
    sampling = cast(Literal["auto", "index", "time"], about["sampling"])
    pictures = open_source(source, sampling, rate, image_fps)
    remote = client.create(name, float(rate) if fps else None, "drop" if pictures.is_paced else "wait")
    n_estimates = 0

    def report(estimates: list[ServedEstimate]) -> None:
        nonlocal n_estimates
        n_estimates += len(estimates)
        for estimate in estimates:
            on_estimate(estimate)

    with remote:
        for item in pictures.frames:
            if not isinstance(item, Gap):
                report(remote.push(item.rgb, None if pictures.is_sampled else item.time_s))
        report(remote.finish())
    counts = (remote.dropped, len(remote.refused), remote.reconnects)
    return RemoteSummary(client.url, remote.id, remote.next_index, n_estimates, *counts), remote
