"""Recorded video: the right frames, the same frames whichever way they are reached, and a clear word about
broken files."""

import shutil
import subprocess
from fractions import Fraction

import av
import numpy as np
import pytest

from surgicalmamba.data.video import VideoFile, is_idr
from surgicalmamba.errors import DataError

ONE = Fraction(1)
KINDS = {
    "h264, keyframes far apart": ("a.mp4", "libx264", {"bf": "3", "sc_threshold": "0"}, 250),
    "h264, keyframe every second": ("b.mp4", "libx264", {"bf": "3", "sc_threshold": "0"}, 25),
    "h264, keyframes closer than samples": ("c.mkv", "libx264", {"bf": "2", "sc_threshold": "0"}, 7),
    "h264, open groups": (
        "d.mp4",
        "libx264",
        {"bf": "3", "x264-params": "open-gop=1:keyint=20:scenecut=0"},
        20,
    ),
    "h264, open groups in a transport stream": (
        "e.ts",
        "libx264",
        {"bf": "3", "x264-params": "open-gop=1:keyint=20:scenecut=0"},
        20,
    ),
    "h264, refreshed gradually": ("f.mp4", "libx264", {"x264-params": "intra-refresh=1:keyint=20"}, 20),
    "hevc, open groups": ("g.mp4", "libx265", {"x265-params": "log-level=none:keyint=20"}, None),
    "hevc, closed groups": ("h.mp4", "libx265", {"x265-params": "log-level=none:keyint=20:open-gop=0"}, None),
    "mpeg-4 in avi, without timestamps": ("i.avi", "mpeg4", {"bf": "2", "qscale": "3"}, 12),
    "mpeg-2 in a transport stream": ("j.ts", "mpeg2video", {"bf": "2", "b": "2M"}, 12),
    "vp9": ("k.webm", "libvpx-vp9", {"deadline": "realtime", "cpu-used": "8"}, None),
    "motion jpeg": ("l.avi", "mjpeg", {}, None),
}


@pytest.fixture(scope="module", params=KINDS, ids=lambda name: name.replace(" ", "-"))
def recording(request, tmp_path_factory, numbered):
    name, codec, options, gop = KINDS[request.param]
    return numbered.write(tmp_path_factory.mktemp("video") / name, 130, 25, codec, options, gop)


def test_sample_k_is_frame_25_k_in_every_format(recording, numbered):
    video = VideoFile(recording)
    samples = list(video.samples(ONE, "index"))
    assert [numbered.read(frame.rgb) for frame in samples] == [0, 25, 50, 75, 100, 125]
    assert [frame.index for frame in samples] == [0, 25, 50, 75, 100, 125]
    assert [frame.time_s for frame in samples] == pytest.approx([0, 1, 2, 3, 4, 5], abs=0.002)
    assert video.info.n_frames == 130 and video.info.fps == 25 and video.report.warnings == []


@pytest.mark.parametrize("fps", [1, 5, Fraction(7, 3)])
def test_leaving_out_packets_changes_no_pixel(recording, fps):
    video = VideoFile(recording)
    fast = list(video.samples(Fraction(fps), "index"))
    n_fast = video.report.n_decoded
    full = list(video.samples(Fraction(fps), "index", skip=False))
    assert [frame.index for frame in fast] == [frame.index for frame in full]
    assert all(np.array_equal(a.rgb, b.rgb) for a, b in zip(fast, full, strict=True))
    assert n_fast <= video.report.n_decoded == 130


@pytest.mark.skipif(
    shutil.which("ffmpeg") is None,
    reason="the ffmpeg command line is not installed; it is the oracle of this test",
)
def test_the_frames_are_those_of_an_ffmpeg_select_by_index(recording, numbered):
    height, width = numbered.size_hw
    command = [
        "ffmpeg",
        "-v",
        "error",
        "-i",
        str(recording),
        "-vf",
        r"select=not(mod(n\,25))",
        "-vsync",
        "0",
        "-sws_flags",
        "bilinear",
    ]
    raw = subprocess.run(
        [*command, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True
    ).stdout
    expected = np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3).astype(int)
    got = np.stack([frame.rgb for frame in VideoFile(recording).samples(ONE, "index")]).astype(int)
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 2  # two builds of the colour conversion may round differently


def test_keyframes_every_second_mean_one_decoded_frame_per_sample(tmp_path, numbered):
    path = numbered.write(tmp_path / "a.mp4", 250, options={"bf": "3", "sc_threshold": "0"}, gop=25)
    video = VideoFile(path)
    assert len(list(video.samples(ONE))) == 10 and video.report.n_decoded == 10


