"""Labels and predictions matched video by video; nothing is paired that might not belong together."""

import json

import pytest

from surgicalmamba.data.labels import load_vocabulary
from surgicalmamba.errors import DataError
from surgicalmamba.eval.files import Matching, find_files, load, video_key

CHOLEC80 = load_vocabulary("cholec80")
HEADER = "Frame\tPhase\n"


@pytest.fixture
def folders(tmp_path):
    """folders(labels={...}, predictions={...}) writes files and returns the two paths."""

    def make(**sides):
        for side, files in sides.items():
            (tmp_path / side).mkdir(exist_ok=True)
            for name, content in files.items():
                path = tmp_path / side / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content, encoding="utf-8")
        return tmp_path / "labels", tmp_path / "predictions"

    return make


def table(*phases, step=25, first=0):
    return HEADER + "".join(f"{first + index * step}\t{phase}\n" for index, phase in enumerate(phases))


@pytest.mark.parametrize(
    ("stem", "key"),
    [
        ("video41-phase", "video41"),
        ("Video41", "video41"),
        ("video41_pred", "video41"),
        ("label_01", "01"),
        ("Hei-Chole1_Annotation_Phase", "hei-chole1"),
        ("workflow_video_07", "workflow_video_07"),
        ("phase", "phase"),
    ],
)
def test_a_videos_name_is_found_in_the_usual_file_names(stem, key):
    assert video_key(stem) == key


def test_videos_are_matched_by_name_and_sorted_by_number(folders):
    labels, predictions = folders(
        labels={"video10-phase.txt": table(0, 1), "video2-phase.txt": table(1, 1)},
        predictions={
            "Video2.csv": "frame,phase\n0,1\n25,0\n",
            "video10.txt": table(0, 0),
            "notes.md": "x",
            "run.log": "x",
        },
    )
    videos = load(labels, [predictions], CHOLEC80).runs[0]
    assert [video.name for video in videos] == ["video2", "video10"]
    assert videos[0].predicted.tolist() == [1, 0]


def test_a_prepared_dataset_brings_one_labels_csv_per_video(folders):
    labels, predictions = folders(
        labels={"video01/labels.csv": "frame,time_s,phase\n0,0,\n1,1,2\n"},
        predictions={"video01.csv": "frame,time_s,phase\n0,0,1\n1,1,2\n"},
    )
    loaded = load(labels, [predictions], CHOLEC80)
    assert loaded.runs[0][0].truth.tolist() == [-1, 2]
    assert loaded.fps == 1


def test_two_single_files_are_one_video_whatever_they_are_called(folders):
    labels, predictions = folders(labels={"truth.txt": table(0, 1)}, predictions={"guess.txt": table(0, 0)})
    (video,) = load(labels / "truth.txt", [predictions / "guess.txt"], CHOLEC80).runs[0]
    assert video.predicted.tolist() == [0, 0]


def test_files_that_are_no_phase_labels_are_passed_over(folders):
    labels, _ = folders(
        labels={
            "v1.txt": table(0),
            "v1_timestamp.txt": "x",
            "v1-tool.txt": "x",
            "README.txt": "x",
            ".hidden.txt": "x",
        }
    )
    assert list(find_files(labels, "labels")) == ["v1"]


def test_a_video_that_one_folder_lacks_is_an_error_unless_common_videos_are_asked_for(folders):
    labels, predictions = folders(
        labels={"a.txt": table(0), "b.txt": table(0)}, predictions={"b.txt": table(0), "c.txt": table(0)}
    )
    with pytest.raises(
        DataError,
        match=r"^a: in .*labels but not in .*predictions; "
        r"add the files, or score the rest with --common-videos",
    ):
        load(labels, [predictions], CHOLEC80)
    loaded = load(labels, [predictions], CHOLEC80, Matching(common_videos=True))
    assert [video.name for video in loaded.runs[0]] == ["b"]
    assert any("left out 1 video(s)" in note and "a" in note for note in loaded.notes)


def test_folders_without_a_common_video_are_refused(folders):
    labels, predictions = folders(labels={"a.txt": table(0)}, predictions={"b.txt": table(0)})
    with pytest.raises(DataError, match="no video in common"):
        load(labels, [predictions], CHOLEC80, Matching(common_videos=True))


def test_two_files_of_the_same_video_are_refused(folders):
    labels, _ = folders(labels={"video1.txt": table(0), "video1-phase.txt": table(0)})
    with pytest.raises(DataError, match="are both video 'video1'"):
        find_files(labels, "labels")


def test_empty_and_missing_folders_are_named(folders, tmp_path):
    labels, _ = folders(labels={"x.md": ""})
    with pytest.raises(DataError, match=r"no labels in .*labels; expected one"):
        find_files(labels, "labels")
    with pytest.raises(DataError, match=r"the predictions folder .*nowhere does not exist"):
        find_files(tmp_path / "nowhere", "predictions")


def test_unequal_lengths_name_the_file_and_row_where_one_goes_on(folders):
    labels, predictions = folders(labels={"a.txt": table(0, 0, 1)}, predictions={"a.txt": table(0, 0)})
    with pytest.raises(
        DataError,
        match=r"a: .*labels/a\.txt has 3 rows and .*predictions/a\.txt 2; "
        r".*labels/a\.txt continues at row 4.*--tolerance 1",
    ):
        load(labels, [predictions], CHOLEC80)
    loaded = load(labels, [predictions], CHOLEC80, Matching(tolerance_rows=1))
    assert loaded.runs[0][0].truth.tolist() == [0, 0]
    assert "cut the last 1 row(s) of" in loaded.notes[0]
    with pytest.raises(DataError, match="3 rows"):
        load(
            *folders(predictions={"a.txt": table(0)})[:1], [predictions], CHOLEC80, Matching(tolerance_rows=1)
        )


