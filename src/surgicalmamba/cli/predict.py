"""`surgicalmamba predict`: a trained recognizer over the videos of a prepared dataset."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer


def predict(
    checkpoint: Annotated[str, typer.Argument(help="A run folder (its best model), a checkpoint folder, or a Hub id.")],
    data: Annotated[Path, typer.Option(help="A prepared dataset.")],
    out: Annotated[Path, typer.Option(help="Folder for the prediction files; files already there are kept.")],
    split: Annotated[str, typer.Option(help="Which videos: train, val, test or all; or NAME:ROLE of another split.")] = "test",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of text.")] = False,
) -> None:
    """Write one prediction file per video, as the recognizer would have said it live. Interrupted, the same call goes on.

    Example: surgicalmamba predict runs/first --data synthetic-prepared --split val --out predictions
    """
    from rich.console import Console
    from rich.progress import track

    from surgicalmamba.train.predict import Predictor

    predictor = Predictor.open(checkpoint, data, split, out, device)
    bar = track(predictor.videos, description="predicting", console=Console(stderr=True), transient=True)
    files = [predictor.predict(video) for video in bar]
    predictor.finish()
    if json:
        typer.echo(json_module.dumps({"out": str(out), "videos": [file.stem for file in files]}, indent=2))
    else:
        typer.echo(f"{out}: {len(files)} video(s) of {split}")
        typer.echo(f"next: surgicalmamba evaluate --labels {data} --predictions {out} --common-videos")
