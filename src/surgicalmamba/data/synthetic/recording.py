"""Videos and labels on disk, in the layout of a user's own data: `phases.yaml`, and per operation
`videoNN.mp4` with `videoNN.txt`.

Labels are rows `Frame<TAB>Phase`, one per frame of the video from 0, as in Cholec80. The same arguments give
the same bytes: the encoder runs in one thread at a constant quantiser (no floating-point rate control) and
without instructions that only some processors have, and container and stream carry no date. `phases.yaml`
comes last, so a folder without it is unfinished; the same call continues it."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path

import av
import cv2
import numpy as np
import yaml
from av.codec.context import Flags
from av.video.stream import VideoStream
from numpy.typing import NDArray

from surgicalmamba.data.synthetic.anatomy import draw_anatomy
from surgicalmamba.data.synthetic.motion import Tracks, plan_motion
from surgicalmamba.data.synthetic.procedure import (
    FULL,
    PHASE_NAMES,
    PHASES,
    SHORT,
    Activity,
    Procedure,
    draw_procedure,
    generator,
)
from surgicalmamba.data.synthetic.render import FRAME_HW, VIEW_HW, Renderer
from surgicalmamba.errors import DataError
from surgicalmamba.files import atomic_path, remedy, write_atomic

DEFAULT_FPS = 5
_SCRIPT, _MOTION, _ANATOMY, _OPTICS = range(4)  # one random stream each


@dataclass(frozen=True)
class Operation:
    """Video number `video` (from 0) of a seed. It does not depend on how many videos a dataset has."""

    seed: int
    video: int
    short: bool = False
    fps: int = DEFAULT_FPS

    @cached_property
    def procedure(self) -> Procedure:
        """Phases and bouts; cheap."""
        rng = generator(self.seed, self.video, _SCRIPT)
        return draw_procedure(rng, self.fps, SHORT if self.short else FULL)

    @cached_property
    def tracks(self) -> Tracks:
        """What every frame shows; a fraction of a second."""
        return plan_motion(self.procedure, generator(self.seed, self.video, _MOTION))

    @cached_property
    def renderer(self) -> Renderer:
        """The patient's pictures, ready to render any frame; about a second."""
        anatomy = draw_anatomy(generator(self.seed, self.video, _ANATOMY))
        return Renderer(anatomy, self.tracks, generator(self.seed, self.video, _OPTICS))


def operation(seed: int, video: int, short: bool = False, fps: int = DEFAULT_FPS) -> Operation:
    """The operation behind a video of `write_dataset`, for its script, tool presence or single frames without
    a file."""
    return Operation(seed, video, short, fps)


GENERATOR = 1  # raised when the same seed gives other videos
UNFINISHED = ".unfinished.yaml"
MAX_VIDEOS = 9999
_PROGRESS_FRAMES = 50
_QUANTISER = 24
_KEYFRAME_S = 4

Progress = Callable[[int], None]
"""Called with the number of further frames that are done."""


def write_dataset(
    out: Path,
    videos: int,
    seed: int,
    short: bool = False,
    fps: int = DEFAULT_FPS,
    workers: int = 1,
    progress: Progress | None = None,
) -> list[Path]:
    """Render `videos` operations into the folder `out` and give their video files.

    A killed call is continued by the same call and ends with the same bytes. Raises DataError for a folder
    that holds anything else."""
    _check(videos, seed, fps, workers)
    out = Path(out)
    description = _description(videos, seed, short, fps)
    operations = [Operation(seed, number, short, fps) for number in range(videos)]
    files = [out / f"{video_name(number, videos)}.mp4" for number in range(videos)]
    if not _begin(out, description, files):
        return files
    tell = progress if progress is not None else _silent
    waiting = []
    for op, file in zip(operations, files, strict=True):
        if file.exists() and file.with_suffix(".txt").exists():
            tell(op.procedure.n_frames)
        else:
            waiting.append((op, file))
    if workers == 1:
        for op, file in waiting:
            _write_operation(op, file, tell)
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            futures = {pool.submit(_write_operation, op, file, _silent): op for op, file in waiting}
            for future in as_completed(futures):
                future.result()
                tell(futures[future].procedure.n_frames)
    for leftover in out.glob("*.tmp"):  # of killed runs; also hidden ones
        leftover.unlink(missing_ok=True)
    (out / UNFINISHED).replace(out / "phases.yaml")
    return files


