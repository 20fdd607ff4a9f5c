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
    fit_output: Annotated[
        Path | None, typer.Option(help="Also fit calibration and phase filter on these validation videos; for stream --output-stage.")
    ] = None,
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
    stage = None
    if fit_output is not None:
        from surgicalmamba.stream.fit_output import fit_from_folder, table_text

        stage = fit_from_folder(predictor.dataset, split, out)
        stage.save(fit_output)
    if json:
        document: dict[str, object] = {"out": str(out), "videos": [file.stem for file in files]}
        if stage is not None:
            document["output_stage"] = stage.model_dump(mode="json")
        typer.echo(json_module.dumps(document, indent=2))
    else:
        typer.echo(f"{out}: {len(files)} video(s) of {split}")
        if stage is not None:
            typer.echo(f"{fit_output}: output stage\n{table_text(stage)}")
        typer.echo(f"next: surgicalmamba evaluate --labels {data} --predictions {out} --common-videos")
