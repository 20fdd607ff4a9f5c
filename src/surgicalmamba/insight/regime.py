"""Whether intensity modulation has something to give for a procedure, from its annotations alone (appendix What intensity modulation buys).

The closed forms are in insight/regime.py; here they meet the segments of a dataset. Times are in seconds, rates per second."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np

from surgicalmamba.data.adapters.base import ADAPTERS, FeatureAdapter, RowAdapter, VideoAdapter, get_adapter, match_files
from surgicalmamba.data.adapters.custom import Custom, phases_file, read_description
from surgicalmamba.data.labels import PhaseVocabulary, SegmentLabels, load_vocabulary, read_lines, read_segments
from surgicalmamba.data.store import MANIFEST, PreparedDataset
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.eval.files import find_files, read_rows, rows_per_second
from surgicalmamba.eval.pairs import BoolArray, FloatArray, IntArray
from surgicalmamba.eval.segments import BURST_REACH, find_segments

# What intensity modulation buys, in closed form: appendix of the same name, for a constant step and a = |A| dt.
#
# Symbols: a decay per frame; lambda the intensity of a frame; M the amount of intensity in one burst; W its width; theta the
# fraction of old content that may survive a phase. Times are in frames.


BURST_MASS_PER_WIDTH = math.sqrt(math.pi / 2)
"""Integral of one half of a Gaussian of unit height and unit width."""


def retention(a: float, intensities: Sequence[float]) -> float:
    """R(s, n), eq. (lam_kernel): what survives of a write after frames with these intensities; age and bursts multiply."""
    return math.exp(-a * len(intensities)) * math.exp(-a * sum(intensities))


def burst_mass(rise: float, fall: float) -> float:
    """M of one asymmetric Gaussian burst, eq. (lam_target)."""
    return BURST_MASS_PER_WIDTH * (rise + fall)


def burst_width(rise: float, fall: float) -> float:
    """W: how long a burst lasts, from its beginning to its end. The mass is 0.42 of it, within the bound M <= W of eq. (lam_bound)."""
    return BURST_REACH * (rise + fall)


def burst_floor(length: float, rise: float, fall: float) -> float:
    """The lowest intensity between two boundaries this far apart, where the fall of one burst meets the rise of the next.

    Near 0 the bursts are separate; near 1 they are one, and the intensity is a constant that only rescales the step (eq. lam_geo)."""
    return math.exp(-((length / (rise + fall)) ** 2) / 2)


def boundary_survival(a: float, mass: float) -> float:
    """gamma, eq. (lam_geo): the fraction of the carried state that each boundary leaves, whatever the phases' lengths."""
    return math.exp(-a * mass)


def selectivity(a: float, mass: float) -> float:
    """S, eq. (lam_sel): how much better content of the current phase survives than equally old content from before the boundary.

    It is 1 for every a without a burst, eq. (lam_sel_fixed), and at most exp(a W) for a burst of width W, eq. (lam_bound)."""
    return 1 / boundary_survival(a, mass)


def rate_without_bursts(a: float, mass: float, age: float) -> float:
    """a', eq. (lam_aprime): the constant decay that suppresses content of this age as much as a and a burst together do."""
    return a * (age + mass) / age


def capacity_kept(mass: float, age: float) -> float:
    """Eq. (lam_cost_eq): the share of its capacity a model keeps when it forgets by a constant rate instead of by bursts."""
    return age / (age + mass)


def contrast_after_boundary(a: float, mass: float, mean_squared_gain: float) -> float:
    """Eq. (lam_snr): energy written since a boundary over energy carried across it, relative to no burst."""
    return selectivity(a, mass) ** 2 * mean_squared_gain


def smallest_fixed_rate(theta: float, shortest: float) -> float:
    """Eq. (lam_amin): the decay a constant step needs so that even the shortest phase forgets its predecessor."""
    return math.log(1 / theta) / shortest


def smallest_burst(theta: float, a: float) -> float:
    """Eq. (lam_aMbound): the M with which one boundary leaves at most theta."""
    return math.log(1 / theta) / a


def capacity_ratio(theta: float, longest: float, shortest: float) -> float:
    """Eq. (lam_ratio): memory with bursts over memory with a constant step, eq. (lam_capfixed). Grows with the spread of lengths."""
    with_bursts = longest
    fixed = 1 / smallest_fixed_rate(theta, shortest)
    return with_bursts / fixed


def burst_cost(a: float, rise: float, fall: float) -> tuple[float, float]:
    """D_L and D_R, eq. (lam_DLDR): energy a burst destroys before and after the boundary, per frame's worth of input energy."""
    return BURST_MASS_PER_WIDTH * rise, 2 * a * fall**2


def widest_fall(a: float) -> float:
    """Eq. (lam_sigR): beyond this sigma_R the burst weakens the new phase instead of strengthening it; 0.55 / a."""
    return math.log(2) / (a * BURST_MASS_PER_WIDTH)