def test_an_open_group_is_no_clean_start():
    """H.264: the slice type decides, not the container's mark. NAL 5 is an IDR slice, 1 is not; 6 to 9 are
    headers before it."""
    lengths = b"\x01\x64\x00\x1f\xff"
    assert is_idr("h264", lengths, b"\x00\x00\x00\x02\x67\xaa\x00\x00\x00\x02\x65\x88")
    assert not is_idr("h264", lengths, b"\x00\x00\x00\x02\x06\xaa\x00\x00\x00\x02\x41\x9a")
    assert is_idr("h264", b"\x00\x00\x00\x01\x67", b"\x00\x00\x00\x01\x09\xf0\x00\x00\x01\x65\x88")
    assert not is_idr(
        "hevc", b"", b"\x00\x00\x01\x40\x01\x0c\x00\x00\x01\x2a\x01\xaf"
    )  # a clean random access picture
    assert is_idr("hevc", b"", b"\x00\x00\x01\x40\x01\x0c\x00\x00\x01\x26\x01\xaf")


def test_uneven_frames_are_sampled_by_time(tmp_path, numbered):
    """Frames at 0, 40, ... ms, but a freeze of three seconds after frame 30 and a burst of 10 ms steps at the
    end."""
    times = [40 * i if i <= 30 else 40 * i + 3000 for i in range(80)] + [
        40 * 79 + 3000 + 10 * j for j in range(1, 120)
    ]
    path = numbered.write(tmp_path / "vfr.mkv", len(times), times=times, gop=20)
    video = VideoFile(path)
    assert video.info.is_variable
    got = [(frame.time_s, numbered.read(frame.rgb)) for frame in video.samples(ONE)]
    last_by = [max(i for i, t in enumerate(times) if t <= 1000 * k) for k in range(times[-1] // 1000 + 1)]
    assert got == [(float(k), i) for k, i in enumerate(last_by)]
    assert [n for _, n in got[1:5]] == [25, 30, 30, 30]
    assert [numbered.read(f.rgb) for f in video.samples(ONE, skip=False)] == [n for _, n in got]


@pytest.mark.parametrize(("fps", "step"), [("50", 50), ("30000/1001", 30), ("24", 24)])
def test_the_step_follows_each_files_own_rate(tmp_path, numbered, fps, step):
    path = numbered.write(tmp_path / "a.mp4", 120, Fraction(fps))
    video = VideoFile(path)
    assert not video.info.is_variable and video.info.fps == Fraction(fps)
    assert [numbered.read(frame.rgb) for frame in video.samples(ONE)] == list(range(0, 120, step))


def test_a_copied_cut_shows_its_own_frames_only(tmp_path, numbered):
    """An edit list hides the frames before the cut; they are neither counted nor shown."""
    if shutil.which("ffmpeg") is None:
        pytest.skip("the ffmpeg command line is not installed; it makes the cut")
    whole = numbered.write(tmp_path / "whole.mp4", 130, gop=50, options={"bf": "2", "sc_threshold": "0"})
    cut = tmp_path / "cut.mp4"
    subprocess.run(
        ["ffmpeg", "-v", "error", "-ss", "1.2", "-i", str(whole), "-c", "copy", str(cut)], check=True
    )
    video = VideoFile(cut)
    assert [numbered.read(frame.rgb) for frame in video.samples(ONE)] == [30, 55, 80, 105]
    assert video.info.n_frames == 100


def test_a_rotation_mark_is_obeyed(tmp_path, numbered):
    if not hasattr(av.video.stream.VideoStream, "set_display_rotation"):
        pytest.skip("this version of PyAV reads rotation marks but cannot write one")
    path = tmp_path / "turned.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
        stream.set_display_rotation(90)
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(numbered.picture(5))))
        container.mux(stream.encode(None))
    frame = next(VideoFile(path).samples(ONE))
    assert frame.rgb.shape == (160, 96, 3)
    assert numbered.read(np.rot90(frame.rgb, -1)) == 5


def test_the_real_laparoscopic_clip_gives_ten_samples(real_data):
    video = VideoFile(real_data("video/autolaparo_zoomin.mp4"))
    samples = list(video.samples(ONE))
    assert [frame.index for frame in samples] == list(range(0, 250, 25))
    assert samples[0].rgb.shape == (1080, 1920, 3) and video.report.n_decoded < 60
    full = list(video.samples(ONE, skip=False))
    assert all(np.array_equal(a.rgb, b.rgb) for a, b in zip(samples, full, strict=True))


def cut_in_half(path, share=0.5):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


def test_a_cut_off_file_yields_what_is_readable_and_a_warning_with_the_time_reached(tmp_path, numbered):
    path = cut_in_half(numbered.write(tmp_path / "a.mp4", 250, gop=25, options={"sc_threshold": "0"}))
    video = VideoFile(path)
    numbers = [numbered.read(frame.rgb) for frame in video.samples(ONE)]
    assert 2 <= len(numbers) < 10 and numbers == [25 * k for k in range(len(numbers))]
    (warning,) = [w for w in video.report.warnings if "cut off" in w]
    assert (
        f"readable up to {video.info.duration_s:.1f} s of 10.0 s announced" in warning
        and str(path) in warning
    )
    assert len(numbers) - 1 <= video.info.duration_s < 10


