"""The prepared dataset: what is written is what is read, and nothing unfinished passes for finished."""

import errno
from fractions import Fraction

import numpy as np
import pytest

from surgicalmamba.data import store
from surgicalmamba.data.manifest import FORMAT, Manifest
from surgicalmamba.errors import DataError

TABLE = store.SampleTable(np.array([0, 25, 50]), np.array([0.0, 1.0, 2.000001]), np.array([-1, 0, 1]))
ENTRY = {"source_fps": "25", "sources": {}, "settings_sha256": "0"}


def write_features(folder, video="v1", table=TABLE):
    draft = store.VideoDraft(folder, video, "features")
    draft.set_features(np.arange(6, dtype=np.float32).reshape(3, 2))
    return draft.commit(table, ENTRY)


def manifest_of(entries, **changes):
    fields = {
        "format": FORMAT,
        "name": "toy",
        "kind": "features",
        "phases": ["a", "b"],
        "fps": "1",
        "source": "",
        "settings": {},
    }
    return Manifest(**{**fields, "splits": {"own": {"train": list(entries)}}, "videos": entries, **changes})


@pytest.fixture
def dataset(tmp_path):
    store.finish(tmp_path, manifest_of({"v1": write_features(tmp_path)}))
    return tmp_path


def test_what_is_written_is_what_is_read(dataset):
    opened = store.PreparedDataset.open(dataset)
    video = opened.videos["v1"]
    assert (opened.name, opened.kind, opened.phases, opened.fps, opened.d_feature) == (
        "toy",
        "features",
        ("a", "b"),
        Fraction(1),
        2,
    )
    assert opened.splits == {"own": {"train": ("v1",)}} and opened.split("own", "train") == [video]
    assert video.labels.tolist() == [-1, 0, 1] and video.table.frame.tolist() == [0, 25, 50]
    assert video.time_s.tolist() == [0.0, 1.0, 2.000001]
    assert video.features.tolist() == [[0, 1], [2, 3], [4, 5]] and not video.features.flags.writeable
    assert (
        dataset / "videos/v1/labels.csv"
    ).read_text() == "frame,time_s,phase\n0,0.000000,\n25,1.000000,0\n50,2.000001,1\n"


def test_images_are_numbered_by_row_from_zero(tmp_path):
    draft = store.VideoDraft(tmp_path, "v1", "frames")
    for jpeg in (b"one", b"two", b"six"):
        draft.add_image(jpeg)
    entry = draft.commit(TABLE, ENTRY)
    store.finish(tmp_path, manifest_of({"v1": entry}, kind="frames"))
    paths = store.PreparedDataset.open(tmp_path).videos["v1"].frame_paths
    assert [p.name for p in paths] == ["00000000.jpg", "00000001.jpg", "00000002.jpg"] and paths[
        2
    ].read_bytes() == b"six"
    assert (
        store.content_hash(tmp_path / "videos/v1", "frames", 3) == entry.content_sha256
        and entry.content_bytes == 9
    )


def test_a_video_that_was_never_committed_is_nowhere_to_be_seen(tmp_path):
    draft = store.VideoDraft(tmp_path, "v1", "frames")
    draft.add_image(b"one")
    assert not (tmp_path / "videos" / "v1").exists() and store.finished_video(tmp_path, "v1") is None
    with pytest.raises(DataError, match=r"unfinished: it has no dataset.json. Run the same"):
        store.PreparedDataset.open(tmp_path)


def test_finishing_removes_what_killed_runs_left(dataset):
    store.VideoDraft(dataset, "v2", "frames").add_image(b"left behind")
    store.finish(dataset, store.read_manifest(dataset))
    assert sorted(p.name for p in dataset.iterdir()) == ["dataset.json", "videos"]


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "x" * 121, "end."])
def test_ids_that_cannot_be_folder_names_are_refused(tmp_path, name):
    with pytest.raises(DataError, match="cannot be a folder name"):
        store.VideoDraft(tmp_path, name, "frames")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "dataset.json: content: Invalid JSON"),
        ("{}", "dataset.json: format: Field required"),
        (None, "is no prepared dataset"),
    ],
)
def test_a_broken_manifest_is_one_line_that_names_the_file(tmp_path, text, message):
    if text is not None:
        (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        store.PreparedDataset.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_manifest_of_another_format_or_with_a_stray_split_is_refused(tmp_path):
    entry = write_features(tmp_path)
    text = manifest_of({"v1": entry}).text()
    (tmp_path / "dataset.json").write_text(text.replace(f'"format": {FORMAT}', '"format": 99'))
    with pytest.raises(DataError, match="format 99 is not the format 1"):
        store.PreparedDataset.open(tmp_path)
    (tmp_path / "dataset.json").write_text(text.replace('"train": [\n    "v1"', '"train": [\n    "v9"'))
    with pytest.raises(DataError, match="split own/train names 'v9'"):
        store.PreparedDataset.open(tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0;0;0", "labels.csv:3: .0;0;0. is not"),
        ("25,1.0,2", "labels.csv:3: phase 2 is outside 0 to 1"),
        ("25,1.0,-1", "phase -1 is outside"),
    ],
)
def test_a_broken_label_row_is_named_by_its_line(dataset, row, message):
    path = dataset / "videos/v1/labels.csv"
    path.write_text(f"frame,time_s,phase\n0,0.0,0\n{row}\n50,2.0,1\n")
    with pytest.raises(DataError, match=message):
        _ = store.PreparedDataset.open(dataset).videos["v1"].labels


def test_a_missing_row_a_missing_folder_and_unreadable_features_are_told(dataset):
    opened = store.PreparedDataset.open(dataset)
    (dataset / "videos/v1/labels.csv").write_text("frame,time_s,phase\n0,0.0,0\n")
    with pytest.raises(DataError, match=r"1 rows where dataset.json has 3"):
        _ = opened.videos["v1"].labels
    (dataset / "videos/v1/features.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match=r"features.npy: not a readable feature array"):
        _ = opened.videos["v1"].features
    (dataset / "videos/v1").rename(dataset / "videos/gone")
    with pytest.raises(DataError, match=r"v1 is missing although dataset.json lists it"):
        store.PreparedDataset.open(dataset)


def test_unknown_splits_are_answered_with_the_known_ones(dataset):
    opened = store.PreparedDataset.open(dataset)
    with pytest.raises(DataError, match="no split 'paper'; it has: own"):
        opened.split("paper", "train")
    with pytest.raises(DataError, match="no role 'test'; it has: train"):
        opened.split("own", "test")


def test_a_full_disk_leaves_no_draft_and_says_what_to_do(tmp_path, monkeypatch):
    draft = store.VideoDraft(tmp_path, "v1", "frames")

    def full(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(
        DataError, match=r"No space left on device. Free some space and run the same command again"
    ):
        draft.add_image(b"x")
    assert list((tmp_path / ".partial").iterdir()) == []
