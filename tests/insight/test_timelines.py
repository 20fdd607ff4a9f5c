"""Phases over time from annotations alone: what a segment is, and every kind of folder."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surgicalmamba.data.labels import PhaseVocabulary, read_segments
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.insight.regime import from_rows, from_stretches, read_annotations, read_prepared
from surgicalmamba.train.losses import phase_boundaries
from toy import LENGTHS, write_toy_dataset

WORDS = PhaseVocabulary("own", ("Open", "Work", "Close"))


def told(timeline):
    return list(zip(timeline.phase.tolist(), timeline.start_s.tolist(), timeline.stop_s.tolist(), strict=True))


def test_a_segment_runs_from_one_boundary_to_the_next_in_seconds():
    assert told(from_rows("v", np.array([0, 0, 0, 0, 2, 2, 1]), rows_per_s=2.0)) == [(0, 0.0, 2.0), (2, 2.0, 3.0), (1, 3.0, 3.5)]


def test_unlabelled_rows_end_no_segment_and_count_for_none_at_either_end_of_the_video():
    rows = np.array([-1, -1, 0, -1, 0, -1, -1, 1, 1, -1])
    assert told(from_rows("v", rows, rows_per_s=1.0)) == [(0, 2.0, 7.0), (1, 7.0, 9.0)]


def test_a_video_without_a_label_has_no_segments():
    assert told(from_rows("v", np.full(5, -1), 1.0)) == []


@given(st.lists(st.integers(-1, 2), min_size=1, max_size=60))
def test_boundaries_are_where_training_sees_them(labels):
    timeline = from_rows("v", np.array(labels), 1.0)
    assert timeline.boundaries_s.tolist() == phase_boundaries(torch.tensor(labels)).tolist()


def test_stretches_of_time_become_segments_and_gaps_belong_to_the_earlier(tmp_path):
    file = tmp_path / "op.csv"
    file.write_text("start,end,phase\n0:10,1:00,Open\n70,80,Open\n90.5,100,Close\n")
    assert told(from_stretches("op", read_segments(file, WORDS))) == [(0, 10.0, 90.5), (2, 90.5, 100.0)]


def test_a_prepared_dataset_is_read_with_its_own_phases_and_rate(tmp_path):
    found = read_prepared(write_toy_dataset(tmp_path, {"all": {"train": list(LENGTHS)}}))
    assert (found.dataset, found.phases, len(found.videos)) == ("toy", ("x", "y", "z"), len(LENGTHS))
    assert [float(video.length_s.sum()) for video in found.videos] == [float(length) for length in LENGTHS.values()]
    assert read_annotations(tmp_path, None, None).length_s.tolist() == found.length_s.tolist()


def write(folder, name, frames, phases, header="Frame\tPhase\n"):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(header + "".join(f"{frame}\t{phase}\n" for frame, phase in zip(frames, phases, strict=True)))


@pytest.mark.parametrize("step", [1, 25])
def test_row_numbers_of_a_known_dataset_tell_the_seconds_at_any_step(tmp_path, step):
    phases = ["Preparation"] * (100 // step) + ["ClippingCutting"] * (50 // step)
    write(tmp_path, "phase_annotations/video01-phase.txt", range(0, 150, step), phases)
    found = read_annotations(tmp_path, "cholec80", None)
    assert [told(video) for video in found.videos] == [[(0, 0.0, 4.0), (2, 4.0, 6.0)]]
    assert found.clock == f"{25 // step} rows per second, by row numbers {step} apart at 25 a second"


def test_a_given_rate_is_taken_and_a_rate_that_nothing_tells_is_assumed_and_said(tmp_path):
    (tmp_path / "phases.yaml").write_text("phases: [Open, Work, Close]\n")
    write(tmp_path, "op1.txt", range(6), [0, 0, 1, 1, 1, 2])
    (tmp_path / "phases.yaml").rename(tmp_path.parent / "own.yaml")
    own = str(tmp_path.parent / "own.yaml")
    assert told(read_annotations(tmp_path, own, 2.0).videos[0]) == [(0, 0.0, 1.0), (1, 1.0, 2.5), (2, 2.5, 3.0)]
    assert read_annotations(tmp_path, own, None).clock == "1 rows per second, assumed; say otherwise with --fps"


def test_a_folder_of_ones_own_without_videos_needs_no_further_word(tmp_path):
    (tmp_path / "phases.yaml").write_text("phases: [Open, Work, Close]\nrows: second\n")
    write(tmp_path, "op1.txt", range(3), ["Open", "Open", "Close"])
    (tmp_path / "op2.csv").write_text("start,end,phase\n0,30,Open\n30,90,Work\n")
    found = read_annotations(tmp_path, None, None)
    assert {video.video: told(video) for video in found.videos} == {
        "op1": [(0, 0.0, 2.0), (2, 2.0, 3.0)],
        "op2": [(0, 0.0, 30.0), (1, 30.0, 90.0)],
    }


def test_cataract_tables_alone_tell_lengths_and_rates(tmp_path):
    (tmp_path / "annotations.csv").write_text("VideoID;FrameNo;Phase\n7;50;1\n7;100;2\n")
    (tmp_path / "videos.csv").write_text("VideoID;Frames;FPS;Surgeon;Experience\n7;300;25;1;1\n")
    assert told(read_annotations(tmp_path, "cataract101", None).videos[0]) == [(0, 2.0, 4.0), (1, 4.0, 12.0)]
    with pytest.raises(ConfigError, match=r"--fps 1 was given, but .* has its own rate"):
        read_annotations(tmp_path, "cataract101", 1.0)


def test_plain_label_files_of_a_dataset_with_tables_are_read_as_evaluate_reads_them(tmp_path):
    write(tmp_path, "case_7.csv", range(4), [1, 1, 2, 2])
    assert told(read_annotations(tmp_path, "cataract101", 1.0).videos[0]) == [(0, 0.0, 2.0), (1, 2.0, 4.0)]


def test_a_dataset_whose_recordings_differ_in_rate_asks_for_it(tmp_path):
    write(tmp_path, "Hei-Chole1_Annotation_Phase.csv", [], [], header="0,0\n1,1\n")
    with pytest.raises(DataError, match=r"heichole counts frames, and its recordings differ .* or --fps"):
        read_annotations(tmp_path, "heichole", None)
    assert told(read_annotations(tmp_path, "heichole", 50.0).videos[0]) == [(0, 0.0, 0.02), (1, 0.02, 0.04)]


@pytest.mark.parametrize(
    ("phases", "fps", "error", "message"),
    [
        (None, None, ConfigError, r"no phases given and .* has no phases\.yaml"),
        ("cholec8", None, ConfigError, r"did you mean 'cholec80'"),
        ("cholec80", None, DataError, r"no change of phase in 1 labelled video"),
    ],
)
def test_a_folder_that_tells_too_little_is_refused_in_one_line(tmp_path, phases, fps, error, message):
    write(tmp_path, "video01-phase.txt", range(3), ["Preparation"] * 3)
    with pytest.raises(error, match=message):
        read_annotations(tmp_path, phases, fps)


def test_a_missing_folder_is_refused_in_one_line(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        read_annotations(tmp_path / "absent", "cholec80", None)
