"""What every request passes before a handler sees it: host, origin, rate, size; and the headers every answer carries."""

import hashlib
import hmac
import os
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surgicalmamba.errors import ConfigError
from surgicalmamba.server.config import Role, ServeConfig, TokenConfig
from surgicalmamba.server.metrics import Metrics

# Who may do what: bearer tokens, compared by their hashes in constant time.


ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
"""Each may do what the ones before it may."""
ENVIRONMENT = "SURGICALMAMBA_TOKENS"


@dataclass(frozen=True)
class Caller:
    """Who asks."""

    name: str
    role: Role

    def may(self, needed: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(needed)


class Gate:
    """Tells who a bearer token belongs to. Without tokens everybody is admin, which the config allows on loopback only."""

    def __init__(self, tokens: tuple[TokenConfig, ...]) -> None:
        self.tokens = tokens

    @property
    def is_open(self) -> bool:
        return not self.tokens

    def caller(self, authorization: str | None) -> Caller | None:
        """Who sends this Authorization header; None for nobody known."""
        if self.is_open:
            return Caller("local", "admin")
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        given = hash_token(token.strip())
        found: Caller | None = None
        for known in self.tokens:  # every hash is compared, so that the time taken says nothing
            if hmac.compare_digest(given, known.sha256):
                found = Caller(known.name, known.role)
        return found


def hash_token(token: str) -> str:
    """SHA-256 of a token. Tokens are long and random, so a slow password hash would add nothing."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def new_token() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(32)


def with_environment(config: ServeConfig | dict[str, object]) -> dict[str, object]:
    """Settings with the tokens of the environment added: SURGICALMAMBA_TOKENS=viewer:TOKEN,operator:TOKEN."""
    values = dict(config)
    entries = [entry for entry in os.environ.get(ENVIRONMENT, "").split(",") if entry.strip()]
    tokens = []
    for number, entry in enumerate(entries):
        role, colon, token = entry.strip().partition(":")
        if role not in ROLES or not colon or len(token) < 16:
            wanted = f"ROLE:TOKEN with a role of {', '.join(ROLES)} and a token of 16 characters or more"
            raise ConfigError(f"{ENVIRONMENT}: entry {number + 1} is not {wanted}.")
        tokens.append({"name": f"environment {number + 1}", "role": role, "sha256": hash_token(token)})
    if tokens:
        given = values.get("tokens") or ()
        values["tokens"] = [*(given if isinstance(given, (list, tuple)) else ()), *tokens]
    return values


_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})
_MOST_ADDRESSES = 4096
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "manifest-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Rates:
    """A bucket of requests per address, filled at a steady rate. The longest silent addresses are forgotten first."""

    def __init__(self, per_s: float) -> None:
        self._per_s, self._burst = per_s, 2 * per_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, address: str, now_s: float) -> bool:
        level, then_s = self._buckets.pop(address, (self._burst, now_s))
        level = min(self._burst, level + (now_s - then_s) * self._per_s)
        allowed = level >= 1
        self._buckets[address] = (level - 1 if allowed else level, now_s)
        if len(self._buckets) > _MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        return allowed


class TooLargeError(Exception):
    """A body longer than allowed."""


class Guard:
    """ASGI middleware, outermost."""

    def __init__(self, app: ASGIApp, config: ServeConfig, metrics: Metrics) -> None:
        self._app, self._config, self._metrics = app, config, metrics
        self._rates = Rates(config.limits.requests_per_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        refusal = self._refusal(scope)
        if refusal is not None:
            status, text = refusal
            self._metrics.requests.add(status=str(status))
            return await self._answer(status, text, scope, receive, send)
        if scope["type"] == "websocket":
            return await self._app(scope, receive, send)
        return await self._guarded(scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the body, add the headers."""
        limit, read, has_begun = self._config.limits.body_bytes, 0, False

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit:
                raise TooLargeError
            return message

        async def headed(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                self._metrics.requests.add(status=str(message["status"]))
                _add_headers(message)
            await send(message)

        try:
            await self._app(scope, counted, headed)
        except TooLargeError:
            if not has_begun:
                await self._answer(413, f"the body is larger than {limit} bytes", scope, receive, send)

    async def _answer(self, status: int, text: str, scope: Scope, receive: Receive, send: Send) -> None:
        async def headed(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                _add_headers(message)
            await send(message)

        await JSONResponse({"detail": text}, status)(scope, receive, headed)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        address = scope["client"][0] if scope.get("client") else ""
        if not self._rates.allows(address, time.monotonic()):
            return 429, "too many requests; slow down"
        if not self._config.tokens and _name(host) not in _LOOPBACK_NAMES:
            # Without tokens anybody on this machine is admin. A web page elsewhere must not become "this machine" by a DNS trick.
            return 400, "this server answers to localhost only; set up tokens to use another name"
        origin = headers.get("origin")
        is_safe = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if origin is not None and not is_safe and not self._is_known(origin, host):
            return 403, "this origin may not connect; list it under origins in the server's settings"
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._config.limits.body_bytes:
            return 413, f"the body is larger than {self._config.limits.body_bytes} bytes"
        return None

    def _is_known(self, origin: str, host: str) -> bool:
        if origin in self._config.origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc == host


def _name(host: str) -> str:
    """The host without its port."""
    return host.rsplit(":", 1)[0] if not host.endswith("]") and ":" in host else host


def _add_headers(message: Message) -> None:
    headers = MutableHeaders(scope=message)
    for key, value in HEADERS.items():
        headers[key] = value

