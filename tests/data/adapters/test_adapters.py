"""Every dataset in the exact layout and format it is distributed in, tiny: files in, ids, phases and samples
out."""

import json

import pytest

from surgicalmamba.data.adapters import ADAPTERS
from surgicalmamba.data.adapters.base import get_adapter
from surgicalmamba.data.adapters.cataract101 import case_labels, frame_counts
from surgicalmamba.data.labels import load_vocabulary
from surgicalmamba.data.manifest import shipped_splits
from surgicalmamba.data.pictures import encode_jpeg
from surgicalmamba.data.prepare import Request, prepare
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError, DataError


def rows(pairs, header="Frame\tPhase", separator="\t", end="\n", last=True):
    lines = ([header] if header else []) + [f"{a}{separator}{b}" for a, b in pairs]
    return (end.join(lines) + (end if last else "")).encode()


@pytest.fixture(scope="module")
def clip(tmp_path_factory, numbered):
    """51 frames at 25 fps: 25n + 1, as Cholec80 has it, so three samples."""
    return numbered.write(tmp_path_factory.mktemp("clip") / "clip.mp4", 51, gop=25).read_bytes()


@pytest.fixture(scope="module")
def clip50(tmp_path_factory, numbered):
    return numbered.write(tmp_path_factory.mktemp("clip") / "clip.mp4", 101, 50, gop=25).read_bytes()


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


NAMES = ["Preparation"] * 25 + ["CalotTriangleDissection"] * 25 + ["ClippingCutting"]


def make_cholec80(root, clip, **_):
    put(root / "videos/video01.mp4", clip)
    put(root / "videos/video01-timestamp.txt", b"Frame\tTime\n0\t0:00\n")
    put(root / "phase_annotations/video01-phase.txt", rows(enumerate(NAMES)))
    put(root / "VIDEOS2/Video41.MP4", clip[:-1] + bytes([clip[-1] ^ 1]))
    put(root / "phase_annotations/VIDEO41-PHASE.TXT", rows(enumerate(NAMES), end="\r\n", last=False))


def make_m2cai16(root, clip, **_):
    words = ["TrocarPlacement"] * 50 + ["Preparation"]
    for folder, name in (("train_dataset", "workflow_video_01"), ("test_dataset", "test_workflow_video_01")):
        put(root / folder / f"{name}.mp4", clip)
        put(root / folder / f"{name}.txt", rows(enumerate(words)))
        put(root / folder / f"{name}_timestamp.txt", b"x")


def make_autolaparo(root, clip, **_):
    task = root / "Task 1 Surgical workflow recognition"
    put(task / "videos/01.mp4", clip)
    put(task / "labels/label_01.txt", rows([(1, 1), (2, 2), (3, 7)], last=False))
    put(task / "README.txt", b"AutoLaparo")


def make_cataract101(root, clip, **_):
    put(root / "videos/case_269.mp4", clip)
    put(root / "annotations.csv", b"VideoID;FrameNo;Phase\r\n269;10;1\r\n269;40;10\r\n270;0;1\r\n")
    put(root / "videos.csv", b"VideoID;Frames;FPS;Surgeon;Experience\n269;51;25;2;1\n270;9800;25;1;2")
    put(root / "phases.csv", b"Phase;Meaning\n1;Incision\n")


def make_heichole(root, clip, clip50, **_):
    put(root / "Videos/Full/Hei-Chole1.mp4", clip)
    put(root / "Videos/Full/HD/Hei-Chole1.mp4", clip)
    put(root / "Videos/Full/hei-chole16.mp4", clip50)
    put(root / "Videos/Skill/Hei-Chole1_Calot.mp4", clip)
    ids = [0] * 25 + [1] * 25 + [6]
    put(root / "Annotations/Phase/Hei-Chole1_Annotation_Phase.csv", rows(enumerate(ids), None, ","))
    put(
        root / "Annotations/Phase/hei-chole16_annotation_phase.csv",
        rows(enumerate([0] * 50 + [2] * 50 + [6]), None, ","),
    )
    put(root / "Annotations/Instrument/Hei-Chole1_Annotation_Instrument.csv", b"0,0\n")


def make_heico(root, clip, **_):
    ids = [0] * 25 + [4] * 25 + [13]
    put(root / "Proctocolectomy/1/Proctocolectomy_1.avi", clip)
    put(root / "Proctocolectomy/1/Proctocolectomy_1_Phase.csv", rows(enumerate(ids), None, ","))
    put(root / "Proctocolectomy/1/Proctocolectomy_1_Device.csv", b"0,1\n")
    put(root / "Rectal Resection/9/RectalResection_9.avi", clip)
    put(
        root / "Rectal Resection/9/rectalresection_9_phase.csv",
        rows(enumerate(ids), None, ",", "\r\n", last=False),
    )
    put(root / "TrainingSet-1/videos/Sigma1.avi", clip)
    put(root / "TrainingSet-1/phase_annotations/Sigma1.csv", rows(enumerate(ids), None, ","))


