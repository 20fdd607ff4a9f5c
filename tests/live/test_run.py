"""The loop of the stream verb: nothing is lost from what waits, and only the newest is kept of what does
not."""

import json
import signal
import threading
import time
from contextlib import nullcontext

import av
import numpy as np
import pytest

from surgicalmamba.data.records import Frame, Gap
from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.live.app import Runner, parse_policy
from surgicalmamba.live.estimate import Counts, PhaseEstimate
from surgicalmamba.live.session import Session
from surgicalmamba.live.sinks import (
    EstimateSink,
    JsonLinesSink,
    OverlaySink,
    PhaseHistory,
    Seen,
    draw,
    plain,
    rgb_of,
)
from surgicalmamba.live.sources import Source
from surgicalmamba.live.track import Policy


class Listener(EstimateSink):
    def __init__(self):
        self.seen, self.gaps, self.is_closed = [], [], False

    def estimate(self, seen):
        self.seen.append(seen)

    def gap(self, gap):
        self.gaps.append(gap)

    def close(self):
        self.is_closed = True


def run(engine, frames, is_sampled=True, is_paced=False, policy=None):
    listener = Listener()
    runner = Runner(
        Session(engine, policy=policy), Source("test", iter(frames), is_sampled, is_paced, None), [listener]
    )
    return runner, listener


def test_samples_of_a_recording_keep_their_own_times_and_numbers(picture_model, pictures):
    frames = [Frame(30 * i, 1.001 * i, picture) for i, picture in enumerate(pictures(4))]
    runner, listener = run(EagerEngine(picture_model), frames)
    assert runner.run() == Counts()
    assert [(s.source_frame, s.estimate.time_s, s.estimate.tick) for s in listener.seen] == [
        (30 * i, 1.001 * i, i) for i in range(4)
    ]
    assert all(s.latency_ms > 0 for s in listener.seen) and listener.is_closed


def test_a_pipe_is_sampled_by_its_times_and_gaps_are_passed_on(picture_model, pictures):
    shown = pictures(31)
    frames = [Frame(i, i / 10, shown[i]) for i in range(21)]
    items = [*frames, Gap(2.0, 5.0, "the cable", 2), *(Frame(i, 3 + i / 10, shown[i]) for i in range(21, 31))]
    runner, listener = run(EagerEngine(picture_model), items, is_sampled=False)
    counts = runner.run()
    assert [s.estimate.time_s for s in listener.seen] == [0, 1, 2, 3, 4, 5.1, 6]
    assert [s.frame is None for s in listener.seen] == [False, False, False, True, True, False, False]
    assert counts == Counts(missing=2, held=2) and listener.gaps == [Gap(2.0, 5.0, "the cable", 2)]


def test_of_a_live_source_only_the_newest_picture_is_kept_and_the_rest_counts_as_late(
    picture_model, pictures
):
    """The engine stands still with the first picture until five more have come."""
    shown, started, go = pictures(6), threading.Event(), threading.Event()

    class Slow(EagerEngine):
        def advance(self, features, state):
            started.set()
            assert go.wait(30)
            return super().advance(features, state)

    def frames():
        yield Frame(0, 0.0, shown[0])
        assert started.wait(30)
        for i in range(1, 6):
            yield Frame(i, float(i), shown[i])
        go.set()

    runner, listener = run(Slow(picture_model), frames(), is_sampled=False, is_paced=True)
    counts = runner.run()
    assert [s.estimate.time_s for s in listener.seen] == [0.0, 5.0]
    assert counts == Counts(late=4, skipped=4)


