"""`surgicalmamba demo`: the main job, for somebody with no data."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for video, estimates, overlay and report.")] = Path("surgicalmamba-demo"),
    seed: Annotated[int, typer.Option(min=0, help="Which operation. The model was trained on seeds 11 and 13.")] = 7,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of text.")] = False,
) -> None:
    """Render a synthetic operation, recognize its phases picture by picture as if live, score them and write a report.

    The model ships with the package. It was trained on other synthetic operations, from pixels; no patient is in it.

    Example: surgicalmamba demo --seed 3 --out demo3
    """
    import json as json_module

    import torch
    from rich.console import Console
    from rich.progress import Progress

    from surgicalmamba.cli.watch import Watch
    from surgicalmamba.data.synthetic.recording import total_frames
    from surgicalmamba.demo import VIDEO_FPS, open_demo, render_operation, run_demo

    torch.set_num_threads(1)  # the small model gains nothing from more, and stays fast beside other work
    place = out / f"seed{seed}"
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("rendering an operation", total=total_frames(1, seed, True, VIDEO_FPS))
        video = render_operation(place, seed, lambda frames: progress.advance(bar, frames))
    job = open_demo(video)
    with Watch(job.history, job.source.duration_s, f"synthetic operation {seed}") as watch:
        result = run_demo(job, video, place, watch)
    if json:
        scores = result.evaluation.as_dict()
        document = {"summary": result.summary.as_dict(), "evaluation": scores, "report": str(result.report)}
        typer.echo(json_module.dumps(document, indent=2))
        return
    typer.echo(result.summary.text())
    for protocol in ("strict", "relaxed-published"):
        metrics = result.evaluation.report.scores[protocol].metrics
        said = ", ".join(f"{name} {metrics[name]['mean']:.1f}" for name in ("accuracy", "precision", "recall", "jaccard"))
        typer.echo(f"{protocol}: {said} (1 video, 1 fps)")
    typer.echo(f"report: {result.report}")
    typer.echo("Research software, not a medical device.")
