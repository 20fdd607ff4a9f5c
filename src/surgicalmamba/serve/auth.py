"""Who may do what: bearer tokens, compared by their hashes in constant time."""

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass

from surgicalmamba.errors import ConfigError
from surgicalmamba.serve.config import Role, ServeConfig, TokenConfig

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
