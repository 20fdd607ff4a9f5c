"""Settings of the server, as a section of a YAML file."""

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from surgicalmamba.config import Positive, Section

Role = Literal["viewer", "operator", "admin"]
AboveZero = Annotated[float, Field(gt=0)]
TokenName = Annotated[str, Field(pattern=r"^[\w .-]{1,64}$")]
SourceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class TokenConfig(Section):
    """One bearer token. Only its hash is stored; `surgicalmamba serve --new-token viewer` makes both."""

    name: TokenName = Field(description="Whose token it is; appears in the log.")
    role: Role = Field(
        description="viewer reads; operator also creates, pushes and finishes; admin also deletes."
    )
    sha256: Sha256 = Field(description="SHA-256 of the token, in hexadecimal digits.")


class LimitsConfig(Section):
    """Limits for the clients."""

    frame_bytes: Positive = Field(8 * 2**20, description="Largest encoded picture, bytes.")
    frame_pixels: Positive = Field(
        3840 * 2160, description="Largest picture, pixels; checked before decoding."
    )
    sessions: Positive = Field(64, description="Sessions that are not finished, at once.")
    queue_frames: Positive = Field(8, description="Frames of one session that wait for the recognizer.")
    frames_per_s: AboveZero = Field(
        60.0, description="Frames per second of a connection; faster ones are slowed."
    )
    requests_per_s: AboveZero = Field(
        50.0, description="Requests per second of an address; bursts of twice that."
    )
    body_bytes: Positive = Field(64 * 2**10, description="Largest request body, bytes.")
    connections: Positive = Field(512, description="Open connections of all kinds.")
    viewers: Positive = Field(128, description="Live views (event streams) at once.")
    malformed: Positive = Field(100, description="Malformed messages after which a connection is closed.")
    idle_s: AboveZero = Field(120.0, description="A frame connection silent for so long is closed, seconds.")
    header_s: AboveZero = Field(10.0, description="Timeout of a connection for its first request, seconds.")
    waiting_rows: Positive = Field(
        500_000, description="Estimates in memory while the database is not writable."
    )


class ServeConfig(Section):
    """`surgicalmamba serve`."""

    host: str = Field("127.0.0.1", description="Address to listen on. Any other than loopback needs tokens.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8571, description="Port; 0 takes a free one.")
    data: Path = Field(Path("surgicalmamba-data"), description="Folder of the database.")
    model: str | None = Field(None, description="Checkpoint folder or Hub id; null is the demo model.")
    engine: str = Field("eager", description="An engine by name. Records are exact on one engine only.")
    lanes: Annotated[int, Field(ge=0)] = Field(
        8,
        description="Streams in a batch, always of this size, so that no bit of a record depends on other "
        "streams. 0: any size; faster on a GPU, equal to about 1e-6.",
    )
    tokens: tuple[TokenConfig, ...] = Field((), description="Without any: loopback only, everybody is admin.")
    origins: tuple[str, ...] = Field(
        (), description="Other web origins that may connect: https://or.example.org"
    )
    sources: dict[SourceName, str] = Field({}, description="Files and streams the server may read, by name.")
    limits: LimitsConfig = Field(LimitsConfig(), description="Limits for the clients.")
    retention_days: AboveZero | None = Field(
        None, description="Finished sessions older than this are deleted."
    )
    abandon_h: AboveZero = Field(24.0, description="A session without frames for so long is finished, hours.")
    commit_ms: Annotated[int, Field(ge=1, le=10_000)] = Field(200, description="Time between two commits.")
    snapshot_frames: Positive | None = Field(
        None, description="Frames between snapshots; null: a slow chunk, or 64."
    )
    keep_images: bool = Field(False, description="Store the received pictures in the data folder.")
    demo: bool = Field(False, description="Offer a synthetic procedure on the page.")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @model_validator(mode="after")
    def _check(self) -> "ServeConfig":
        if not self.tokens and not self.is_loopback:
            remedy = "add one (surgicalmamba serve --new-token operator makes it), or listen on 127.0.0.1."
            raise ValueError(
                f"host={self.host} can be reached from other machines but there are no tokens; {remedy}"
            )
        if len({token.sha256 for token in self.tokens}) < len(self.tokens):
            raise ValueError("two tokens are the same; each user needs a token of their own.")
        return self