def total_frames(videos: int, seed: int, short: bool = False, fps: int = DEFAULT_FPS) -> int:
    """Frames that `write_dataset` will render for these arguments."""
    _check(videos, seed, fps, 1)
    return sum(Operation(seed, number, short, fps).procedure.n_frames for number in range(videos))


def video_name(number: int, videos: int) -> str:
    """`video01`, with as many digits as the last one needs, at least two."""
    return f"video{number + 1:0{max(2, len(str(videos)))}d}"


def encode(path: Path, frames_rgb: Iterable[NDArray[np.uint8]], fps: int) -> None:
    """Write frames (h, w, 3) RGB, even height and width, as H.264 in MP4. The file appears under its name
    when complete."""
    options = {"fflags": "+bitexact", "movflags": "+faststart"}
    try:
        with atomic_path(path) as draft, av.open(str(draft), "w", format="mp4", options=options) as container:
            stream = container.add_stream("libx264", rate=fps)
            _configure(stream, fps)
            for i, rgb in enumerate(frames_rgb):
                # OpenCV converts in integers; the encoder library's scaler differs between processors.
                planes = np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2YUV_I420), dtype=np.uint8)
                frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
                frame.pts = i
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}. {remedy(error)}") from None
    except av.FFmpegError as error:
        todo = "Check the space on the disk and run the same command again."
        raise DataError(f"cannot encode {path}: {error.strerror}. {todo}") from None


@contextmanager
def one_core() -> Iterator[None]:
    """Keep OpenCV from splitting small pictures over threads, which costs more than it gains; videos are
    rendered side by side instead."""
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def _configure(stream: VideoStream, fps: int) -> None:
    stream.height, stream.width = FRAME_HW
    stream.pix_fmt = "yuv420p"
    stream.options = {
        "preset": "superfast",
        "qp": str(_QUANTISER),
        "x264-params": "cpu-independent=1:threads=1:lookahead-threads=1:sliced-threads=0:"
        "bframes=0:scenecut=0:mbtree=0:aq-mode=0",
    }
    context = stream.codec_context
    context.thread_count = 1
    context.gop_size = _KEYFRAME_S * fps
    context.flags |= Flags.bitexact


def _write_operation(op: Operation, file: Path, tell: Progress) -> None:
    """The video first, its labels when the video is complete: a video with labels is a finished one."""
    with one_core():
        encode(file, _frames(op, tell), op.fps)
    phases = op.procedure.phase_per_frame().tolist()
    rows = "".join(f"{frame}\t{PHASE_NAMES[phase]}\n" for frame, phase in enumerate(phases))
    write_atomic(file.with_suffix(".txt"), f"Frame\tPhase\n{rows}".encode())


def _frames(op: Operation, tell: Progress) -> Iterator[NDArray[np.uint8]]:
    renderer, n = op.renderer, op.procedure.n_frames
    for i in range(n):
        yield renderer.frame(i)
        if (i + 1) % _PROGRESS_FRAMES == 0 or i + 1 == n:
            tell(i % _PROGRESS_FRAMES + 1)


def _silent(frames: int) -> None:
    """Progress nobody watches."""


def _check(videos: int, seed: int, fps: int, workers: int) -> None:
    if not 1 <= videos <= MAX_VIDEOS:
        raise DataError(f"videos={videos}: ask for 1 to {MAX_VIDEOS} synthetic videos.")
    if seed < 0:
        raise DataError(f"seed={seed}: use a seed of 0 or more.")
    if not 1 <= fps <= 60:
        raise DataError(f"fps={fps}: synthetic videos have 1 to 60 frames per second.")
    if workers < 1:
        raise DataError(f"workers={workers}: use 1 process or more.")


def _description(videos: int, seed: int, short: bool, fps: int) -> bytes:
    """The content of phases.yaml. `generator` and what follows are for people; preparing the folder
    does not need them."""
    fields = {
        "name": "synthetic",
        "source": "Rendered by `surgicalmamba prepare synthetic`. No patient, no recording.",
        "phases": list(PHASE_NAMES),
        "fps": fps,
        "generator": {"version": GENERATOR, "seed": seed, "videos": videos, "short": short},
    }
    return yaml.safe_dump(fields, sort_keys=False).encode()


