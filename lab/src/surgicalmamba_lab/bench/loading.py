"""How fast prepared frames reach training, and how fast the synthetic operating room renders."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from surgicalmamba.data.clips import ClipLoader, read_frame
from surgicalmamba.data.manifest import FORMAT, Manifest
from surgicalmamba.data.pictures import Preprocess, encode_jpeg
from surgicalmamba.data.store import PreparedDataset, SampleTable, VideoDraft, finish
from surgicalmamba.data.synthetic.procedure import PHASE_NAMES
from surgicalmamba.data.synthetic.recording import Operation, encode, one_core
from surgicalmamba.data.transforms import Augment, AugmentConfig, WholeFrame
from surgicalmamba_lab.bench.timing import Timing, take_turns

_LANES = _VIDEOS = 4
_CLIPS = 2  # of each video; as many videos as lanes, so every batch is full


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


def measure_loading(runs: int = 3, workers: int = 2, clip_len: int = 64, n_rendered: int = 200) -> LoadingReport:
    """Prepare synthetic frames at 250 x 250, then deliver them in every way that training or evaluation uses."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = _prepare(Path(folder) / "prepared", _CLIPS * clip_len)
        videos = list(dataset.videos.values())
        n_bytes = float(np.mean([video.content_bytes / video.n_samples for video in dataset.manifest.videos.values()]))
        augment, per_frame = Augment(), Augment(AugmentConfig(draw="frame"))

        def deliver(transform: Augment | WholeFrame, n_workers: int, prefetch: int) -> Callable[[], int]:
            def run() -> int:
                loader = ClipLoader(videos, n_lanes=_LANES, clip_len=clip_len, transform=transform, workers=n_workers, prefetch=prefetch)
                return sum(int(batch.is_frame.sum()) for batch in loader)

            return run

        ways: dict[str, Callable[[], object]] = {
            "one worker, no read-ahead": deliver(augment, 1, 0),
            f"{workers} workers, a draw per clip": deliver(augment, workers, 2),
            f"{workers} workers, a draw per frame": deliver(per_frame, workers, 2),
            f"{workers} workers, a draw per clip, 96 x 96": deliver(Augment(image_size=96), workers, 2),
            f"{workers} workers, evaluation": deliver(WholeFrame(), workers, 2),
            "decoding alone, one thread": lambda: [read_frame(video, row) for video in videos for row in range(video.n_samples)],
        }
        n_frames = _VIDEOS * _CLIPS * clip_len
        loading = _rows(take_turns(ways, runs), n_frames)
        return LoadingReport(workers, n_frames, Preprocess().size, n_bytes, loading, _measure_rendering(runs, n_rendered, Path(folder)))


def _measure_rendering(runs: int, n_frames: int, folder: Path) -> list[LoadingRow]:
    """Frames spread over a whole operation, so that every kind of view counts; on one core, the patient's pictures drawn beforehand."""
    op = Operation(seed=0, video=0)
    renderer = op.renderer
    chosen = np.linspace(0, op.procedure.n_frames - 1, n_frames).astype(int).tolist()
    ways: dict[str, Callable[[], object]] = {
        "render": lambda: [renderer.frame(i) for i in chosen],
        "render and encode": lambda: encode(folder / "operation.mp4", (renderer.frame(i) for i in chosen), op.fps),
    }
    with one_core():
        return _rows(take_turns(ways, runs), n_frames)


def _rows(timings: dict[str, Timing], n_frames: int) -> list[LoadingRow]:
    first = next(iter(timings.values()))
    return [LoadingRow(way, t, n_frames / t.median_ms * 1e3, first.median_ms / t.median_ms) for way, t in timings.items()]


def _prepare(folder: Path, n_samples: int) -> PreparedDataset:
    """A small prepared dataset of rendered frames, stored exactly as `prepare` stores a recording."""
    preprocess = Preprocess()
    entries = {}
    for number in range(_VIDEOS):
        op = Operation(seed=0, video=number)
        rows = np.linspace(0, op.procedure.n_frames - 1, n_samples).astype(np.int64)
        draft = VideoDraft(folder, f"video{number + 1:02d}", "frames")
        for row in rows.tolist():
            draft.add_image(encode_jpeg(preprocess(op.renderer.frame(row))))
        table = SampleTable(rows, rows / op.fps, op.procedure.phase_per_frame()[rows])
        entries[f"video{number + 1:02d}"] = draft.commit(table, {"source_fps": str(op.fps), "sources": {}, "settings_sha256": ""})
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


def report_lines(report: LoadingReport) -> list[str]:
    """The report as text."""
    size = f"{report.stored_size} x {report.stored_size}"
    lines = [f"delivered to training from {size} JPEG ({report.bytes_per_frame / 1e3:.1f} kB a frame), {report.frames} frames a run:"]
    for row in report.loading + report.rendering:
        if row is report.rendering[0]:
            lines.append("synthetic operating room, one core:")
        times = f"median {row.timing.median_ms:7.1f} ms  p95 {row.timing.p95_ms:7.1f} ms"
        lines.append(f"  {row.way:<40} {row.frames_per_s:6.0f} frames/s  {times}  x{row.ratio:.2f}")
    return lines