def test_what_goes_wrong_in_the_source_is_raised_after_the_files_are_closed(picture_model, pictures):
    def frames():
        yield Frame(0, 0.0, pictures(1)[0])
        raise DataError("the cable is out")

    for is_paced in (False, True):
        runner, listener = run(EagerEngine(picture_model), frames(), is_paced=is_paced, is_sampled=False)
        with pytest.raises(DataError, match="the cable is out"):
            runner.run()
        assert listener.is_closed and len(listener.seen) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_no_reader_outlives_its_session_however_that_ends(picture_model, pictures, fails):
    """A thread that is still reading while the interpreter is taken down aborts the process."""
    shown = pictures(1)[0]

    class Impatient(Listener):
        def estimate(self, seen):
            if fails:
                raise DataError("the disk is full")
            signal.raise_signal(signal.SIGINT)

    def frames():
        for i in range(1000):
            yield Frame(i, float(i), shown)
            time.sleep(0.02)

    runner, _ = run(EagerEngine(picture_model), frames(), is_sampled=False, is_paced=True)
    runner.sinks, before = [Impatient()], set(threading.enumerate())
    with pytest.raises(DataError) if fails else nullcontext():
        runner.run()
    assert runner.was_interrupted is not fails
    assert set(threading.enumerate()) <= before


def test_a_policy_is_one_word_or_one_per_kind():
    assert parse_policy([]) == Policy() and parse_policy(["skip"]) == Policy.everywhere("skip")
    assert parse_policy(["hold", "black=skip"]) == Policy.everywhere("hold").with_(black="skip")
    for text in ("wait", "black=wait", "dark=hold"):
        with pytest.raises(ConfigError):
            parse_policy([text])


def seen(second, phase, picture):
    names = ("a", "b", "c")
    estimate = PhaseEstimate(second, second, float(second), phase, names[phase], (0.2, 0.2, 0.6), 0.5)
    return Seen(estimate, Frame(second, float(second), picture), 5.0)


def test_json_lines_are_on_disk_before_the_next_frame(tmp_path, pictures):
    file = tmp_path / "new" / "x.jsonl"
    sink = JsonLinesSink(file, {"source": "x"})
    sink.estimate(seen(0, 1, pictures(1)[0]))
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    assert (
        [line["type"] for line in lines] == ["session", "estimate"]
        and lines[1]["name"] == "b"
        and lines[1]["source_frame"] == 0
    )
    sink.gap(Gap(1.0, 2.0, "why", 1))
    sink.close()
    assert [json.loads(text)["type"] for text in file.read_text().splitlines()] == [
        "session",
        "estimate",
        "gap",
        "end",
    ]


def test_a_place_that_cannot_be_written_is_named_before_the_first_picture(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        JsonLinesSink(tmp_path / "file" / "x.jsonl", {})
    with pytest.raises(DataError, match="cannot write"):
        OverlaySink(tmp_path / "file" / "x.mp4", PhaseHistory(("a",), 1.0), None)


def test_the_overlay_has_the_ribbon_in_the_colours_of_the_phases(pictures):
    history = PhaseHistory(("a", "b", "c"), 1.0)
    for second in range(10):
        history.estimate(seen(second, second // 5, pictures(1)[0]))
    canvas = draw(pictures(1)[0], history, 20.0)
    assert canvas.shape == (720 + 132, 960, 3)
    row = canvas[-30]
    width = 960 - 36
    for share, expected in ((0.1, rgb_of(0)), (0.4, rgb_of(1)), (0.8, (52, 52, 58))):
        assert tuple(row[18 + int(share * width)]) == expected
    assert np.abs(canvas[:720].astype(int).mean() - pictures(1)[0].mean()) < 2  # the picture itself is there


def test_the_overlay_is_a_video_that_runs_as_long_as_the_operation(tmp_path, pictures):
    history, file = PhaseHistory(("a", "b", "c"), 0.5), tmp_path / "o.mp4"
    sink = OverlaySink(file, history, None)
    assert not file.exists()
    for second, picture in enumerate(pictures(4)):
        one = seen(2 * second, second // 2, picture)
        history.estimate(one)
        sink.estimate(one)
    sink.close()
    with av.open(str(file)) as container:
        frames = list(container.decode(video=0))
    assert [frame.time for frame in frames] == [0, 2, 4, 6] and (frames[0].width, frames[0].height) == (
        960,
        852,
    )
    assert list(tmp_path.iterdir()) == [file]


def test_a_session_without_a_picture_leaves_no_overlay(tmp_path):
    OverlaySink(tmp_path / "o.mp4", PhaseHistory(("a",), 1.0), None).close()
    assert list(tmp_path.iterdir()) == []


def test_names_are_written_in_letters_the_font_has():
    assert plain("Präparation") == "Praparation" and plain("剥離 2") == "?? 2"
