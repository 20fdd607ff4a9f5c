"""The script of one synthetic operation: which phase when, and what is done in it, before any pixel exists.

Order, absent phases and durations follow Cholec80, counted on the annotations of 79 of its 80 videos (all but
58): medians of the seconds spent in a phase, spread of their logarithm, and how often a phase is missing or
out of the usual order.

The difficulty is built in here. A phase is a mixture of short bouts of activity, and the two dissection
phases share one mixture: nothing in a frame tells them apart, only whether clipping came before. Irrigation,
coagulation, holding, looking around and out-of-body stretches occur in several phases. What belongs to one
phase alone lasts for seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

TARGET_MEDIAN_MIN = 35
RATIO_LONGEST_TO_SHORTEST = 10


class Activity(Enum):
    """What the surgeon does for some seconds; it decides the view and the instruments."""

    EXPLORE = "explore"
    HOLD = "hold"
    DISSECT = "dissect"
    CLIP = "clip"
    CUT = "cut"
    IRRIGATE = "irrigate"
    COAGULATE = "coagulate"
    BAG = "bag"
    OUTSIDE = "outside"


_A = Activity
BOUT_MEAN_S = {
    _A.EXPLORE: 8.0, _A.HOLD: 11.0, _A.DISSECT: 34.0, _A.CLIP: 12.0, _A.CUT: 10.0,
    _A.IRRIGATE: 13.0, _A.COAGULATE: 16.0, _A.BAG: 22.0, _A.OUTSIDE: 9.0,
}
"""Mean length of one bout. Cholec80's hook stays 38 s at a time, its irrigator 12 s, its bipolar 17 s."""


@dataclass(frozen=True)
class Mixture:
    """Shares of time of the activities of a phase, the bout it opens with, and the bout it ends with, if it
    has one."""

    shares: dict[Activity, float]
    opens_with: Activity
    ends_with: Activity | None = None


@dataclass(frozen=True)
class PhaseFacts:
    """One phase: median seconds, standard deviation of log seconds, and what happens in it."""

    name: str
    median_s: float
    log_sd: float
    mixture: Mixture


_DISSECTION = Mixture(
    {_A.DISSECT: 0.78, _A.HOLD: 0.10, _A.IRRIGATE: 0.04, _A.COAGULATE: 0.03, _A.EXPLORE: 0.04}
    | {_A.OUTSIDE: 0.01},
    opens_with=_A.DISSECT,
)
_PREPARATION = Mixture({_A.EXPLORE: 0.48, _A.HOLD: 0.46, _A.CUT: 0.03, _A.OUTSIDE: 0.03}, _A.EXPLORE)
_CLIPPING = Mixture(
    {_A.CLIP: 0.40, _A.CUT: 0.16, _A.HOLD: 0.29, _A.DISSECT: 0.05, _A.EXPLORE: 0.10},
    opens_with=_A.CLIP,
    ends_with=_A.CUT,
)
_PACKAGING = Mixture({_A.BAG: 0.72, _A.HOLD: 0.13, _A.EXPLORE: 0.15}, opens_with=_A.BAG)
_CLEANING = Mixture(
    {_A.IRRIGATE: 0.46, _A.COAGULATE: 0.30, _A.HOLD: 0.10, _A.EXPLORE: 0.12, _A.OUTSIDE: 0.02},
    opens_with=_A.IRRIGATE,
)
_RETRACTION = Mixture({_A.BAG: 0.40, _A.EXPLORE: 0.22, _A.HOLD: 0.14, _A.OUTSIDE: 0.24}, opens_with=_A.BAG)

