"""Shapes and light, against slow or hand-made references."""

import numpy as np
import pytest

from surgicalmamba.data.synthetic.procedure import generator
from surgicalmamba.data.synthetic.shading import (
    light,
    lobules,
    mix,
    noise,
    smooth_step,
    to_bytes,
    tube,
    vessels,
)

SIZE = (60, 90)


def test_a_straight_tube_is_covered_within_its_radius_and_highest_on_its_ridge():
    cover, ridge, across, along = tube(SIZE, [(-10.0, 30.0), (100.0, 30.0)], [8.0, 8.0])
    assert (cover[23:38] == 1).all() and (cover[:21] == 0).all() and (cover[40:] == 0).all()
    assert ridge[30].min() == 1.0 and ridge[34, 40] == pytest.approx(np.sqrt(1 - 0.5**2))
    assert across[34, 40] == -across[26, 40] and abs(across[34, 40]) == pytest.approx(0.5)
    assert along[30, 45] == pytest.approx(55 / 110)


def test_a_tapered_tube_is_wider_where_its_radius_is_larger():
    cover, _, _, _ = tube(SIZE, [(0.0, 30.0), (89.0, 30.0)], [4.0, 16.0])
    widths = cover.sum(0)
    assert widths[5] == pytest.approx(2 * (4 + 12 * 5 / 89), abs=1.5) and widths[80] == pytest.approx(
        2 * (4 + 12 * 80 / 89), abs=1.5
    )


def test_lobes_found_in_windows_are_those_of_a_search_over_everything():
    height, shade = lobules(generator(1), SIZE, 14.0)
    # The same draws, and distances to every centre.
    rng = generator(1)
    rows, columns = int(SIZE[0] / 14.0) + 2, int(SIZE[1] / 14.0) + 2
    ys = (np.arange(rows)[:, None] - 0.5 + rng.uniform(-0.42, 0.42, (rows, columns))) * 14.0
    xs = (np.arange(columns)[None, :] - 0.5 + rng.uniform(-0.42, 0.42, (rows, columns))) * 14.0
    shades = rng.uniform(0.0, 1.0, rows * columns)
    y, x = np.mgrid[0 : SIZE[0], 0 : SIZE[1]].astype(float)
    x = x + 7.0 * noise(rng, SIZE, 14.0 * 1.3, 2)
    y = y + 7.0 * noise(rng, SIZE, 14.0 * 1.3, 2)
    distances = np.sqrt((x[..., None] - xs.ravel()) ** 2 + (y[..., None] - ys.ravel()) ** 2)
    nearest = np.sort(distances, axis=-1)
    np.testing.assert_array_equal(shade, shades[distances.argmin(-1)])
    np.testing.assert_allclose(height, smooth_step(0.0, 0.55, (nearest[..., 1] - nearest[..., 0]) / 14.0))


def test_flat_ground_is_lit_evenly_and_a_slope_towards_the_light_more():
    flat, _ = light(np.zeros(SIZE), 1.0, 1.0, 20)
    assert flat.std() == 0
    towards, _ = light(np.add.outer(np.arange(SIZE[0]) * 0.3, np.arange(SIZE[1]) * 0.3), 1.0, 1.0, 20)
    away, _ = light(np.add.outer(np.arange(SIZE[0]) * -0.3, np.arange(SIZE[1]) * -0.3), 1.0, 1.0, 20)
    assert towards[30, 45] > flat[30, 45] > away[30, 45]


def test_noise_and_vessels_repeat_with_their_generator():
    for draw in (lambda rng: noise(rng, SIZE, 20.0), lambda rng: vessels(rng, SIZE, 4, 12, 1.5)):
        np.testing.assert_array_equal(draw(generator(2)), draw(generator(2)))
        assert (draw(generator(2)) != draw(generator(3))).any()
    assert abs(noise(generator(4), (200, 200), 12.0).mean()) < 0.1
    assert vessels(generator(2), SIZE, 4, 12, 1.5).max() <= 1.0


def test_small_formulas_by_hand():
    assert smooth_step(0.0, 1.0, np.array([-1.0, 0.0, 0.5, 1.0, 2.0])).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert smooth_step(1.0, 0.0, np.array([0.0, 1.0])).tolist() == [
        1.0,
        0.0,
    ]  # falling when the limits are swapped
    assert to_bytes(np.array([-0.2, 0.0, 0.5, 1.0, 1.7])).tolist() == [0, 0, 128, 255, 255]
    assert mix(np.zeros((1, 1, 3)), (1.0, 0.5, 0.0), np.array([[0.5]])).tolist() == [[[0.5, 0.25, 0.0]]]