def test_rows_on_different_frame_grids_are_refused_and_can_be_paired_by_order(folders):
    labels, predictions = folders(
        labels={"a.txt": table(0, 1, 1)}, predictions={"a.txt": table(0, 1, 1, step=1)}
    )
    with pytest.raises(
        DataError,
        match=r"labels/a\.txt row 3 is frame 25, but .*predictions/a\.txt row 3 is frame 1: "
        "mixed frame grids",
    ):
        load(labels, [predictions], CHOLEC80)
    assert load(labels, [predictions], CHOLEC80, Matching(by_row=True)).runs[0][0].predicted.tolist() == [
        0,
        1,
        1,
    ]


def test_videos_on_different_frame_grids_are_noticed(folders):
    files = {"a.txt": table(0, 1), "b.txt": table(0, 1, step=50)}
    labels, predictions = folders(labels=files, predictions=files)
    assert "25 apart in" in load(labels, [predictions], CHOLEC80).mixed_steps


def test_time_columns_that_disagree_are_refused(folders):
    files = {"a.csv": "frame,time_s,phase\n0,0,0\n1,1,0\n", "b.csv": "frame,time_s,phase\n0,0,0\n1,0.5,0\n"}
    labels, predictions = folders(labels=files, predictions=files)
    with pytest.raises(DataError, match=r"1 rows per second and .*b\.csv 2; mixed frame grids"):
        load(labels, [predictions], CHOLEC80)


def test_time_that_stands_still_and_bad_probabilities_are_named_with_the_row(folders):
    labels, predictions = folders(
        labels={"a.txt": table(0, 0, step=1)}, predictions={"a.csv": "frame,time_s,phase\n0,3,0\n1,3,0\n"}
    )
    with pytest.raises(DataError, match=r"a\.csv row 3: time_s does not increase"):
        load(labels, [predictions], CHOLEC80)
    header = "frame,phase," + ",".join(f"p_{index}" for index in range(7))
    (predictions / "a.csv").write_text(
        f"{header}\n0,0,1,0,0,0,0,0,0\n1,0,0.5,0,0,0,0,0,0\n", encoding="utf-8"
    )
    with pytest.raises(DataError, match=r"a\.csv row 3: probabilities must lie between 0 and 1 and sum to 1"):
        load(labels, [predictions], CHOLEC80, Matching(prediction_first_id=0))


def test_a_label_file_that_labels_nothing_is_refused(folders):
    labels, predictions = folders(
        labels={"a.csv": "frame,time_s,phase\n0,0,\n1,1,\n"}, predictions={"a.txt": table(0, 0, step=1)}
    )
    with pytest.raises(DataError, match="labels none of its rows"):
        load(labels, [predictions], CHOLEC80)


def test_a_run_json_with_another_order_of_phases_is_refused(folders):
    names = [*CHOLEC80.names[:4], *CHOLEC80.names[:3:-1]]
    run = f'{{"format": "surgicalmamba-predictions", "version": 1, "fps": 1, "phases": {json.dumps(names)}}}'
    labels, predictions = folders(
        labels={"a.txt": table(0)}, predictions={"a.txt": table(0), "run.json": run}
    )
    with pytest.raises(
        DataError,
        match=r"run\.json: phase 4 is 'GallbladderRetraction' but 'GallbladderPackaging' in cholec80",
    ):
        load(labels, [predictions], CHOLEC80)


def test_denser_labels_are_sampled_at_the_predicted_frames_when_asked_for(folders):
    every_frame = table(*[0] * 60, *[1] * 41, step=1)  # frames 0 to 100
    labels, predictions = folders(
        labels={"a.txt": every_frame}, predictions={"a.txt": table(0, 0, 0, 1, 1)}
    )  # frames 0, 25, ..., 100
    with pytest.raises(DataError, match="mixed frame grids"):
        load(labels, [predictions], CHOLEC80)
    loaded = load(labels, [predictions], CHOLEC80, Matching(sample_labels=True))
    assert loaded.runs[0][0].truth.tolist() == [0, 0, 0, 1, 1]
    assert loaded.mixed_steps is None


def test_sampling_refuses_predictions_that_stop_early_or_fall_between_label_rows(folders):
    labels, predictions = folders(
        labels={"a.txt": table(*[0] * 101, step=1)}, predictions={"a.txt": table(0, 0, 0)}
    )
    with pytest.raises(
        DataError,
        match=r"covers frames 0 to 50 of .*a\.txt, whose rows go from 0 to 100: 2 row\(s\) are missing",
    ):
        load(labels, [predictions], CHOLEC80, Matching(sample_labels=True))
    loaded = load(labels, [predictions], CHOLEC80, Matching(sample_labels=True, tolerance_rows=2))
    assert "left out 2 row(s)" in loaded.notes[0]
    folders(predictions={"a.txt": table(*[0] * 5, first=3)})
    with pytest.raises(
        DataError, match=r"predictions/a\.txt row 6 is frame 103, which .*labels/a\.txt does not have"
    ):
        load(labels, [predictions], CHOLEC80, Matching(sample_labels=True))


def test_a_prepared_dataset_is_a_folder_of_labels(tmp_path):
    place = tmp_path / "videos" / "video07"
    place.mkdir(parents=True)
    (place / "labels.csv").write_text("frame,time_s,phase\n0,0,1\n")
    (tmp_path / "dataset.json").write_text("{}")
    assert find_files(tmp_path, "labels") == {"video07": place / "labels.csv"}