def make_grasp(root, numbered, **_):
    entries = []
    for i, phase in enumerate([0, 0, 10]):
        put(root / f"GraSP_1fps/frames/CASE001/{i:05d}.jpg", encode_jpeg(numbered.picture(i)))
        entries.append(
            {
                "id": i + 1,
                "image_id": i + 1,
                "image_name": f"CASE001/{i:05d}.jpg",
                "phases": phase,
                "steps": 0,
            }
        )
    missing = {
        "id": 4,
        "image_id": 4,
        "image_name": "CASE001/00003.jpg",
        "phases": 10,
        "steps": 0,
    }  # annotated, but no such frame
    put(
        root / "GraSP_1fps/annotations/grasp_long-term_train.json",
        json.dumps({"annotations": [*entries, missing]}).encode(),
    )
    other = [{"id": 1, "image_id": 1, "image_name": "CASE041/00000.jpg", "phases": 3, "steps": 0}]
    put(
        root / "GraSP_1fps/annotations/grasp_long-term_test.json", json.dumps({"annotations": other}).encode()
    )


EXPECTED = {
    "cholec80": (make_cholec80, {"video01": [0, 1, 2], "video41": [0, 1, 2]}),
    "m2cai16": (make_m2cai16, {"test_workflow_video_01": [0, 0, 1], "workflow_video_01": [0, 0, 1]}),
    "autolaparo": (make_autolaparo, {"01": [0, 1, 6]}),
    "cataract101": (make_cataract101, {"case_269": [-1, 0, 9]}),
    "heichole": (make_heichole, {"Hei-Chole1": [0, 1, 6], "Hei-Chole16": [0, 2, 6]}),
    "heico": (
        make_heico,
        {"Proctocolectomy_1": [0, 4, 13], "RectalResection_9": [0, 4, 13], "SigmoidResection_1": [0, 4, 13]},
    ),
    "grasp": (make_grasp, {"CASE001": [0, 0, 10]}),
}


@pytest.mark.parametrize("dataset", EXPECTED)
def test_a_tiny_folder_in_the_distributed_format_is_prepared(tmp_path, clip, clip50, numbered, dataset):
    make, expected = EXPECTED[dataset]
    source, out = tmp_path / "source", tmp_path / "out"
    make(source, clip=clip, clip50=clip50, numbered=numbered)
    outcome = prepare(Request(dataset, source, out))
    assert outcome.failures == {}
    prepared = PreparedDataset.open(out)
    assert {key: video.labels.tolist() for key, video in prepared.videos.items()} == expected
    assert list(prepared.videos) == list(expected)
    assert prepared.phases == load_vocabulary(dataset).names and prepared.fps == 1
    paper = prepared.splits["paper"]
    assert {video for ids in paper.values() for video in ids} == set(expected), (
        "ids of the splits are not those of the files"
    )
    for video in prepared.videos.values():
        assert video.time_s.tolist() == [0.0, 1.0, 2.0]
        assert all(path.is_file() for path in video.frame_paths)


@pytest.mark.parametrize("dataset", EXPECTED)
def test_the_phases_of_a_whole_dataset_are_told_row_by_row_with_the_rows_of_a_second(
    tmp_path, clip, clip50, numbered, dataset
):
    make, expected = EXPECTED[dataset]
    make(tmp_path, clip=clip, clip50=clip50, numbered=numbered)
    found = {rows.id: rows for rows in get_adapter(dataset, tmp_path).phase_rows()}
    for video, phases in expected.items():
        assert found[video].phases[:: int(found[video].rows_per_s)][:3].tolist() == phases
    annotated_only = {
        "cataract101": {"case_270"},
        "grasp": {"CASE041"},
    }  # labelled, and its recording is not here
    assert set(found) - set(expected) == annotated_only.get(dataset, set())


def test_fifty_fps_videos_are_sampled_at_every_fiftieth_frame(tmp_path, clip, clip50, numbered):
    make_heichole(tmp_path / "source", clip=clip, clip50=clip50)
    prepare(Request("heichole", tmp_path / "source", tmp_path / "out"))
    videos = PreparedDataset.open(tmp_path / "out").videos
    assert videos["Hei-Chole16"].table.frame.tolist() == [0, 50, 100] and videos[
        "Hei-Chole1"
    ].table.frame.tolist() == [0, 25, 50]


