"""Datasets that come as vectors: tool presence, kinematics, and a user's own arrays."""

from fractions import Fraction

import numpy as np
import pytest

from surgicalmamba.data.adapters.base import get_adapter
from surgicalmamba.data.adapters.jigsaws import COLUMNS
from surgicalmamba.data.prepare import Request, prepare
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError, DataError

TOOL_HEADER = "Frame\tGrasper\tBipolar\tHook\tScissors\tClipper\tIrrigator\tSpecimenBag\n"


@pytest.fixture
def tools(tmp_path):
    """Two tool rows and 51 phase rows: three phase samples, so the last one goes."""
    source = tmp_path / "source"
    for folder in ("tool_annotations", "phase_annotations"):
        (source / folder).mkdir(parents=True)
    (source / "tool_annotations/video01-tool.txt").write_text(
        TOOL_HEADER + "0\t1\t0\t0\t0\t0\t0\t0\n25\t1\t0\t1\t0\t0\t0\t0\n"
    )
    names = ["Preparation"] * 25 + ["CalotTriangleDissection"] * 26
    (source / "phase_annotations/video01-phase.txt").write_text(
        "Frame\tPhase\n" + "".join(f"{i}\t{n}\n" for i, n in enumerate(names))
    )
    return source


def test_tool_files_and_phase_files_are_joined_on_the_frame(tools, tmp_path):
    assert prepare(Request("cholec80-tools", tools, tmp_path / "out")).failures == {}
    video = PreparedDataset.open(tmp_path / "out").videos["video01"]
    assert video.features.tolist() == [[1, 0, 0, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0, 0]]
    assert video.labels.tolist() == [0, 1] and video.table.frame.tolist() == [0, 25]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            TOOL_HEADER.replace("Hook", "Hock") + "0\t1\t0\t0\t0\t0\t0\t0\n",
            r"video01-tool\.txt:1: the header is",
        ),
        (TOOL_HEADER + "0\t2\t0\t0\t0\t0\t0\t0\n", r"video01-tool\.txt:2: Grasper is '2', expected 0 or 1"),
        (TOOL_HEADER + "1\t1\t0\t0\t0\t0\t0\t0\n", r"video01-tool\.txt:2: frame 1 where 0 belongs"),
        (TOOL_HEADER + "0\t1\t0\n", r"video01-tool\.txt:2: .* has 3 of 8 columns"),
        (
            TOOL_HEADER + "".join(f"{25 * i}\t1\t0\t0\t0\t0\t0\t0\n" for i in range(9)),
            "9 tool rows but 3 phase samples",
        ),
    ],
)
def test_each_mistake_in_a_tool_file_has_its_own_message(tools, tmp_path, text, message):
    (tools / "tool_annotations/video01-tool.txt").write_text(text)
    outcome = prepare(Request("cholec80-tools", tools, tmp_path / "out"))
    with pytest.raises(DataError, match=message):
        raise DataError(outcome.failures["video01"])


def test_the_real_tool_archive_is_imported_whole(real_data, tmp_path):
    outcome = prepare(Request("cholec80-tools", real_data("cholec80"), tmp_path / "out"))
    dataset = PreparedDataset.open(tmp_path / "out")
    assert outcome.failures == {} and len(dataset.videos) == 40 and dataset.d_feature == 7
    with np.load(real_data("cholec80/tools_phases_01-40.npz")) as archive:
        assert np.array_equal(dataset.videos["video07"].features, archive["video07/tools"].astype(np.float32))
        assert np.array_equal(dataset.videos["video07"].labels, archive["video07/phases"])
    assert len(dataset.splits["paper"]["train"]) == 32 and len(dataset.splits["paper"]["val"]) == 8
    assert any("name 40 videos that are not here" in warning for warning in outcome.warnings)


@pytest.fixture
def trials(tmp_path):
    """Two surgeons, 13 kinematics rows each at 30 Hz; column c of row r holds 100 r + c."""
    source = tmp_path / "source/Suturing"
    for folder in ("kinematics/AllGestures", "transcriptions"):
        (source / folder).mkdir(parents=True)
    for trial in ("B001", "C001"):
        table = "\n".join("   ".join(f"{100 * r + c:.4f}" for c in range(76)) for r in range(13))
        (source / f"kinematics/AllGestures/Suturing_{trial}.txt").write_text(table + "\n")
        (source / f"transcriptions/Suturing_{trial}.txt").write_text("2 7 G1 \n8 12 G11 \n")
    return tmp_path / "source"


