"""Whether intensity modulation can help on a procedure, from its annotations alone.

Three parts: the closed forms of the appendix "What intensity modulation buys", the phases of a dataset's
videos over time, and the regime, which puts the lengths of the phases into the closed forms."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np

from surgicalmamba.data.adapters import ADAPTERS
from surgicalmamba.data.adapters.base import (
    FeatureAdapter,
    RowAdapter,
    VideoAdapter,
    get_adapter,
    match_files,
)
from surgicalmamba.data.adapters.custom import Custom, phases_file, read_description
from surgicalmamba.data.labels import (
    PhaseVocabulary,
    SegmentLabels,
    load_vocabulary,
    read_lines,
    read_segments,
)
from surgicalmamba.data.store import MANIFEST, PreparedDataset
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.eval.files import check_rate, find_files, read_rows, rows_per_second
from surgicalmamba.eval.pairs import BoolArray, FloatArray, IntArray
from surgicalmamba.eval.segments import BURST_REACH, find_segments

# Closed forms, for a constant step and a = |A| dt. Symbols: a decay per frame; lambda intensity of a frame;
# M intensity summed over one burst; W width of a burst; theta share of old content that may survive a phase.
# Times are in frames here; the regime below uses the same forms with seconds and rates per second.

BURST_MASS_PER_WIDTH = math.sqrt(math.pi / 2)
"""Integral of one half of a Gaussian of unit height and unit width."""


def retention(a: float, intensities: Sequence[float]) -> float:
    """R(s, n), eq. (lam_kernel): what survives of a write after frames with these intensities."""
    return math.exp(-a * len(intensities)) * math.exp(-a * sum(intensities))


def burst_mass(rise: float, fall: float) -> float:
    """M of one asymmetric Gaussian burst, eq. (lam_target)."""
    return BURST_MASS_PER_WIDTH * (rise + fall)


def burst_width(rise: float, fall: float) -> float:
    """W: how long a burst lasts. The mass is 0.42 of it, within the bound M <= W of eq. (lam_bound)."""
    return BURST_REACH * (rise + fall)


def burst_floor(length: float, rise: float, fall: float) -> float:
    """The lowest intensity between two boundaries this far apart. Near 0 the two bursts are separate; near 1
    the intensity is a constant that only rescales the step, eq. (lam_geo)."""
    return math.exp(-((length / (rise + fall)) ** 2) / 2)


def boundary_survival(a: float, mass: float) -> float:
    """gamma, eq. (lam_geo): the fraction of the carried state that each boundary leaves, whatever the phases'
    lengths."""
    return math.exp(-a * mass)


def selectivity(a: float, mass: float) -> float:
    """S, eq. (lam_sel): how much better content of the current phase survives than equally old content from
    before it.

    Without a burst it is 1 for every a, eq. (lam_sel_fixed); with a burst of width W at most exp(a W), eq.
    (lam_bound)."""
    return 1 / boundary_survival(a, mass)


def rate_without_bursts(a: float, mass: float, age: float) -> float:
    """a', eq. (lam_aprime): the constant decay that suppresses content of this age as much as a and a burst
    together."""
    return a * (age + mass) / age


def capacity_kept(mass: float, age: float) -> float:
    """Eq. (lam_cost_eq): the share of its capacity that a model keeps with a constant rate in place of
    bursts."""
    return age / (age + mass)


def contrast_after_boundary(a: float, mass: float, mean_squared_gain: float) -> float:
    """Eq. (lam_snr): energy written since a boundary over energy carried across it, relative to no burst."""
    return selectivity(a, mass) ** 2 * mean_squared_gain


def smallest_fixed_rate(theta: float, shortest: float) -> float:
    """Eq. (lam_amin): the decay a constant step needs so that even the shortest phase forgets the phase
    before it."""
    return math.log(1 / theta) / shortest


def smallest_burst(theta: float, a: float) -> float:
    """Eq. (lam_aMbound): the M with which one boundary leaves at most theta."""
    return math.log(1 / theta) / a


def capacity_ratio(theta: float, longest: float, shortest: float) -> float:
    """Eq. (lam_ratio): memory with bursts, the longest phase, over memory with a constant step, eq.
    (lam_capfixed)."""
    return longest * smallest_fixed_rate(theta, shortest)


def burst_cost(a: float, rise: float, fall: float) -> tuple[float, float]:
    """D_L and D_R, eq. (lam_DLDR): energy a burst destroys before and after the boundary, per frame of input
    energy."""
    return BURST_MASS_PER_WIDTH * rise, 2 * a * fall**2


def widest_fall(a: float) -> float:
    """Eq. (lam_sigR): beyond this sigma_R a burst weakens the new phase instead of strengthening it; 0.55 /
    a."""
    return math.log(2) / (a * BURST_MASS_PER_WIDTH)


def widest_cheap_fall(a: float) -> float:
    """Below this sigma_R, forgetting costs less after the boundary than before it; 0.31 / a (below eq.
    lam_DLDR)."""
    return BURST_MASS_PER_WIDTH / (4 * a)


# Phases over time. A segment runs from one boundary to the next. A boundary is where training has one: the
# first labelled row of a phase other than the last labelled one. So unlabelled rows end no segment, and there
# is no segment before the first and after the last labelled row.


@dataclass(frozen=True, eq=False)
class AnnotatedVideo:
    """One video as segments in order: phase ids, start and stop in seconds."""

    video: str
    phase: IntArray
    start_s: FloatArray
    stop_s: FloatArray

    @property
    def length_s(self) -> FloatArray:
        return np.round(self.stop_s - self.start_s, 6)

    @property
    def boundaries_s(self) -> FloatArray:
        """Where a phase follows another one."""
        return self.start_s[1:]


@dataclass(frozen=True, eq=False)
class Annotations:
    """All videos of a dataset."""

    dataset: str
    phases: tuple[str, ...]
    videos: list[AnnotatedVideo]
    clock: str
    """Where the seconds come from, in words."""

    @property
    def length_s(self) -> FloatArray:
        """Every segment of every video."""
        return np.concatenate([video.length_s for video in self.videos])

    @property
    def phase(self) -> IntArray:
        """The phase of each of these segments."""
        return np.concatenate([video.phase for video in self.videos])

    @property
    def between_s(self) -> FloatArray:
        """Times from a boundary to the next one: all segments but the first and the last of each video."""
        return np.concatenate([np.diff(video.boundaries_s) for video in self.videos])


def from_rows(video: str, phases: IntArray, rows_per_s: float) -> AnnotatedVideo:
    """Segments of a video with one phase id per row."""
    labelled = np.flatnonzero(phases >= 0)
    segments = find_segments(phases[labelled])  # over the labelled rows alone; `labelled` maps them back
    start = labelled[segments.start]
    stop = np.append(start[1:], labelled[-1:] + 1)
    return AnnotatedVideo(video, segments.phase, start / rows_per_s, stop / rows_per_s)


def from_stretches(video: str, labels: SegmentLabels) -> AnnotatedVideo:
    """Segments of labelled stretches of time; the time between two stretches belongs to the earlier one."""
    segments = find_segments(labels.phases)
    start = labels.start_s[segments.start]
    return AnnotatedVideo(video, segments.phase, start, np.append(start[1:], labels.end_s[-1]))


def read_prepared(folder: Path) -> Annotations:
    """Every video of a prepared dataset."""
    dataset = PreparedDataset.open(folder)
    fps = float(dataset.fps)
    videos = [from_rows(video.id, video.labels, fps) for video in dataset.videos.values()]
    clock = f"{fps:g} samples per second, as prepared"
    return _checked(Annotations(dataset.name, dataset.phases, videos, clock), folder)


def read_annotations(folder: Path, phases: str | None, fps: float | None) -> Annotations:
    """A folder with annotations: a prepared dataset, a dataset as downloaded (with or without its videos), or
    a label file per video.

    phases: a dataset's name or a YAML file; by default the folder's phases.yaml. fps: rows per second of
    label files that do not contain it."""
    if (folder / MANIFEST).is_file():
        return read_prepared(folder)
    if not folder.is_dir() and (not folder.is_file() or phases in ADAPTERS):
        raise DataError(f"{folder} is not a folder; give one with the annotations of a dataset.")
    if phases is None:
        if not any((folder / name).is_file() for name in ("phases.yaml", "phases.yml")):
            raise ConfigError(f"no phases given and {folder} has no phases.yaml; name a dataset (cholec80) "
                              "or a YAML file with --phases.")
        phases = "custom"
    adapter = get_adapter(phases, folder) if phases in ADAPTERS else None
    if isinstance(adapter, RowAdapter):
        files = adapter.label_files()
        counted = adapter.counted_per_s
        if not files or counted is not None or fps is not None:
            return _of_files(files or find_files(folder, "labels"), adapter.vocabulary, counted, fps, folder)
        pattern, second = adapter.video_pattern, adapter.second_choice
        if not match_files(folder, pattern, adapter.identify, second_choice=second):
            raise DataError(f"{adapter.name} counts frames, and its recordings differ in frames per second; "
                            "give a folder that also has the videos, a prepared one, or --fps if all have "
                            "one rate.")
        return _of_adapter(adapter, folder)
    if adapter is not None and adapter.holds_annotations():
        if fps is not None:
            raise ConfigError(f"--fps {fps:g} was given, but what {folder} holds of {adapter.name} has its "
                              "own rate; leave --fps out.")
        return _of_adapter(adapter, folder)
    vocabulary, counted = adapter.vocabulary if adapter is not None else load_vocabulary(phases), None
    if isinstance(adapter, Custom):
        description = read_description(phases_file(folder))
        counted = Fraction(1) if description.per_second else description.image_fps
    return _of_files(find_files(folder, "labels"), vocabulary, counted, fps, folder)


def _of_adapter(adapter: VideoAdapter | FeatureAdapter, folder: Path) -> Annotations:
    rows = list(adapter.phase_rows())
    rates = sorted({float(video.rows_per_s) for video in rows})
    clock = f"{' or '.join(f'{rate:g}' for rate in rates)} rows per second, as {adapter.name} says"
    videos = [from_rows(video.id, video.phases, float(video.rows_per_s)) for video in rows]
    name = folder.resolve().name if adapter.name in ("custom", "features") else adapter.vocabulary.dataset
    return _checked(Annotations(name, adapter.vocabulary.names, videos, clock), folder)


def _of_files(
    files: dict[str, Path],
    vocabulary: PhaseVocabulary,
    counted_per_s: Fraction | None,
    fps: float | None,
    folder: Path,
) -> Annotations:
    """One label file per video. counted_per_s: how many of the files' row numbers make a second, where that
    is known."""
    videos, clocks = [], set()
    for name, path in files.items():
        stretches = _stretches(path, vocabulary)
        if stretches is not None:
            videos.append(from_stretches(name, stretches))
            clocks.add("segments in seconds")
            continue
        rows = read_rows(path, vocabulary)
        rate, clock = rows_per_second(rows), "by the time column"
        if fps is not None:
            check_rate(fps, rate, str(path))
            rate, clock = fps, "as given"
        elif rate is None and counted_per_s is not None:
            rate = float(counted_per_s) / (rows.step or 1)
            clock = f"by row numbers {rows.step or 1} apart at {float(counted_per_s):g} a second"
        elif rate is None:
            rate, clock = 1.0, "assumed; say otherwise with --fps"
        videos.append(from_rows(name, rows.phase, rate))
        clocks.add(f"{rate:g} rows per second, {clock}")
    clock = "; ".join(sorted(clocks))
    return _checked(Annotations(vocabulary.dataset, vocabulary.names, videos, clock), folder)


def _stretches(path: Path, vocabulary: PhaseVocabulary) -> SegmentLabels | None:
    """The labels of a file of `start,end,phase` rows; None for a file of another format."""
    first = read_lines(path)[0]
    for separator in (",", "\t", ";"):
        if [part.strip().casefold() for part in first.split(separator)] == ["start", "end", "phase"]:
            return read_segments(path, vocabulary, separator)
    return None


def _checked(annotations: Annotations, folder: Path) -> Annotations:
    """Leave out videos without a labelled row, and refuse a dataset without a boundary."""
    videos = [video for video in annotations.videos if len(video.phase)]
    if not any(len(video.boundaries_s) for video in videos):
        raise DataError(f"{folder} has no change of phase in {len(videos)} labelled video(s); there is no "
                        "boundary to forget at.")
    return replace(annotations, videos=videos)


# The regime: the lengths of the segments in the closed forms.

PAPER_PLATEAU = 0.92
"""Share that the paper's trained state keeps in a second within a phase (section on the cap of the
control)."""
RISE_TO_FALL = 1 / 6
"""The paper's sigma_L over its sigma_R, 2 and 12 seconds."""
LITTLE_SPREAD, LARGE_SPREAD = 3.0, 10.0
CROWDED, MERGED = 0.5, 0.5
"""W / mu beyond which bursts crowd each other, and the floor above which two bursts are one."""