PHASES: tuple[PhaseFacts, ...] = (
    PhaseFacts("Preparation", 97.5, 0.79, _PREPARATION),
    PhaseFacts("CalotTriangleDissection", 826.0, 0.53, _DISSECTION),
    PhaseFacts("ClippingCutting", 130.0, 0.61, _CLIPPING),
    PhaseFacts("GallbladderDissection", 583.0, 0.65, _DISSECTION),
    PhaseFacts("GallbladderPackaging", 81.0, 0.40, _PACKAGING),
    PhaseFacts("CleaningCoagulation", 123.0, 0.77, _CLEANING),
    PhaseFacts("GallbladderRetraction", 64.0, 0.69, _RETRACTION),
)
PHASE_NAMES = tuple(phase.name for phase in PHASES)
PREPARATION, CALOT, CLIPPING, DISSECTION, PACKAGING, CLEANING, RETRACTION = range(7)

_PREPARATION_ABSENT = 9 / 79
_CLEANING_ABSENT = 6 / 79
_CLEANING_BEFORE_PACKAGING = 12 / 79
_CLEANING_LAST = 3 / 79
_SHARED_LOG_SD = 0.25  # spread that all phases of one operation share: a slow case is slow throughout
_MIN_PHASE_S = 4.0


@dataclass(frozen=True)
class Scale:
    """Length of phases and of bouts against a real operation."""

    phases: float
    bouts: float


FULL = Scale(1.0, 1.0)
SHORT = Scale(4 / TARGET_MEDIAN_MIN, 0.3)


