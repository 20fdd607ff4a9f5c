"""A source streamed to a server: what `surgicalmamba stream --server` does."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from surgicalmamba.config import PreprocessConfig
from surgicalmamba.data.records import Gap
from surgicalmamba.serve.client import Client, RemoteEstimate, RemoteSession
from surgicalmamba.stream.sources import open_pictures


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
    sampling = str(about["sampling"])
    pictures = open_pictures(source, PreprocessConfig(fps=str(rate), sampling=sampling), rate, image_fps)
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
