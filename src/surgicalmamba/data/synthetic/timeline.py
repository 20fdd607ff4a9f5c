"""The means to write tracks: steps per bout, followers that lag behind them, and aimless motion."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.synthetic.procedure import Activity, Procedure

Track = NDArray[np.float64]


def rounded(track: Track) -> Track:
    """A thousandth of a pixel is finer than anything visible, and coarse enough to be the same on every machine."""
    return np.round(track, 3)


class Timeline:
    """The frames of one procedure and the random numbers for its tracks."""

    def __init__(self, procedure: Procedure, rng: np.random.Generator) -> None:
        self.procedure = procedure
        self.rng = rng
        self.n = procedure.n_frames
        self.fps = procedure.fps
        self.seconds: Track = np.arange(self.n) / self.fps

    def per_bout(self, value: Callable[[Activity], float]) -> Track:
        """A value for each bout, asked for in order."""
        bouts = self.procedure.bouts
        return np.repeat([float(value(bout.activity)) for bout in bouts], [bout.stop - bout.start for bout in bouts])

    def when(self, *activities: Activity) -> Track:
        """1 during these activities, 0 else."""
        return self.per_bout(lambda activity: activity in activities)

    def jitter(self, amount: float) -> Track:
        """Another offset in each bout, reached with a short lag."""
        return self.drift(self.per_bout(lambda _: self.rng.uniform(-amount, amount)), 0.8)

    def wander(self, amount: float, slowest_s: float, fastest_s: float) -> Track:
        """Smooth aimless motion: four sines of random period and phase."""
        total = np.zeros(self.n)
        for period in np.exp(np.linspace(np.log(slowest_s), np.log(fastest_s), 4)):
            total += np.sin(2 * np.pi * (self.seconds / (period * self.rng.uniform(0.8, 1.25)) + self.rng.random()))
        return total * (amount / 2.0)

    def approach(self, target: Track, seconds_to_cross: float) -> Track:
        """Follow a target at a limited speed: from 0 to 1 in `seconds_to_cross`."""
        step = 1.0 / (seconds_to_cross * self.fps)
        out = np.empty(self.n)
        value = float(target[0])
        for i, goal in enumerate(target.tolist()):
            value += min(max(goal - value, -step), step)
            out[i] = value
        return out

    def drift(self, target: Track, time_constant_s: float) -> Track:
        """Follow a target with an exponential lag."""
        gain = 1.0 / (1.0 + time_constant_s * self.fps)
        out = np.empty(self.n)
        value = float(target[0])
        for i, goal in enumerate(target.tolist()):
            value += gain * (goal - value)
            out[i] = value
        return out
