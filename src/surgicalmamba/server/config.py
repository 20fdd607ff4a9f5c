"""Settings of the server, as a section of a YAML file."""

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from surgicalmamba.config import Positive, Section

Role = Literal["viewer", "operator", "admin"]
Seconds = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(gt=0)]
SourceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class TokenConfig(Section):
    """One bearer token. Only its hash is stored; `surgicalmamba serve --new-token viewer` makes both."""

    name: Annotated[str, Field(pattern=r"^[\w .-]{1,64}$")] = Field(
        description="Whose token it is; appears in the log."
    )
    role: Role = Field(
        description="viewer reads; operator also creates, pushes and finishes; admin also deletes."
    )
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = Field(
        description="SHA-256 of the token, in hexadecimal digits."
    )


class LimitsConfig(Section):
    """What the network may ask of the server."""

    frame_bytes: Positive = Field(8 * 2**20, description="Largest encoded picture, bytes.")
    frame_pixels: Positive = Field(
        3840 * 2160, description="Largest picture, pixels; read from the header before decoding."
    )
    sessions: Positive = Field(64, description="Sessions that are not finished, at once.")
    queue_frames: Positive = Field(8, description="Frames of one session that wait for the recognizer.")
    frames_per_s: Rate = Field(
        60.0, description="Frames per second read from one connection; faster ones are slowed."
    )
    requests_per_s: Rate = Field(
        50.0, description="Requests per second of one address, with a burst of twice that."
    )
    body_bytes: Positive = Field(64 * 2**10, description="Largest request body, bytes.")
    connections: Positive = Field(512, description="Open connections of all kinds.")
    viewers: Positive = Field(128, description="Live views (event streams) at once.")
    malformed: Positive = Field(100, description="Malformed messages after which a connection is closed.")
    idle_s: Seconds = Field(
        120.0, description="A frame connection without a message for so long is closed; the session stays."
    )
    header_s: Seconds = Field(
        10.0, description="A connection that has not sent a whole request by then is closed."
    )
    waiting_rows: Positive = Field(
        500_000, description="Estimates kept in memory while the database cannot be written."
    )


class ServeConfig(Section):
    """`surgicalmamba serve`."""

    host: str = Field("127.0.0.1", description="Address to listen on. Any other than loopback needs tokens.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        8571, description="Port to listen on; 0 takes a free one."
    )
    data: Path = Field(Path("surgicalmamba-data"), description="Folder of the database.")
    model: str | None = Field(None, description="Checkpoint folder or Hub id; null is the demo model.")
    engine: str = Field(
        "eager",
        description="An engine by name. A later version may choose another for auto, and a record computed "
        "again on that one differs in its last digits.",
    )
    lanes: Annotated[int, Field(ge=0)] = Field(
        8,
        description="Streams in one batch, always of this size, so that no bit of a record depends on the "
        "other streams. 0 batches the frames that are there: faster on a GPU, equal to about 1e-6.",
    )
    tokens: tuple[TokenConfig, ...] = Field(
        (), description="Who may do what. Without any, loopback only, and everybody is admin."
    )
    origins: tuple[str, ...] = Field(
        (), description="Other web origins whose pages may connect, such as https://or.example.org."
    )
    sources: dict[SourceName, str] = Field(
        {}, description="Files and streams the server may read itself, by name."
    )
    limits: LimitsConfig = Field(LimitsConfig(), description="What the network may ask of the server.")
    retention_days: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Finished sessions older than this are deleted."
    )
    abandon_h: Annotated[float, Field(gt=0)] = Field(
        24.0, description="A session without frames for so long is finished, hours."
    )
    commit_ms: Annotated[int, Field(ge=1, le=10_000)] = Field(
        200, description="Estimates of all sessions are written this often."
    )
    snapshot_frames: Positive | None = Field(
        None, description="Frames between two snapshots; null: the slow chunk, 64 for a peer."
    )
    keep_images: bool = Field(False, description="Store the received pictures in the data folder.")
    demo: bool = Field(False, description="Offer a synthetic procedure at the press of a button.")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @model_validator(mode="after")
    def _check(self) -> "ServeConfig":
        if not self.tokens and not self.is_loopback:
            raise ValueError(
                f"host={self.host} can be reached from other machines without a token; add one under tokens "
                "(surgicalmamba serve --new-token operator makes it), or listen on 127.0.0.1."
            )
        if len({token.sha256 for token in self.tokens}) < len(self.tokens):
            raise ValueError("two tokens are the same; give each its own.")
        return self
