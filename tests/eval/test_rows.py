"""Label and prediction files as they come: formats, and complaints that name file and row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgicalmamba.data.labels import load_vocabulary
from surgicalmamba.errors import DataError
from surgicalmamba.eval.files import read_rows

CHOLEC80 = load_vocabulary("cholec80")
AUTOLAPARO = load_vocabulary("autolaparo")


@pytest.fixture
def write(tmp_path):
    def write(content, name="video01-phase.txt"):
        path = tmp_path / name
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        return path

    return write


@pytest.mark.parametrize(
    "content",
    [
        "Frame\tPhase\n0\tPreparation\n25\tPreparation\n50\tClippingCutting\n",
        # Windows line ends, no last one
        "Frame\tPhase\r\n0\tPreparation\r\n25\tPreparation\r\n50\tClippingCutting",
        # byte-order mark, spelling, empty last line
        "\ufeffFrame\tPhase\n0\tPreparation\n25\tpreparation\n50\tclipping_cutting\n\n",
        "Frame\tPhase\n0\t0\n25\t0\n50\t2\n",
        "0\t0\n25\t0\n50\t2\n",  # no header: no row may be lost
        "0,0\n25,0\n50,2\n",
        "frame,phase\n0,Preparation\n25,0\n50,Clipping Cutting\n",
        "frame;label\n0;0\n25;0\n50;2\n",
        "phase,frame\n0,0\n0,25\n2,50\n",
        '"frame","phase"\n"0","Preparation"\n"25","Preparation"\n"50","ClippingCutting"\n',
        "0 Preparation\n25 Preparation\n50 Clipping Cutting\n",
    ],
)
def test_every_form_of_the_same_three_rows_reads_alike(write, content):
    rows = read_rows(write(content), CHOLEC80)
    assert rows.frame.tolist() == [0, 25, 50]
    assert rows.phase.tolist() == [0, 0, 2]
    assert rows.step == 25
    assert rows.time_s is None and rows.probabilities is None


def test_ids_count_as_the_dataset_counts_unless_told_otherwise(write):
    path = write("Frame\tPhase\n1\t1\n2\t7\n")
    assert read_rows(path, AUTOLAPARO).phase.tolist() == [0, 6]
    with pytest.raises(
        DataError, match=r"video01-phase\.txt row 3: phase id 7 is outside 0 to 6 .*count from 1"
    ):
        read_rows(path, AUTOLAPARO, first_id=0)


def test_files_with_a_time_column_are_ours_and_count_from_zero(write):
    path = write("frame,time_s,phase\n0,0,0\n1,0.04,6\n")
    assert read_rows(path, AUTOLAPARO).phase.tolist() == [0, 6]
    assert read_rows(path, AUTOLAPARO).time_s.tolist() == [0, 0.04]


def test_an_empty_phase_is_unlabelled_in_labels_and_an_error_in_predictions(write):
    path = write("frame,time_s,phase\n0,0,\n1,1,2\n", "labels.csv")
    assert read_rows(path, CHOLEC80).phase.tolist() == [-1, 2]
    with pytest.raises(DataError, match=r"labels\.csv row 2: a prediction is missing"):
        read_rows(path, CHOLEC80, allow_unlabelled=False)


def test_probabilities_and_names_of_our_prediction_files(write):
    header = "frame,time_s,phase,name,p_0,p_1,p_2,p_3,p_4,p_5,p_6,intensity\n"
    rows = read_rows(
        write(
            header
            + "0,0,1,CalotTriangleDissection,0.1,0.9,0,0,0,0,0,0.25\n1,1,0,Preparation,1,0,0,0,0,0,0,\n"
        ),
        CHOLEC80,
    )
    np.testing.assert_array_equal(rows.probabilities[0], [0.1, 0.9, 0, 0, 0, 0, 0])
    assert rows.probabilities.shape == (2, 7)
    with pytest.raises(
        DataError,
        match="row 2: phase 4 is called 'GallbladderRetraction' here but 'GallbladderPackaging' in cholec80",
    ):
        read_rows(write(header + "0,0,4,GallbladderRetraction,0,0,0,0,1,0,0,\n"), CHOLEC80)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("Frame\tPhase\n", "header and no rows"),
        (
            "Frame\tPhase\n0\tPreparation\n25\tPreperation\n",
            "row 3: unknown phase 'Preperation' .*did you mean 'Preparation'",
        ),
        ("Frame\tPhase\n0\tPreparation\n25\n50\tPreparation\n", "row 3 has 1 columns where 2 are needed"),
        ("Frame\tPhase\n0\tPreparation\nx\tPreparation\n", "row 3: frame 'x' is no whole number"),
        ("Frame\tPhase\n0\tPreparation\n1.5\tPreparation\n", "row 3: frame '1.5' is no whole number"),
        ("Frame\tPhase\n0\tPhase\n", "row 2: unknown phase 'Phase'"),
        (
            "0\t0\n25\t0\n51\t0\n",
            "row 3: frame 51 follows frame 25, but the first rows are 25 apart: mixed frame grids",
        ),
        ("0\t0\n25\t0\n25\t0\n", "row 3: frame 25 follows frame 25"),
        ("0\t0\n-25\t0\n", "row 2: frame -25 follows frame 0"),
        ("0,0,0\n1,0,0\n", "row 1 has 3 columns and there is no header"),
        ("time,phase\n0,0\n", "neither a header with a frame column"),
        ("frame,stage\n0,0\n", "neither a header with a phase column"),
        ("frame,time_s,phase,p_0,p_1\n0,0,0,1,0\n", "2 probability columns; 7 phases need p_0 to p_6"),
        ("frame,time_s,phase\n0,0,0\n1,soon,0\n", "row 3: 'soon' in column 2 is no number"),
        ("frame,time_s,phase\n0,0,0\n1,nan,0\n", "row 3 holds a number that is not finite"),
        ("frame,time_s,phase,name\n0,0,0,Nothing\n", "row 2: unknown phase 'Nothing'"),
    ],
)
def test_a_broken_file_is_named_with_the_row_and_what_is_wrong(write, content, message):
    with pytest.raises(DataError, match=message) as caught:
        read_rows(write(content), CHOLEC80)
    assert "video01-phase.txt" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_and_missing_files_are_named(write, tmp_path):
    with pytest.raises(DataError, match="saved as UTF-16"):
        read_rows(write(b"\xff\xfe\x00\x81\x8d"), CHOLEC80)
    with pytest.raises(DataError, match=r"nowhere\.txt: cannot be read"):
        read_rows(tmp_path / "nowhere.txt", CHOLEC80)


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=40),
    st.integers(1, 50),
    st.integers(0, 99),
    st.sampled_from(["\t", ",", ";"]),
    st.booleans(),
    st.booleans(),
)
def test_whatever_is_written_is_read_back(tmp_path_factory, phases, step, first, separator, header, by_name):
    path = tmp_path_factory.mktemp("rows") / "v.txt"
    lines = [
        f"{first + step * index}{separator}{CHOLEC80.names[phase] if by_name else phase}"
        for index, phase in enumerate(phases)
    ]
    path.write_text("\n".join([f"Frame{separator}Phase"] * header + lines), encoding="utf-8")
    rows = read_rows(path, CHOLEC80)
    assert rows.phase.tolist() == phases
    assert rows.frame.tolist() == [first + step * index for index in range(len(phases))]