def widest_cheap_fall(a: float) -> float:
    """Below this sigma_R a frame of forgetting costs less after the boundary than before it; 0.31 / a (below eq. lam_DLDR)."""
    return BURST_MASS_PER_WIDTH / (4 * a)


# The phases of a dataset's videos over time, from annotations alone: prepared, as downloaded, or plain label files.
#
# A segment runs from one boundary to the next. A boundary is where training sees one: the first labelled row of a phase other than
# the last labelled one. So rows that nobody labelled end no segment; before the first and after the last labelled row there is none.


_SEGMENT_COLUMNS = ["start", "end", "phase"]


@dataclass(frozen=True, eq=False)
class Timeline:
    """One video as segments in order: phase ids, begin and end in seconds."""

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
    """All videos of a dataset, and how the seconds were known."""

    dataset: str
    phases: tuple[str, ...]
    videos: list[Timeline]
    clock: str

    @property
    def length_s(self) -> FloatArray:
        """Every segment of every video."""
        return np.concatenate([video.length_s for video in self.videos])


def from_rows(video: str, phases: IntArray, rows_per_s: float) -> Timeline:
    """Segments of one row after the other."""
    labelled = np.flatnonzero(phases >= 0)
    if not len(labelled):
        return Timeline(video, np.empty(0, np.int64), np.empty(0), np.empty(0))
    last = labelled[-1] + 1
    holder = np.maximum.accumulate(np.where(phases[:last] >= 0, np.arange(last), 0))  # the labelled row that speaks for each row
    segments = find_segments(phases[:last][holder])
    return Timeline(video, segments.phase, segments.start / rows_per_s, segments.stop / rows_per_s)


def from_stretches(video: str, labels: SegmentLabels) -> Timeline:
    """Segments of stretches of time; what lies between two of them belongs to the earlier."""
    begins = np.flatnonzero(np.append(True, labels.phases[1:] != labels.phases[:-1]))
    start = labels.start_s[begins]
    return Timeline(video, labels.phases[begins], start, np.append(start[1:], labels.end_s[-1]))


def read_prepared(folder: Path) -> Annotations:
    """Every video of a prepared dataset."""
    dataset = PreparedDataset.open(folder)
    fps = float(dataset.fps)
    videos = [from_rows(video.id, video.labels, fps) for video in dataset.videos.values()]
    return _checked(Annotations(dataset.name, dataset.phases, videos, f"{fps:g} samples per second, as prepared"), folder)


def read_annotations(folder: Path, phases: str | None, fps: float | None) -> Annotations:
    """A folder with annotations: a prepared dataset, a dataset as downloaded (videos need not be there), or a label file per video.

    phases: a dataset's name or a YAML file; without it, the folder's own phases.yaml. fps: rows per second of label files that do not
    tell by themselves."""
    if (folder / MANIFEST).is_file():
        return read_prepared(folder)
    if not folder.is_dir() and (not folder.is_file() or phases in ADAPTERS):
        raise DataError(f"{folder} is not a folder; give one with the annotations of a dataset.")
    if phases is None:
        if not any((folder / name).is_file() for name in ("phases.yaml", "phases.yml")):
            raise ConfigError(f"no phases given and {folder} has no phases.yaml; name a dataset (cholec80) or a YAML file with --phases.")
        phases = "custom"
    adapter = get_adapter(phases, folder) if phases in ADAPTERS else None
    if isinstance(adapter, RowAdapter):
        files = adapter.label_files()
        if files and adapter.counted_per_s is None and fps is None:
            return _of_recordings(adapter, folder)
        return _label_files(files or find_files(folder, "labels"), adapter.vocabulary, adapter.counted_per_s, fps, folder)
    if adapter is not None and adapter.holds_annotations():
        if fps is not None:
            raise ConfigError(f"--fps {fps:g} was given, but what {folder} holds of {adapter.name} tells its own rate; leave --fps out.")
        return _of_adapter(adapter, folder)
    if isinstance(adapter, Custom):
        description = read_description(phases_file(folder))
        counted = Fraction(1) if description.per_second else description.image_fps
        return _label_files(find_files(folder, "labels"), adapter.vocabulary, counted, fps, folder)
    return _label_files(find_files(folder, "labels"), load_vocabulary(phases), None, fps, folder)


def _of_recordings(adapter: RowAdapter, folder: Path) -> Annotations:
    """A dataset whose recordings differ in rate, so that label files alone do not tell the time."""
    if not match_files(folder, adapter.video_pattern, adapter.identify, second_choice=adapter.second_choice):
        differ = f"{adapter.name} counts frames, and its recordings differ in frames per second"
        raise DataError(f"{differ}; give a folder that also has the videos, a prepared one, or --fps if all of yours have one rate.")
    return _of_adapter(adapter, folder)


