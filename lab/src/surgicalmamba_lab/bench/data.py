"""`surgicalmamba bench data`: how fast recorded video becomes samples, against the ffmpeg command line on
the same file, and how much space they take; how fast prepared frames reach training; how fast the
synthetic operating room renders."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np

from surgicalmamba.data.clips import ClipLoader, read_frame
from surgicalmamba.data.manifest import FORMAT, Manifest
from surgicalmamba.data.pictures import Preprocess, encode_jpeg
from surgicalmamba.data.store import PreparedDataset, SampleTable, VideoDraft, finish
from surgicalmamba.data.synthetic.procedure import PHASE_NAMES
from surgicalmamba.data.synthetic.recording import Operation, encode, one_core
from surgicalmamba.data.transforms import Augment, AugmentConfig, WholeFrame
from surgicalmamba.data.video import VideoFile
from surgicalmamba.errors import DataError
from surgicalmamba_lab.bench.timing import Report, Timing, machine, take_turns

ONE = Fraction(1)
PLAIN = Preprocess(box="none")
"""ffmpeg has no margin cut, so both sides only scale to 250 x 250."""
LANES = VIDEOS = 4
CLIPS = 2  # of each video; as many videos as lanes, so every batch is full


@dataclass(frozen=True)
class DecodeRow:
    """One way of turning the file into samples at 1 fps. Speed is seconds of recording per second of work,
    on one thread."""

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

    def lines(self) -> list[str]:
        what = f"{self.codec}, {self.size_hw[1]}x{self.size_hw[0]}, {self.fps:g} fps, {self.duration_s:.1f} s"
        text = [f"{self.file}: {what}; baseline {self.baseline}"]
        for row in self.rows:
            ratio = "" if row.ratio is None else f"  x{row.ratio:.2f}"
            speed = f"{row.source_s_per_s:8.1f} source s/s  median {row.timing.median_ms:8.1f} ms{ratio}"
            text.append(f"  {row.way:<28} {speed}")
        equal = "equal to" if self.frames_equal else "DIFFERENT FROM"
        text.append(f"  decoded {self.frames_decoded} of {self.frames} frames; pixels {equal} decoding all")
        return [*text, f"  {self.jpeg_bytes_per_hour / 1e6:.0f} MB per hour as prepared images"]


def measure_decode(path: Path, runs: int = 3) -> DecodeReport:
    """Time both readers and ffmpeg on a file, in turns."""
    video = VideoFile(path)
    info = video.info
    calls = {
        "surgicalmamba": lambda: _read(path, True),
        "surgicalmamba, every frame": lambda: _read(path, False),
    }
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is not None:
        step = video.sampling(ONE, "index").frame_of(1)  # type: ignore[union-attr]  # by index
        calls["ffmpeg, one thread"] = lambda: _ffmpeg(ffmpeg, path, step, 1)
        calls["ffmpeg, its own threads"] = lambda: _ffmpeg(ffmpeg, path, step, 0)
    timings = take_turns(calls, runs)
    base = timings.get("ffmpeg, one thread")
    rows = [
        DecodeRow(
            way,
            t,
            info.duration_s / t.median_ms * 1e3,
            None if base is None else base.median_ms / t.median_ms,
        )
        for way, t in timings.items()
    ]
    skipped = [frame.rgb for frame in video.samples(ONE, "index")]
    n_decoded = video.report.n_decoded
    plain = [frame.rgb for frame in video.samples(ONE, "index", skip=False)]
    equal = len(skipped) == len(plain) and all(
        np.array_equal(a, b) for a, b in zip(skipped, plain, strict=True)
    )
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
        raise DataError(
            f"ffmpeg could not read {path}: {done.stderr.decode(errors='replace').strip().splitlines()[-1]}"
        )


def write_pattern(
    path: Path, seconds: int, keyframe_every: int, size_hw: tuple[int, int] = (720, 1280), fps: int = 25
) -> None:
    """A soft texture that moves under sensor noise, as H.264 with B-frames: a stand-in where no recording
    is given."""
    height, width = size_hw
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
    texture = (
        np.asarray(cv2.resize(coarse, (width * 2, height * 2), interpolation=cv2.INTER_CUBIC), np.uint8) // 2
        + 40
    )
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


@dataclass(frozen=True)
class LoadingRow:
    """One way of delivering frames. Speed is frames per second of wall clock."""

    way: str
    timing: Timing
    frames_per_s: float
    ratio: float
    """Speed relative to the first row of the same run."""


@dataclass(frozen=True)
class LoadingReport:
    """What was measured, over how many frames a run, and from frames of which size."""

    workers: int
    frames: int
    stored_size: int
    bytes_per_frame: float
    loading: list[LoadingRow]
    rendering: list[LoadingRow]

    def lines(self) -> list[str]:
        size = f"{self.stored_size} x {self.stored_size} JPEG ({self.bytes_per_frame / 1e3:.1f} kB a frame)"
        text = [f"delivered to training from {size}, {self.frames} frames a run:"]
        for row in self.loading + self.rendering:
            if row is self.rendering[0]:
                text.append("synthetic operating room, one core:")
            times = f"median {row.timing.median_ms:7.1f} ms  p95 {row.timing.p95_ms:7.1f} ms"
            text.append(f"  {row.way:<40} {row.frames_per_s:6.0f} frames/s  {times}  x{row.ratio:.2f}")
        return text


def measure_loading(
    runs: int = 3, workers: int = 2, clip_len: int = 64, n_rendered: int = 200
) -> LoadingReport:
    """Prepare synthetic frames at 250 x 250, then deliver them in every way that training or evaluation
    uses."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = _prepare(Path(folder) / "prepared", CLIPS * clip_len)
        videos = list(dataset.videos.values())
        n_bytes = float(np.mean([v.content_bytes / v.n_samples for v in dataset.manifest.videos.values()]))
        augment, per_frame = Augment(), Augment(AugmentConfig(draw="frame"))

        def deliver(transform: Augment | WholeFrame, n_workers: int, prefetch: int) -> Callable[[], int]:
            def run() -> int:
                loader = ClipLoader(
                    videos,
                    n_lanes=LANES,
                    clip_len=clip_len,
                    transform=transform,
                    workers=n_workers,
                    prefetch=prefetch,
                )
                return sum(int(batch.is_frame.sum()) for batch in loader)

            return run

        ways: dict[str, Callable[[], object]] = {
            "one worker, no read-ahead": deliver(augment, 1, 0),
            f"{workers} workers, a draw per clip": deliver(augment, workers, 2),
            f"{workers} workers, a draw per frame": deliver(per_frame, workers, 2),
            f"{workers} workers, a draw per clip, 96 x 96": deliver(Augment(image_size=96), workers, 2),
            f"{workers} workers, evaluation": deliver(WholeFrame(), workers, 2),
            "decoding alone, one thread": lambda: [
                read_frame(video, row) for video in videos for row in range(video.n_samples)
            ],
        }
        n_frames = VIDEOS * CLIPS * clip_len
        loading = _rows(take_turns(ways, runs), n_frames)
        return LoadingReport(
            workers,
            n_frames,
            Preprocess().size,
            n_bytes,
            loading,
            _measure_rendering(runs, n_rendered, Path(folder)),
        )


