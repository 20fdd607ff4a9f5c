"""From the script to what every frame shows: camera, two hands, gallbladder, smoke, blood, water, focus.

A track is one array over frames, rounded to a thousandth, so that a frame can be rendered alone and in any
order. What is shown follows from the activity. Only three things depend on the phase: the bared duct with its
clips (clipping alone), the gallbladder leaving its bed (from packaging or cleaning on) and the bag. None of
them differs between the two dissection phases."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.data.synthetic.instruments import Tool
from surgicalmamba.data.synthetic.procedure import (
    CLIPPING,
    PACKAGING,
    RETRACTION,
    Activity,
    Procedure,
    Timeline,
    Track,
    rounded,
)


@dataclass(frozen=True)
class View:
    """Where an activity looks (x, y in the field), how close (larger is closer), and how far each shot may
    differ."""

    x: float
    y: float
    zoom: float
    spread: float


@dataclass(frozen=True)
class Looks:
    """What an activity looks like: its view, the right hand's tool, and two chances per bout: that the left
    hand's grasper is in view, and that it bleeds."""

    view: View
    right: Tool | None = None
    left_grasper: float = 0.0
    bleeds: float = 0.0


LOOKS = {
    Activity.EXPLORE: Looks(View(300.0, 225.0, 0.92, 34.0)),
    Activity.HOLD: Looks(View(296.0, 205.0, 1.02, 24.0), None, 1.0, 0.1),
    Activity.DISSECT: Looks(View(290.0, 196.0, 1.14, 22.0), Tool.HOOK, 0.80, 0.42),
    Activity.CLIP: Looks(View(330.0, 250.0, 1.30, 12.0), Tool.CLIPPER, 0.75),
    Activity.CUT: Looks(View(330.0, 250.0, 1.30, 12.0), Tool.SCISSORS, 0.75, 0.3),
    Activity.IRRIGATE: Looks(View(285.0, 200.0, 1.05, 26.0), Tool.IRRIGATOR, 0.55, 0.75),
    Activity.COAGULATE: Looks(View(280.0, 190.0, 1.16, 22.0), Tool.BIPOLAR, 0.55, 0.8),
    Activity.BAG: Looks(View(320.0, 235.0, 0.96, 24.0), None, 0.85),
    Activity.OUTSIDE: Looks(View(300.0, 230.0, 0.90, 10.0)),
}

_NO_TOOL = -1
_LEFT_TIP = (118.0, 92.0)
_RIGHT_TIP = (206.0, 152.0)
_BAG_BESIDE_CLEANING = 0.3
_CLEANS = (Activity.IRRIGATE, Activity.COAGULATE)


@dataclass(frozen=True)
class Hand:
    """One hand: tool number per frame (-1 for none), how far it is in (0 to 1), tip (x, y) in the view, jaws
    (0 shut to 1 open)."""

    tool: NDArray[np.int64]
    reach: Track
    x: Track
    y: Track
    jaws: Track


@dataclass(frozen=True)
class Bleeding:
    """A bleeding: frame it starts, where in the field, how strong, and its size per frame (0 to 1) from
    `start` on."""

    start: int
    x: float
    y: float
    size: Track


@dataclass(frozen=True)
class Camera:
    """Aim (x, y) in the field, closeness, and roll in radians, per frame."""

    x: Track
    y: Track
    zoom: Track
    roll: Track


@dataclass(frozen=True)
class Tracks:
    """Everything a frame shows, frame by frame."""

    camera: Camera
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
        present = np.zeros((len(self.smoke), len(Tool)), dtype=np.uint8)
        for hand in (self.left, self.right):
            seen = (hand.tool != _NO_TOOL) & (hand.reach > 0.25)
            present[np.flatnonzero(seen), hand.tool[seen]] = 1
        present[:, Tool.BAG.value] = self.bag > 0.25
        present[self.outside > 0.5] = 0
        return present

    def blood(self) -> Track:
        """(n_frames,) how much fresh blood lies in the field."""
        total = np.zeros(len(self.smoke))
        for bleeding in self.bleedings:
            total[bleeding.start : bleeding.start + len(bleeding.size)] += bleeding.size
        return total