def _begin(out: Path, description: bytes, files: list[Path]) -> bool:
    """Claim the folder for these settings. False when everything is already there."""
    todo = "give an empty or new folder as --out, or the settings it was made with"
    other = f"{out} already holds something else; {todo}."
    try:
        out.mkdir(parents=True, exist_ok=True)
        present = sorted(path.name for path in out.iterdir() if not path.name.endswith(".tmp"))
        for name in ("phases.yaml", UNFINISHED):
            if name in present and (out / name).read_bytes() != description:
                raise DataError(other)
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}. {remedy(error)}") from None
    if present and "phases.yaml" not in present and UNFINISHED not in present:
        raise DataError(other)
    if "phases.yaml" in present:
        if all(name in present for file in files for name in (file.name, file.with_suffix(".txt").name)):
            return False
        missing = f"not all of its {len(files)} videos and label files"
        raise DataError(f"{out} has a phases.yaml but {missing}; delete it and run again.")
    write_atomic(out / UNFINISHED, description)
    return True


_CELL_HW = (150, 200)
_TITLE_H = 26
_ROWS = 5
_TITLES = (
    "Preparation",
    "Calot dissection",
    "Clipping, cutting",
    "Gallbladder dissection",
    "Packaging",
    "Cleaning, coagulation",
    "Retraction",
)


def write_contact_sheet(path: Path, seed: int) -> None:
    """Write a PNG of frames from five operations of a seed: rows are patients, columns are phases."""
    if path.suffix.lower() != ".png":
        raise DataError(f"the contact sheet is a PNG picture; {path.name!r} does not end in .png.")
    sheet = contact_sheet(seed)
    done, png = cv2.imencode(".png", cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_PNG_COMPRESSION, 9])
    assert done
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}. Choose a folder you may write to.") from None
    write_atomic(path, png.tobytes())


def contact_sheet(seed: int) -> NDArray[np.uint8]:
    """The sheet as RGB bytes."""
    rows = [_title_row()]
    for row, op in enumerate(_complete_operations(seed)):
        cells = [_cell(op, phase, row) for phase in range(len(PHASES))]
        rows.append(np.hstack(cells))
    return np.vstack(rows)


def _complete_operations(seed: int) -> list[Operation]:
    """The first operations of the seed in which every phase occurs."""
    found: list[Operation] = []
    video = 0
    while len(found) < _ROWS:
        op = Operation(seed, video)
        if set(op.procedure.order) == set(range(len(PHASES))):
            found.append(op)
        video += 1
    return found


def _cell(op: Operation, phase: int, row: int) -> NDArray[np.uint8]:
    """The middle of a bout of the row-th most frequent activity of the phase; a phase with fewer starts again
    at the first."""
    shares = PHASES[phase].mixture.shares
    wanted = sorted(shares, key=lambda activity: -shares[activity])
    for turn in range(len(wanted)):
        activity = wanted[(row + turn) % len(wanted)]
        long = [bout for bout in op.procedure.bouts if bout.n_frames >= 4 * op.fps]
        bouts = [bout for bout in long if bout.phase == phase and bout.activity is activity]
        if bouts:
            bout = bouts[len(bouts) // 2]
            where = 0.35 if activity is Activity.BAG else 0.6
            frame = op.renderer.frame(bout.start + int((bout.stop - bout.start) * where))
            break
    else:
        frame = op.renderer.frame(next(bout for bout in op.procedure.bouts if bout.phase == phase).start)
    margin = (frame.shape[1] - VIEW_HW[1]) // 2
    view = frame[:, margin : margin + VIEW_HW[1]]
    cell = cv2.resize(view, (_CELL_HW[1], _CELL_HW[0]), interpolation=cv2.INTER_AREA)
    return np.asarray(cell, dtype=np.uint8)


def _title_row() -> NDArray[np.uint8]:
    assert len(_TITLES) == len(PHASE_NAMES)
    row = np.zeros((_TITLE_H, _CELL_HW[1] * len(_TITLES), 3), dtype=np.uint8)
    for column, title in enumerate(_TITLES):
        (width, _), _ = cv2.getTextSize(title, cv2.FONT_HERSHEY_SIMPLEX, 0.44, 1)
        x = column * _CELL_HW[1] + (_CELL_HW[1] - width) // 2
        cv2.putText(row, title, (x, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.44, (235, 235, 235), 1, cv2.LINE_AA)
    return row

