"""Frames: a round view with dark margins that shows what the tracks say, the same bytes on every
processor."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from surgicalmamba.data.synthetic import operation
from surgicalmamba.data.synthetic.anatomy import draw_anatomy
from surgicalmamba.data.synthetic.procedure import Activity, generator
from surgicalmamba.data.synthetic.render import FRAME_HW, Renderer


@pytest.fixture(scope="module")
def op():
    return operation(8, 0, short=True)


def clear_frame(op, activity):
    """A frame in the middle of a long bout of an activity."""
    bout = max((b for b in op.procedure.bouts if b.activity is activity), key=lambda b: b.stop - b.start)
    return (bout.start + bout.stop) // 2


def with_tracks(op, **changes):
    """The same patient with other tracks."""
    return Renderer(
        draw_anatomy(generator(op.seed, op.video, 2)),
        replace(op.tracks, **changes),
        generator(op.seed, op.video, 3),
    )


def test_the_view_is_round_with_dark_margins(op):
    frame = op.renderer.frame(clear_frame(op, Activity.DISSECT))
    assert frame.shape == (*FRAME_HW, 3) and frame.dtype == np.uint8
    grey = frame.mean(2)
    lit = grey > 15
    assert not lit[:, :55].any() and not lit[:, -55:].any()
    assert not lit[:8, :90].any() and not lit[-8:, -90:].any()  # corners of the view
    rows, columns = np.nonzero(lit)
    radius = op.renderer._anatomy.look.scope_radius
    assert np.hypot(rows - 135, columns - 240).max() <= radius + 10
    assert lit[100:170, 180:300].mean() > 0.95


def test_tissue_is_red_before_green_before_blue_inside_and_not_outside_the_body():
    """Redness separates inside from outside; out-of-body frames show drapes."""
    op = next(o for o in (operation(8, v) for v in range(20)) if (o.tracks.outside == 1.0).any())
    inside = op.renderer.frame(clear_frame(op, Activity.DISSECT))[60:210, 150:330].reshape(-1, 3).mean(0)
    outside = (
        op.renderer.frame(int(np.flatnonzero(op.tracks.outside == 1.0)[0]))[60:210, 150:330]
        .reshape(-1, 3)
        .mean(0)
    )
    assert inside[0] > 1.2 * inside[1] > 1.2 * inside[2]
    assert outside[0] < outside[1]


def test_a_frame_depends_on_its_index_alone(op):
    forward = [op.renderer.frame(i).tobytes() for i in (0, 200, 400)]
    again = operation(8, 0, short=True).renderer
    backward = [again.frame(i).tobytes() for i in (400, 200, 0)]
    assert forward == backward[::-1]


def test_patients_differ_in_colour_and_in_the_round_stop_of_the_scope():
    looks = [draw_anatomy(generator(8, video, 2)) for video in range(4)]
    means = np.array([anatomy.field.reshape(-1, 3).mean(0) for anatomy in looks])
    for i in range(4):
        for j in range(i):
            assert np.abs(means[i] - means[j]).max() > 2.0
    assert len({anatomy.look.scope_radius for anatomy in looks}) == 4
    assert np.corrcoef(looks[0].field.ravel(), looks[1].field.ravel())[0, 1] < 0.98


def test_smoke_pales_the_view_and_defocus_smooths_it(op):
    i, n = clear_frame(op, Activity.DISSECT), op.procedure.n_frames
    plain = with_tracks(op, smoke=np.zeros(n), defocus=np.zeros(n), spark=np.zeros(n)).frame(i).astype(float)
    smoky = with_tracks(op, smoke=np.ones(n), defocus=np.zeros(n), spark=np.zeros(n)).frame(i).astype(float)
    soft = (
        with_tracks(op, smoke=np.zeros(n), defocus=np.full(n, 1.5), spark=np.zeros(n)).frame(i).astype(float)
    )
    centre = np.s_[80:190, 170:310]

    def saturation(x):
        return (x[centre].max(-1) - x[centre].min(-1)).mean()

    def detail(x):
        return np.abs(np.diff(x[centre].mean(-1), axis=1)).mean()

    assert saturation(smoky) < 0.6 * saturation(plain)
    assert detail(soft) < 0.7 * detail(plain)


def test_a_bleeding_reddens_and_the_hook_appears_where_the_tracks_put_it(op):
    i, n = clear_frame(op, Activity.DISSECT), op.procedure.n_frames
    calm = {"smoke": np.zeros(n), "defocus": np.zeros(n), "spark": np.zeros(n), "bleedings": ()}
    with_hook = with_tracks(op, **calm).frame(i).astype(int)
    without = with_tracks(op, **calm, right=replace(op.tracks.right, reach=np.zeros(n))).frame(i).astype(int)
    x, y = 60 + round(float(op.tracks.right.x[i])), round(float(op.tracks.right.y[i]))
    changed = np.abs(with_hook - without).max(2)
    assert changed[y - 6 : y + 7, x - 6 : x + 7].max() > 40  # the tip
    assert changed[:, 60:120].max() == 0  # the shaft comes from the other side
    # Something bleeds in the middle of the view: there blue and green fall, red stays ahead.
    from surgicalmamba.data.synthetic.motion import Bleeding

    camera = op.tracks.camera
    pool = Bleeding(i, float(camera.x[i]), float(camera.y[i]) + 40.0, np.full(1, 0.9))
    bleeding = with_tracks(op, **{**calm, "bleedings": (pool,)}).frame(i).astype(int)
    spot = np.s_[165:195, 225:255]
    assert bleeding[spot][..., 1].mean() < 0.6 * with_hook[spot][..., 1].mean()


PROBE = """
import hashlib, sys, cv2
from pathlib import Path
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
from surgicalmamba.data.synthetic import operation
from surgicalmamba.data.synthetic.recording import encode
op = operation(6, 1, short=True)
frames = [op.renderer.frame(i) for i in range(0, op.procedure.n_frames, 23)]
path = Path(sys.argv[1])
encode(path, frames, 5)
pixels = b"".join(frame.tobytes() for frame in frames)
print(*(hashlib.sha256(data).hexdigest() for data in (pixels, path.read_bytes())))
print("numpy", *[name for name in __cpu_dispatch__ if __cpu_features__[name]])
print("opencv", *["AVX2"] * cv2.checkHardwareSupport(11))
"""


def test_bytes_do_not_depend_on_the_vector_units_of_the_processor(tmp_path):
    """The same frames and the same encoded file with every optional instruction set of NumPy and OpenCV
    switched off."""

    def probe(name, **switches):
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("NPY_", "OPENCV_"))}
        command = [sys.executable, "-c", PROBE, str(tmp_path / f"{name}.mp4")]
        result = subprocess.run(
            command, env={**plain, **switches}, capture_output=True, text=True, check=True
        )
        return result.stdout.splitlines()

    digests, numpy_units, opencv_units = probe("plain")
    if numpy_units == "numpy" or opencv_units == "opencv":
        pytest.skip(
            f"no optional vector units to switch off on this processor ({numpy_units}; {opencv_units})"
        )
    bare_digests, *bare_units = probe(
        "bare",
        NPY_DISABLE_CPU_FEATURES=numpy_units.removeprefix("numpy "),
        OPENCV_IPP="disabled",
        OPENCV_CPU_DISABLE="AVX2,FMA3,AVX,FP16,SSSE3,SSE4.1,SSE4.2,POPCNT",
    )
    assert bare_units == ["numpy", "opencv"]  # they are off indeed
    assert bare_digests == digests
