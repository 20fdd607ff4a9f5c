"""Folders of images as recordings."""

from fractions import Fraction

import cv2
import numpy as np
import pytest

from surgicalmamba.data.pictures import ImageFolder, encode_jpeg, image_files, read_image
from surgicalmamba.errors import DataError


@pytest.fixture
def folder(tmp_path, numbered):
    for i in range(12):
        (tmp_path / f"img{i}.jpg").write_bytes(encode_jpeg(numbered.picture(i)))
    return tmp_path


def test_images_are_in_natural_order(folder):
    assert [path.name for path in image_files(folder)] == [f"img{i}.jpg" for i in range(12)]


def test_images_are_sampled_like_frames(folder, numbered):
    images = ImageFolder(folder, Fraction(5))
    assert [(f.index, f.time_s, numbered.read(f.rgb)) for f in images.samples(Fraction(1))] == [
        (0, 0.0, 0),
        (5, 1.0, 5),
        (10, 2.0, 10),
    ]
    assert images.info.duration_s == pytest.approx(2.4) and images.info.size_hw == numbered.size_hw


def test_an_unreadable_image_is_stood_in_for_and_told(folder, numbered):
    (folder / "img3.jpg").write_bytes(b"\xff\xd8 no picture")
    images = ImageFolder(folder, Fraction(1))
    assert [numbered.read(f.rgb) for f in images.samples(Fraction(1))][:5] == [0, 1, 2, 2, 4]
    assert images.report.held == [3] and "img3.jpg: not a readable image" in images.report.warnings[0]


def test_png_and_jpeg_are_red_first(tmp_path):
    rgb = np.zeros((20, 20, 3), np.uint8)
    rgb[..., 0] = 250
    (tmp_path / "a.jpg").write_bytes(encode_jpeg(rgb))
    cv2.imwrite(str(tmp_path / "b.png"), rgb[..., ::-1])
    for name in ("a.jpg", "b.png"):
        assert np.allclose(read_image(tmp_path / name)[10, 10], (250, 0, 0), atol=3)


def test_a_folder_without_images_and_a_missing_image_are_told(tmp_path):
    with pytest.raises(DataError, match="no images in it"):
        ImageFolder(tmp_path, Fraction(1))
    with pytest.raises(DataError, match=r"a\.png: cannot be read"):
        read_image(tmp_path / "a.png")
    (tmp_path / "a.png").touch()
    with pytest.raises(DataError, match=r"a\.png: not a readable image"):
        read_image(tmp_path / "a.png")