Verdict = Literal["fits", "fits with narrower bursts", "little to gain"]


@dataclass(frozen=True)
class Assumptions:
    """What annotations do not contain."""

    theta: float = 0.1
    """Share of what was carried over a boundary that may be left when the new segment ends."""
    quantile: float = 0.1
    """L_q, the short end of the lengths, is this quantile: the very shortest segment may be an accident."""
    rise_s: float = 2.0
    fall_s: float = 12.0
    plateau: float = PAPER_PLATEAU
    """Share of its state that a trained model keeps in a second within a phase."""

    @property
    def burst_width_s(self) -> float:
        return burst_width(self.rise_s, self.fall_s)


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
    """Share of the segments that end before the burst at their start is over."""


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
    """All that annotations show about one dataset. `spread` and `capacity_ratio`: how much there is to gain;
    the fields after them: whether bursts can gain it."""

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
        """Whether some rate remembers a mean segment and lets one burst clear it to theta, with separate
        bursts."""
        least, most = self.window_per_s
        return least <= most and self.width_over_mean <= CROWDED

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "window_is_open": self.window_is_open}


def find_regime(annotations: Annotations, assumed: Assumptions) -> Regime:
    """Measure the segments and put them into the appendix's equations."""
    overall = _lengths("all phases", annotations, annotations.phase >= 0, assumed)
    of_phase = {name: annotations.phase == number for number, name in enumerate(annotations.phases)}
    rise_s, fall_s, width_s = assumed.rise_s, assumed.fall_s, assumed.burst_width_s
    mass = burst_mass(rise_s, fall_s)
    between = annotations.between_s
    rise, fall = suggest_burst(overall)
    spread, over_mean = overall.longest / overall.low, width_s / overall.mean
    overlapping = share(between < width_s)
    if spread < LITTLE_SPREAD:
        verdict: Verdict = "little to gain"
    else:
        apart = over_mean <= CROWDED and overlapping <= assumed.quantile
        verdict = "fits" if apart else "fits with narrower bursts"
    return Regime(
        dataset=annotations.dataset,
        clock=annotations.clock,
        videos=len(annotations.videos),
        boundaries=sum(len(video.boundaries_s) for video in annotations.videos),
        assumptions=assumed,
        overall=overall,
        phases=tuple(_lengths(name, annotations, it, assumed) for name, it in of_phase.items() if it.any()),
        spread=spread,
        capacity_ratio=capacity_ratio(assumed.theta, overall.longest, overall.low),
        burst_mass_s=mass,
        burst_width_s=width_s,
        width_over_mean=over_mean,
        overlapping=overlapping,
        merged=share(np.array([burst_floor(float(length), rise_s, fall_s) for length in between]) > MERGED),
        time_in_bursts=time_in_bursts(annotations.videos, rise_s, fall_s),
        window_per_s=(smallest_burst(assumed.theta, mass), 1 / overall.mean),
        rates=_rates(overall, assumed, mass),
        suggested_rise_s=rise,
        suggested_fall_s=fall,
        suggested_overlapping=share(between < burst_width(rise, fall)),
        least_fps=2 / fall,
        verdict=verdict,
    )


