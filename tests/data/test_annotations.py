"""Label files: every format of the field, every line end, and one line of help for every mistake."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgicalmamba.data.labels import (
    PAST_THE_END,
    PhaseVocabulary,
    RowFormat,
    RowLabels,
    SegmentLabels,
    StartLabels,
    load_vocabulary,
    read_any,
    read_row_labels,
    read_segments,
    start_labels,
)
from surgicalmamba.errors import DataError

CHOLEC80 = load_vocabulary("cholec80")
AB = PhaseVocabulary("own", ("Alpha", "Beta"))
NAMES = RowFormat("\t", ("Frame", "Phase"), labels="names")
SECONDS = RowFormat("\t", ("Frame", "Phase"), first_row=1, labels="ids", stride="second")
PLAIN = RowFormat(",", None, labels="ids")


def write(tmp_path, content, name="a.txt"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("tail", ["", "\n", "\n\n  \n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_marks_and_a_missing_last_newline_do_not_matter(tmp_path, end, tail, mark):
    rows = ["Frame\tPhase", "0\tPreparation", "1\tPreparation", "2\tClippingCutting"]
    path = write(tmp_path, mark + end.join(rows) + tail.replace("\n", end))
    assert read_row_labels(path, NAMES, CHOLEC80).phases.tolist() == [0, 0, 2]


def test_header_and_names_are_read_whatever_their_case(tmp_path):
    path = write(tmp_path, "FRAME\tphase\n0\tpreparation\n1\tcalot_triangle dissection\n")
    assert read_row_labels(path, NAMES, CHOLEC80).phases.tolist() == [0, 1]


def test_rows_by_second_from_1_with_phases_from_1(tmp_path):
    path = write(tmp_path, "Frame\tPhase\n1\t1\n2\t1\n3\t7\n")
    labels = read_row_labels(path, SECONDS, load_vocabulary("autolaparo"))
    assert labels.phases.tolist() == [0, 0, 6]
    frames = np.array([0, 24, 25, 50, 74, 75])
    assert labels.phase_of(frames, frames / 25, Fraction(25)).tolist() == [0, 0, 0, 6, 6, PAST_THE_END]
    assert labels.n_frames(Fraction(25)) == 51


def test_headerless_rows_per_native_frame(tmp_path):
    labels = read_row_labels(write(tmp_path, "0,0\n1,0\n2,6"), PLAIN, load_vocabulary("heichole"))
    assert labels.phases.tolist() == [0, 0, 6] and labels.stride == 1


def test_real_label_files_at_every_25th_frame(real_data):
    labels = read_any(real_data("cholec80/labels/video41-phase.txt"), CHOLEC80)
    assert isinstance(labels, RowLabels) and labels.stride == 25
    frames = np.arange(0, 100, 25)
    assert labels.phase_of(frames, frames / 25, Fraction(25)).tolist() == labels.phases[:4].tolist()


@pytest.mark.parametrize(
    ("content", "form", "words", "message"),
    [
        (b"", NAMES, CHOLEC80, r"a\.txt: the label file is empty"),
        (b" \n\n", NAMES, CHOLEC80, r"a\.txt: the label file is empty"),
        (b"\x7fELF\x00\x01", NAMES, CHOLEC80, r"a\.txt: binary data \(a zero byte at 4\)"),
        ("Frame\tPhase\n0\tPreparation\n".encode("utf-16"), NAMES, CHOLEC80, "saved as UTF-16"),
        (b"Frame\tPhase\n0\tPr\xe9paration\n", NAMES, CHOLEC80, r"not UTF-8 text \(byte 16\)"),
        ("Frame\tPhase\n", NAMES, CHOLEC80, "a header and no rows"),
        ("0\tPreparation\n1\tPreparation\n", NAMES, CHOLEC80, r"a\.txt:1: the header line is missing"),
        (
            "Image\tStep\n0\tPreparation\n",
            NAMES,
            CHOLEC80,
            r"a\.txt:1: the header is 'Image\\tStep', expected 'Frame\\tPhase'",
        ),
        ("Phase\tFrame\nPreparation\t0\n", NAMES, CHOLEC80, r"a\.txt:1: columns are in the order"),
        ("Frame,Phase\n0,Preparation\n", NAMES, CHOLEC80, r"a\.txt:1: separated by commas, expected tabs"),
        (
            "Frame\tPhase\nPreparation\t0\n",
            NAMES,
            CHOLEC80,
            r"a\.txt:2: 'Preparation' where a frame number belongs: .* swapped",
        ),
        (
            "Frame\tPhase\n0\tPreparation\tx\n",
            NAMES,
            CHOLEC80,
            r"a\.txt:2: .* has 3 of 2 columns separated by tabs",
        ),
        (
            "Frame\tPhase\n0\tPreparation\n1 Preparation\n",
            NAMES,
            CHOLEC80,
            r"a\.txt:3: .* has 1 of 2 columns",
        ),
        (
            "Frame\tPhase\n0\tPreparation\n\n1\tPreparation\n",
            NAMES,
            CHOLEC80,
            r"a\.txt:3: a blank line between rows",
        ),
        (
            "Frame\tPhase\n0\tPreparation\n2\tPreparation\n",
            NAMES,
            CHOLEC80,
            r"a\.txt:3: row 2 follows row 0: 1 row is missing",
        ),
        (
            "Frame\tPhase\n0\tPreparation\n9\tPreparation\n",
            NAMES,
            CHOLEC80,
            r"a\.txt:3: row 9 follows row 0: 8 rows are missing",
        ),
        ("Frame\tPhase\n0\tPreparation\n0\tPreparation\n", NAMES, CHOLEC80, r"a\.txt:3: row 0 occurs twice"),
        (
            "Frame\tPhase\n0\tPreparation\n1\tPreparation\n0\tPreparation\n",
            NAMES,
            CHOLEC80,
            r"a\.txt:4: row 0 comes after row 1",
        ),
        (
            "Frame\tPhase\n1\tPreparation\n",
            NAMES,
            CHOLEC80,
            r"a\.txt:2: the first row is number 1, expected 0: rows count from 0",
        ),
        (
            "Frame\tPhase\n0.5\tPreparation\n",
            NAMES,
            CHOLEC80,
            r"a\.txt:2: frame number '0\.5' is not a whole number",
        ),
        ("Frame\tPhase\n-1\tPreparation\n", NAMES, CHOLEC80, r"a\.txt:2: frame number '-1' is negative"),
        ("Frame\tPhase\n0\t\n", NAMES, CHOLEC80, r"a\.txt:2: the label is missing"),
        (
            "Frame\tPhase\n0\tPreperation\n",
            NAMES,
            CHOLEC80,
            r"a\.txt:2: unknown phase 'Preperation' .* did you mean 'Preparation'",
        ),
        ("Frame\tPhase\n0\tPhase\n", NAMES, CHOLEC80, r"a\.txt:2: unknown phase 'Phase'"),
        (
            "Frame\tPhase\n0\t3\n",
            NAMES,
            CHOLEC80,
            r"a\.txt:2: label 3 is a number, but numbers are ambiguous for cholec80",
        ),
        (
            "Frame\tPhase\n1\t0\n",
            SECONDS,
            load_vocabulary("autolaparo"),
            r"a\.txt:2: phase id 0 is outside 1 to 7 .* count from 0",
        ),
        (
            "Frame\tPhase\n0\t1\n",
            SECONDS,
            load_vocabulary("autolaparo"),
            r"a\.txt:2: the first row is number 0, expected 1",
        ),
        ("0,0\n1,7\n", PLAIN, load_vocabulary("heichole"), r"a\.txt:2: phase id 7 is outside 0 to 6"),
        (
            "Frame,Phase\n0,0\n",
            PLAIN,
            load_vocabulary("heichole"),
            r"a\.txt:1: expected a row of numbers, found 'Frame,Phase'",
        ),
        (
            "0,Preparation\n",
            PLAIN,
            load_vocabulary("heichole"),
            r"a\.txt:1: label 'Preparation' where a phase number belongs",
        ),
    ],
)
def test_each_mistake_in_numbered_rows_has_its_own_message(tmp_path, content, form, words, message):
    with pytest.raises(DataError, match=message) as caught:
        read_row_labels(write(tmp_path, content), form, words)
    assert "\n" not in str(caught.value)


def test_segments_in_seconds_or_clock_time_leave_gaps_unlabelled(tmp_path):
    path = write(tmp_path, "start,end,phase\n0:10,0:01:00,Alpha\n75.5,1:20:00,beta")
    labels = read_segments(path, AB)
    times = np.array([0.0, 9.9, 10.0, 59.0, 60.0, 75.5, 4799.0, 4800.0])
    assert labels.phase_of(np.zeros(8, np.int64), times, Fraction(25)).tolist() == [
        -1,
        -1,
        0,
        0,
        -1,
        1,
        1,
        -1,
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0,10,Alpha\n9,20,Beta", r"a\.txt:3: the segment starts at 9, before the one above ends"),
        ("10,20,Alpha\n0,5,Beta", r"a\.txt:3: the segment starts before the one above; sort"),
        ("10,10,Alpha", r"a\.txt:2: the segment ends \(10\) before it starts \(10\)"),
        ("soon,10,Alpha", r"a\.txt:2: time 'soon' is neither seconds nor h:m:s"),
        ("0:75,10,Alpha", r"a\.txt:2: time '0:75' has 75 seconds in a minute"),
        ("0,10,Gamma", r"a\.txt:2: unknown phase 'Gamma'"),
        ("0,10", r"a\.txt:2: '0,10' has 2 of 3 columns"),
    ],
)
def test_each_mistake_in_segments_has_its_own_message(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        read_segments(write(tmp_path, f"start,end,phase\n{rows}\n"), AB)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50), st.integers(0, 1)), min_size=1, max_size=8))
def test_segments_agree_with_a_search_through_all_of_them(parts):
    starts, ends, phases, now = [], [], [], 0
    for gap, length, phase in parts:
        starts.append(float(now + gap))
        ends.append(float(now + gap + length))
        phases.append(phase)
        now += gap + length
    labels = SegmentLabels(np.array(starts), np.array(ends), np.array(phases))
    times = np.arange(0, now + 3, 0.5)
    slow = [next((p for s, e, p in zip(starts, ends, phases, strict=True) if s <= t < e), -1) for t in times]
    assert labels.phase_of(np.zeros(len(times), np.int64), times, Fraction(1)).tolist() == slow


def test_a_phase_holds_from_its_start_to_the_next(tmp_path):
    path = write(tmp_path, "VideoID;FrameNo;Phase\n7;3;1\n7;5;2\n8;0;1\n7;9;2\n", "annotations.csv")
    labels = start_labels(path, "7", load_vocabulary("cataract101"))
    assert labels.rows(11).phases.tolist() == [-1, -1, -1, 0, 0, 1, 1, 1, 1, 1, 1]
    assert StartLabels(np.array([2]), np.array([1])).phase_of(
        np.array([1, 2, 99]), np.zeros(3), Fraction(1)
    ).tolist() == [-1, 1, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("7;5;1\n7;3;2", r"a\.txt:3: frame 3 of video 7 comes after frame 5"),
        ("7;5;0", r"a\.txt:2: phase id 0 is outside 1 to 10"),
        ("7;5;11", r"a\.txt:2: phase id 11 is outside 1 to 10"),
        ("8;5;1", r"a\.txt: no row for video 7"),
    ],
)
def test_each_mistake_in_a_table_of_starts_has_its_own_message(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        start_labels(write(tmp_path, f"VideoID;FrameNo;Phase\n{rows}\n"), "7", load_vocabulary("cataract101"))


@pytest.mark.parametrize(
    ("content", "phases", "stride"),
    [
        ("Frame\tPhase\n0\tAlpha\n1\tBeta\n", [0, 1], 1),
        ("frame,phase\n0,0\n1,1\n2,1\n", [0, 1, 1], 1),
        ("0,0\n25,1\n50,1\n", [0, 1, 1], 25),
        ("Second,Phase\n0,Alpha\n1,Beta\n", [0, 1], "second"),
        ("0 Alpha\n1 Beta\n", [0, 1], 1),
    ],
)
def test_the_first_line_tells_the_format(tmp_path, content, phases, stride):
    labels = read_any(write(tmp_path, content), AB)
    assert labels.phases.tolist() == phases and labels.stride == stride


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hello\n", r"a\.txt:1: 'hello' is no known label format; use a header"),
        ("Bild,Phase\n0,Alpha\n", r"a\.txt:1: the first column is called 'bild'; call it Frame or Second"),
        ("Frame,Step\n0,Alpha\n", r"a\.txt:1: the second column is called 'step'; call it Phase"),
        (
            "Phase,Frame\nAlpha,0\n",
            r"a\.txt:1: the first column is called 'phase'; call it Frame or Second and put it first",
        ),
        ("0,0\n25,1\n40,1\n", r"a\.txt:3: row 40 breaks the step of 25"),
    ],
)
def test_an_unknown_format_is_answered_with_the_known_ones(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read_any(write(tmp_path, content), AB)
