"""The contact sheet: a picture with a column per phase and a row per patient."""

from itertools import pairwise

import cv2
import numpy as np
import pytest

from surgicalmamba.data.synthetic import recording as sheet
from surgicalmamba.errors import DataError


def test_the_sheet_is_a_png_with_seven_columns_and_a_title_row(tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "_ROWS", 1)
    path = tmp_path / "pictures" / "sheet.png"
    sheet.write_contact_sheet(path, seed=2)
    picture = cv2.imread(str(path))
    height, width = sheet._CELL_HW
    assert picture.shape == (sheet._TITLE_H + height, 7 * width, 3)
    assert picture[: sheet._TITLE_H].max() > 200  # the titles
    cells = [picture[sheet._TITLE_H :, k * width : (k + 1) * width].astype(int) for k in range(7)]
    assert all(
        cell[height // 2 - 20 : height // 2 + 20, width // 2 - 20 : width // 2 + 20].mean() > 30
        for cell in cells
    )
    assert all(np.abs(a - b).mean() > 1 for a, b in pairwise(cells))


def test_another_file_type_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"'sheet.jpg' does not end in .png"):
        sheet.write_contact_sheet(tmp_path / "sheet.jpg", seed=2)
    assert not list(tmp_path.iterdir())
