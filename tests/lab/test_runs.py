"""A dataset divided by a study: folds, tuning splits, and a folder that every command takes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError, StudyError
from surgicalmamba_lab.studies.runs import divided, fold_splits, tuning_split


def test_folds_are_every_nth_video_of_train_and_val_and_leave_the_test_videos_out(toy):
    assert fold_splits(toy, 3) == {
        "fold1of3": {"train": ["d", "e", "v", "w"], "test": ["c", "f"]},
        "fold2of3": {"train": ["c", "e", "f", "w"], "test": ["d", "v"]},
        "fold3of3": {"train": ["c", "d", "f", "v"], "test": ["e", "w"]},
    }


def test_few_operations_are_those_of_the_folds_after_the_tested_one(toy):
    assert fold_splits(toy, 3, train_folds=1) == {
        "fold1of3-train1": {"train": ["d", "v"], "test": ["c", "f"]},
        "fold2of3-train1": {"train": ["e", "w"], "test": ["d", "v"]},
        "fold3of3-train1": {"train": ["c", "f"], "test": ["e", "w"]},
    }
    with pytest.raises(ConfigError, match="--train-folds 3: of 3 folds one is tested; give 1 to 2"):
        fold_splits(toy, 3, train_folds=3)


@given(n_videos=st.integers(2, 60), data=st.data())
def test_every_video_is_tested_once_by_a_model_that_has_not_seen_it(toy, n_videos, data):
    videos = [f"video{i:02d}" for i in range(n_videos)]
    n_folds = data.draw(st.integers(2, n_videos))
    folds = fold_splits(replace(toy, splits={"s": {"train": tuple(videos)}}), n_folds)
    assert sorted(video for fold in folds.values() for video in fold["test"]) == videos
    assert all(sorted(fold["train"] + fold["test"]) == videos for fold in folds.values())
    sizes = [len(fold["test"]) for fold in folds.values()]
    assert max(sizes) - min(sizes) <= 1


def test_more_folds_than_videos_are_refused(toy):
    with pytest.raises(ConfigError, match=r"--folds 7: .* has 6 videos to cut; give 2 to 6"):
        fold_splits(toy, 7)


def test_tuning_takes_validation_videos_where_there_are_some(toy):
    name, roles = tuning_split(toy.splits, ["usual"])
    assert name == "usual" and roles["val"] == ["v", "w"]


def test_tuning_holds_out_what_the_next_split_tests_where_there_are_none(toy):
    name, roles = tuning_split(toy.splits, ["out-a", "out-b"])
    assert (name, roles) == (
        "tune-out-a",
        {"train": ["c", "d", "e"], "val": ["b"]},
    )  # a and f, the scored ones, in neither


def test_one_split_without_validation_videos_has_nothing_to_tune_by(toy):
    with pytest.raises(ConfigError, match="split 'out-a' has no validation videos"):
        tuning_split(toy.splits, ["out-a"])


def test_the_division_is_a_prepared_dataset_with_all_splits_and_the_same_videos(toy, tmp_path):
    for _ in range(2):  # the second call finds the first one's folder
        divided(toy, tmp_path, fold_splits(toy, 2))
    view = PreparedDataset.open(tmp_path / "data")
    assert list(view.splits) == ["usual", "out-a", "out-b", "fold1of2", "fold2of2"]
    assert (view.videos["a"].features == toy.videos["a"].features).all() and (
        view.videos["a"].labels == toy.videos["a"].labels
    ).all()


def test_a_folder_with_a_study_of_other_videos_is_refused(toy, tmp_path):
    divided(toy, tmp_path, {})
    fewer = toy.manifest.model_copy(
        update={"videos": {k: v for k, v in toy.manifest.videos.items() if k != "j"}}
    )
    with pytest.raises(StudyError, match="holds a study of other videos"):
        divided(replace(toy, manifest=fewer), tmp_path, {})