@dataclass(frozen=True)
class Bout:
    """Frames `start` to `stop` (exclusive) of one activity inside one phase."""

    start: int
    stop: int
    phase: int
    activity: Activity

    @property
    def n_frames(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Procedure:
    """One operation on the frame grid of its video: bouts in order, without gaps."""

    fps: int
    bouts: tuple[Bout, ...]

    @property
    def n_frames(self) -> int:
        return self.bouts[-1].stop

    @property
    def order(self) -> tuple[int, ...]:
        """Phases in the order they occur, each once per visit."""
        phases = [bout.phase for bout in self.bouts]
        return tuple(phase for i, phase in enumerate(phases) if i == 0 or phases[i - 1] != phase)

    def phase_per_frame(self) -> NDArray[np.int64]:
        """(n_frames,) phase ids."""
        return np.repeat([bout.phase for bout in self.bouts], [bout.n_frames for bout in self.bouts])


def generator(seed: int, *stream: int) -> np.random.Generator:
    """A random generator for one purpose, so that a change in one part does not affect the others."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=stream)))


def draw_procedure(rng: np.random.Generator, fps: int, scale: Scale = FULL) -> Procedure:
    """Draw order, phase lengths and bouts of one operation; the longest phase lasts more than ten times the
    shortest."""
    order = _draw_order(rng)
    bouts: list[Bout] = []
    start = 0
    for phase, length in zip(order, _draw_lengths(rng, order, fps, scale), strict=True):
        bouts += _draw_bouts(rng, phase, start, start + length, fps, scale)
        start += length
    return Procedure(fps, tuple(bouts))


def _draw_order(rng: np.random.Generator) -> list[int]:
    order = [CALOT, CLIPPING, DISSECTION, PACKAGING, CLEANING, RETRACTION]
    if rng.random() >= _PREPARATION_ABSENT:
        order.insert(0, PREPARATION)
    ending = rng.random()
    if ending < _CLEANING_ABSENT:
        order.remove(CLEANING)
    elif ending < _CLEANING_ABSENT + _CLEANING_BEFORE_PACKAGING:
        order[-3:] = [CLEANING, PACKAGING, RETRACTION]
    elif ending < _CLEANING_ABSENT + _CLEANING_BEFORE_PACKAGING + _CLEANING_LAST:
        order[-3:] = [PACKAGING, RETRACTION, CLEANING]
    return order


def _draw_lengths(rng: np.random.Generator, order: list[int], fps: int, scale: Scale) -> list[int]:
    """Log-normal lengths in frames with a shared part, drawn again until the ratio of longest to shortest
    exceeds ten."""
    while True:
        shared = rng.normal(0.0, _SHARED_LOG_SD)
        lengths = []
        for phase in order:
            sd = (PHASES[phase].log_sd ** 2 - _SHARED_LOG_SD**2) ** 0.5  # of this phase alone
            spread = min(max(rng.normal(0.0, 1.0), -2.0), 2.0)  # neither seconds nor three hours
            seconds = PHASES[phase].median_s * float(np.exp(shared + sd * spread)) * scale.phases
            lengths.append(round(max(seconds, _MIN_PHASE_S) * fps))
        if max(lengths) > RATIO_LONGEST_TO_SHORTEST * min(lengths):
            return lengths


def _draw_bouts(
    rng: np.random.Generator, phase: int, start: int, stop: int, fps: int, scale: Scale
) -> list[Bout]:
    """Fill one phase with bouts: fixed opening and closing ones, the others drawn to give the shares of
    time."""
    mixture = PHASES[phase].mixture
    activities = list(mixture.shares)
    visits = np.array([share / BOUT_MEAN_S[activity] for activity, share in mixture.shares.items()])
    cumulative = np.cumsum(visits / visits.sum())

    def length(activity: Activity) -> int:
        seconds = rng.gamma(3.0, BOUT_MEAN_S[activity] * scale.bouts / 3.0)
        return max(round(seconds * fps), 2 * fps)

    end = stop
    closing: list[Bout] = []
    if mixture.ends_with is not None:
        end = max(stop - length(mixture.ends_with), start + (stop - start) // 2)
        closing = [Bout(end, stop, phase, mixture.ends_with)]
    bouts = [Bout(start, min(start + length(mixture.opens_with), end), phase, mixture.opens_with)]
    while bouts[-1].stop < end:
        number = int(np.searchsorted(cumulative, rng.random(), side="right"))
        activity = activities[min(number, len(activities) - 1)]
        begin = bouts[-1].stop
        finish = begin + length(activity)
        if end - finish < fps:  # no bout shorter than a second at the end of a phase
            finish = end
        bouts.append(Bout(begin, min(finish, end), phase, activity))
    return bouts + closing


Track = NDArray[np.float64]


def rounded(track: Track) -> Track:
    """A thousandth of a pixel is finer than anything visible, and coarse enough to be the same on every
    machine."""
    return np.round(track, 3)


class Timeline:
    """Makes tracks, one value per frame of a procedure: steps per bout, lagging followers, and aimless
    motion."""

    def __init__(self, procedure: Procedure, rng: np.random.Generator) -> None:
        self.procedure = procedure
        self.rng = rng
        self.n = procedure.n_frames
        self.fps = procedure.fps
        self.seconds: Track = np.arange(self.n) / self.fps

    def per_bout(self, value: Callable[[Activity], float]) -> Track:
        """A value for each bout, computed in order."""
        values = [float(value(bout.activity)) for bout in self.procedure.bouts]
        return np.repeat(values, [bout.n_frames for bout in self.procedure.bouts])

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
            turns = self.seconds / (period * self.rng.uniform(0.8, 1.25)) + self.rng.random()
            total += np.sin(2 * np.pi * turns)
        return total * (amount / 2.0)

    def approach(self, target: Track, seconds_to_cross: float) -> Track:
        """Follow a target at a limited speed: from 0 to 1 in `seconds_to_cross`."""
        step = 1.0 / (seconds_to_cross * self.fps)
        return self._follow(target, lambda error: min(max(error, -step), step))

    def drift(self, target: Track, time_constant_s: float) -> Track:
        """Follow a target with an exponential lag."""
        gain = 1.0 / (1.0 + time_constant_s * self.fps)
        return self._follow(target, lambda error: gain * error)

    def _follow(self, target: Track, step: Callable[[float], float]) -> Track:
        out = np.empty(self.n)
        value = float(target[0])
        for i, goal in enumerate(target.tolist()):
            value += step(goal - value)
            out[i] = value
        return out
