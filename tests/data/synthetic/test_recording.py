"""Videos and labels on disk: real files, the same bytes each time, and nothing half-written that looks
finished."""

import hashlib
import signal
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
import yaml

from surgicalmamba.data.synthetic import PHASE_NAMES, operation, recording, write_dataset
from surgicalmamba.data.synthetic.recording import total_frames, video_name
from surgicalmamba.errors import DataError

SEED, FPS = 3, 1


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthetic") / "two"
    files = write_dataset(folder, videos=2, seed=SEED, short=True, fps=FPS)
    return folder, files


def test_the_folder_is_a_users_own_data_and_nothing_else(dataset):
    folder, files = dataset
    assert sorted(digests(folder)) == [
        "phases.yaml",
        "video01.mp4",
        "video01.txt",
        "video02.mp4",
        "video02.txt",
    ]
    assert [file.name for file in files] == ["video01.mp4", "video02.mp4"]
    description = yaml.safe_load((folder / "phases.yaml").read_text())
    assert description["name"] == "synthetic" and description["fps"] == FPS
    assert description["phases"] == list(PHASE_NAMES) and len(PHASE_NAMES) == 7


def test_videos_decode_to_one_frame_per_label_row(dataset):
    _, files = dataset
    for number, file in enumerate(files):
        op = operation(SEED, number, short=True, fps=FPS)
        rows = file.with_suffix(".txt").read_text().split("\n")
        assert rows[0] == "Frame\tPhase" and rows[-1] == ""
        expected = [
            f"{frame}\t{PHASE_NAMES[phase]}" for frame, phase in enumerate(op.procedure.phase_per_frame())
        ]
        assert rows[1:-1] == expected
        with av.open(str(file)) as container:
            stream = container.streams.video[0]
            assert (stream.codec_context.name, stream.width, stream.height, stream.average_rate) == (
                "h264",
                480,
                270,
                FPS,
            )
            frames = [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode(stream)]
        assert len(frames) == op.procedure.n_frames
        assert [time_s for time_s, _ in frames] == [i / FPS for i in range(len(frames))]
        for i in (0, len(frames) // 2, len(frames) - 1):
            assert (
                np.abs(frames[i][1].astype(int) - op.renderer.frame(i)).mean() < 6
            )  # what the encoder loses


def test_no_date_or_path_is_written_into_the_file(dataset):
    _, files = dataset
    with av.open(str(files[0])) as container:
        assert "creation_time" not in container.metadata and "encoder" not in container.metadata


def test_a_video_does_not_depend_on_how_many_there_are_nor_on_the_number_of_processes(dataset, tmp_path):
    folder, _ = dataset
    write_dataset(tmp_path / "three", videos=3, seed=SEED, short=True, fps=FPS, workers=2)
    three, two = digests(tmp_path / "three"), digests(folder)
    for name in ("video01.mp4", "video01.txt", "video02.mp4", "video02.txt"):
        assert three[name] == two[name]


def test_another_seed_gives_another_operation(dataset, tmp_path):
    folder, _ = dataset
    write_dataset(tmp_path / "other", videos=1, seed=SEED + 1, short=True, fps=FPS)
    assert digests(tmp_path / "other")["video01.mp4"] != digests(folder)["video01.mp4"]


def test_a_killed_call_is_continued_by_the_same_call_and_ends_with_the_same_bytes(dataset, tmp_path):
    folder, _ = dataset
    out = tmp_path / "killed"
    script = (
        "import sys; from pathlib import Path; from surgicalmamba.data.synthetic import write_dataset\n"
        f"write_dataset(Path(sys.argv[1]), videos=2, seed={SEED}, short=True, fps={FPS},\n"
        "              progress=lambda n: print(n, flush=True))"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(out)], stdout=subprocess.PIPE, text=True)
    first_video = operation(SEED, 0, short=True, fps=FPS).procedure.n_frames
    done = 0
    while done <= first_video:  # into the second video
        done += int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (out / "phases.yaml").exists() and not (out / "video02.mp4").exists()
    assert any(
        path.name.endswith(".tmp") for path in out.iterdir()
    )  # the half-written video, under another name
    finished_at = (out / "video01.mp4").stat().st_mtime_ns
    write_dataset(out, videos=2, seed=SEED, short=True, fps=FPS)
    assert digests(out) == digests(folder)
    assert (out / "video01.mp4").stat().st_mtime_ns == finished_at  # what was finished is kept


