"""What the figures show, read back from the drawn artists."""

import numpy as np
import pytest

from eval.vectors import seq
from surgicalmamba.eval.frame import reliability
from surgicalmamba.eval.pairs import make_pair
from surgicalmamba.report.colours import colour, hatch
from surgicalmamba.report.figures import draw_confusion, draw_latency, draw_reliability, draw_ribbons

NAMES = ("Open", "Work", "Close")


def spans(axes):
    """(left, right, bottom) of every bar drawn, in minutes."""
    boxes = [path.get_extents() for collection in axes.collections for path in collection.get_paths()]
    return [(round(box.x0, 3), round(box.x1, 3), round(box.y0, 2)) for box in boxes]


def test_ribbons_show_truth_above_prediction_and_the_errors_above_the_prediction():
    video = make_pair("v", seq((0, 60), (1, 120)), seq((0, 90), (1, 90)), 3)
    (axes,) = draw_ribbons(
        {"annotated": video.truth, "predicted": video.predicted}, NAMES, fps=1, title="v"
    ).axes
    assert {(0, 1, -0.36), (1, 3, -0.36)} <= set(spans(axes))  # annotated
    assert {(0, 1.5, -1.36), (1.5, 3, -1.36)} <= set(spans(axes))  # predicted
    assert (1, 1.5, -0.61) in spans(axes)  # the half minute of errors
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "Open",
        "Work",
    ]  # phases of this video only


def test_ribbons_leave_unlabelled_rows_white_and_without_errors():
    video = make_pair("v", seq((-1, 60), (1, 60)), seq((0, 60), (1, 60)), 3)
    (axes,) = draw_ribbons(
        {"annotated": video.truth, "predicted": video.predicted}, NAMES, fps=1, title="v"
    ).axes
    assert [span for span in spans(axes) if span[2] == -0.36] == [(1, 2, -0.36)]
    assert [span for span in spans(axes) if span[2] in (-0.61, 0.39)] == []


def test_the_confusion_matrix_shows_shares_of_each_annotated_phase():
    figure = draw_confusion(np.array([[3, 1, 0], [0, 0, 0], [0, 0, 5]]), NAMES)
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["75.0", "25.0", "100.0"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Open (4)", "Work (0)", "Close (5)"]


def test_the_latency_histogram_counts_every_noticed_change_and_names_the_missed():
    delays = np.array([0, 0, 3, -2, 500, -500, np.nan])
    (axes,) = draw_latency(delays, window_s=10, fps=1).axes
    window, *bars = axes.patches
    assert (window.get_x(), window.get_width()) == (-10, 20)
    assert sum(bar.get_height() for bar in bars) == 6
    assert axes.get_title(loc="left") == "6 noticed, 1 missed"


@pytest.mark.parametrize("fps", [1.0, 25.0, 0.5])
def test_a_bar_of_the_latency_histogram_is_centred_on_zero_and_holds_an_odd_number_of_rows(fps):
    (axes,) = draw_latency(np.array([0.0, 1 / fps]), window_s=10, fps=fps).axes
    bars = [bar for bar in axes.patches[1:] if bar.get_height() > 0]
    width = bars[0].get_width()
    assert any(abs(bar.get_x() + width / 2) < 1e-9 for bar in bars)
    assert round(width * fps) % 2 == 1


def test_the_reliability_diagram_plots_accuracy_against_confidence():
    curve = reliability(np.array([[0.6, 0.4], [0.6, 0.4], [0.9, 0.1]]), np.array([0, 1, 0]), 10)
    empty = reliability(np.array([[0.6, 0.4]]), np.array([-1]), 10)
    (axes,) = draw_reliability(curve, empty).axes
    _, overall, near = axes.lines
    np.testing.assert_allclose(overall.get_xydata(), [[0.6, 0.5], [0.9, 1.0]])
    assert len(near.get_xydata()) == 0
    assert "no rows" in axes.get_legend().get_texts()[2].get_text()


def test_up_to_28_phases_look_different():
    assert len({(colour(phase), hatch(phase)) for phase in range(28)}) == 28
