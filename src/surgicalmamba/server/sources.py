"""Sources the server reads itself: files and streams from its own settings, and the synthetic procedure of the demo.

The network names a source; only the settings know its address."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from surgicalmamba.data.records import Frame, Gap
from surgicalmamba.errors import SessionError, SurgicalMambaError
from surgicalmamba.live.sources import open_source as open_live_source
from surgicalmamba.model.recognizer import PreprocessConfig
from surgicalmamba.server.config import ServeConfig
from surgicalmamba.server.rooms import Life, Room
from surgicalmamba.server.wire import FrameMessage
from surgicalmamba.server.worker import Recognizer

log = logging.getLogger("surgicalmamba.server")
DEMO = "demo"
DEMO_FRAMES_PER_S = 5
"""Frames per second of the clock on the wall: the demo runs faster than life, so that a procedure passes in a minute or so."""


@dataclass(frozen=True)
class Pictures:
    """A source's pictures. `read(first)` gives them from number `first` on; a repeatable source gives the same ones each time."""

    read: Callable[[int], Iterator[Frame]]
    is_repeatable: bool
    is_sampled: bool
    """Each picture is one tick of the model's clock; else their times decide."""


def open_source(name: str, config: ServeConfig, preprocess: PreprocessConfig, fps: Fraction, seed: float) -> Pictures:
    """The source of that name. Raises SessionError for a name that the settings do not know."""
    if name == DEMO and config.demo:
        return Pictures(lambda first: demo_frames(int(seed) % 1_000_000, fps, first), is_repeatable=True, is_sampled=True)
    if name not in config.sources:
        raise SessionError(f"there is no source {name!r}; the server's settings list them.")
    found = open_live_source(config.sources[name], preprocess.sampling, fps)
    pictures = (item for item in found.frames if not isinstance(item, Gap))
    if found.is_sampled:
        return Pictures(lambda first: islice(pictures, first, None), is_repeatable=True, is_sampled=True)
    return Pictures(lambda first: pictures, is_repeatable=False, is_sampled=False)


def demo_frames(seed: int, fps: Fraction, first: int) -> Iterator[Frame]:
    """A short synthetic procedure at the model's rate, rendered as it goes."""
    from surgicalmamba.data.synthetic import operation

    op = operation(seed, 0, short=True, fps=max(1, round(fps)))
    start_s = time.monotonic()
    for index in range(first, op.procedure.n_frames):
        ahead_s = (index - first) / DEMO_FRAMES_PER_S - (time.monotonic() - start_s)
        if ahead_s > 0:
            time.sleep(ahead_s)
        yield Frame(index, index / op.fps, op.renderer.frame(index))


class SourceReader:
    """A thread that pushes a source into a room until it ends, then finishes the session."""

    def __init__(self, recognizer: Recognizer, room: Room, pictures: Pictures) -> None:
        self._recognizer, self._room, self._pictures = recognizer, room, pictures
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"source {room.info.id}", daemon=True)

    def start(self) -> None:
        self._room.life = Life.LIVE
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; the session stays and goes on after a restart."""
        self._is_stopping = True

    def _run(self) -> None:
        room = self._room
        if not self._pictures.is_repeatable and room.record_until >= room.next_index:
            self._recognizer.skip(room)
        first = room.next_index
        try:
            for index, frame in enumerate(self._pictures.read(first), start=first):
                while room.must_wait(index) and not self._is_stopping:
                    time.sleep(0.005)
                if self._is_stopping or room.life is not Life.LIVE:
                    return
                time_s = None if self._pictures.is_sampled else frame.time_s
                room.take(FrameMessage(index, time_s, "jpeg", b""), frame.rgb, time.time())
                self._recognizer.wake()
            self._recognizer.finish(room)
        except SurgicalMambaError as error:
            log.warning("source failed", extra={"session": room.info.id, "reason": str(error)})
            self._recognizer.finish(room, "the source failed; the server's log says why")
