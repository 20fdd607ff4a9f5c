"""A user's own folder: any known label format, any video, image folders, own splits."""

import json

import pytest

from surgicalmamba.data.adapters.base import get_adapter
from surgicalmamba.data.pictures import encode_jpeg
from surgicalmamba.data.prepare import Request, prepare
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import DataError

PHASES = "phases: [Alpha, Beta]\n"


@pytest.fixture(scope="module")
def clip(tmp_path_factory, numbered):
    return numbered.write(tmp_path_factory.mktemp("clip") / "clip.mp4", 100, gop=25).read_bytes()


@pytest.fixture
def folder(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "phases.yaml").write_text(PHASES)
    return source


def labels_of(folder, request_fps=None):
    out = folder.parent / "out"
    outcome = prepare(Request("custom", folder, out, request_fps))
    assert outcome.failures == {}, outcome.failures
    return {key: video.labels.tolist() for key, video in PreparedDataset.open(out).videos.items()}


def per_frame(separator="\t", header="Frame\tPhase\n", names=("Alpha", "Beta")):
    return header + "".join(f"{i}{separator}{names[0] if i < 50 else names[1]}\n" for i in range(100))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("op 1.txt", per_frame()),
        ("op 1-phase.txt", per_frame()),
        ("label_op 1.txt", per_frame(",", "frame,phase\n", (0, 1))),
        ("op 1_Annotation_Phase.csv", per_frame(",", "", (0, 1))),
        ("op 1.csv", "start,end,phase\n0,2,Alpha\n2,0:04,Beta"),
        ("op 1.tsv", "start\tend\tphase\n0\t2\t0\n2\t4\t1\n"),
        ("labels/op 1.csv", "Second,Phase\n0,Alpha\n1,Alpha\n2,Beta\n3,Beta\n"),
        ("annotations.csv", "VideoID;FrameNo;Phase\nop 1;0;Alpha\nop 1;50;Beta\n"),
    ],
)
def test_any_label_format_of_the_field_is_read(folder, clip, name, content):
    (folder / "op 1.mp4").write_bytes(clip)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content)
    assert labels_of(folder) == {"op_1": [0, 0, 1, 1]}


def test_rows_by_second_from_1_are_declared_in_phases_yaml(folder, clip):
    (folder / "phases.yaml").write_text(PHASES + "first_id: 1\nfirst_row: 1\nrows: second\n")
    (folder / "op1.mp4").write_bytes(clip)
    (folder / "op1.txt").write_text("Frame\tPhase\n1\t1\n2\t1\n3\t2\n4\t2\n")
    assert labels_of(folder) == {"op1": [0, 0, 1, 1]}


def test_image_folders_are_recordings_at_the_declared_rate(folder, numbered):
    (folder / "phases.yaml").write_text(PHASES + "fps: 5\n")
    (folder / "case1").mkdir()
    for i in range(10):
        (folder / "case1" / f"{i}.jpg").write_bytes(encode_jpeg(numbered.picture(i)))
    (folder / "case1.csv").write_text("start,end,phase\n0,1,Alpha\n1,2,Beta\n")
    assert labels_of(folder) == {"case1": [0, 1]}


def test_coco_like_phases_of_image_folders_are_read(folder, numbered):
    (folder / "phases.yaml").write_text(PHASES + "fps: 1\n")
    (folder / "case1").mkdir()
    for i in range(2):
        (folder / "case1" / f"{i:05d}.jpg").write_bytes(encode_jpeg(numbered.picture(i)))
    found = [{"image_name": f"case1/{i:05d}.jpg", "phases": i} for i in range(2)]
    (folder / "annotations.json").write_text(json.dumps({"annotations": found}))
    assert labels_of(folder) == {"case1": [0, 1]}


def test_own_splits_are_kept_and_absent_ones_are_made(folder, clip):
    for i in range(5):
        (folder / f"op{i}.mp4").write_bytes(clip + bytes([i]))
        (folder / f"op{i}.csv").write_text("start,end,phase\n0,9,Alpha\n")
    adapter = get_adapter("custom", folder)
    procedures = adapter.find().procedures
    assert {role: len(ids) for role, ids in adapter.splits(procedures)["auto"].roles.items()} == {
        "train": 3,
        "val": 1,
        "test": 1,
    }
    (folder / "phases.yaml").write_text(PHASES + "splits: {train: [op0..op3], test: [op4]}\n")
    assert adapter.splits(procedures)["own"].roles == {
        "train": ("op0", "op1", "op2", "op3"),
        "test": ("op4",),
    }


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "does not look like custom: no video"),
        ({"phases.yaml": None}, "no phases.yaml in it; write one"),
        ({"phases.yaml": "fases: [A]"}, "has no `phases:` list"),
        ({"phases.yaml": "phases: [A, a]", "a.mp4": "clip"}, "differ only in case"),
        ({"phases.yaml": PHASES + "first_row: 7", "a.mp4": "clip"}, "first_row is 7"),
        (
            {"phases.yaml": PHASES + "rows: minute", "a.mp4": "clip"},
            "rows is 'minute'; write frame or second",
        ),
        ({"phases.yaml": PHASES + "fps: many", "a.mp4": "clip"}, "fps 'many' is not a number"),
        ({"a.mp4": "clip", "b/a.avi": "clip"}, "two recordings called a"),
        ({"a.mp4": "clip", "a.txt": "x", "a.csv": "x"}, "two label files for a"),
        ({"case/0.jpg": "clip"}, "holds images; write in phases.yaml how many were taken per second"),
        ({"---.mp4": "clip"}, "no letter or digit to make an id of"),
        (
            {"phases.yaml": PHASES + "splits: {train: [zz]}", "a.mp4": "clip"},
            "split 'own' names 'zz', which is not in the folder",
        ),
    ],
)
def test_each_mistake_in_the_folder_has_its_own_message(folder, clip, files, message):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(clip if content == "clip" else content.encode())

    with pytest.raises(Exception, match=message) as caught:
        prepare(Request("custom", folder, folder.parent / "out"))
    assert type(caught.value).__module__ == "surgicalmamba.errors" and "\n" not in str(caught.value)


def test_a_video_without_labels_fails_alone(folder, clip):
    for name in ("a", "b"):
        (folder / f"{name}.mp4").write_bytes(clip + name.encode())
    (folder / "a.csv").write_text("start,end,phase\n0,4,Alpha\n")
    outcome = prepare(Request("custom", folder, folder.parent / "out"))
    assert (
        outcome.prepared == ["a"]
        and "b.mp4: no label file for it; expected b.csv or b.txt" in outcome.failures["b"]
    )
    with pytest.raises(DataError, match="unfinished"):
        PreparedDataset.open(folder.parent / "out")
