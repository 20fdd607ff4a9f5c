"""`surgicalmamba regime`: does intensity modulation fit a procedure? Answered before any training."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from surgicalmamba.cli.inspect import Docs


def regime(
    data: Annotated[Path | None, Option(help="A prepared dataset.")] = None,
    labels: Annotated[
        Path | None,
        Option(help="Or annotations: a downloaded dataset (videos not needed) or a label file per video."),
    ] = None,
    phases: Annotated[
        str | None, Option(help="With --labels: dataset name or YAML file. Default: its phases.yaml.")
    ] = None,
    fps: Annotated[
        float | None, Option(help="With --labels: rows per second of files without times.")
    ] = None,
    out: Annotated[Path | None, Option(help="Folder for results.json and the figure (PNG and SVG).")] = None,
    docs: Docs = None,
    theta: Annotated[
        float, Option(help="Share of the old phase's content that may remain at the end of a segment.")
    ] = 0.1,
    quantile: Annotated[
        float, Option(help="Quantile of the segment lengths that represents short segments.")
    ] = 0.1,
    rise: Annotated[float, Option(help="sigma_L of the bursts, seconds (loss.rise_s).")] = 2.0,
    fall: Annotated[float, Option(help="sigma_R of the bursts, seconds (loss.fall_s).")] = 12.0,
    plateau: Annotated[
        float, Option(help="Share that a trained state keeps per second within a phase; the paper's 0.92.")
    ] = 0.92,
    json: Annotated[bool, Option("--json", help="Print results.json instead of text.")] = False,
) -> None:
    """Compute from annotations alone whether intensity modulation fits a procedure, and which burst widths
    fit. Needs no model and no training.

    Example: surgicalmamba regime --labels cholec80/phase_annotations --phases cholec80 --out regime-cholec80
    """
    if (data is None) == (labels is None):
        raise typer.BadParameter("give either --data (a prepared dataset) or --labels (annotations).")
    if data is not None and (phases is not None or fps is not None):
        raise typer.BadParameter("--phases and --fps need --labels; a prepared dataset contains both.")
    for name, value in (("--theta", theta), ("--quantile", quantile), ("--plateau", plateau)):
        if not 0 < value < 1:
            raise typer.BadParameter(f"{name} {value:g} must lie between 0 and 1.")
    for name, number in (("--rise", rise), ("--fall", fall), ("--fps", fps)):
        if number is not None and not number > 0:
            raise typer.BadParameter(f"{name} {number:g} must be positive.")

    from surgicalmamba.insight.regime import Assumptions, find_regime, read_annotations, read_prepared
    from surgicalmamba.insight.regime_page import markdown, text, write_regime
    from surgicalmamba.report.sections import circumstances, refresh_page

    if labels is not None:
        annotations = read_annotations(labels, phases, fps)
    else:
        annotations = read_prepared(data or Path())
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