def plan_motion(procedure: Procedure, rng: np.random.Generator) -> Tracks:
    """Draw the tracks of one procedure."""
    line = Timeline(procedure, rng)
    camera = _camera(line)
    left, right = _left_hand(line), _right_hand(line)
    gone = _removed(procedure)
    away = line.when(Activity.IRRIGATE, Activity.COAGULATE, Activity.OUTSIDE)
    at_duct = line.when(Activity.CLIP, Activity.CUT) * (procedure.phase_per_frame() == CLIPPING)
    works = _cautery(line, right)

    def thick(_: Activity) -> float:
        return rng.uniform(0.25, 1.15)

    pulses = np.sin(2 * np.pi * line.seconds * 0.16) > -0.35
    washing = line.when(Activity.IRRIGATE) * (right.reach > 0.9) * pulses
    bag_is_open, bag_visible = _bag(procedure, rng)
    held = left.reach * (left.tool == Tool.GRASPER.value)
    return Tracks(
        camera=camera,
        left=left,
        right=right,
        pull_x=rounded(held * (left.x - _LEFT_TIP[0]) + line.wander(2.0, 6.0, 3.0)),
        pull_y=rounded(held * (left.y - _LEFT_TIP[1] - 5.0) + line.wander(2.5, 5.0, 3.5)),
        gallbladder=rounded(line.approach((1.0 - away) * (1.0 - gone), 2.0)),
        duct=rounded(line.drift(at_duct, 0.6)),
        clips=_clips(procedure),
        bag=rounded(line.approach(bag_visible, 1.8)),
        bag_is_open=bag_is_open,
        spark=rounded(works),
        smoke=rounded(np.clip(line.drift(works * line.per_bout(thick), 3.5), 0.0, 1.0)),
        water=rounded(line.approach(washing, 0.5)),
        defocus=_defocus(line, camera),
        outside=rounded(line.approach(line.when(Activity.OUTSIDE), 1.6)),
        bleedings=_bleedings(procedure, rng),
    )


def _camera(line: Timeline) -> Camera:
    """Each bout is a shot with its own aim; the hand that holds the camera is never still."""
    rng = line.rng

    def shots(value: Callable[[View], float], lag_s: float) -> Track:
        return line.drift(line.per_bout(lambda activity: value(LOOKS[activity].view)), lag_s)

    x = shots(lambda view: view.x + rng.uniform(-1, 1) * view.spread, 0.9) + line.wander(5.0, 9.0, 1.3)
    y = shots(lambda view: view.y + rng.uniform(-0.6, 0.6) * view.spread, 0.9) + line.wander(4.0, 8.0, 1.1)
    zoom = shots(lambda view: view.zoom * rng.uniform(0.92, 1.08), 1.2) + line.wander(0.03, 14.0, 3.0)
    roll = shots(lambda _: rng.normal(0.0, 0.07), 1.5) + line.wander(0.025, 11.0, 2.5)
    return Camera(rounded(x), rounded(y), rounded(np.clip(zoom, 0.8, 1.45)), rounded(roll))


def _left_hand(line: Timeline) -> Hand:
    """The grasper, in some bouts."""
    tools = line.per_bout(
        lambda a: Tool.GRASPER.value if line.rng.random() < LOOKS[a].left_grasper else _NO_TOOL
    )
    return _hand(
        tools,
        line.fps,
        x=_LEFT_TIP[0] + line.jitter(16.0) + line.wander(7.0, 9.0, 1.6),
        y=_LEFT_TIP[1] + line.jitter(14.0) + line.wander(6.0, 8.0, 1.4),
        jaws=np.clip(0.22 + line.wander(0.25, 12.0, 4.0), 0.0, 1.0),
    )


def _right_hand(line: Timeline) -> Hand:
    """The working hand: strokes of the hook, sweeps of the irrigator, jaws that open and close."""
    t = line.seconds
    stroke = line.when(Activity.DISSECT) * np.sin(2 * np.pi * t * 0.62 + 1.5 * np.sin(t * 0.37))
    sweep = line.when(Activity.IRRIGATE) * np.sin(t * 1.9)
    at_duct = line.when(Activity.CLIP, Activity.CUT)
    biting = line.drift(line.when(Activity.CLIP, Activity.CUT, Activity.COAGULATE), 0.5)
    return _hand(
        line.per_bout(lambda a: _NO_TOOL if (tool := LOOKS[a].right) is None else tool.value),
        line.fps,
        x=_RIGHT_TIP[0] + line.jitter(22.0) + line.wander(9.0, 7.0, 1.2) + 5.0 * stroke - 14.0 * at_duct,
        y=_RIGHT_TIP[1] + line.jitter(18.0) + line.wander(7.0, 6.0, 1.1) - 7.0 * stroke - 12.0 * at_duct
        + 10.0 * sweep,
        jaws=biting * (0.5 + 0.5 * np.sin(2 * np.pi * t * 0.21)),
    )