def _of_adapter(adapter: VideoAdapter | FeatureAdapter, folder: Path) -> Annotations:
    rows = list(adapter.phase_rows())
    rates = sorted({float(video.rows_per_s) for video in rows})
    clock = f"{' or '.join(f'{rate:g}' for rate in rates)} rows per second, as {adapter.name} says"
    videos = [from_rows(video.id, video.phases, float(video.rows_per_s)) for video in rows]
    name = folder.resolve().name if adapter.name in ("custom", "features") else adapter.vocabulary.dataset
    return _checked(Annotations(name, adapter.vocabulary.names, videos, clock), folder)


def _label_files(
    files: dict[str, Path], vocabulary: PhaseVocabulary, counted_per_s: Fraction | None, fps: float | None, folder: Path
) -> Annotations:
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
            if rate is not None and abs(rate - fps) > 1e-3 * fps:
                raise DataError(f"--fps {fps:g} was given, but the time column of {path} says {rate:g} rows per second.")
            rate, clock = fps, "as given"
        elif rate is None and counted_per_s is not None:
            rate = float(counted_per_s) / (rows.step or 1)
            clock = f"by row numbers {rows.step or 1} apart at {float(counted_per_s):g} a second"
        elif rate is None:
            rate, clock = 1.0, "assumed; say otherwise with --fps"
        videos.append(from_rows(name, rows.phase, rate))
        clocks.add(f"{rate:g} rows per second, {clock}")
    return _checked(Annotations(vocabulary.dataset, vocabulary.names, videos, "; ".join(sorted(clocks))), folder)


def _stretches(path: Path, vocabulary: PhaseVocabulary) -> SegmentLabels | None:
    """The labels of a file of `start,end,phase` rows; None for a file of another format."""
    first = read_lines(path)[0]
    for separator in (",", "\t", ";"):
        if [part.strip().casefold() for part in first.split(separator)] == _SEGMENT_COLUMNS:
            return read_segments(path, vocabulary, separator)
    return None


def _checked(annotations: Annotations, folder: Path) -> Annotations:
    """Videos without a labelled row tell nothing; without a single boundary there is nothing to study."""
    told: Iterable[Timeline] = (video for video in annotations.videos if len(video.phase))
    annotations = Annotations(annotations.dataset, annotations.phases, list(told), annotations.clock)
    if not any(len(video.boundaries_s) for video in annotations.videos):
        raise DataError(
            f"{folder} has no change of phase in {len(annotations.videos)} labelled video(s); there is no boundary to forget at."
        )
    return annotations


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
    mass = burst_mass(assumed.rise_s, assumed.fall_s)
    width = burst_width(assumed.rise_s, assumed.fall_s)
    between = _between_boundaries(annotations)
    floors = [burst_floor(float(length), assumed.rise_s, assumed.fall_s) for length in between]
    rise, fall = suggest_burst(overall)
    suggested_width = burst_width(rise, fall)
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
        capacity_ratio(assumed.theta, overall.longest, overall.low),
        mass,
        width,
        over_mean,
        overlapping,
        _share(np.array(floors) > MERGED),
        time_in_bursts(annotations.videos, assumed.rise_s, assumed.fall_s),
        (smallest_burst(assumed.theta, mass), 1 / overall.mean),
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
    room = overall.low / BURST_REACH / (1 + RISE_TO_FALL)
    fall = min(room, widest_cheap_fall(1 / overall.mean))
    return RISE_TO_FALL * fall, fall


def time_in_bursts(videos: list[Timeline], rise: float, fall: float) -> float:
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


def _lengths(name: str, annotations: Annotations, chosen: BoolArray, assumed: Assumptions) -> PhaseLengths:
    lengths = annotations.length_s[chosen]
    if not len(lengths):
        return PhaseLengths(name, 0, 0, 0.0, *[math.nan] * 6)
    owner = np.concatenate([np.full(len(video.phase), number) for number, video in enumerate(annotations.videos)])
    width = burst_width(assumed.rise_s, assumed.fall_s)
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
        "fixed step that clears the short ones, log(1/theta) / L_q": smallest_fixed_rate(assumed.theta, overall.low),
        f"trained state that keeps {assumed.plateau:g} a second": -math.log(assumed.plateau),
    }
    return tuple(
        Rate(
            what,
            a,
            math.exp(-a * overall.mean),
            boundary_survival(a, mass),
            selectivity(a, mass),
            widest_cheap_fall(a),
            widest_fall(a),
        )
        for what, a in chosen.items()
    )


def _verdict(spread: float, width_over_mean: float, overlapping: float, quantile: float) -> Verdict:
    if spread < LITTLE_SPREAD:
        return "little to gain"
    return "fits" if width_over_mean <= CROWDED and overlapping <= quantile else "fits with narrower bursts"

