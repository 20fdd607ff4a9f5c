"""Sources that the server reads itself: files and streams from its settings, and the synthetic procedure of
the demo. A request names a source; its address is only in the settings."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from surgicalmamba.data.records import Frame, Gap
from surgicalmamba.errors import SessionError, SurgicalMambaError
from surgicalmamba.live.sources import open_source
from surgicalmamba.model.recognizer import PreprocessConfig
from surgicalmamba.server.config import ServeConfig
from surgicalmamba.server.record import SessionInfo
from surgicalmamba.server.rooms import Life, Room
from surgicalmamba.server.wire import FrameMessage
from surgicalmamba.server.worker import Worker

log = logging.getLogger("surgicalmamba.server")
DEMO = "demo"
DEMO_FRAMES_PER_S = 5
"""The demo runs faster than real time: a procedure takes about a minute."""


@dataclass(frozen=True)
class ServerSource:
    """A source's pictures. `read(first)` yields them from number `first` on; a repeatable source yields the
    same ones each time."""

    read: Callable[[int], Iterator[Frame]]
    is_repeatable: bool
    is_sampled: bool
    """Each picture is one tick of the model's clock; else their times decide."""


def find_source(info: SessionInfo, config: ServeConfig, preprocess: PreprocessConfig) -> ServerSource:
    """The source of a session. Raises SessionError for a name that is not in the settings."""
    fps, seed = Fraction(info.fps), int(info.created_s) % 1_000_000
    if info.source == DEMO and config.demo:
        return ServerSource(lambda first: demo_frames(seed, fps, first), is_repeatable=True, is_sampled=True)
    if info.source not in config.sources:
        raise SessionError(f"there is no source {info.source!r}; the server's settings list them.")
    found = open_source(config.sources[info.source], preprocess.sampling, fps)
    pictures = (item for item in found.frames if not isinstance(item, Gap))
    if found.is_sampled:
        return ServerSource(lambda first: islice(pictures, first, None), is_repeatable=True, is_sampled=True)
    return ServerSource(lambda first: pictures, is_repeatable=False, is_sampled=False)


def demo_frames(seed: int, fps: Fraction, first: int) -> Iterator[Frame]:
    """A short synthetic procedure at the model's rate, rendered on demand."""
    from surgicalmamba.data.synthetic import operation

    op = operation(seed, 0, short=True, fps=max(1, round(fps)))
    start_s = time.monotonic()
    for index in range(first, op.procedure.n_frames):
        time.sleep(max(0.0, (index - first) / DEMO_FRAMES_PER_S - (time.monotonic() - start_s)))
        yield Frame(index, index / op.fps, op.renderer.frame(index))


class SourceReader:
    """A thread that pushes a source into a room until it ends, then finishes the session."""

    def __init__(self, worker: Worker, room: Room, source: ServerSource) -> None:
        self._worker, self._room, self._source = worker, room, source
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"source {room.info.id}", daemon=True)

    def start(self) -> None:
        self._room.life = Life.LIVE
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; the session is resumed after a restart."""
        self._is_stopping = True

    def _run(self) -> None:
        room = self._room
        if not self._source.is_repeatable and room.record_until >= room.next_index:
            self._worker.skip(room)
        first = room.next_index
        try:
            for index, frame in enumerate(self._source.read(first), start=first):
                while room.must_wait(index) and not self._is_stopping:
                    time.sleep(0.005)
                if self._is_stopping or room.life is not Life.LIVE:
                    return
                time_s = None if self._source.is_sampled else frame.time_s
                room.take(FrameMessage(index, time_s, "jpeg", b""), frame.rgb, time.time())
                self._worker.wake()
            self._worker.finish(room)
        except SurgicalMambaError as error:
            log.warning("source failed", extra={"session": room.info.id, "reason": str(error)})
            self._worker.finish(room, "the source failed; see the server's log")