def test_sound_that_outlasts_the_pictures_does_not_make_a_file_cut_off(tmp_path, numbered):
    path = tmp_path / "talk.mkv"
    with av.open(str(path), "w") as container:
        pictures, sound = container.add_stream("libx264", rate=25), container.add_stream("aac", rate=44100)
        pictures.height, pictures.width, pictures.pix_fmt = *numbered.size_hw, "yuv420p"
        for i in range(50):
            container.mux(pictures.encode(av.VideoFrame.from_ndarray(numbered.picture(i))))
        for i in range(44100 * 9 // 1024):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = 44100, i * 1024, Fraction(1, 44100)
            container.mux(sound.encode(frame))
        container.mux(pictures.encode(None))
        container.mux(sound.encode(None))
    video = VideoFile(path)
    assert len(list(video.samples(ONE))) == 2 and video.report.warnings == [] and not video.info.is_truncated


def test_damaged_packets_are_counted_and_the_samples_keep_their_places(tmp_path, numbered):
    path = numbered.write(tmp_path / "a.mp4", 250, gop=25, options={"sc_threshold": "0", "bf": "0"})
    with av.open(str(path)) as container:
        packets = [(p.pos, p.size) for p in container.demux(container.streams.video[0]) if p.size]
    data = bytearray(path.read_bytes())
    for number in (50, 75):  # keyframes that samples 2 and 3 want: nothing of them can be decoded
        position, size = packets[number]
        data[position : position + size] = b"\xff" * size
    path.write_bytes(data)
    video = VideoFile(path)
    samples = list(video.samples(ONE))
    numbers = [numbered.read(frame.rgb) for frame in samples]
    assert [frame.index for frame in samples] == list(range(0, 250, 25))
    assert numbers[:2] + numbers[4:] == [0, 25, 100, 125, 150, 175, 200, 225]
    assert video.report.n_corrupt >= 2 and video.report.held == [50, 75]
    assert any(
        "corrupt packets or frames skipped; the previous picture replaces frame 50, 75" in w
        for w in video.report.warnings
    )


def test_a_damaged_first_frame_is_stood_in_for_by_the_next(tmp_path, numbered):
    path = numbered.write(tmp_path / "a.mp4", 60, gop=20, options={"sc_threshold": "0", "bf": "0"})
    with av.open(str(path)) as container:
        packet = next(p for p in container.demux(container.streams.video[0]) if p.size)
        position, size = packet.pos, packet.size
    data = bytearray(path.read_bytes())
    data[position : position + size] = b"\xff" * size
    path.write_bytes(data)
    video = VideoFile(path)
    assert [frame.index for frame in video.samples(ONE)] == [0, 25, 50] and 0 in video.report.held


def broken(tmp_path, numbered, kind):
    path = tmp_path / "op.mp4"
    if kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("Frame\tPhase\n" + "".join(f"{i}\tPreparation\n" for i in range(2000)))
    elif kind == "garbage":
        path.write_bytes(np.random.default_rng(0).integers(0, 256, 50_000, dtype=np.uint8).tobytes())
    elif kind == "audio":
        numbered.audio(path)
    elif kind == "index missing":  # an mp4 whose index, at the end, was never written
        whole = tmp_path / "whole.mp4"
        with av.open(str(whole), "w") as container:
            stream = container.add_stream("libx264", rate=25)
            stream.height, stream.width, stream.pix_fmt = *numbered.size_hw, "yuv420p"
            for i in range(50):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(numbered.picture(i))))
            container.mux(stream.encode(None))
        path.write_bytes(whole.read_bytes()[:2000])
    elif kind == "header only":
        numbered.write(path, 30)
        cut_in_half(path, path.read_bytes().index(b"mdat") / path.stat().st_size + 0.0005)
    return path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("empty", r"op\.mp4: the file is empty \(0 bytes\)"),
        ("text", r"op\.mp4: a text file, not a video"),
        ("garbage", r"op\.mp4: not a video file that can be opened"),
        ("audio", r"op\.mp4: no video stream in it, only audio"),
        ("index missing", r"op\.mp4: not a video file that can be opened \(Invalid data found.*cut off"),
        ("header only", r"op\.mp4: the header announces 30 frames but none can be read"),
        ("absent", r"op\.mp4: cannot be read \(No such file or directory\)"),
    ],
)
def test_what_is_no_video_is_named_with_what_it_is(tmp_path, numbered, kind, message):
    path = broken(tmp_path, numbered, kind)
    with pytest.raises(DataError, match=message) as caught:
        list(VideoFile(path).samples(ONE))
    assert "\n" not in str(caught.value)
