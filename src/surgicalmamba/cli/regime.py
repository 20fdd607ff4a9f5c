"""`surgicalmamba regime`: whether intensity modulation fits a procedure, before anything is trained."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from surgicalmamba.cli.inspect import Docs


def regime(
    data: Annotated[Path | None, typer.Option(help="A prepared dataset.")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Or a folder of annotations: a dataset as downloaded, videos or not, or a label file per video.")
    ] = None,
    phases: Annotated[
        str | None, typer.Option(help="With --labels: dataset (cholec80, cataract101, ...) or a YAML file. Default: its phases.yaml.")
    ] = None,
    fps: Annotated[float | None, typer.Option(help="With --labels: rows per second of files that do not tell.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json and the figure (PNG and SVG).")] = None,
    docs: Docs = None,
    theta: Annotated[float, typer.Option(help="Share of the old phase's content that may be left at the end of a segment.")] = 0.1,
    quantile: Annotated[float, typer.Option(help="Which quantile of the lengths stands for the short segments.")] = 0.1,
    rise: Annotated[float, typer.Option(help="sigma_L of the bursts, seconds (loss.rise_s).")] = 2.0,
    fall: Annotated[float, typer.Option(help="sigma_R of the bursts, seconds (loss.fall_s).")] = 12.0,
    plateau: Annotated[float, typer.Option(help="What a trained state keeps per second within a phase; the paper's 0.92.")] = 0.92,
    json: Annotated[bool, typer.Option("--json", help="Print results.json instead of text.")] = False,
) -> None:
    """Tell from annotations alone whether intensity modulation fits a procedure, and which burst widths suit it. No model, no training.

    Example: surgicalmamba regime --labels cholec80/phase_annotations --phases cholec80 --out regime-cholec80
    """
    if (data is None) == (labels is None):
        raise typer.BadParameter("give either --data (a prepared dataset) or --labels (a folder of annotations).")
    if data is not None and (phases is not None or fps is not None):
        raise typer.BadParameter("--phases and --fps go with --labels; a prepared dataset knows its own.")
    for name, value in (("--theta", theta), ("--quantile", quantile), ("--plateau", plateau)):
        if not 0 < value < 1:
            raise typer.BadParameter(f"{name} {value:g} must lie between 0 and 1.")
    for name, given in (("--rise", rise), ("--fall", fall), ("--fps", fps)):
        if given is not None and not given > 0:
            raise typer.BadParameter(f"{name} {given:g} must be positive.")

    from surgicalmamba.insight.regime import Assumptions, find_regime, read_annotations, read_prepared
    from surgicalmamba.insight.regime_page import markdown, text, write_regime
    from surgicalmamba.report.sections import circumstances, refresh_page

    annotations = read_annotations(labels, phases, fps) if labels is not None else read_prepared(data or Path())
    found = find_regime(annotations, Assumptions(theta, quantile, rise, fall, plateau))
    about = circumstances()
    document = {"study": "regime", **about, **found.as_dict()}
    if out is not None:
        write_regime(out, found, annotations, document)
    if docs is not None:
        refresh_page(docs, f"regime {found.dataset}", markdown(found, about))
    typer.echo(json_module.dumps(document, indent=1) if json else text(found))
    if out is not None and not json:
        typer.echo(f"\n{out}: results.json, regime.png, regime.svg")
