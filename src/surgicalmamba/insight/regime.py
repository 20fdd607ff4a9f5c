"""Whether intensity modulation has something to give for a procedure, from its annotations alone (appendix What intensity modulation buys).

The closed forms are in core/retention.py; here they meet the segments of a dataset. Times are in seconds, rates per second."""

import math
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from surgicalmamba.core import retention
from surgicalmamba.eval.pairs import BoolArray, FloatArray
from surgicalmamba.insight.timelines import Annotations, Timeline

PAPER_PLATEAU = 0.92
"""What the paper's trained state keeps in a second within a phase (section on the cap of the control)."""
RISE_TO_FALL = 1 / 6
"""The paper's sigma_L over its sigma_R, 2 and 12 seconds."""
LITTLE_SPREAD, LARGE_SPREAD = 3.0, 10.0
CROWDED, MERGED = 0.5, 0.5
"""W / mu beyond which bursts crowd each other, and the floor above which two bursts are one."""

Verdict = Literal["fits", "fits with narrower bursts", "little to gain"]


@dataclass(frozen=True)
class Assumptions:
    """What annotations do not say."""

    theta: float = 0.1
    """Share of what was carried over a boundary that may be left of it once the new segment ends."""
    quantile: float = 0.1
    """L_q, the short end of the lengths, is this quantile: the very shortest segment may be an accident."""
    rise_s: float = 2.0
    fall_s: float = 12.0
    plateau: float = PAPER_PLATEAU
    """Share of its state that a trained model keeps in a second within a phase."""


@dataclass(frozen=True)
class PhaseLengths:
    """The segments of one phase, or of all of them. Lengths in seconds."""

    name: str
    segments: int
    videos: int
    share_of_time: float
    shortest: float
    low: float
    """At the low quantile."""
    median: float
    mean: float
    longest: float
    shorter_than_burst: float
    """Share of the segments that end before the burst at their beginning is over."""


@dataclass(frozen=True)
class Rate:
    """What follows if a state decays at this rate within phases."""

    what: str
    per_s: float
    kept_over_mean_segment: float
    boundary_survival: float
    selectivity: float
    widest_cheap_fall_s: float
    widest_fall_s: float


@dataclass(frozen=True)
class Regime:
    """All that annotations say about one dataset. `spread` to `capacity_ratio`: what there is to gain; the rest: whether it can be had."""

    dataset: str
    clock: str
    videos: int
    boundaries: int
    assumptions: Assumptions
    overall: PhaseLengths
    phases: tuple[PhaseLengths, ...]
    spread: float
    capacity_ratio: float
    burst_mass_s: float
    burst_width_s: float
    width_over_mean: float
    overlapping: float
    merged: float
    time_in_bursts: float
    window_per_s: tuple[float, float]
    rates: tuple[Rate, ...]
    suggested_rise_s: float
    suggested_fall_s: float
    suggested_overlapping: float
    least_fps: float
    verdict: Verdict

    @property
    def window_is_open(self) -> bool:
        """Whether some rate both remembers a mean segment and lets one burst clear it to theta, with bursts that stand apart."""
        least, most = self.window_per_s
        return least <= most and self.width_over_mean <= CROWDED

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "window_is_open": self.window_is_open}


def find_regime(annotations: Annotations, assumed: Assumptions) -> Regime:
    """Measure the segments and put them into the appendix's equations."""
    lengths = annotations.length_s
    overall = _lengths("all phases", annotations, np.ones(len(lengths), bool), assumed)
    phase = np.concatenate([video.phase for video in annotations.videos])
    phases = [_lengths(name, annotations, phase == number, assumed) for number, name in enumerate(annotations.phases)]
    mass = retention.burst_mass(assumed.rise_s, assumed.fall_s)
    width = retention.burst_width(assumed.rise_s, assumed.fall_s)
    between = _between_boundaries(annotations)
    floors = [retention.burst_floor(float(length), assumed.rise_s, assumed.fall_s) for length in between]
    rise, fall = suggest_burst(overall)
    suggested_width = retention.burst_width(rise, fall)
    spread, over_mean = overall.longest / overall.low, width / overall.mean
    overlapping = _share(between < width)
    return Regime(
        annotations.dataset,
        annotations.clock,
        len(annotations.videos),
        sum(len(video.boundaries_s) for video in annotations.videos),
        assumed,
        overall,
        tuple(p for p in phases if p.segments),
        spread,
        retention.capacity_ratio(assumed.theta, overall.longest, overall.low),
        mass,
        width,
        over_mean,
        overlapping,
        _share(np.array(floors) > MERGED),
        time_in_bursts(annotations.videos, assumed.rise_s, assumed.fall_s),
        (retention.smallest_burst(assumed.theta, mass), 1 / overall.mean),
        _rates(overall, assumed, mass),
        rise,
        fall,
        _share(between < suggested_width),
        2 / fall,
        _verdict(spread, over_mean, overlapping, assumed.quantile),
    )


