"""The terminal's picture of an operation."""

import pytest
from rich.console import Console

from surgicalmamba.live.estimate import Counts, PhaseEstimate
from surgicalmamba.live.sinks import (
    PhaseHistory,
    PhaseSpan,
    Seen,
    clock_text,
    counts_text,
    line,
    render,
    ribbon,
)
from surgicalmamba.report.colours import colour

NAMES = ("setup", "work", "close")


def estimate(second, phase, **more):
    probabilities = tuple(0.8 if k == phase else 0.1 for k in range(3))
    return PhaseEstimate(second, second, float(second), phase, NAMES[phase], probabilities, 0.25, **more)


def filled(phases, fps=1.0):
    history = PhaseHistory(NAMES, fps)
    for i, phase in enumerate(phases):
        history.estimate(Seen(estimate(i, phase), None, 10.0 + i))
    return history


def test_spans_and_time_per_phase_add_up():
    history = filled([0, 0, 1, 1, 1, 0])
    assert history.spans == [PhaseSpan(0, 0.0, 2.0), PhaseSpan(1, 2.0, 5.0), PhaseSpan(0, 5.0, 6.0)]
    assert history.elapsed_s == {0: 3.0, 1: 3.0}


def test_the_ribbon_shows_each_phase_where_it_was_and_leaves_room_for_what_is_to_come():
    history = filled([0] * 5 + [1] * 5)
    text = ribbon(history, 20, total_s=20)
    assert text.plain == "█" * 10 + "·" * 10
    styles = {span.start: str(span.style) for span in text.spans}
    assert [styles[cell] for cell in (0, 4, 5, 9)] == [colour(0), colour(0), colour(1), colour(1)]
    assert ribbon(history, 8).plain == "█" * 8 and ribbon(PhaseHistory(NAMES, 1.0), 8).plain == "·" * 8


def test_the_picture_names_phase_confidence_intensity_times_latency_and_counters():
    history = filled([0] * 70 + [1] * 30)
    history.estimate(Seen(estimate(100, 1, counts=Counts(missing=3, held=3)), None, 40.0))
    console = Console(record=True, width=90, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(history, 90, total_s=3700, title="video"))
    text = console.export_text()
    for part in (
        "work",
        "1:40 / 1:01:40",
        "80.0%",
        "0.25",
        "1:10",
        "0:31",
        "latency",
        "3 missing, 3 held",
        "video",
    ):
        assert part in text, part
    assert max(map(len, text.splitlines())) <= 90


def test_before_the_first_picture_it_says_that_it_waits():
    assert line(PhaseHistory(NAMES, 1.0)) == "waiting for the first picture"
    console = Console(record=True, width=60, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(PhaseHistory(NAMES, 1.0), 60))
    assert "waiting for the first picture" in console.export_text()


def test_a_plain_line_says_the_same():
    history = filled([2])
    assert line(history) == "0:00  close 80%  intensity 0.25  10 ms"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3661, "1:01:01")])
def test_times_are_written_as_a_clock(seconds, text):
    assert clock_text(seconds) == text


def test_counters_that_are_zero_are_not_mentioned():
    assert counts_text(Counts()) == "" and counts_text(Counts(black=2, late=1)) == "2 black, 1 late"
