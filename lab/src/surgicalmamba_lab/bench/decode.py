"""How fast recorded video becomes samples, against the ffmpeg command line on the same file, and how much room they take."""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from surgicalmamba.data.pictures import Preprocess, encode_jpeg
from surgicalmamba.data.video import VideoFile
from surgicalmamba.errors import DataError
from surgicalmamba_lab.bench.timing import Timing, take_turns

ONE = Fraction(1)
PLAIN = Preprocess(box="none")
"""ffmpeg has no margin cut, so both sides only scale to 250 x 250."""


@dataclass(frozen=True)
class DecodeRow:
    """One way of turning the file into samples at 1 fps. Speed is seconds of recording per second of work, on one thread."""

    way: str
    timing: Timing
    source_s_per_s: float
    ratio: float | None
    """Speed relative to ffmpeg on one thread in the same run; None without ffmpeg."""


@dataclass(frozen=True)
class DecodeReport:
    """What was measured on one file."""

    file: str
    codec: str
    size_hw: tuple[int, int]
    fps: float
    duration_s: float
    frames_decoded: int
    """Of all frames, those that the skipping reader had to decode."""
    frames: int
    frames_equal: bool
    """Skipping and decoding everything gave the same pixels in this run."""
    baseline: str
    rows: list[DecodeRow]
    jpeg_bytes_per_hour: int
    """Of samples as `prepare` stores them: margin cut, 250 x 250, one per second."""


def measure_decode(path: Path, runs: int = 3) -> DecodeReport:
    """Time both readers and ffmpeg on a file, in turns."""
    video = VideoFile(path)
    info = video.info
    calls = {"surgicalmamba": lambda: _read(path, True), "surgicalmamba, every frame": lambda: _read(path, False)}
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is not None:
        step = video.sampling(ONE, "index").frame_of(1)  # type: ignore[union-attr]  # by index
        calls["ffmpeg, one thread"] = lambda: _ffmpeg(ffmpeg, path, step, 1)
        calls["ffmpeg, its own threads"] = lambda: _ffmpeg(ffmpeg, path, step, 0)
    timings = take_turns(calls, runs)
    base = timings.get("ffmpeg, one thread")
    rows = [
        DecodeRow(way, t, info.duration_s / t.median_ms * 1e3, None if base is None else base.median_ms / t.median_ms)
        for way, t in timings.items()
    ]
    skipped = [frame.rgb for frame in video.samples(ONE, "index")]
    n_decoded = video.report.n_decoded
    plain = [frame.rgb for frame in video.samples(ONE, "index", skip=False)]
    equal = len(skipped) == len(plain) and all(np.array_equal(a, b) for a, b in zip(skipped, plain, strict=True))
    stored = sum(len(encode_jpeg(Preprocess()(rgb))) for rgb in skipped)
    return DecodeReport(
        path.name,
        info.codec,
        info.size_hw,
        float(info.fps),
        info.duration_s,
        n_decoded,
        info.n_frames,
        equal,
        "ffmpeg command line, one thread" if ffmpeg else "missing: ffmpeg is not installed",
        rows,
        round(stored * 3600 / len(skipped)),
    )


def _read(path: Path, skip: bool) -> None:
    for frame in VideoFile(path).samples(ONE, "index", skip):
        PLAIN(frame.rgb)


def _ffmpeg(program: str, path: Path, step: int, threads: int) -> None:
    chain = f"select=not(mod(n\\,{step})),scale=250:250:flags=bilinear"
    command = [program, "-v", "error", "-threads", str(threads), "-i", str(path), "-vf", chain, "-vsync", "0"]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise DataError(f"ffmpeg could not read {path}: {done.stderr.decode(errors='replace').strip().splitlines()[-1]}")


def write_pattern(path: Path, seconds: int, keyframe_every: int, size_hw: tuple[int, int] = (720, 1280), fps: int = 25) -> None:
    """A soft texture that moves under sensor noise, as H.264 with B-frames: a stand-in where no recording is given."""
    import av
    import cv2

    height, width = size_hw
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
    texture = np.asarray(cv2.resize(coarse, (width * 2, height * 2), interpolation=cv2.INTER_CUBIC), np.uint8) // 2 + 40
    noise = rng.integers(0, 12, (8, height, width, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.gop_size = keyframe_every
        stream.options = {"preset": "veryfast", "bf": "3", "sc_threshold": "0"}
        for i in range(seconds * fps):
            y, x = round(height / 2 * (1 + np.sin(i / 90))), round(width / 2 * (1 + np.cos(i / 70)))
            picture = texture[y : y + height, x : x + width] + noise[i % len(noise)]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode(None))


def measure_patterns(seconds: int = 20, runs: int = 3) -> list[DecodeReport]:
    """Measure on generated 720p files, with keyframes far apart and once a second."""
    with tempfile.TemporaryDirectory() as folder:
        reports = []
        for keyframe_every in (250, 25):
            path = Path(folder) / f"pattern, keyframe every {keyframe_every} frames.mp4"
            write_pattern(path, seconds, keyframe_every)
            reports.append(measure_decode(path, runs))
        return reports
