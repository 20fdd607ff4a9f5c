"""Broken input of every kind, through the real command: its own message, exit code 1, no traceback, nothing
that passes `check`."""

import json
import re
import sys

import numpy as np
import pytest

from surgicalmamba.cli.main import main
from surgicalmamba.data.pictures import encode_jpeg

HEADER = "Frame\tPhase\n"
N = 126


def frames(name="Preparation", n=N, first=0):
    return HEADER + "".join(f"{i}\t{name}\n" for i in range(first, first + n))


def text(path, content):
    def change(root, kit):
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def remove(path):
    return lambda root, kit: (root / path).unlink()


def copy(path):
    def change(root, kit):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(kit["clip"])

    return change


def audio(path):
    return lambda root, kit: kit["numbered"].audio(root / path)


def damaged(path, at):
    """Overwrite from a share of the file on, or cut there."""

    def change(root, kit):
        data = bytearray((root / path).read_bytes())
        begin = data.index(b"mdat") + 4
        data[begin:] = b"\xff" * (len(data) - begin) if at == "content" else b""
        (root / path).write_bytes(data)

    return change


def both(*changes):
    def change(root, kit):
        for one in changes:
            one(root, kit)

    return change


def cholec80(root, kit):
    copy("videos/video01.mp4")(root, kit)
    text("phase_annotations/video01-phase.txt", frames())(root, kit)


def autolaparo(root, kit):
    copy("videos/01.mp4")(root, kit)
    text("labels/label_01.txt", HEADER + "".join(f"{i}\t1\n" for i in range(1, 7)))(root, kit)


def heichole(root, kit):
    copy("Videos/Full/Hei-Chole1.mp4")(root, kit)
    text("Annotations/Phase/Hei-Chole1_Annotation_Phase.csv", "".join(f"{i},0\n" for i in range(N)))(
        root, kit
    )


def cataract101(root, kit):
    copy("videos/case_269.mp4")(root, kit)
    text("annotations.csv", "VideoID;FrameNo;Phase\n269;0;1\n")(root, kit)
    text("videos.csv", f"VideoID;Frames;FPS;Surgeon;Experience\n269;{N};25;1;1\n")(root, kit)


def grasp(root, kit):
    for i in range(3):
        text(f"GraSP_1fps/frames/CASE001/{i:05d}.jpg", encode_jpeg(kit["numbered"].picture(i)))(root, kit)
    entries = [{"image_name": f"CASE001/{i:05d}.jpg", "phases": 0} for i in range(3)]
    text("GraSP_1fps/annotations/grasp_long-term_train.json", json.dumps({"annotations": entries}))(root, kit)


def custom(root, kit):
    copy("op1.mp4")(root, kit)
    text("phases.yaml", "phases: [Alpha, Beta]\n")(root, kit)
    text("op1.csv", "start,end,phase\n0,2,Alpha\n")(root, kit)


def features(root, kit):
    text("phases.yaml", "phases: [Alpha, Beta]\n")(root, kit)
    np.savez(root / "a.npz", x=np.ones((3, 2)), y=np.array([0, 1, 1]))


def jigsaws(root, kit):
    text(
        "Suturing/kinematics/AllGestures/Suturing_B001.txt",
        "\n".join(" ".join(["0.5"] * 76) for _ in range(12)),
    )(root, kit)
    text("Suturing/transcriptions/Suturing_B001.txt", "1 12 G1\n")(root, kit)