def _cautery(line: Timeline, right: Hand) -> Track:
    """1 while the hook or the bipolar burns."""
    t = line.seconds
    hook = line.when(Activity.DISSECT) * (np.sin(2 * np.pi * t * 0.27 + 2.0 * np.sin(t * 0.11)) > 0.1)
    bipolar = line.when(Activity.COAGULATE) * (np.sin(2 * np.pi * t * 0.19) > 0.2)
    return np.maximum(hook, bipolar) * (right.reach > 0.9)


def _defocus(line: Timeline, camera: Camera) -> Track:
    """Some bouts are out of focus, and fast camera motion smears."""
    bad = line.drift(line.per_bout(lambda _: line.rng.random() < 0.06), 1.0)
    speed = np.hypot(np.gradient(camera.x), np.gradient(camera.y)) * line.fps
    smear = np.clip((speed - 26.0) / 60.0, 0.0, 1.2)
    return rounded(1.6 * bad * np.clip(0.6 + line.wander(0.6, 9.0, 2.5), 0.0, 1.0) + smear)


def _hand(tools: Track, fps: int, x: Track, y: Track, jaws: Track) -> Hand:
    """A hand pulls its tool out of sight before it comes in with another."""
    step = 1.0 / (1.1 * fps)
    tool, reach = np.full(len(tools), _NO_TOOL, dtype=np.int64), np.zeros(len(tools))
    holding, value = int(tools[0]), 0.0
    for i, goal in enumerate(tools.astype(np.int64).tolist()):
        if goal != holding:
            value = max(value - step, 0.0)
            if value == 0.0:
                holding = goal
        elif goal != _NO_TOOL:
            value = min(value + step, 1.0)
        tool[i], reach[i] = holding, value
    return Hand(tool, rounded(reach), rounded(x), rounded(y), rounded(jaws))


def _removed(procedure: Procedure) -> Track:
    """1 from the phase in which the gallbladder leaves its bed for good: packaging, or a cleaning before
    it."""
    return (np.maximum.accumulate(procedure.phase_per_frame()) >= PACKAGING).astype(np.float64)


def _clips(procedure: Procedure) -> NDArray[np.int64]:
    """Clips on the duct, one at the end of every clipping bout, at most three; before the clipping phase
    there are none."""
    clips = np.zeros(procedure.n_frames, dtype=np.int64)
    for bout in procedure.bouts:
        if bout.phase == CLIPPING and bout.activity is Activity.CLIP:
            clips[(bout.start + bout.stop) // 2 :] += 1
    return np.minimum(clips, 3)


def _bag(procedure: Procedure, rng: np.random.Generator) -> tuple[NDArray[np.bool_], Track]:
    """The bag lies open while the gallbladder is put in, is drawn shut to be pulled out, and may lie beside a
    cleaning."""
    is_open = np.zeros(procedure.n_frames, dtype=np.bool_)
    visible = np.zeros(procedure.n_frames)
    packed = False
    for bout in procedure.bouts:
        packed = packed or bout.phase == PACKAGING
        if bout.activity is Activity.BAG:
            visible[bout.start : bout.stop] = 1.0
            if bout.phase != RETRACTION:
                is_open[bout.start : bout.start + bout.n_frames // 2] = True
        elif packed and bout.activity in _CLEANS and rng.random() < _BAG_BESIDE_CLEANING:
            visible[bout.start : bout.stop] = 1.0
    return is_open, visible


def _bleedings(procedure: Procedure, rng: np.random.Generator) -> tuple[Bleeding, ...]:
    """Some bouts bleed: a quick rise, then washed or wiped away. Nothing outlasts the view it began in by
    more than some seconds."""
    bleedings = []
    for bout in procedure.bouts:
        looks = LOOKS[bout.activity]
        if rng.random() >= looks.bleeds or bout.n_frames < 3 * procedure.fps:
            continue
        if bout.activity in _CLEANS:  # blood from before is washed away
            start = bout.start
            t = np.arange(bout.stop - start) / procedure.fps
            course = np.clip(1.0 - t / (len(t) / procedure.fps) * 0.8, 0.0, 1.0)
        else:
            start = bout.start + int(rng.uniform(0.1, 0.6) * bout.n_frames)
            t = np.arange(bout.stop - start) / procedure.fps
            rise = np.clip(t / rng.uniform(2.0, 7.0), 0.0, 1.0)
            course = np.minimum(rise, np.clip((t[-1] - t) / 2.5, 0.0, 1.0))
        size, aim = rounded(rng.uniform(0.35, 0.95) * course), looks.view
        x, y = aim.x + rng.uniform(-45, 45), aim.y + rng.uniform(-25, 45)
        bleedings.append(Bleeding(start, round(x, 1), round(y, 1), size))
    return tuple(bleedings)
