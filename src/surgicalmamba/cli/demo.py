"""`surgicalmamba demo`: the whole chain on a synthetic operation, for users without data."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

DEFAULT_OUT = Path("surgicalmamba-demo")


def demo(
    out: Annotated[Path, Option(help="Folder for video, estimates, overlay and report.")] = DEFAULT_OUT,
    seed: Annotated[int, Option(min=0, help="Seed of the operation. Training used seeds 11 and 13.")] = 7,
    json: Annotated[bool, Option("--json", help="Print a JSON object instead of text.")] = False,
) -> None:
    """Render a synthetic operation, recognize its phases frame by frame as if live, score them and write a
    report.

    The model is part of the package. It was trained on the pixels of other synthetic operations, without any
    patient data.

    Example: surgicalmamba demo --seed 3 --out demo3
    """
    import json as json_module

    import torch
    from rich.console import Console
    from rich.progress import Progress

    from surgicalmamba.data.synthetic.recording import total_frames
    from surgicalmamba.demo import VIDEO_FPS, open_demo, render_operation, run_demo
    from surgicalmamba.live.sinks import TerminalSink

    torch.set_num_threads(1)  # the small model is not faster with more, and other programs stay fast
    place = out / f"seed{seed}"
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("rendering an operation", total=total_frames(1, seed, True, VIDEO_FPS))
        video = render_operation(place, seed, lambda frames: progress.advance(bar, frames))
    job = open_demo(video)
    with TerminalSink(job.history, job.source.duration_s, f"synthetic operation {seed}") as watch:
        result = run_demo(job, video, place, watch)
    if json:
        scores = result.evaluation.as_dict()
        document = {"summary": result.summary.as_dict(), "evaluation": scores, "report": str(result.report)}
        typer.echo(json_module.dumps(document, indent=2))
        return
    typer.echo(result.summary.text())
    for protocol in ("strict", "relaxed-published"):
        metrics = result.evaluation.report.scores[protocol].metrics
        names = ("accuracy", "precision", "recall", "jaccard")
        scores_text = ", ".join(f"{name} {metrics[name]['mean']:.1f}" for name in names)
        typer.echo(f"{protocol}: {scores_text} (1 video, 1 fps)")
    typer.echo(f"report: {result.report}")
    typer.echo("Research software, not a medical device.")
