"""Augmentation is one warp and one colour matrix; both must equal the steps they stand for."""

import math

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surgicalmamba.data.transforms import (
    NO_CHANGE,
    Augment,
    AugmentConfig,
    Draw,
    WholeFrame,
    colour_matrix,
    crop_matrix,
    normalise,
)
from surgicalmamba.errors import ConfigError, InputError

STILL = AugmentConfig(shift=0, scale=0, rotate_deg=0, brightness=0, contrast=0, saturation=0, hue_deg=0)
ONLY_GEOMETRY = AugmentConfig(brightness=0, contrast=0, saturation=0, hue_deg=0)


def rng(seed=0):
    return np.random.Generator(np.random.PCG64(seed))


def picture(height=250, width=250, seed=0):
    small = rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def apply(transform, frame, draw):
    out = np.empty((transform.image_size, transform.image_size, 3), dtype=np.uint8)
    transform.apply(frame, draw, out)
    return out


def test_without_amounts_it_is_the_papers_random_crop_of_224_from_250():
    frame = picture()
    for crop_x, crop_y, left, top in (
        (0.0, 0.0, 0, 0),
        (1.0, 1.0, 26, 26),
        (0.5, 0.5, 13, 13),
        (4 / 26, 20 / 26, 4, 20),
    ):
        draw = Draw(crop_x, crop_y, 0.0, 0.0, 1.0, 0.0, NO_CHANGE.colour)
        np.testing.assert_array_equal(
            apply(Augment(STILL), frame, draw), frame[top : top + 224, left : left + 224]
        )


def test_a_frame_of_another_size_is_resized_first():
    frame = picture(480, 640)
    expected = cv2.resize(frame, (250, 250))[13:237, 13:237]
    difference = np.abs(apply(Augment(STILL), frame, NO_CHANGE).astype(int) - expected)
    assert difference.mean() < 0.5 and difference.max() <= 3  # two roundings against one


unit = st.floats(-1, 1)


