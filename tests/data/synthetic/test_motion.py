"""What the frames show, before they are drawn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgicalmamba.data.synthetic import operation
from surgicalmamba.data.synthetic.instruments import Tool
from surgicalmamba.data.synthetic.procedure import CALOT, CLIPPING, DISSECTION, PACKAGING, Activity


@pytest.fixture(scope="module")
def operations():
    return [operation(4, video) for video in range(8)]


def frames_of(op, *activities):
    mask = np.zeros(op.procedure.n_frames, dtype=bool)
    for bout in op.procedure.bouts:
        mask[bout.start : bout.stop] = bout.activity in activities
    return mask


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), fps=st.integers(1, 10))
def test_a_hand_changes_its_tool_only_out_of_sight(seed, fps):
    tracks = operation(seed, 0, short=True, fps=fps).tracks
    for hand in (tracks.left, tracks.right):
        changed = np.flatnonzero(hand.tool[1:] != hand.tool[:-1]) + 1
        assert (hand.reach[changed] == 0).all()
        assert (hand.reach[hand.tool == -1] == 0).all()
        assert hand.reach.min() >= 0 and hand.reach.max() <= 1


def test_tools_are_present_about_as_often_as_in_cholec80(operations, real_data):
    archive = np.load(real_data("cholec80/tools_phases_01-40.npz"), allow_pickle=False)
    keys = [key.removesuffix("/phases") for key in archive.files if key.endswith("/phases")]
    n_rows = {key: min(len(archive[f"{key}/phases"]), len(archive[f"{key}/tools"])) for key in keys}
    real_tools = np.concatenate([archive[f"{key}/tools"][: n_rows[key]] for key in keys])
    real_phases = np.concatenate([archive[f"{key}/phases"][: n_rows[key]] for key in keys])
    tools = np.concatenate([op.tracks.tool_presence() for op in operations])
    phases = np.concatenate([op.procedure.phase_per_frame() for op in operations])
    for tool, phase in (
        (Tool.HOOK, CALOT),
        (Tool.HOOK, DISSECTION),
        (Tool.CLIPPER, CLIPPING),
        (Tool.GRASPER, CALOT),
        (Tool.BAG, PACKAGING),
    ):
        ours, theirs = (
            tools[phases == phase, tool.value].mean(),
            real_tools[real_phases == phase, tool.value].mean(),
        )
        assert ours == pytest.approx(theirs, abs=0.15), (tool, phase)


def test_smoke_follows_cautery_and_clears(operations):
    for op in operations:
        tracks = op.tracks
        quiet = (
            np.convolve(tracks.spark, np.ones(15 * op.fps), mode="full")[: op.procedure.n_frames] == 0
        )  # nothing burnt for 15 s
        assert tracks.smoke[quiet].max() < 0.05
        assert tracks.smoke[tracks.spark > 0].mean() > 5 * tracks.smoke[quiet].mean() + 0.1


def test_water_blood_and_out_of_body_belong_to_their_activities(operations):
    for op in operations:
        tracks = op.tracks
        assert not tracks.water[~_near(frames_of(op, Activity.IRRIGATE), op.fps)].any()
        assert not tracks.outside[~_near(frames_of(op, Activity.OUTSIDE), 2 * op.fps)].any()
        assert tracks.blood()[frames_of(op, Activity.EXPLORE, Activity.BAG, Activity.OUTSIDE)].sum() == 0
    assert sum(op.tracks.blood()[frames_of(op, Activity.DISSECT)].sum() for op in operations) > 0
    assert max(op.tracks.outside.max() for op in operations) == 1.0


def test_the_gallbladder_is_gone_for_good_after_it_left_its_bed(operations):
    for op in operations:
        leaves = next(bout.start for bout in op.procedure.bouts if bout.phase >= PACKAGING)
        settled = leaves + 2 * op.fps + 1
        assert not op.tracks.gallbladder[settled:].any()
        assert op.tracks.gallbladder[:leaves].max() == 1.0


def test_clips_show_in_the_clipping_phase_and_for_seconds_after_it_only(operations):
    for op in operations:
        shown = (op.tracks.clips > 0) & (op.tracks.duct > 0.02)
        clipping = op.procedure.phase_per_frame() == CLIPPING
        assert shown.any()
        assert not shown[~_near(clipping, 4 * op.fps)].any()


def _near(mask, reach):
    """True wherever `mask` holds or held at most `reach` frames before."""
    return np.convolve(mask, np.ones(reach + 1), mode="full")[: len(mask)] > 0