def _lengths(name: str, annotations: Annotations, chosen: BoolArray, assumed: Assumptions) -> PhaseLengths:
    """The chosen segments, at least one."""
    lengths = annotations.length_s[chosen]
    owner = np.repeat(np.arange(len(annotations.videos)), [len(video.phase) for video in annotations.videos])
    low, median = np.quantile(lengths, [assumed.quantile, 0.5]).tolist()
    return PhaseLengths(
        name=name,
        segments=len(lengths),
        videos=len(np.unique(owner[chosen])),
        share_of_time=float(lengths.sum() / annotations.length_s.sum()),
        shortest=float(lengths.min()),
        low=low,
        median=median,
        mean=float(lengths.mean()),
        longest=float(lengths.max()),
        shorter_than_burst=share(lengths < assumed.burst_width_s),
    )


def share(condition: BoolArray) -> float:
    """How much of a condition holds; 0 of nothing."""
    return float(condition.mean()) if len(condition) else 0.0


def _rates(overall: PhaseLengths, assumed: Assumptions, mass: float) -> tuple[Rate, ...]:
    fixed = smallest_fixed_rate(assumed.theta, overall.low)
    chosen = {
        "memory of the longest segment, 1 / L_max": 1 / overall.longest,
        "memory of a mean segment, 1 / mu": 1 / overall.mean,
        "fixed step that clears the short ones, log(1/theta) / L_q": fixed,
        f"trained state that keeps {assumed.plateau:g} a second": -math.log(assumed.plateau),
    }
    return tuple(
        Rate(what, a, math.exp(-a * overall.mean), boundary_survival(a, mass), selectivity(a, mass),
             widest_cheap_fall(a), widest_fall(a))
        for what, a in chosen.items()
    )


def suggest_burst(overall: PhaseLengths) -> tuple[float, float]:
    """sigma_L and sigma_R for these segments, in the paper's proportion: as wide as lets all but the low
    quantile of the segments outlast a burst, and below the sigma_R at which forgetting costs as much after
    the boundary as before it, at the fastest rate whose memory spans a mean segment."""
    room = overall.low / BURST_REACH / (1 + RISE_TO_FALL)
    fall = min(room, widest_cheap_fall(1 / overall.mean))
    return RISE_TO_FALL * fall, fall


def time_in_bursts(videos: list[AnnotatedVideo], rise: float, fall: float) -> float:
    """Share of the labelled time that lies within some burst's reach; overlapping bursts count once."""
    inside = total = 0.0
    for video in videos:
        first, last = float(video.start_s[0]), float(video.stop_s[-1])
        total += last - first
        end = first
        for boundary in video.boundaries_s.tolist():
            start, stop = max(boundary - BURST_REACH * rise, end), min(boundary + BURST_REACH * fall, last)
            inside += max(0.0, stop - start)
            end = max(end, stop)
    return inside / total
