"""`surgicalmamba predict`: run a trained recognizer over the videos of a prepared dataset."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option


def predict(
    checkpoint: Annotated[
        str, Argument(help="A run folder (its best model), a checkpoint folder, or a Hub id.")
    ],
    data: Annotated[Path, Option(help="A prepared dataset.")],
    out: Annotated[Path, Option(help="Folder for the prediction files; existing files are kept.")],
    split: Annotated[
        str, Option(help="Videos: train, val, test or all; or NAME:ROLE of another split.")
    ] = "test",
    device: Annotated[str, Option(help="auto, cpu, cuda or mps.")] = "auto",
    ray: Annotated[
        bool, Option("--ray", help="Use Ray workers: at RAY_ADDRESS if it is set, else on this machine.")
    ] = False,
    ray_address: Annotated[
        str | None, Option(help="Use the workers of this Ray cluster; auto finds a running one.")
    ] = None,
    workers: Annotated[
        int | None, Option(min=1, help="Ray workers. Default: as many as the cluster has room for.")
    ] = None,
    threads: Annotated[
        int | None, Option(min=1, help="Torch threads, per worker with Ray. Default: all cores; 1 with Ray.")
    ] = None,
    fit_output: Annotated[
        Path | None,
        Option(help="Also fit calibration and phase filter on these videos, for stream --output-stage."),
    ] = None,
    json: Annotated[bool, Option("--json", help="Print a JSON object instead of text.")] = False,
) -> None:
    """Write one prediction file per video, equal to the live estimates. After an interruption, run the same
    command again to resume.

    Example: surgicalmamba predict runs/first --data synthetic-prepared --split val --out predictions
    """
    on_ray = ray or ray_address is not None
    if workers is not None and not on_ray:
        raise typer.BadParameter("--workers goes with --ray.")

    import os
    from collections.abc import Iterator

    import torch
    from rich.console import Console
    from rich.progress import track

    from surgicalmamba.train.predict import Predictor, RaySettings, predict_on_ray

    n_threads = threads or (1 if on_ray else torch.get_num_threads())
    torch.set_num_threads(n_threads)
    predictor = Predictor.open(checkpoint, data, split, out, device)
    written: Iterator[Path]
    if on_ray:
        place = RaySettings(ray_address or os.environ.get("RAY_ADDRESS", "local"), workers, n_threads)
        written = predict_on_ray(predictor, checkpoint, split, device, place)
    else:
        written = map(predictor.predict, predictor.videos)
    total = len(predictor.videos)
    files = sorted(track(written, "predicting", total=total, console=Console(stderr=True), transient=True))
    predictor.finish()
    stage = None
    if fit_output is not None:
        from surgicalmamba.live.fit_output import fit_from_folder, table_text

        stage = fit_from_folder(predictor.dataset, split, out)
        stage.save(fit_output)
    if json:
        videos = [file.stem for file in files]
        document: dict[str, object] = {"out": str(out), "videos": videos, "threads": n_threads}
        if stage is not None:
            document["output_stage"] = stage.model_dump(mode="json")
        typer.echo(json_module.dumps(document, indent=2))
    else:
        threads_text = f"{n_threads} thread(s){' per Ray worker' if on_ray else ''}"
        typer.echo(f"{out}: {len(files)} video(s) of {split}, {threads_text}")
        if stage is not None:
            typer.echo(f"{fit_output}: output stage\n{table_text(stage)}")
        typer.echo(f"next: surgicalmamba evaluate --labels {data} --predictions {out} --common-videos")
