"""The margin cut against a slow, literal reading of the field's recipe."""

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgicalmamba.data.pictures import Preprocess, binary_median, cut_margin
from surgicalmamba.errors import ConfigError


def round_view(height=240, width=427, margin=60, seed=0):
    """A bright disc on black, as a laparoscope shows it."""
    rng = np.random.default_rng(seed)
    rgb = np.zeros((height, width, 3), np.uint8)
    y, x = np.mgrid[:height, :width]
    disc = (y - height / 2) ** 2 + (x - width / 2) ** 2 < (width / 2 - margin) ** 2
    rgb[disc] = rng.integers(40, 220, (int(disc.sum()), 3), dtype=np.uint8)
    return rgb


def slow_box(rgb, outer, end):
    """Pixel by pixel: grey above 15, median of 19 x 19 neighbours (a majority of 361), extremes of what is
    left."""
    height, width = rgb.shape[:2]
    scaled = cv2.resize(rgb, (int(width / height * 300), 300))
    grey = np.rint(scaled.astype(float) @ [0.299, 0.587, 0.114])
    bright = np.pad(grey > 15, 9, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(bright, (19, 19)).sum(axis=(2, 3))
    mask = windows > 361 // 2
    rows, columns = [], []
    for i in range(mask.shape[0]):
        for j in range(outer, mask.shape[1] - outer):
            if mask[i, j]:
                rows.append(i)
                columns.append(j)
    return scaled[min(rows) : max(rows) + end, min(columns) : max(columns) + end]


@pytest.mark.parametrize(
    ("box", "outer", "end"), [("inclusive", 10, 1), ("exclusive", 10, 0), ("all-columns", 0, 0)]
)
@pytest.mark.parametrize("margin", [0, 60])
def test_the_cut_is_the_fields_recipe(box, outer, end, margin):
    rgb = round_view(margin=margin)
    assert np.array_equal(cut_margin(rgb, box), slow_box(rgb, outer, end))


@given(
    seed=st.integers(0, 2**32 - 1),
    share=st.floats(0.05, 0.95),
    height=st.integers(1, 60),
    width=st.integers(1, 80),
)
def test_the_majority_of_a_mask_is_its_median(seed, share, height, width):
    mask = (np.random.default_rng(seed).random((height, width)) < share).astype(np.uint8)
    assert np.array_equal(binary_median(mask), cv2.medianBlur(mask * 255, 19) > 0)


def test_the_inclusive_box_has_one_row_and_column_more_than_the_exclusive_one():
    rgb = round_view()
    inclusive, exclusive = cut_margin(rgb, "inclusive"), cut_margin(rgb, "exclusive")
    assert (inclusive.shape[0] - exclusive.shape[0], inclusive.shape[1] - exclusive.shape[1]) == (1, 1)


@pytest.mark.parametrize("box", ["inclusive", "exclusive", "all-columns", "none"])
def test_a_black_frame_is_kept_whole(box):
    assert np.array_equal(
        Preprocess(box)(np.zeros((480, 854, 3), np.uint8)), np.zeros((250, 250, 3), np.uint8)
    )


@pytest.mark.parametrize("colour", [(255, 255, 255), (0, 0, 255)])
def test_censored_frames_stay_but_for_the_ten_outer_columns(colour):
    """White (HeiChole) and blue (HeiCo, grey value 29) are above the threshold of 15."""
    rgb = np.full((540, 960, 3), colour, np.uint8)
    assert cut_margin(rgb, "inclusive").shape == (300, 533 - 20, 3)
    assert (Preprocess()(rgb) == colour).all()


def test_a_speck_smaller_than_the_median_window_is_no_view():
    rgb = np.zeros((300, 500, 3), np.uint8)
    rgb[100:108, 200:208] = 255
    assert cut_margin(rgb, "inclusive").shape == (300, 500, 3)


def test_a_box_of_one_row_does_not_become_an_empty_picture():
    rgb = np.zeros((300, 500, 3), np.uint8)
    rgb[150:160, 100:400] = 255  # ten bright rows: the median leaves one row of the 19 x 19 majority
    for box in ("exclusive", "inclusive"):
        assert Preprocess(box)(rgb).shape == (250, 250, 3)


def test_the_picture_is_stretched_to_250_without_keeping_its_shape():
    rgb = round_view()
    assert np.array_equal(Preprocess("none")(rgb), cv2.resize(rgb, (250, 250)))
    assert Preprocess(size=224)(rgb).shape == (224, 224, 3)


def test_unknown_rules_and_sizes_are_refused():
    with pytest.raises(
        ConfigError, match="box rule 'both' is unknown; choose one of inclusive, exclusive, all-columns, none"
    ):
        Preprocess("both")
    with pytest.raises(ConfigError, match="image size 3 is too small"):
        Preprocess(size=3)
