"""From the script to what every frame shows: camera, two hands, gallbladder, smoke, blood, water, focus.

A track is one array over frames, rounded to a thousandth, so that a frame can be rendered alone and in any order. No track but `clips`
depends on the phase; all others follow from the activity, so the two dissection phases differ in nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.synthetic.instruments import Tool
from surgicalmamba.data.synthetic.procedure import CLIPPING, PACKAGING, RETRACTION, Activity, Procedure

Track = NDArray[np.float64]


@dataclass(frozen=True)
class View:
    """Where an activity looks (x, y in the field), how close (larger is closer), and how far each shot may differ."""

    x: float
    y: float
    zoom: float
    spread: float


VIEWS = {
    Activity.EXPLORE: View(300.0, 225.0, 0.92, 34.0),
    Activity.HOLD: View(296.0, 205.0, 1.02, 24.0),
    Activity.DISSECT: View(290.0, 196.0, 1.14, 22.0),
    Activity.CLIP: View(330.0, 250.0, 1.30, 12.0),
    Activity.CUT: View(330.0, 250.0, 1.30, 12.0),
    Activity.IRRIGATE: View(285.0, 200.0, 1.05, 26.0),
    Activity.COAGULATE: View(280.0, 190.0, 1.16, 22.0),
    Activity.BAG: View(320.0, 235.0, 0.96, 24.0),
    Activity.OUTSIDE: View(300.0, 230.0, 0.90, 10.0),
}
RIGHT_HAND = {
    Activity.DISSECT: Tool.HOOK,
    Activity.CLIP: Tool.CLIPPER,
    Activity.CUT: Tool.SCISSORS,
    Activity.IRRIGATE: Tool.IRRIGATOR,
    Activity.COAGULATE: Tool.BIPOLAR,
}
LEFT_GRASPER = {
    Activity.HOLD: 1.0,
    Activity.DISSECT: 0.72,
    Activity.CLIP: 0.75,
    Activity.CUT: 0.75,
    Activity.IRRIGATE: 0.55,
    Activity.COAGULATE: 0.55,
    Activity.BAG: 0.85,
}
"""Chance that the left hand's grasper is in view during a bout."""

_NO_TOOL = -1
_BAG_BESIDE_CLEANING = 0.3


@dataclass(frozen=True)
class Hand:
    """One hand: tool number per frame (-1 for none), how far it is in (0 to 1), tip (x, y) in the view, jaws (0 shut to 1 open)."""

    tool: NDArray[np.int64]
    reach: Track
    x: Track
    y: Track
    jaws: Track


@dataclass(frozen=True)
class Bleeding:
    """A bleeding: frame it starts, where in the field, how strong, and its size per frame (0 to 1) from `start` on."""

    start: int
    x: float
    y: float
    size: Track


@dataclass(frozen=True)
class Tracks:
    """Everything a frame shows, frame by frame."""

    camera_x: Track
    camera_y: Track
    zoom: Track
    roll: Track
    left: Hand
    right: Hand
    pull_x: Track
    """How far the gallbladder is drawn from its rest, pixels."""
    pull_y: Track
    gallbladder: Track
    """1 in place, 0 out of sight: lifted away, or already in the bag."""
    duct: Track
    """1 when the camera is on the bared duct."""
    clips: NDArray[np.int64]
    bag: Track
    bag_is_open: NDArray[np.bool_]
    spark: Track
    smoke: Track
    water: Track
    defocus: Track
    outside: Track
    bleedings: tuple[Bleeding, ...] = field(repr=False)

    def tool_presence(self) -> NDArray[np.uint8]:
        """(n_frames, 7) 0/1 in the column order of Cholec80's tool files: what is more than a quarter in."""
        present = np.zeros((len(self.zoom), len(Tool)), dtype=np.uint8)
        for hand in (self.left, self.right):
            seen = (hand.tool != _NO_TOOL) & (hand.reach > 0.25)
            present[np.flatnonzero(seen), hand.tool[seen]] = 1
        present[:, Tool.BAG.value] = self.bag > 0.25
        present[self.outside > 0.5] = 0
        return present

    def blood(self) -> Track:
        """(n_frames,) how much fresh blood lies in the field."""
        total = np.zeros(len(self.zoom))
        for bleeding in self.bleedings:
            total[bleeding.start : bleeding.start + len(bleeding.size)] += bleeding.size
        return total


