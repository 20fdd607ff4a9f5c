"""`surgicalmamba export`: a trained recognizer as files that other programs can run."""

import json as json_module
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option


class Format(str, Enum):
    onnx = "onnx"


class StepForm(str, Enum):
    auto = "auto"
    weight_only = "weight-only"
    dynamic = "dynamic"


def export(
    checkpoint: Annotated[
        str, Argument(help="A run folder (its best model), a checkpoint folder, or a Hub id.")
    ],
    out: Annotated[Path, Option(help="Folder to write; it must not exist or be empty.")],
    to: Annotated[Format, Option(help="Format of the files.")] = Format.onnx,
    int8: Annotated[
        bool, Option("--int8", help="Smaller and faster; equal to the model only approximately.")
    ] = False,
    int8_step: Annotated[
        StepForm, Option(help="int8 form of the temporal step. auto: the more accurate one.")
    ] = StepForm.auto,
    json: Annotated[bool, Option("--json", help="Print a JSON object instead of text.")] = False,
) -> None:
    """Write ONNX graphs with explicit state, a model card, measured differences to the model, and a script
    that runs the graphs without torch.

    Example: surgicalmamba export runs/first --to onnx --out first-onnx"""
    if int8_step is not StepForm.auto and not int8:
        raise typer.BadParameter("--int8-step needs --int8.")

    from rich.console import Console

    from surgicalmamba.engines.export import export as write_export
    from surgicalmamba.model.checkpoint import best_of, load, read_about

    source = best_of(checkpoint)
    model = load(source)
    provenance = (
        read_about(Path(source)).get("provenance", {}) if Path(source).is_dir() else {"hub": str(source)}
    )
    step_way = None if int8_step is StepForm.auto else int8_step.value
    with Console(stderr=True).status(f"exporting to {to.value}"):
        parity = write_export(model, out, int8, step_way, provenance)
    if json:
        figures = json_module.loads((out / "parity.json").read_text(encoding="utf-8"))
        typer.echo(json_module.dumps({"out": str(out), **figures}, indent=2))
        return
    size = sum(file.stat().st_size for file in out.iterdir())
    errors = f"logits {parity.logits:.1e}, state {parity.state:.1e} of the largest value"
    typer.echo(f"{out}: {parity.engine}, {size / 1e6:.1f} MB; see its README.md")
    typer.echo(f"difference to the model over {parity.frames} frames: {errors}")
