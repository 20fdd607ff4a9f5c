"""`surgicalmamba demo`, for users without data: render an operation, stream it to the model, score, report.

OUT/operation/    the video and its labels           OUT/estimates.jsonl   the estimates, line by line
OUT/predictions/  the same as a prediction file      OUT/report/           the page with scores and figures
OUT/overlay.mp4   the video with the phase ribbon"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from surgicalmamba.data.synthetic import write_dataset
from surgicalmamba.eval.evaluate import Evaluation, evaluate
from surgicalmamba.eval.files import Matching, RunInfo, write_run
from surgicalmamba.live.app import StreamJob, Summary
from surgicalmamba.live.sinks import EstimateSink
from surgicalmamba.report.page import write_report

VIDEO_FPS = 5
RULES = "cholec80"
"""The operations have the phases of that dataset, so its relaxed rules apply."""
PROTOCOLS = ("strict", "relaxed-published", "segmental", "calibration")


@dataclass(frozen=True, eq=False)
class DemoResult:
    """Results of the demo."""

    summary: Summary
    evaluation: Evaluation
    report: Path


def render_operation(out: Path, seed: int, progress: Callable[[int], None]) -> Path:
    """The operation of a seed as a video file; an existing one is kept."""
    folder = out / "operation"
    [video] = write_dataset(folder, videos=1, seed=seed, short=True, fps=VIDEO_FPS, progress=progress)
    return video


def open_demo(video: Path) -> StreamJob:
    """The model that ships with the package and the video, ready to be streamed."""
    return StreamJob.open(str(video), engine="eager")


def run_demo(job: StreamJob, video: Path, out: Path, watch: EstimateSink) -> DemoResult:
    """Stream the video through the model, score what was said, write the report."""
    predictions = out / "predictions"
    files = [out / "estimates.jsonl", predictions / f"{video.stem}.csv"]
    summary = job.run(files, out / "overlay.mp4", realtime=False, watch=watch)
    phases, fps = job.engine.config.phases, float(job.fps)
    assert phases is not None  # the shipped model has names
    write_run(predictions, RunInfo("synthetic", phases, fps))
    matching = Matching(sample_labels=True)  # labels are per video frame, estimates per second
    evaluation = evaluate(
        video.parent, [predictions], None, PROTOCOLS, fps=fps, rules=RULES, matching=matching
    )
    return DemoResult(summary, evaluation, write_report(evaluation, out / "report"))