VIDEO, LABELS = "videos/video01.mp4", "phase_annotations/video01-phase.txt"
ANNOTATION = "Annotations/Phase/Hei-Chole1_Annotation_Phase.csv"
GRASP_JSON = "GraSP_1fps/annotations/grasp_long-term_train.json"
KINDS = {
    # the recording
    "empty video": (cholec80, text(VIDEO, b"")),
    "text for a video": (cholec80, text(VIDEO, frames("Preparation", 4000))),
    "binary garbage for a video": (cholec80, text(VIDEO, np.random.default_rng(1).bytes(40_000))),
    "audio only": (cholec80, audio(VIDEO)),
    "video cut before its first frame": (cholec80, damaged(VIDEO, "cut")),
    "every packet damaged": (cholec80, damaged(VIDEO, "content")),
    "video much longer than its labels": (cholec80, text(LABELS, frames(n=2))),
    "video much shorter than its labels": (cholec80, text(LABELS, frames(n=5000))),
    "no video at all": (cholec80, remove(VIDEO)),
    "the same video twice": (cholec80, copy("again/video01.mp4")),
    # the label file
    "no label file": (cholec80, remove(LABELS)),
    "empty label file": (cholec80, text(LABELS, "")),
    "binary garbage for labels": (cholec80, text(LABELS, b"\x00\x01\x02\x03")),
    "labels in another encoding": (cholec80, text(LABELS, frames().encode("utf-16"))),
    "labels with a stray byte": (cholec80, text(LABELS, frames().encode() + b"126\tPr\xe9paration\n")),
    "wrong header": (cholec80, text(LABELS, frames().replace("Phase", "Step"))),
    "missing header": (cholec80, text(LABELS, frames().removeprefix(HEADER))),
    "header in the wrong order": (cholec80, text(LABELS, frames().replace(HEADER, "Phase\tFrame\n"))),
    "wrong separator": (cholec80, text(LABELS, frames().replace("\t", ","))),
    "header and no rows": (cholec80, text(LABELS, HEADER)),
    "swapped columns": (cholec80, text(LABELS, HEADER + "".join(f"Preparation\t{i}\n" for i in range(N)))),
    "a column too many": (cholec80, text(LABELS, frames() + "126\tPreparation\t1\n")),
    "a row cut short": (cholec80, text(LABELS, frames() + "126")),
    "a blank line in the middle": (cholec80, text(LABELS, frames(n=20) + "\n" + "20\tPreparation\n")),
    "a missing row": (cholec80, text(LABELS, frames(n=20) + "21\tPreparation\n")),
    "many missing rows": (cholec80, text(LABELS, frames(n=20) + "40\tPreparation\n")),
    "a row twice": (cholec80, text(LABELS, frames(n=20) + "19\tPreparation\n")),
    "rows out of order": (cholec80, text(LABELS, frames(n=20) + "3\tPreparation\n")),
    "rows counted from 1": (cholec80, text(LABELS, frames(first=1))),
    "a fraction for a frame": (cholec80, text(LABELS, HEADER + "0.0\tPreparation\n")),
    "a negative frame": (cholec80, text(LABELS, HEADER + "-1\tPreparation\n")),
    "a missing label": (cholec80, text(LABELS, HEADER + "0\t\n")),
    "a misspelt label": (cholec80, text(LABELS, frames("Preperation"))),
    "a label of nowhere": (cholec80, text(LABELS, frames("Lunch"))),
    "a number where names belong": (cholec80, text(LABELS, frames("0"))),
    "unshifted base": (autolaparo, text("labels/label_01.txt", HEADER + "1\t0\n2\t1\n3\t1\n")),
    "a phase too high": (heichole, text(ANNOTATION, "0,9\n")),
    "a header where none belongs": (heichole, text(ANNOTATION, "Frame,Phase\n0,0\n")),
    "a name where numbers belong": (heichole, text(ANNOTATION, "0,Preparation\n")),
    # tables of many videos
    "no row for the video": (cataract101, text("annotations.csv", "VideoID;FrameNo;Phase\n270;0;1\n")),
    "unknown length": (
        cataract101,
        text("videos.csv", "VideoID;Frames;FPS;Surgeon;Experience\n270;51;25;1;1\n"),
    ),
    "a segment after the end": (
        cataract101,
        text("annotations.csv", "VideoID;FrameNo;Phase\n269;0;1\n269;900;2\n"),
    ),
    "segment starts out of order": (
        cataract101,
        text("annotations.csv", "VideoID;FrameNo;Phase\n269;9;1\n269;3;2\n"),
    ),
    "a missing table": (cataract101, remove("videos.csv")),
    "broken JSON": (grasp, text(GRASP_JSON, "{'annotations':")),
    "JSON of something else": (grasp, text(GRASP_JSON, "[]")),
    "annotation without an image": (grasp, text(GRASP_JSON, '{"annotations": [{"phases": 1}]}')),
    "two phases for one image": (
        grasp,
        text(
            GRASP_JSON,
            json.dumps({"annotations": [{"image_name": "CASE001/0.jpg", "phases": p} for p in (1, 2)]}),
        ),
    ),
    "a hole in the images": (grasp, remove("GraSP_1fps/frames/CASE001/00001.jpg")),
    "unreadable first image": (grasp, text("GraSP_1fps/frames/CASE001/00000.jpg", b"\xff\xd8\xff")),
    # own folders
    "no phases.yaml": (custom, remove("phases.yaml")),
    "broken YAML": (custom, text("phases.yaml", "phases: [Alpha")),
    "no phases in phases.yaml": (custom, text("phases.yaml", "stages: [Alpha]")),
    "overlapping segments": (custom, text("op1.csv", "start,end,phase\n0,2,Alpha\n1,3,Beta\n")),
    "a segment that ends before it starts": (custom, text("op1.csv", "start,end,phase\n2,1,Alpha\n")),
    "a time that is none": (custom, text("op1.csv", "start,end,phase\n0,later,Alpha\n")),
    "an unknown label format": (custom, text("op1.csv", "a,b,c,d\n")),
    "labels that miss the recording": (custom, text("op1.csv", "start,end,phase\n900,999,Alpha\n")),
    "one video in train and test": (
        custom,
        text("phases.yaml", "phases: [Alpha, Beta]\nsplits: {train: [op1], test: [op1]}\n"),
    ),
    "a split of unknown videos": (
        custom,
        text("phases.yaml", "phases: [Alpha, Beta]\nsplits: {train: [op9]}\n"),
    ),
    "two label files": (custom, text("op1.txt", frames("Alpha"))),
    "two videos of one name": (custom, copy("more/op1.avi")),
    # features
    "a pickle in an array": (
        features,
        lambda root, kit: np.savez(root / "a.npz", x=np.array([[None]]), y=np.array([0])),
    ),
    "features that are not finite": (
        features,
        lambda root, kit: np.savez(root / "a.npz", x=np.full((1, 2), np.inf), y=np.array([0])),
    ),
    "features and labels of different length": (
        features,
        lambda root, kit: np.savez(root / "a.npz", x=np.ones((4, 2)), y=np.array([0])),
    ),
    "a damaged archive": (features, text("a.npz", b"PK")),
    "kinematics with too few columns": (
        jigsaws,
        text("Suturing/kinematics/AllGestures/Suturing_B001.txt", "1 2 3\n"),
    ),
    "a gesture of another task": (jigsaws, text("Suturing/transcriptions/Suturing_B001.txt", "1 12 G13\n")),
}