def plan_motion(procedure: Procedure, rng: np.random.Generator) -> Tracks:
    """Draw the tracks of one procedure."""
    n, fps = procedure.n_frames, procedure.fps
    seconds = np.arange(n) / fps

    def per_bout(value: Callable[[Activity, int], float]) -> Track:
        return np.concatenate([np.full(bout.stop - bout.start, value(bout.activity, bout.phase)) for bout in procedure.bouts])

    def wander(amount: float, slowest_s: float, fastest_s: float) -> Track:
        """Smooth aimless motion: four sines of random period and phase."""
        total = np.zeros(n)
        for period in np.exp(np.linspace(np.log(slowest_s), np.log(fastest_s), 4)):
            total += np.sin(2 * np.pi * (seconds / (period * rng.uniform(0.8, 1.25)) + rng.random()))
        return total * (amount / 2.0)

    def approach(target: Track, seconds_to_cross: float) -> Track:
        """Follow a stepwise target at a limited speed (full scale in `seconds_to_cross`)."""
        step = 1.0 / (seconds_to_cross * fps)
        out = np.empty(n)
        value = float(target[0])
        for i, goal in enumerate(target.tolist()):
            value += min(max(goal - value, -step), step)
            out[i] = value
        return out

    def drift(target: Track, time_constant_s: float) -> Track:
        """Follow a stepwise target with an exponential lag."""
        keep = 1.0 - 1.0 / (1.0 + time_constant_s * fps)
        out = np.empty(n)
        value = float(target[0])
        for i, goal in enumerate(target.tolist()):
            value = keep * value + (1.0 - keep) * goal
            out[i] = value
        return out

    def when(*activities: Activity) -> Track:
        return per_bout(lambda activity, _: 1.0 if activity in activities else 0.0)

    # Camera: each bout is a shot with its own aim.
    camera_x = drift(per_bout(lambda a, _: VIEWS[a].x + rng.uniform(-1, 1) * VIEWS[a].spread), 0.9) + wander(5.0, 9.0, 1.3)
    camera_y = drift(per_bout(lambda a, _: VIEWS[a].y + rng.uniform(-1, 1) * VIEWS[a].spread * 0.6), 0.9) + wander(4.0, 8.0, 1.1)
    zoom = drift(per_bout(lambda a, _: VIEWS[a].zoom * rng.uniform(0.92, 1.08)), 1.2) + wander(0.03, 14.0, 3.0)
    roll = drift(per_bout(lambda a, _: rng.normal(0.0, 0.07)), 1.5) + wander(0.025, 11.0, 2.5)

    # Hands.
    left_tool = per_bout(lambda a, _: Tool.GRASPER.value if rng.random() < LEFT_GRASPER.get(a, 0.0) else _NO_TOOL)
    right_tool = per_bout(lambda a, _: RIGHT_HAND[a].value if a in RIGHT_HAND else _NO_TOOL)
    stroke = np.sin(2 * np.pi * seconds * 0.62 + 1.5 * np.sin(seconds * 0.37))
    dissecting = when(Activity.DISSECT)
    cutting = when(Activity.CLIP, Activity.CUT)
    sweeping = when(Activity.IRRIGATE)
    jaws = drift(when(Activity.CLIP, Activity.CUT, Activity.COAGULATE), 0.5) * (0.5 + 0.5 * np.sin(2 * np.pi * seconds * 0.21))
    left = _hand(
        left_tool,
        fps,
        x=118.0 + drift(per_bout(lambda a, _: rng.uniform(-16, 16)), 0.8) + wander(7.0, 9.0, 1.6),
        y=92.0 + drift(per_bout(lambda a, _: rng.uniform(-14, 14)), 0.8) + wander(6.0, 8.0, 1.4),
        jaws=np.clip(0.22 + wander(0.25, 12.0, 4.0), 0.0, 1.0),
    )
    right = _hand(
        right_tool,
        fps,
        x=206.0 + drift(per_bout(lambda a, _: rng.uniform(-22, 22)), 0.8) + wander(9.0, 7.0, 1.2) + 5.0 * dissecting * stroke - 14.0 * cutting,
        y=152.0 + drift(per_bout(lambda a, _: rng.uniform(-18, 18)), 0.8) + wander(7.0, 6.0, 1.1) - 7.0 * dissecting * stroke - 12.0 * cutting
        + 10.0 * sweeping * np.sin(seconds * 1.9),
        jaws=jaws,
    )

    # The gallbladder follows the grasper that holds it.
    held = left.reach * (left.tool == Tool.GRASPER.value)
    gone = _removed(procedure)
    lifted = when(Activity.IRRIGATE, Activity.COAGULATE, Activity.OUTSIDE)
    gallbladder = approach((1.0 - lifted) * (1.0 - gone), 2.0)

    # Cautery: strokes of the hook or the bipolar, smoke after them, blood now and then.
    hook_works = dissecting * (right.reach > 0.9) * (np.sin(2 * np.pi * seconds * 0.27 + 2.0 * np.sin(seconds * 0.11)) > 0.1)
    bipolar_works = when(Activity.COAGULATE) * (right.reach > 0.9) * (np.sin(2 * np.pi * seconds * 0.19) > 0.2)
    works = np.maximum(hook_works, bipolar_works)
    smoke = np.clip(drift(works * per_bout(lambda a, _: rng.uniform(0.25, 1.15)), 3.5), 0.0, 1.0)
    water = approach(sweeping * (right.reach > 0.9) * (np.sin(2 * np.pi * seconds * 0.16) > -0.35), 0.5)

    bag_open, bag_visible = _bag(procedure, rng)
    outside = approach(when(Activity.OUTSIDE), 1.6)
    motion = np.hypot(np.gradient(camera_x), np.gradient(camera_y)) * fps
    bad_focus = per_bout(lambda a, _: 1.0 if rng.random() < 0.06 else 0.0)
    focus = 1.6 * drift(bad_focus, 1.0) * np.clip(0.6 + wander(0.6, 9.0, 2.5), 0.0, 1.0) + np.clip((motion - 26.0) / 60.0, 0.0, 1.2)

    return Tracks(
        *(np.round(track, 3) for track in (camera_x, camera_y, np.clip(zoom, 0.8, 1.45), roll)),
        left,
        right,
        np.round(held * (left.x - 118.0) + wander(2.0, 6.0, 3.0), 3),
        np.round(held * (left.y - 92.0) - 5.0 * held + wander(2.5, 5.0, 3.5), 3),
        np.round(gallbladder, 3),
        np.round(drift(when(Activity.CLIP, Activity.CUT) * (1.0 - gone), 0.6), 3),
        _clips(procedure),
        np.round(approach(bag_visible, 1.8), 3),
        bag_open,
        np.round(works, 3),
        np.round(smoke, 3),
        np.round(water, 3),
        np.round(focus, 3),
        np.round(outside, 3),
        _bleedings(procedure, rng),
    )