def test_kinematics_are_the_14_patient_side_signals_at_5_hz(trials, tmp_path):
    assert prepare(Request("jigsaws", trials, tmp_path / "out")).failures == {}
    dataset = PreparedDataset.open(tmp_path / "out")
    video = dataset.videos["Suturing_B001"]
    left, right = (
        (39, 40, 41, 51, 52, 53, 57),
        (58, 59, 60, 70, 71, 72, 76),
    )  # columns of the dataset's readme, counted from 1
    assert [column + 1 for column in COLUMNS] == [*left, *right]
    assert video.features.tolist() == [[100 * r + c - 1 for c in (*left, *right)] for r in (0, 6, 12)]
    assert video.labels.tolist() == [-1, 0, -1]  # rows 1, 7 and 13: before, inside and after the gestures
    assert dataset.fps == 5 and video.time_s.tolist() == [0, 0.2, 0.4] and dataset.phases[-1] == "G11"
    assert dataset.splits["louo-B"] == {"train": ("Suturing_C001",), "test": ("Suturing_B001",)}


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("kinematics/AllGestures", "1 2 3\n", r"Suturing_B001\.txt:1: 3 columns, expected 76"),
        ("kinematics/AllGestures", " ".join(["x"] * 76), r"Suturing_B001\.txt:1: a column is not a number"),
        ("kinematics/AllGestures", " ".join(["nan"] * 76), "features must be finite"),
        ("transcriptions", "1 5\n", r"Suturing_B001\.txt:1: '1 5' is not 'first last G1'"),
        (
            "transcriptions",
            "0 5 G1\n",
            r"Suturing_B001\.txt:1: frames 0 to 5 are no stretch; they count from 1",
        ),
        ("transcriptions", "1 5 G7\n", "gesture G7 does not occur in Suturing"),
    ],
)
def test_each_mistake_in_a_trial_has_its_own_message(trials, tmp_path, file, text, message):
    (trials / "Suturing" / file / "Suturing_B001.txt").write_text(text)
    outcome = prepare(Request("jigsaws", trials, tmp_path / "out"))
    assert outcome.prepared == ["Suturing_C001"]
    with pytest.raises(DataError, match=message):
        raise DataError(outcome.failures["Suturing_B001"])


def test_the_real_kinematics_archive_is_imported_whole(real_data, tmp_path):
    outcome = prepare(Request("jigsaws", real_data("jigsaws"), tmp_path / "out"))
    dataset = PreparedDataset.open(tmp_path / "out")
    assert (
        outcome.failures == {}
        and len(dataset.videos) == 38
        and dataset.d_feature == 14
        and len(dataset.splits) == 8
    )
    assert sorted(v for roles in dataset.splits.values() for v in roles["test"]) == sorted(dataset.videos)


@pytest.fixture
def arrays(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "phases.yaml").write_text("phases: [Alpha, Beta]\nfps: 2\n")
    np.savez(source / "a.npz", x=np.ones((4, 3)), y=np.array([0, 1, -1, 1]))
    np.save(source / "b.npy", np.zeros((2, 3), np.float16))
    (source / "b.csv").write_text("frame,phase\n0,Alpha\n1,Beta\n")
    np.save(source / "c.npy", np.zeros((2, 3)))
    np.save(source / "c_labels.npy", np.array([1, 1]))
    return source


def test_own_arrays_are_imported_with_labels_in_any_form(arrays, tmp_path):
    assert prepare(Request("features", arrays, tmp_path / "out")).failures == {}
    dataset = PreparedDataset.open(tmp_path / "out")
    assert {key: video.labels.tolist() for key, video in dataset.videos.items()} == {
        "a": [0, 1, -1, 1],
        "b": [0, 1],
        "c": [1, 1],
    }
    assert dataset.fps == Fraction(2) and dataset.videos["a"].time_s.tolist() == [0, 0.5, 1, 1.5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda p: np.savez(p / "a.npz", x=np.ones((4, 3))),
            r"a\.npz: expected arrays x .* and y .*, found x",
        ),
        (
            lambda p: np.savez(p / "a.npz", x=np.ones(4), y=np.ones(4, int)),
            r"features have shape \(4,\), expected \(samples, features\)",
        ),
        (
            lambda p: np.savez(p / "a.npz", x=np.full((2, 2), np.nan), y=np.ones(2, int)),
            "row 0, column 0 is nan",
        ),
        (
            lambda p: np.savez(p / "a.npz", x=np.ones((2, 2)), y=np.ones(3, int)),
            "2 feature rows and 3 labels",
        ),
        (
            lambda p: np.savez(p / "a.npz", x=np.ones((2, 2)), y=np.array([0, 5])),
            "row 1 has phase 5, outside 0 to 1",
        ),
        (
            lambda p: np.savez(p / "a.npz", x=np.ones((2, 2)), y=np.array([0.0, 1.0])),
            "labels are float64 .* expected whole numbers",
        ),
        (
            lambda p: np.savez(p / "a.npz", x=np.array([["a", "b"]]), y=np.array([0])),
            "features are of type <U1, expected numbers",
        ),
        (
            lambda p: np.savez(p / "a.npz", x=np.array([[None, 1]]), y=np.array([0])),
            "holds Python objects, which are never loaded",
        ),
        (
            lambda p: (p / "a.npz").write_bytes(b"PK\x03\x04 not really"),
            r"a\.npz: not an \.npz archive, or a damaged one",
        ),
        (
            lambda p: np.savez(p / "a.npz", x=np.ones((2, 2)), y=np.array([-1, -1])),
            "not one sample of a has a label",
        ),
    ],
)
def test_each_mistake_in_own_arrays_has_its_own_message(arrays, tmp_path, make, message):
    make(arrays)
    outcome = prepare(Request("features", arrays, tmp_path / "out"))
    assert outcome.prepared == ["b", "c"]
    with pytest.raises(DataError, match=message):
        raise DataError(outcome.failures["a"])


def test_features_are_not_resampled(arrays, tmp_path):
    with pytest.raises(ConfigError, match="features comes at 2 samples per second and is not resampled"):
        prepare(Request("features", arrays, tmp_path / "out", fps=Fraction(1)))


def test_several_tasks_are_not_mixed(trials):
    other = trials / "Knot_Tying/kinematics/AllGestures"
    other.mkdir(parents=True)
    (other / "Knot_Tying_B001.txt").write_text("1\n")
    with pytest.raises(DataError, match="several tasks"):
        _ = get_adapter("jigsaws", trials).vocabulary
