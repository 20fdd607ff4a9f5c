"""Splits as data: the counts of the paper's table, disjoint roles, and honest words about what is
unverified."""

import pytest

from surgicalmamba.data.labels import known_datasets
from surgicalmamba.data.manifest import automatic_split, read_splits, shipped_splits
from surgicalmamba.errors import DataError

PAPER = {
    "cholec80": (32, 8, 40),
    "m2cai16": (20, 7, 14),
    "autolaparo": (10, 4, 7),
    "cataract101": (63, 10, 28),
    "heichole": (12, 6, 6),
    "heico": (18, 6, 6),
    "grasp": (6, 2, 5),
}


@pytest.mark.parametrize("dataset", known_datasets())
def test_every_dataset_has_the_papers_split_with_its_counts(dataset):
    paper = shipped_splits(dataset)["paper"]
    assert tuple(len(paper.roles[role]) for role in ("train", "val", "test")) == PAPER[dataset]


@pytest.mark.parametrize("dataset", known_datasets())
def test_roles_are_disjoint_unless_a_published_overlap_is_declared(dataset):
    for split in shipped_splits(dataset).values():
        assert bool(split.shared()) == (split.overlap is not None), split.name
        assert split.source, "a split without a source"


def test_the_release_trains_on_its_own_validation_videos():
    for dataset, n_train in (("cholec80", 40), ("m2cai16", 27)):
        release = shipped_splits(dataset)["release"]
        assert len(release.roles["train"]) == n_train and set(release.roles["val"]) <= set(
            release.roles["train"]
        )
        assert release.roles["test"] == shipped_splits(dataset)["paper"].roles["test"]


def test_unverified_lists_say_so():
    unverified = {d for d in known_datasets() if not shipped_splits(d)["paper"].is_verified}
    assert unverified == {"cataract101", "heichole", "heico", "grasp"}
    assert "unverified" in shipped_splits("heichole")["paper"].note


def test_ids_keep_their_width():
    paper = shipped_splits("cholec80")["paper"]
    assert paper.roles["train"][0] == "video01" and paper.roles["test"][-1] == "video80"
    assert shipped_splits("heico")["paper"].roles["test"][1] == "Proctocolectomy_10"
    assert shipped_splits("autolaparo")["paper"].roles["val"] == ("11", "12", "13", "14")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("splits: {train: [a], test: [a]}", "has 'a' in train and in test"),
        ("splits: {train: [a, a]}", "names 'a' twice"),
        ("splits: {own: {training: [a]}}", "none of the lists train, val, test"),
        ("splits: {own: {train: [a], extra: 1}}", "unknown key 'extra'"),
        ("splits: {own: {train: a}}", "must be a list of video ids"),
        ("splits: {own: {train: [video09..vid11]}}", "is no range such as"),
        ("splits: [a]", "must map names to train, val and test lists"),
        ("splits: {", "not valid YAML"),
    ],
)
def test_a_malformed_split_is_one_line(text, message):
    with pytest.raises(DataError, match=message) as caught:
        read_splits(text, "phases.yaml")
    assert "\n" not in str(caught.value) and "phases.yaml" in str(caught.value)


def test_roles_without_a_name_make_the_split_own():
    assert read_splits("splits: {train: [a], test: [b]}", "x")["own"].roles == {
        "train": ("a",),
        "test": ("b",),
    }
    assert read_splits("phases: [A]", "x") == {}


def test_the_automatic_split_divides_everything_and_does_not_depend_on_order():
    videos = [f"op{i}" for i in range(10)]
    split = automatic_split(videos)
    assert sorted(split.videos) == sorted(videos) and split.shared() == []
    assert [len(split.roles[role]) for role in ("train", "val", "test")] == [6, 2, 2]
    assert automatic_split(videos[::-1]) == split
    assert automatic_split(["a", "b"]).roles == {"train": ("a", "b")}
