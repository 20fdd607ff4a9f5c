"""Instruments: the tip is where the sprite is held, the shaft runs out of the picture, jaws open."""

import numpy as np
import pytest

from surgicalmamba.data.synthetic.instruments import (
    MIDDLE,
    N_OPENINGS,
    Tool,
    draw_bag,
    draw_clip,
    draw_instruments,
)
from surgicalmamba.data.synthetic.procedure import generator


@pytest.mark.parametrize("tool", [tool for tool in Tool if tool is not Tool.BAG])
def test_the_tip_is_at_the_anchor_and_the_shaft_reaches_back(tool):
    for sprite in draw_instruments()[tool]:
        alpha = sprite.rgba[..., 3]
        x, y = (round(value) for value in sprite.anchor)
        assert alpha[max(y - 12, 0) : y + 13, x - 10 : x + 6].max() == 255
        assert alpha[round(MIDDLE), 0] == 255  # the shaft leaves the picture
        assert (sprite.rgba[..., :3] <= alpha[..., None]).all()  # colours are stored multiplied by alpha


@pytest.mark.parametrize("tool", [Tool.GRASPER, Tool.BIPOLAR, Tool.SCISSORS, Tool.CLIPPER])
def test_jaws_open_step_by_step(tool):
    sprites = draw_instruments()[tool]
    assert len(sprites) == N_OPENINGS
    heights = [np.flatnonzero(sprite.rgba[:, 360:, 3].max(1) > 128) for sprite in sprites]
    spread = [rows.max() - rows.min() for rows in heights]
    assert spread == sorted(spread) and spread[-1] > spread[0] + 3


def test_a_steel_shaft_is_bright_and_a_black_one_dark_with_a_highlight_along_it():
    instruments = draw_instruments()
    steel, black = (instruments[tool][0].rgba[28:51, 100, :3].mean(1) for tool in (Tool.IRRIGATOR, Tool.HOOK))
    assert steel.max() > 200 and black.min() < 30 and steel.mean() > 2 * black.mean()
    assert black.max() > 2 * np.median(black)


def test_the_open_bag_has_a_dark_mouth_and_a_clip_is_bright():
    content = (0.6, 0.6, 0.5)
    opened, shut = (
        draw_bag(generator(1), content, is_open=True).rgba,
        draw_bag(generator(1), content, is_open=False).rgba,
    )
    mouth = opened[48:56, 55:63]
    assert mouth[..., 3].min() > 200 and mouth[..., :3].mean() < 60
    assert shut[..., 3].max() > 180 and shut[100:110, 120:130, :3].mean() > 80
    assert draw_clip().rgba[..., :3].max() > 230
