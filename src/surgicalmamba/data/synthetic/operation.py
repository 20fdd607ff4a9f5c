"""One synthetic operation as a whole: script, tracks and pictures, all from (seed, video)."""

from dataclasses import dataclass
from functools import cached_property

from surgicalmamba.data.synthetic.anatomy import draw_anatomy
from surgicalmamba.data.synthetic.motion import Tracks, plan_motion
from surgicalmamba.data.synthetic.procedure import FULL, SHORT, Procedure, draw_procedure, generator
from surgicalmamba.data.synthetic.render import Renderer

DEFAULT_FPS = 5
_SCRIPT, _MOTION, _ANATOMY, _OPTICS = range(4)  # one random stream each


@dataclass(frozen=True)
class Operation:
    """Video number `video` (from 0) of a seed. It does not depend on how many videos a dataset has."""

    seed: int
    video: int
    short: bool = False
    fps: int = DEFAULT_FPS

    @cached_property
    def procedure(self) -> Procedure:
        """Phases and bouts; cheap."""
        return draw_procedure(generator(self.seed, self.video, _SCRIPT), self.fps, SHORT if self.short else FULL)

    @cached_property
    def tracks(self) -> Tracks:
        """What every frame shows; a fraction of a second."""
        return plan_motion(self.procedure, generator(self.seed, self.video, _MOTION))

    @cached_property
    def renderer(self) -> Renderer:
        """The patient's pictures, ready to render any frame; about a second."""
        anatomy = draw_anatomy(generator(self.seed, self.video, _ANATOMY))
        return Renderer(anatomy, self.tracks, generator(self.seed, self.video, _OPTICS))


def operation(seed: int, video: int, short: bool = False, fps: int = DEFAULT_FPS) -> Operation:
    """The operation behind a video of `write_dataset`, for its script, tool presence or single frames without a file."""
    return Operation(seed, video, short, fps)