def test_the_cataract_tables_give_the_published_counts(real_data):
    """49,353 labelled samples in all, 14,729 in the named test list: the facts' own count."""
    annotations, lengths = real_data("cataract101/annotations.csv"), real_data("cataract101/videos.csv")
    words = load_vocabulary("cataract101")
    n_labelled = {
        case: int((case_labels(annotations, lengths, case, words).phases[::25] >= 0).sum())
        for case in frame_counts(lengths)
    }
    test = shipped_splits("cataract101")["paper"].roles["test"]
    assert sum(n_labelled.values()) == 49_353
    assert sum(n_labelled[video.removeprefix("case_")] for video in test) == 14_729
    every = {f"case_{case}" for case in n_labelled}
    assert set(shipped_splits("cataract101")["paper"].videos) == every


def test_cholec80_numbers_are_refused_as_labels(tmp_path, clip):
    make_cholec80(tmp_path / "s", clip)
    put(tmp_path / "s/phase_annotations/video01-phase.txt", rows((i, 0) for i in range(51)))
    outcome = prepare(Request("cholec80", tmp_path / "s", tmp_path / "o"))
    assert (
        "video01-phase.txt:2: label 0 is a number, but numbers are ambiguous" in outcome.failures["video01"]
    )
    assert list(outcome.failures) == ["video01"] and outcome.prepared == ["video41"]


def test_labels_whose_video_is_not_there_are_told_and_left_aside(tmp_path, clip):
    make_cholec80(tmp_path, clip)
    put(tmp_path / "phase_annotations/video07-phase.txt", rows(enumerate(NAMES)))
    found = get_adapter("cholec80", tmp_path).find()
    assert [p.id for p in found.procedures] == ["video01", "video41"] and found.notes == [
        "labels without a video: video07"
    ]


@pytest.mark.parametrize("dataset", [name for name in ADAPTERS if name not in ("custom", "features")])
def test_a_folder_of_something_else_is_refused_with_what_was_expected(tmp_path, dataset):
    (tmp_path / "holiday.txt").write_text("x")
    with pytest.raises(DataError, match=f"{dataset}|annotations.csv is not in it"):
        get_adapter(dataset, tmp_path).find()


def test_two_files_for_one_id_are_refused(tmp_path, clip):
    make_cholec80(tmp_path, clip)
    put(tmp_path / "copy/video01.mp4", clip)
    with pytest.raises(
        DataError, match=r"two files for video01: .*copy/video01\.mp4 and .*videos/video01\.mp4; keep one"
    ):
        get_adapter("cholec80", tmp_path).find()


def test_an_unknown_dataset_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="unknown dataset 'cholec8': did you mean 'cholec80'"):
        get_adapter("cholec8", tmp_path)
    with pytest.raises(DataError, match="is not a folder; give the folder that holds cholec80"):
        get_adapter("cholec80", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("{}", "no list called annotations"),
        ('{"annotations": [{}]}', r"annotations\[0\] has no image_name"),
        ('{"annotations": [{"image_name": "CASE001.jpg"}]}', "is not CASE/number.jpg"),
        (
            '{"annotations": [{"image_name": "CASE001/00000.jpg", "phases": "x"}]}',
            "phases is 'x', not a number",
        ),
        (
            '{"annotations": [{"image_name": "CASE001/00000.jpg", "phases": 11}]}',
            "phase 11 is outside 0 to 10",
        ),
        ('{"annotations": [{"image_name": "C/0.jpg", "phases": 1}]}', "no annotation of CASE001"),
        (
            '{"annotations": [{"image_name": "CASE001/0.jpg", "phases": 1},'
            ' {"image_name": "CASE001/0.jpg", "phases": 2}]}',
            "annotated twice, with different phases",
        ),
    ],
)
def test_each_mistake_in_grasps_json_has_its_own_message(tmp_path, numbered, content, message):
    make_grasp(tmp_path, numbered)
    put(tmp_path / "GraSP_1fps/annotations/grasp_long-term_train.json", content.encode())
    adapter = get_adapter("grasp", tmp_path)
    with pytest.raises(DataError, match=message):
        adapter.labels(adapter.find().procedures[0])


def test_a_hole_in_grasps_images_is_refused_because_it_would_shift_the_labels(tmp_path, numbered):
    make_grasp(tmp_path, numbered)
    (tmp_path / "GraSP_1fps/frames/CASE001/00001.jpg").unlink()
    adapter = get_adapter("grasp", tmp_path)
    with pytest.raises(DataError, match=r"00002\.jpg: expected image number 00001"):
        adapter.labels(adapter.find().procedures[0])


def test_a_segment_after_the_end_of_a_cataract_video_is_refused(tmp_path, clip):
    make_cataract101(tmp_path, clip)
    put(tmp_path / "annotations.csv", b"VideoID;FrameNo;Phase\n269;0;1\n269;51;2\n")
    adapter = get_adapter("cataract101", tmp_path)
    with pytest.raises(DataError, match="video 269 has 51 frames, but a segment starts at frame 51"):
        adapter.labels(adapter.find().procedures[0])
