"""Access to the server: bearer tokens with their roles, and the guard that checks host, origin, rate and size
of every request and adds the security headers to every answer."""

import hashlib
import hmac
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surgicalmamba.errors import ConfigError
from surgicalmamba.server.config import Role, ServeConfig, TokenConfig
from surgicalmamba.server.metrics import Metrics

ROLES: tuple[Role, ...] = get_args(Role)
"""Each may do what the ones before it may."""
ENVIRONMENT = "SURGICALMAMBA_TOKENS"
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})
_MOST_ADDRESSES = 4096
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; manifest-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Caller:
    """The owner of a token."""

    name: str
    role: Role

    def may(self, needed: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(needed)


class Gate:
    """Finds the owner of a bearer token. Without tokens every caller is admin; the config allows that on
    loopback only."""

    def __init__(self, tokens: tuple[TokenConfig, ...]) -> None:
        self._tokens = tokens

    def caller(self, authorization: str | None) -> Caller | None:
        """Who sends this Authorization header; None for an unknown token."""
        if not self._tokens:
            return Caller("local", "admin")
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        digest = hash_token(token.strip())
        # Every hash is compared, in constant time, so that the duration reveals nothing.
        matches = [known for known in self._tokens if hmac.compare_digest(digest, known.sha256)]
        return Caller(matches[0].name, matches[0].role) if matches else None


def hash_token(token: str) -> str:
    """SHA-256 of a token. Tokens are long and random, so a slow password hash would add nothing."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def new_token() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(32)


def with_environment(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings with the tokens of the environment: SURGICALMAMBA_TOKENS=viewer:TOKEN,operator:TOKEN."""
    entries = [entry.strip() for entry in os.environ.get(ENVIRONMENT, "").split(",") if entry.strip()]
    tokens: list[object] = []
    for number, entry in enumerate(entries, start=1):
        role, _, token = entry.partition(":")
        if role not in ROLES or len(token) < 16:
            form = f"ROLE:TOKEN with a role of {', '.join(ROLES)} and a token of 16 characters or more"
            raise ConfigError(f"{ENVIRONMENT}: entry {number} is not {form}.")
        tokens.append({"name": f"environment {number}", "role": role, "sha256": hash_token(token)})
    listed = settings.get("tokens") or ()
    present = list(listed) if isinstance(listed, (list, tuple)) else []
    return {**settings, "tokens": [*present, *tokens]} if tokens else dict(settings)


class Rates:
    """A token bucket per address. The addresses that were silent longest are removed first."""

    def __init__(self, per_s: float) -> None:
        self._per_s, self._burst = per_s, 2 * per_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, address: str, now_s: float) -> bool:
        level, before_s = self._buckets.pop(address, (self._burst, now_s))
        level = min(self._burst, level + (now_s - before_s) * self._per_s)
        self._buckets[address] = (level - 1 if level >= 1 else level, now_s)
        if len(self._buckets) > _MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        return level >= 1


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
        limit, n_bytes, has_begun = self._config.limits.body_bytes, 0, False

        async def counted() -> Message:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if n_bytes > limit:
                raise TooLargeError
            return message

        async def guarded(message: Message) -> None:
            nonlocal has_begun
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                has_begun = True
                self._metrics.requests.add(status=str(message["status"]))
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        status, text = self._refusal(scope) or (0, "")
        if not status and scope["type"] == "websocket":
            return await self._app(scope, receive, send)
        try:
            answer = JSONResponse({"detail": text}, status) if status else self._app
            return await answer(scope, counted, guarded)
        except TooLargeError:
            if not has_begun:
                await JSONResponse({"detail": _too_large(limit)}, 413)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers, limits = Headers(scope=scope), self._config.limits
        host = headers.get("host", "")
        address = scope["client"][0] if scope.get("client") else ""
        if not self._rates.allows(address, time.monotonic()):
            return 429, "too many requests; slow down"
        if not self._config.tokens and _without_port(host) not in _LOOPBACK_NAMES:
            # Without tokens every caller on this machine is admin: prevent DNS rebinding by a foreign page.
            return 400, "this server answers to localhost only; set up tokens to use another name"
        origin = headers.get("origin")
        is_safe = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if origin is not None and not is_safe and not self._is_known(origin, host):
            return 403, "this origin may not connect; list it under origins in the server's settings"
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > limits.body_bytes:
            return 413, _too_large(limits.body_bytes)
        return None

    def _is_known(self, origin: str, host: str) -> bool:
        if origin in self._config.origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc == host


def _too_large(limit: int) -> str:
    return f"the body is larger than {limit} bytes"


def _without_port(host: str) -> str:
    return host.rsplit(":", 1)[0] if not host.endswith("]") and ":" in host else host