def _measure_rendering(runs: int, n_frames: int, folder: Path) -> list[LoadingRow]:
    """Frames spread over a whole operation, so that every kind of view counts; on one core, the patient's
    pictures drawn beforehand."""
    op = Operation(seed=0, video=0)
    renderer = op.renderer
    chosen = np.linspace(0, op.procedure.n_frames - 1, n_frames).astype(int).tolist()
    ways: dict[str, Callable[[], object]] = {
        "render": lambda: [renderer.frame(i) for i in chosen],
        "render and encode": lambda: encode(
            folder / "operation.mp4", (renderer.frame(i) for i in chosen), op.fps
        ),
    }
    with one_core():
        return _rows(take_turns(ways, runs), n_frames)


def _rows(timings: dict[str, Timing], n_frames: int) -> list[LoadingRow]:
    first = next(iter(timings.values()))
    return [
        LoadingRow(way, t, n_frames / t.median_ms * 1e3, first.median_ms / t.median_ms)
        for way, t in timings.items()
    ]


def _prepare(folder: Path, n_samples: int) -> PreparedDataset:
    """A small prepared dataset of rendered frames, stored exactly as `prepare` stores a recording."""
    preprocess = Preprocess()
    entries = {}
    for number in range(VIDEOS):
        op = Operation(seed=0, video=number)
        rows = np.linspace(0, op.procedure.n_frames - 1, n_samples).astype(np.int64)
        draft = VideoDraft(folder, f"video{number + 1:02d}", "frames")
        for row in rows.tolist():
            draft.add_image(encode_jpeg(preprocess(op.renderer.frame(row))))
        table = SampleTable(rows, rows / op.fps, op.procedure.phase_per_frame()[rows])
        entries[f"video{number + 1:02d}"] = draft.commit(
            table, {"source_fps": str(op.fps), "sources": {}, "settings_sha256": ""}
        )
    manifest = Manifest(
        format=FORMAT,
        name="synthetic",
        kind="frames",
        phases=list(PHASE_NAMES),
        fps="1",
        source="rendered",
        settings={},
        splits={},
        videos=entries,
    )
    finish(folder, manifest)
    return PreparedDataset.open(folder)


@dataclass(frozen=True)
class DataBench(Report):
    """What `bench data` reports."""

    machine: dict[str, object]
    decode: list[DecodeReport]
    training: LoadingReport

    def lines(self) -> list[str]:
        return [line for report in self.decode for line in report.lines()] + self.training.lines()


def bench_data(video: Path | None, runs: int) -> DataBench:
    """Measure on a recording, or on generated patterns."""
    decode = measure_patterns(runs=runs) if video is None else [measure_decode(video, runs)]
    return DataBench(machine(), decode, measure_loading(runs))