def test_a_finished_folder_is_left_alone(dataset):
    folder, _ = dataset
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    write_dataset(folder, videos=2, seed=SEED, short=True, fps=FPS)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_other_content_is_never_written_over(dataset, tmp_path):
    folder, _ = dataset
    with pytest.raises(DataError, match="already holds something else"):
        write_dataset(folder, videos=2, seed=SEED + 1, short=True, fps=FPS)
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(DataError, match="already holds something else"):
        write_dataset(tmp_path, videos=1, seed=SEED, short=True, fps=FPS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["holiday.jpg"]


def test_a_finished_folder_with_a_missing_video_says_so(dataset, tmp_path):
    folder, _ = dataset
    (tmp_path / "phases.yaml").write_bytes((folder / "phases.yaml").read_bytes())
    with pytest.raises(DataError, match="not all of its 2 videos"):
        write_dataset(tmp_path, videos=2, seed=SEED, short=True, fps=FPS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"videos": 0}, "videos=0"),
        ({"seed": -1}, "seed=-1"),
        ({"fps": 0}, "fps=0"),
        ({"workers": 0}, "workers=0"),
        ({"fps": 61}, "fps=61"),
    ],
)
def test_impossible_wishes_are_refused_before_anything_is_written(tmp_path, change, message):
    out = tmp_path / "out"
    with pytest.raises(DataError, match=message):
        write_dataset(out, **{"videos": 1, "seed": 0, "short": True, **change})
    assert not out.exists()


def test_a_folder_that_cannot_be_made_is_one_readable_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"cannot write .*file/out.*\.") as caught:
        write_dataset(tmp_path / "file" / "out", videos=1, seed=0, short=True)
    assert "\n" not in str(caught.value)


def test_the_encoder_gives_the_same_bytes_without_its_assembly(tmp_path, monkeypatch):
    op = operation(SEED, 0, short=True, fps=FPS)
    frames = [op.renderer.frame(i) for i in range(0, op.procedure.n_frames, 9)]
    recording.encode(tmp_path / "fast.mp4", frames, FPS)
    configure = recording._configure

    def configure_plainly(stream, fps):
        configure(stream, fps)
        stream.options = {**stream.options, "x264-params": stream.options["x264-params"] + ":asm=0"}

    monkeypatch.setattr(recording, "_configure", configure_plainly)
    recording.encode(tmp_path / "plain.mp4", frames, FPS)
    assert (tmp_path / "fast.mp4").read_bytes() == (tmp_path / "plain.mp4").read_bytes()


def test_a_disk_that_fills_up_is_one_readable_line_and_leaves_no_half_video(tmp_path):
    """A real write error: the process may write no file beyond 100 kB."""
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from surgicalmamba.data.synthetic import write_dataset; from surgicalmamba.errors import DataError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"try: write_dataset(Path(sys.argv[1]), videos=1, seed={SEED}, short=True, fps={FPS})\n"
        "except DataError as error: print(error)"
    )
    out = tmp_path / "out"
    result = subprocess.run(
        [sys.executable, "-c", script, str(out)], capture_output=True, text=True, check=True
    )
    assert "video01.mp4: File too large" in result.stdout and len(result.stdout.splitlines()) == 1
    assert [path.name for path in out.iterdir()] == [".unfinished.yaml"]


def test_progress_adds_up_to_the_promised_number_of_frames(tmp_path):
    seen = []
    write_dataset(tmp_path / "one", videos=1, seed=SEED, short=True, fps=FPS, progress=seen.append)
    assert (
        sum(seen)
        == total_frames(1, SEED, short=True, fps=FPS)
        == operation(SEED, 0, short=True, fps=FPS).procedure.n_frames
    )


def test_names_sort_in_order():
    names = [video_name(number, 120) for number in (0, 8, 99, 119)]
    assert names == ["video001", "video009", "video100", "video120"] == sorted(names)
    assert Path(video_name(0, 1)).name == "video01"