@settings(max_examples=200, deadline=None)
@given(
    crop=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    shift=st.tuples(unit, unit),
    scale=st.floats(0.5, 2),
    angle=st.floats(-3, 3),
    size=st.tuples(st.integers(16, 900), st.integers(16, 900)),
    sides=st.tuples(st.integers(32, 300), st.integers(0, 60)),
    point=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_the_warp_undoes_resize_then_shift_scale_rotate_then_crop(
    crop, shift, scale, angle, size, sides, point
):
    width, height = size
    image_size, resize = sides[0], sides[0] + sides[1]
    x, y = point[0] * width, point[1] * height  # a place in the stored frame, from its corner
    # Forward, one step at a time.
    px, py = x * resize / width, y * resize / height
    dx, dy = px - resize / 2, py - resize / 2
    px = resize / 2 + scale * (math.cos(angle) * dx - math.sin(angle) * dy) + shift[0] * resize
    py = resize / 2 + scale * (math.sin(angle) * dx + math.cos(angle) * dy) + shift[1] * resize
    px, py = px - crop[0] * (resize - image_size), py - crop[1] * (resize - image_size)
    # Backward, in one matrix on pixel indices (a pixel's centre is half a pixel from its corner).
    matrix = crop_matrix(
        Draw(*crop, *shift, scale, angle, NO_CHANGE.colour), width, height, resize, image_size
    )
    back = matrix @ np.array([px - 0.5, py - 0.5, 1.0]) + 0.5
    np.testing.assert_allclose(back, [x, y], atol=1e-6 * max(width, height))


@settings(max_examples=100, deadline=None)
@given(
    rgb=st.tuples(*[st.integers(0, 255)] * 3),
    brightness=st.floats(0.5, 1.5),
    contrast=st.floats(0.5, 1.5),
    saturation=st.floats(0, 2),
    hue=st.floats(-math.pi, math.pi),
)
def test_the_colour_matrix_equals_its_four_steps(rgb, brightness, contrast, saturation, hue):
    value = np.array(rgb, dtype=float)
    axis = np.ones(3) / math.sqrt(3)  # hue: Rodrigues' rotation about grey
    value = (
        value * math.cos(hue)
        + np.cross(axis, value) * math.sin(hue)
        + axis * (axis @ value) * (1 - math.cos(hue))
    )
    luma = 0.299 * value[0] + 0.587 * value[1] + 0.114 * value[2]
    value = luma + saturation * (value - luma)
    value = 127.5 + contrast * (value - 127.5)
    value = brightness * value
    matrix = colour_matrix(brightness, contrast, saturation, hue)
    np.testing.assert_allclose(matrix @ np.array([*rgb, 1.0]), value, atol=1e-3)


def test_colours_worked_by_hand():
    def see(rgb, *amounts):
        frame = np.full((250, 250, 3), rgb, dtype=np.uint8)
        return apply(Augment(STILL), frame, Draw(0.5, 0.5, 0, 0, 1, 0, colour_matrix(*amounts)))[
            0, 0
        ].tolist()

    assert see((10, 20, 30), 1, 1, 1, 0) == [10, 20, 30]
    assert see((10, 20, 30), 2, 1, 1, 0) == [20, 40, 60]
    assert see((200, 200, 200), 2, 1, 1, 0) == [255, 255, 255]  # saturates, does not wrap
    assert see((100, 50, 150), 1, 1, 0, 0) == [76, 76, 76]  # luma 29.9 + 29.35 + 17.1 = 76.35
    assert see((90, 90, 90), 1, 1, 1.8, 1.0) == [90, 90, 90]  # grey has no hue and no saturation
    assert see((10, 20, 200), 1, 1, 1, 2 * math.pi / 3) == [
        200,
        10,
        20,
    ]  # a third of a turn: each channel takes the one before it


def test_rgb_shift_moves_each_colour_by_itself_and_before_brightness():
    shifted = colour_matrix(1, 1, 1, 0, np.array([10.0, -5.0, 0.0])) @ np.array([100, 50, 20, 1.0])
    np.testing.assert_allclose(shifted, [110, 45, 20], atol=1e-4)
    brighter = colour_matrix(2, 1, 1, 0, np.array([10.0, -5.0, 0.0])) @ np.array([100, 50, 20, 1.0])
    np.testing.assert_allclose(brighter, [220, 90, 40], atol=1e-4)
    only_shift = AugmentConfig(**{**dict(STILL), "rgb_shift": 15})
    moved = np.array(
        [draw.colour[:, 3] for draw in Augment(only_shift.with_(draw="frame")).draw(rng(), 2000)]
    )
    assert 14.5 < np.abs(moved).max() <= 15 and np.abs(np.corrcoef(moved.T) - np.eye(3)).max() < 0.1


def test_each_group_of_changes_is_left_out_as_often_as_the_probability_asks():
    config = AugmentConfig(rgb_shift=15, saturation=0, hue_deg=0, probability=0.5, draw="frame")
    draws = Augment(config).draw(rng(), 4000)
    moved = np.array([draw.angle != 0 for draw in draws])
    lit = np.array([draw.colour[0, 0] != 1 for draw in draws])
    shifted = np.array([len({*draw.colour[:, 3].tolist()}) > 1 for draw in draws])
    for group in (moved, lit, shifted):
        assert group.mean() == pytest.approx(0.5, abs=0.03)
    assert all(
        (draw.shift_x != 0) == (draw.scale != 1) == (draw.angle != 0) for draw in draws
    )  # one group: all or none
    for first, second in ((moved, lit), (moved, shifted), (lit, shifted)):
        assert (first & second).mean() == pytest.approx(0.25, abs=0.03)  # groups are drawn by themselves
    assert len({(draw.crop_x, draw.crop_y) for draw in draws}) == 4000  # every frame is cropped


def test_what_runs_of_before_drew_is_drawn_still_and_their_loaders_states_still_fit():
    (draw,) = Augment().draw(rng(5), 1)
    numbers = rng(5)
    crop = numbers.random(2)
    amounts = numbers.uniform(-1.0, 1.0, 8)
    assert (draw.crop_x, draw.crop_y, draw.shift_x) == (crop[0], crop[1], 0.05 * amounts[0])
    assert repr(AugmentConfig()) == (
        "AugmentConfig(resize=None, shift=0.05, scale=0.1, rotate_deg=15.0, brightness=0.2, contrast=0.2, "
        "saturation=0.2, hue_deg=5.0, draw='clip')"
    )
    assert "rgb_shift=15.0" in repr(AugmentConfig(rgb_shift=15)) and "probability=0.5" in repr(
        AugmentConfig(probability=0.5)
    )


def test_one_draw_serves_a_clip_and_a_draw_per_frame_is_an_option():
    frames = np.repeat(picture()[None], 6, axis=0)
    clip = Augment().clip(frames, rng(1))
    assert all((frame == clip[0]).all() for frame in clip) and (clip[0] != frames[0, :224, :224]).any()
    each = Augment(AugmentConfig(draw="frame")).clip(frames, rng(1))
    assert len({frame.tobytes() for frame in each}) == 6


def test_the_same_generator_gives_the_same_frames():
    frames = np.stack([picture(seed=k) for k in range(3)])
    np.testing.assert_array_equal(Augment().clip(frames, rng(5)), Augment().clip(frames, rng(5)))
    assert (Augment().clip(frames, rng(5)) != Augment().clip(frames, rng(6))).any()


def test_draws_stay_within_their_limits_and_use_them():
    config = AugmentConfig(draw="frame", shift=0.05, scale=0.1, rotate_deg=15)
    draws = Augment(config).draw(rng(2), 2000)
    for values, low, high in (
        ([d.crop_x for d in draws], 0, 1),
        ([d.shift_y for d in draws], -0.05, 0.05),
        ([d.scale for d in draws], 0.9, 1.1),
        ([math.degrees(d.angle) for d in draws], -15, 15),
    ):
        span = high - low
        assert low <= min(values) < low + 0.02 * span and high - 0.02 * span < max(values) <= high


@pytest.mark.parametrize(("image_size", "resize"), [(224, 250), (96, 107), (32, 36)])
def test_sizes_follow_the_model_and_keep_the_papers_proportion(image_size, resize):
    augment = Augment(image_size=image_size)
    assert augment.resize == resize == augment.decode_side
    out = augment.clip(np.stack([picture(), picture(seed=1)]), rng())
    assert out.shape == (2, image_size, image_size, 3) and out.dtype == np.uint8


def test_a_rotated_frame_has_no_black_corners():
    white = np.full((1, 250, 250, 3), 255, dtype=np.uint8)
    assert (Augment(ONLY_GEOMETRY).clip(white, rng(3)) == 255).all()


def test_evaluation_is_the_release_resize_of_the_whole_frame():
    frames = np.stack([picture(), picture(seed=1)])
    out = WholeFrame().clip(frames)
    for frame, result in zip(frames, out, strict=True):
        np.testing.assert_array_equal(result, cv2.resize(frame, (224, 224), interpolation=cv2.INTER_LINEAR))
    np.testing.assert_array_equal(WholeFrame(250).clip(frames), frames)


def test_strong_reduction_does_not_alias():
    """A fine chequerboard is grey from afar; linear sampling would pick single squares."""
    board = (np.indices((250, 250)).sum(0) % 2 * 255).astype(np.uint8)[None, :, :, None].repeat(3, axis=3)
    out = WholeFrame(50).clip(board)
    assert abs(float(out.mean()) - 127.5) < 2 and out.std() < 8


def test_normalising_is_value_over_255_minus_mean_over_std_with_colours_first():
    frames = rng().integers(0, 256, (2, 5, 4, 6, 3), dtype=np.uint8)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    out = normalise(torch.from_numpy(frames), mean, std)
    expected = ((frames / 255.0 - np.array(mean)) / np.array(std)).transpose(0, 1, 4, 2, 3)
    assert out.dtype == torch.float32 and out.shape == (2, 5, 3, 4, 6) and out.is_contiguous()
    np.testing.assert_allclose(out.numpy(), expected, atol=2e-6)


def test_wrong_input_is_refused_in_one_line():
    with pytest.raises(InputError, match="float64 of shape"):
        Augment().clip(np.zeros((2, 250, 250, 3)), rng())
    with pytest.raises(InputError, match="expected uint8 RGB of shape"):
        WholeFrame().clip(np.zeros((250, 250, 3), dtype=np.uint8))
    with pytest.raises(InputError, match="expected uint8 RGB with colours last"):
        normalise(torch.zeros(2, 3, 8, 8), (0, 0, 0), (1, 1, 1))
    with pytest.raises(InputError, match=r"augment.resize=200 is smaller than the crop of 224"):
        Augment(AugmentConfig(resize=200))
    with pytest.raises(ConfigError, match="did you mean 'rotate_deg'"):
        AugmentConfig(rotate=3)