def suggest_burst(overall: PhaseLengths) -> tuple[float, float]:
    """sigma_L and sigma_R for these segments, in the paper's proportion: as wide as lets all but the low quantile of the segments outlast
    a burst, and below the sigma_R at which a frame of forgetting costs as much after the boundary as before it, at the fastest rate whose
    memory spans a mean segment."""
    room = overall.low / retention.BURST_REACH / (1 + RISE_TO_FALL)
    fall = min(room, retention.widest_cheap_fall(1 / overall.mean))
    return RISE_TO_FALL * fall, fall


def time_in_bursts(videos: list[Timeline], rise: float, fall: float) -> float:
    """Share of the labelled time that lies within some burst's reach; overlapping bursts count once."""
    inside = total = 0.0
    for video in videos:
        first, last = float(video.start_s[0]), float(video.stop_s[-1])
        total += last - first
        end = first
        for boundary in video.boundaries_s.tolist():
            start, stop = max(boundary - retention.BURST_REACH * rise, end), min(boundary + retention.BURST_REACH * fall, last)
            inside += max(0.0, stop - start)
            end = max(end, stop)
    return inside / total


def _lengths(name: str, annotations: Annotations, chosen: BoolArray, assumed: Assumptions) -> PhaseLengths:
    lengths = annotations.length_s[chosen]
    if not len(lengths):
        return PhaseLengths(name, 0, 0, 0.0, *[math.nan] * 6)
    owner = np.concatenate([np.full(len(video.phase), number) for number, video in enumerate(annotations.videos)])
    width = retention.burst_width(assumed.rise_s, assumed.fall_s)
    quantile, median = np.quantile(lengths, [assumed.quantile, 0.5]).tolist()
    return PhaseLengths(
        name,
        len(lengths),
        len(np.unique(owner[chosen])),
        float(lengths.sum() / annotations.length_s.sum()),
        float(lengths.min()),
        quantile,
        median,
        float(lengths.mean()),
        float(lengths.max()),
        _share(lengths < width),
    )


def _between_boundaries(annotations: Annotations) -> FloatArray:
    """Times from a boundary to the next one: the segments that are neither a video's first nor its last."""
    return np.concatenate([np.diff(video.boundaries_s) for video in annotations.videos])


def _share(condition: BoolArray) -> float:
    return float(condition.mean()) if len(condition) else 0.0


def _rates(overall: PhaseLengths, assumed: Assumptions, mass: float) -> tuple[Rate, ...]:
    chosen = {
        "memory of the longest segment, 1 / L_max": 1 / overall.longest,
        "memory of a mean segment, 1 / mu": 1 / overall.mean,
        "fixed step that clears the short ones, log(1/theta) / L_q": retention.smallest_fixed_rate(assumed.theta, overall.low),
        f"trained state that keeps {assumed.plateau:g} a second": -math.log(assumed.plateau),
    }
    return tuple(
        Rate(
            what,
            a,
            math.exp(-a * overall.mean),
            retention.boundary_survival(a, mass),
            retention.selectivity(a, mass),
            retention.widest_cheap_fall(a),
            retention.widest_fall(a),
        )
        for what, a in chosen.items()
    )


def _verdict(spread: float, width_over_mean: float, overlapping: float, quantile: float) -> Verdict:
    if spread < LITTLE_SPREAD:
        return "little to gain"
    return "fits" if width_over_mean <= CROWDED and overlapping <= quantile else "fits with narrower bursts"
