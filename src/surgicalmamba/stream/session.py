"""A live session: one stream, one model, one estimate per tick of the model's clock."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surgicalmamba.model.recognizer import AnyRecognizer, Recognizer
from surgicalmamba.stream.batch import Work, advance
from surgicalmamba.stream.engine import Engine
from surgicalmamba.stream.engines import open_engine
from surgicalmamba.stream.estimate import Counts, PhaseEstimate
from surgicalmamba.stream.output import OutputStage
from surgicalmamba.stream.policy import Action, Policy
from surgicalmamba.stream.snapshot import engine_of, freeze, thaw
from surgicalmamba.stream.track import Fps, Track


class Session:
    """Owns the memory of one operation. Pictures are made ready as `prepare` made the training videos, so streaming a recording gives
    what `predict` gives on the prepared dataset.

    Time runs by the timestamps given, resampled to the model's rate (see clock.py); without timestamps every push is the next sample.
    `policy` says what happens to missing, black, frozen and unreadable frames: a Policy, or one action for all of them. `fps` replaces
    the rate the checkpoint was trained at. `output_stage` calibrates and filters the probabilities."""

    def __init__(
        self,
        model: AnyRecognizer | Engine,
        engine: str = "auto",
        fps: Fps | None = None,
        policy: Policy | Action | None = None,
        output_stage: OutputStage | None = None,
    ) -> None:
        self.engine = open_engine(model, engine) if isinstance(model, Recognizer) else model
        self._track = Track(self.engine.config, fps, policy, output_stage)
        self._state = self.engine.initial_state(1)

    @property
    def counts(self) -> Counts:
        """Ticks that were not ordinary so far."""
        return self._track.counts

    @property
    def frames_seen(self) -> int:
        """Frames the model was fed."""
        return self._track.n_frames

    def push(self, frame_rgb: NDArray[np.uint8] | None, time_s: float | None = None) -> PhaseEstimate | None:
        """A picture (h, w, 3) uint8, red first, of any size, at a source time in seconds; None for a picture that could not be read.

        Returns the estimate of the newest tick. Returns None where the frame falls between two ticks or is skipped by the policy. Ticks
        that were missed before it are made up for first; `push_each` gives their estimates too. Raises InputError, and changes nothing,
        for a time before the last one."""
        return _last(self.push_each(frame_rgb, time_s))

    def push_features(self, vector: ArrayLike | None, time_s: float | None = None) -> PhaseEstimate | None:
        """As `push`, with a feature vector (d_feature,) in place of a picture."""
        return _last(self._take(vector, time_s, "features"))

    def push_each(self, frame_rgb: NDArray[np.uint8] | None, time_s: float | None = None) -> list[PhaseEstimate]:
        """As `push`, with the estimates of all ticks since the last push."""
        return self._take(frame_rgb, time_s, "picture")

    def _take(self, content: object, time_s: float | None, kind: Literal["picture", "features"]) -> list[PhaseEstimate]:
        clock, arrival = self._track.arrive(content, time_s, kind)
        if arrival is None:
            self._track.clock = clock
            return []
        plan = self._track.plan(arrival)
        estimates = []
        for step in plan.steps:
            work = Work(self._track, step, self._state)
            [result] = advance(self.engine, [work])
            estimates.append(result.complete(work))
            self._state = result.state
        self._track.finish(plan)
        return estimates

    def snapshot(self) -> bytes:
        """Everything the session knows, in a few megabytes: `restore` continues from here to the bit on the same engine."""
        return freeze(self.engine, self._track, self._state)

    @classmethod
    def restore(cls, model: AnyRecognizer | Engine, blob: bytes, engine: str | None = None) -> "Session":
        """A session as it was when `snapshot` was called, on the engine it ran on or on another.

        Raises SnapshotError with the reason for a blob that is damaged, of another version or of another model."""
        chosen = open_engine(model, engine or engine_of(blob)) if isinstance(model, Recognizer) else model
        session = cls(chosen)
        session._track, session._state = thaw(chosen, blob)
        return session


def _last(estimates: list[PhaseEstimate]) -> PhaseEstimate | None:
    return estimates[-1] if estimates else None
