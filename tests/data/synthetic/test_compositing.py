"""Placing pictures: integer maps agree with the geometry, blending with its formula."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgicalmamba.data.synthetic.anatomy import Sprite
from surgicalmamba.data.synthetic.render import Placement, dim, fixed_maps, glow, place, shoot, window

VIEW = (40, 60)


def noise_picture(height, width, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def opaque(rgb, alpha=255):
    """A sprite of one alpha; its colours are stored multiplied by it."""
    multiplied = np.round(rgb.astype(float) * alpha / 255).astype(np.uint8)
    return Sprite(np.dstack([multiplied, np.full(rgb.shape[:2], alpha, dtype=np.uint8)]), (0.0, 0.0))


coordinate = st.floats(-300, 300)


@settings(max_examples=200, deadline=None)
@given(
    anchor=st.tuples(coordinate, coordinate),
    at=st.tuples(coordinate, coordinate),
    angle=st.floats(-4, 4),
    scale=st.floats(0.5, 2),
    flip=st.booleans(),
    pixel=st.tuples(st.integers(0, 359), st.integers(0, 269)),
)
def test_the_map_leads_every_pixel_back_to_where_it_came_from(anchor, at, angle, scale, flip, pixel):
    placement = Placement(anchor, at, angle, scale, flip)
    whole, part = fixed_maps(placement, pixel[0], pixel[1], 1, 1)
    x = whole[0, 0, 0] + (int(part[0, 0]) & 31) / 32
    y = whole[0, 0, 1] + (int(part[0, 0]) >> 5) / 32
    back = placement.forward(float(x), float(y))
    assert math.dist(back, pixel) < scale * 0.04  # 1/32 pixel and the rounding of the matrix


def test_a_camera_that_looks_straight_shows_the_picture_itself():
    picture = noise_picture(100, 120)
    np.testing.assert_array_equal(
        shoot(picture, Placement((50.0, 40.0), (30.0, 20.0)), 60, 40), picture[20:60, 20:80]
    )


def test_beyond_the_rim_the_picture_is_mirrored():
    picture = noise_picture(100, 120)
    seen = shoot(picture, Placement((0.0, 0.0), (5.0, 0.0)), 10, 4)
    np.testing.assert_array_equal(seen[:, :5], picture[:4, 5:0:-1])


def test_an_opaque_sprite_covers_and_a_translucent_one_mixes():
    view, rgb = noise_picture(*VIEW), noise_picture(10, 12, seed=1)
    covered = view.copy()
    place(covered, opaque(rgb), Placement((0.0, 0.0), (20.0, 5.0)))
    np.testing.assert_array_equal(covered[5:15, 20:32], rgb)
    mixed = view.copy()
    place(mixed, opaque(rgb, 102), Placement((0.0, 0.0), (20.0, 5.0)))
    expected = view[5:15, 20:32] * 0.6 + rgb * 0.4
    assert np.abs(mixed[5:15, 20:32] - expected).max() <= 1.0
    for changed in (covered, mixed):
        outside = np.ones(VIEW, dtype=bool)
        outside[5:15, 20:32] = False
        np.testing.assert_array_equal(changed[outside], view[outside])


def test_opacity_fades_a_sprite():
    view = np.full((*VIEW, 3), 100, dtype=np.uint8)
    place(
        view,
        opaque(np.full((10, 12, 3), 200, dtype=np.uint8)),
        Placement((0.0, 0.0), (20.0, 5.0)),
        opacity=0.25,
    )
    assert np.abs(view[5:15, 20:32].astype(int) - 125).max() <= 1


@pytest.mark.parametrize("at", [(-5.0, -4.0), (55.0, 36.0)])
def test_a_sprite_across_the_edge_is_cut_off(at):
    view, rgb = noise_picture(*VIEW), noise_picture(10, 12, seed=1)
    wide = np.pad(view, ((20, 20), (20, 20), (0, 0)))
    x, y = int(at[0]) + 20, int(at[1]) + 20
    wide[y : y + 10, x : x + 12] = rgb
    place(view, opaque(rgb), Placement((0.0, 0.0), at))
    np.testing.assert_array_equal(view, wide[20:-20, 20:-20])


def test_a_sprite_outside_changes_nothing():
    view = noise_picture(*VIEW)
    before = view.copy()
    far = Placement((0.0, 0.0), (200.0, 0.0))
    assert window((10, 12), far, VIEW) is None
    place(view, opaque(noise_picture(10, 12)), far, shadow=(3, 3))
    np.testing.assert_array_equal(view, before)


def test_a_shadow_darkens_beside_the_sprite():
    view = np.full((*VIEW, 3), 200, dtype=np.uint8)
    place(
        view,
        opaque(np.full((16, 16, 3), 255, dtype=np.uint8)),
        Placement((0.0, 0.0), (10.0, 5.0)),
        shadow=(12, 12),
    )
    assert view[24, 28].max() < 200  # in the shadow, not under the sprite
    assert (view[5:21, 10:26] == 255).all() and (view[:4] == 200).all()


def test_dim_multiplies_and_glow_adds_without_wrapping():
    view = np.full((4, 4, 3), 200, dtype=np.uint8)
    assert (dim(view, np.full((4, 4), 51, dtype=np.uint8)) == 40).all()
    glow(view, np.full((3, 3, 3), 100, dtype=np.uint8), 0.0, 0.0)
    assert view[:2, :2].min() == 255 and view[2:, :].max() == 200