@pytest.fixture(scope="module")
def kit(tmp_path_factory, numbered):
    return {
        "numbered": numbered,
        "clip": numbered.write(tmp_path_factory.mktemp("clip") / "a.mp4", N, gop=25).read_bytes(),
    }


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["surgicalmamba", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    captured = capsys.readouterr()
    return left.value.code or 0, captured.out, captured.err


def name_of(dataset):
    return dataset.__name__


@pytest.fixture(scope="module")
def messages():
    """What each kind was answered with, without the places that differ from run to run."""
    return {}


@pytest.mark.parametrize("kind", KINDS)
def test_broken_input_gets_its_own_message_and_leaves_nothing_that_passes_check(
    kind, kit, tmp_path, monkeypatch, capsys, messages
):
    make, breakage = KINDS[kind]
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    make(source, kit)
    breakage(source, kit)
    code, stdout, stderr = run(
        monkeypatch,
        capsys,
        "prepare",
        name_of(make),
        "--source",
        str(source),
        "--out",
        str(out),
        "--workers",
        "1",
    )
    assert code == 1 and "Traceback" not in stdout + stderr and "defect" not in stdout + stderr
    failed = re.findall(r"^  \S+ +(.+)$", stdout, re.MULTILINE)
    spoken = failed or re.findall(r"^surgicalmamba: (.+)$", stderr, re.MULTILINE)
    assert len(spoken) == 1, stdout + stderr
    message = re.sub(r"[0-9]+", "0", spoken[0].replace(str(source), "").replace(str(out), ""))
    assert messages.setdefault(message, kind) == kind, (
        f"{kind!r} and {messages[message]!r} have the same message: {message}"
    )
    if out.exists():
        code, stdout, stderr = run(monkeypatch, capsys, "check", str(out))
        assert code == 1, "what is left of a broken input passes check"


@pytest.mark.parametrize(
    "make", [cholec80, autolaparo, heichole, cataract101, grasp, custom, features, jigsaws], ids=name_of
)
def test_the_same_folders_unbroken_are_prepared_and_pass(make, kit, tmp_path, monkeypatch, capsys):
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    make(source, kit)
    arguments = ("prepare", name_of(make), "--source", str(source), "--out", str(out), "--workers", "1")
    code, stdout, stderr = run(monkeypatch, capsys, *arguments)
    assert code == 0, stdout + stderr
    assert run(monkeypatch, capsys, "check", str(out), "--source", str(source))[0] == 0
    assert run(monkeypatch, capsys, "check", str(source))[0] == 0


def test_there_are_more_than_fifty_kinds():
    assert len(KINDS) >= 50