def _hand(wanted: Track, fps: int, x: Track, y: Track, jaws: Track) -> Hand:
    """A hand pulls its tool out of sight before it comes in with another."""
    step = 1.0 / (1.1 * fps)
    n = len(wanted)
    tool, reach = np.full(n, _NO_TOOL, dtype=np.int64), np.zeros(n)
    holding, value = int(wanted[0]), 0.0
    for i, goal in enumerate(wanted.astype(np.int64).tolist()):
        if goal != holding:
            value = max(value - step, 0.0)
            if value == 0.0:
                holding = goal
        elif goal != _NO_TOOL:
            value = min(value + step, 1.0)
        tool[i], reach[i] = holding, value
    return Hand(tool, np.round(reach, 3), np.round(x, 3), np.round(y, 3), np.round(jaws, 3))


def _removed(procedure: Procedure) -> Track:
    """1 from the phase on in which the gallbladder leaves its bed for good: packaging, or a cleaning that comes before it."""
    gone = np.zeros(procedure.n_frames)
    for bout in procedure.bouts:
        if bout.phase >= PACKAGING:
            gone[bout.start :] = 1.0
            break
    return gone


def _clips(procedure: Procedure) -> NDArray[np.int64]:
    """Clips on the duct, one at the end of every clipping bout, at most three; before the clipping phase there are none."""
    clips = np.zeros(procedure.n_frames, dtype=np.int64)
    for bout in procedure.bouts:
        if bout.phase == CLIPPING and bout.activity is Activity.CLIP:
            clips[(bout.start + bout.stop) // 2 :] += 1
    return np.minimum(clips, 3)


def _bag(procedure: Procedure, rng: np.random.Generator) -> tuple[NDArray[np.bool_], Track]:
    """The bag lies open while the gallbladder is put in, is drawn shut to be pulled out, and may lie beside a cleaning."""
    is_open = np.zeros(procedure.n_frames, dtype=np.bool_)
    visible = np.zeros(procedure.n_frames)
    packed = False
    for bout in procedure.bouts:
        here = slice(bout.start, bout.stop)
        packed = packed or bout.phase == PACKAGING
        if bout.activity is Activity.BAG:
            visible[here] = 1.0
            half = bout.start + (bout.stop - bout.start) // 2
            is_open[bout.start : bout.start if bout.phase == RETRACTION else half] = True
        elif packed and bout.activity in (Activity.IRRIGATE, Activity.COAGULATE) and rng.random() < _BAG_BESIDE_CLEANING:
            visible[here] = 1.0
    return is_open, visible


def _bleedings(procedure: Procedure, rng: np.random.Generator) -> tuple[Bleeding, ...]:
    """Some bouts bleed: a quick rise, then washed or wiped away. Nothing outlasts the view it began in by more than some seconds."""
    chance = {Activity.DISSECT: 0.42, Activity.CUT: 0.3, Activity.IRRIGATE: 0.75, Activity.COAGULATE: 0.8, Activity.HOLD: 0.1}
    bleedings = []
    for bout in procedure.bouts:
        length = bout.stop - bout.start
        if rng.random() >= chance.get(bout.activity, 0.0) or length < 3 * procedure.fps:
            continue
        washed = bout.activity in (Activity.IRRIGATE, Activity.COAGULATE)
        start = bout.start if washed else bout.start + int(rng.uniform(0.1, 0.6) * length)
        t = np.arange(bout.stop - start) / procedure.fps
        rise = np.full(len(t), 1.0) if washed else np.clip(t / rng.uniform(2.0, 7.0), 0.0, 1.0)
        fall = np.clip(1.0 - t / (len(t) / procedure.fps) * 0.8, 0.0, 1.0) if washed else np.clip((t[-1] - t) / 2.5, 0.0, 1.0)
        aim = VIEWS[bout.activity]
        size = np.round(rng.uniform(0.35, 0.95) * np.minimum(rise, fall), 3)
        x, y = aim.x + rng.uniform(-45, 45), aim.y + rng.uniform(-25, 45)
        bleedings.append(Bleeding(start, round(x, 1), round(y, 1), size))
    return tuple(bleedings)
