"""`surgicalmamba study NAME`: runs over seeds and variants, with tables that state how they were made. A
subcommand parses, calls the functions of one module of `studies`, and prints."""

import json as json_module
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from surgicalmamba.cli.inspect import Docs, Title, inspect
from surgicalmamba.cli.regime import regime

if TYPE_CHECKING:
    from surgicalmamba.config import Section
    from surgicalmamba.data.store import PreparedDataset
    from surgicalmamba.train.config import TrainConfig
    from surgicalmamba_lab.studies.runs import Job, RunJobs

study = typer.Typer(
    no_args_is_help=True,
    help="Train and score over seeds, splits and variants; the same call resumes an interrupted study.",
)
T = TypeVar("T")

Recipe = Annotated[Path, typer.Option(help="The recipe: a file of configs/.")]
Data = Annotated[Path, typer.Option(help="A prepared dataset.")]
Out = Annotated[
    Path,
    typer.Option(
        help="Folder of the study; the same call resumes it, and more seeds or rows are added to it."
    ),
]
Overrides = Annotated[list[str] | None, typer.Argument(help="key.sub=value, put over the recipe.")]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ...")]
Splits = Annotated[str | None, typer.Option(help="Splits by pattern, such as 'louo-*'; default: the first.")]
Folds = Annotated[
    int | None, typer.Option(min=2, help="Cut the first split's train and val into folds instead.")
]
TrainFolds = Annotated[int | None, typer.Option(min=1, help="With --folds: train on only so many others.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Runs at a time; default: one per core.")]
Quick = Annotated[bool, typer.Option("--quick", help="One epoch a run: that everything works, not how well.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@study.callback()
def options() -> None:
    """Studies by name."""


for verb in (regime, inspect):  # verbs of the product, available as studies too
    study.command(
        help=(verb.__doc__ or "").replace("Example: surgicalmamba", "Example: surgicalmamba study")
    )(verb)


@study.command()
def benchmark(
    config: Recipe,
    data: Data,
    out: Out,
    overrides: Overrides = None,
    seeds: Seeds = 3,
    variants: Annotated[
        str | None,
        typer.Option(
            help="Rows, comma-separated: full, vanilla-mamba2, without-z, ...; default: the recipe's."
        ),
    ] = None,
    splits: Splits = None,
    workers: Workers = None,
    docs: Docs = None,
    quick: Quick = False,
    json: AsJson = False,
) -> None:
    """Train a recipe with several seeds and score it with every protocol.

    Example: surgicalmamba study benchmark --config configs/study-tools.yaml --data prepared --out study/tools
    """
    from surgicalmamba.report.sections import circumstances, refresh_page
    from surgicalmamba_lab.studies.results import gather, markdown, summary_text, write_results
    from surgicalmamba_lab.studies.runs import benchmark_jobs

    taken = {"recognizer.variant": "--variants"} if variants else {}
    recipe, dataset = recipe_on(config, data, overrides, quick, taken)
    jobs = benchmark_jobs(recipe, dataset, seeds, listed(variants, str, "--variants"), splits)
    runner(out, workers)(jobs, "runs")
    rows = gather(jobs, out, dataset)
    about = circumstances()
    file = write_results(out, "benchmark", dataset, rows, about)
    if docs is not None:
        refresh_page(docs, f"benchmark {dataset.name}", markdown(f"{dataset.name}", rows, about))
    print_results(file, summary_text(rows), json)


@study.command()
def ablation(
    config: Recipe,
    data: Data,
    out: Out,
    overrides: Overrides = None,
    seeds: Seeds = 5,
    splits: Splits = None,
    folds: Folds = None,
    train_folds: TrainFolds = None,
    rows: Annotated[
        str | None,
        typer.Option(help="Only these rows, comma-separated; the others are compared with the first."),
    ] = None,
    learning_rates: Annotated[
        str | None,
        typer.Option(
            help="Rates to try for every row, such as 5e-4,1e-3; each gets its best on validation videos."
        ),
    ] = None,
    rate_seeds: Annotated[int, typer.Option(min=1, help="Seeds by which a rate is chosen.")] = 1,
    workers: Workers = None,
    docs: Docs = None,
    title: Title = None,
    quick: Quick = False,
    json: AsJson = False,
) -> None:
    """Train the full model, two controls and the model without each part; compare them video by video.

    Example: surgicalmamba study ablation --config configs/study-tools.yaml --data prepared --out study/abl
    """
    refuse_both(folds, splits, train_folds)
    rates = listed(learning_rates, float, "--learning-rates")

    from surgicalmamba.report.sections import circumstances
    from surgicalmamba_lab.studies.ablation import ROWS, AblationPlan, run_ablation, summary, write_ablation

    recipe, dataset = recipe_on(
        config, data, overrides, quick, {"optim.lr": "--learning-rates"} if rates else {}
    )
    chosen = tuple(listed(rows, str, "--rows") or ROWS)
    plan = AblationPlan(recipe, chosen, seeds, splits, folds, tuple(rates), rate_seeds, train_folds)
    result = run_ablation(plan, dataset, out, runner(out, workers))
    print_results(write_ablation(result, out, circumstances(), docs, title), summary(result), json)


@study.command()
def sensitivity(
    config: Annotated[Path, typer.Option(help="The recipe with the default values: a file of configs/.")],
    data: Data,
    out: Out,
    overrides: Overrides = None,
    rank: Annotated[str | None, typer.Option(help="Values of the rotation rank r, comma-separated.")] = None,
    chunk: Annotated[str | None, typer.Option(help="Values of the chunk length in frames.")] = None,
    state: Annotated[str | None, typer.Option(help="Values of the state width N.")] = None,
    blocks: Annotated[str | None, typer.Option(help="Values of the number of blocks K.")] = None,
    angle: Annotated[str | None, typer.Option(help="Values of the rotation's mean start angle, rad.")] = None,
    only: Annotated[
        str | None, typer.Option(help="Only these sweeps, such as rank,angle; default: all but angle.")
    ] = None,
    seeds: Seeds = 3,
    splits: Splits = None,
    folds: Folds = None,
    train_folds: TrainFolds = None,
    workers: Workers = None,
    docs: Docs = None,
    title: Title = None,
    quick: Quick = False,
    json: AsJson = False,
) -> None:
    """Sweep rotation rank, chunk, state width and number of blocks, each with the other three as in the
    recipe.

    Example: surgicalmamba study sensitivity --config configs/study-tools.yaml --data prepared --out study/s
    """
    refuse_both(folds, splits, train_folds)
    texts = {"rank": rank, "chunk": chunk, "state": state, "blocks": blocks, "angle": angle}

    from surgicalmamba.report.sections import circumstances
    from surgicalmamba_lab.studies.results import summary_text
    from surgicalmamba_lab.studies.sensitivity import KNOBS, PAPER, run_sensitivity, write_sensitivity

    chosen = listed(only, str, "--only") or [
        name for name in texts if name in PAPER or texts[name] is not None
    ]
    unknown = [name for name in chosen if name not in texts]
    if unknown:
        raise typer.BadParameter(f"--only {unknown[0]!r} is no sweep; sweeps: {', '.join(texts)}.")
    values = {name: listed(texts[name], KNOBS[name].kind, f"--{name}") for name in KNOBS if name in chosen}
    recipe, dataset = recipe_on(config, data, overrides, quick, {})
    run = runner(out, workers)
    result = run_sensitivity(recipe, values, seeds, splits, folds, train_folds, dataset, out, run)
    print_results(
        write_sensitivity(result, out, circumstances(), docs, title), summary_text(result.rows), json
    )


@study.command()
def mqar(
    out: Out,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="key=value, put over the preset, such as cells=[T64-V256-N4-d32]."),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(help="plateau, for two cores; paper-cell, one cell of the paper; full, its protocol."),
    ] = "plateau",
    seeds: Seeds = 5,
    workers: Workers = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda or mps; one run at a time is best on a GPU (--workers 1).")
    ] = "cpu",
    docs: Docs = None,
    title: Title = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few updates a run: shows that everything works, not how well.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Multi-query associative recall with and without state regramming, each at its own learning rate.

    Example: surgicalmamba study mqar --out study/mqar --quick
    """
    from surgicalmamba.config import Section
    from surgicalmamba.devices import pick_device
    from surgicalmamba.report.sections import circumstances
    from surgicalmamba_lab.studies.mqar import recall_text, run_recall, write_recall
    from surgicalmamba_lab.studies.mqar_task import QUICK, preset_config

    pick_device(device)
    shorter = QUICK if quick else []
    refuse_decided(overrides or [], {text.partition("=")[0]: "--quick" for text in shorter}, Section)
    config = preset_config(preset, [*(overrides or []), *shorter])
    cells = run_recall(config, seeds, out, workers or os.cpu_count() or 1, device, bar_over)
    file = write_recall(cells, config, seeds, out, circumstances(), docs, title or f"MQAR, {preset}")
    print_results(file, recall_text(cells), json)


@study.command()
def intensity(
    data: Data,
    rise: Annotated[float, typer.Option(help="sigma_L of the bursts, seconds (loss.rise_s).")] = 2.0,
    fall: Annotated[float, typer.Option(help="sigma_R of the bursts, seconds (loss.fall_s).")] = 12.0,
    memory: Annotated[str, typer.Option(help="Running means, in frames (intensity.memory).")] = "8,32,128",
    folds: Annotated[
        int, typer.Option(min=2, help="A video is scored by a classifier not trained on it.")
    ] = 5,
    seeds: Seeds = 3,
    docs: Docs = None,
    title: Title = None,
    json: AsJson = False,
) -> None:
    """Bound what the intensity can learn: classifiers of boundaries on its input, with memory, on longer
    windows.

    Example: surgicalmamba study intensity --data prepared/cholec80-tools
    """
    from surgicalmamba.data.store import PreparedDataset
    from surgicalmamba.report.sections import circumstances
    from surgicalmamba.report.tables import align
    from surgicalmamba_lab.studies.intensity import boundary_bounds, bounds_table, section, usual_views
    from surgicalmamba_lab.studies.results import put_on_page

    views = usual_views(4, listed(memory, int, "--memory"))
    dataset = PreparedDataset.open(data)
    with bar_over(len(views) * folds * seeds, "classifiers") as progress:
        bounds = boundary_bounds(dataset, views, rise, fall, folds, seeds, progress)
    about = circumstances()
    if docs is not None:
        title = title or f"What an intensity could know, {dataset.name}"
        put_on_page(docs, title, section(bounds, about, title, seeds, folds, len(dataset.videos)))
    found = {bound.view: [asdict(measures) for measures in bound.by_seed] for bound in bounds}
    text = "\n".join(align(bounds_table(bounds)))
    typer.echo(json_module.dumps({"study": "intensity", **about, "views": found}, indent=1) if json else text)


@study.command()
def peers(
    data: Annotated[Path, typer.Option(help="A prepared dataset, of features unless you have a cluster.")],
    out: Out,
    config: Annotated[Path, typer.Option(help="The recipe of every network: a file of configs/.")],
    overrides: Overrides = None,
    seeds: Seeds = 3,
    peers: Annotated[
        str | None,
        typer.Option(help="Only these, comma-separated, such as surgicalmamba,tecno; default: all."),
    ] = None,
    splits: Splits = None,
    folds: Folds = None,
    train_folds: TrainFolds = None,
    learning_rates: Annotated[
        str | None,
        typer.Option(
            help="Rates tried for every network; each gets its best on validation. 'none': the recipe's."
        ),
    ] = None,
    published_sizes: Annotated[
        bool, typer.Option("--published-sizes", help="Also measure a live frame at published sizes.")
    ] = False,
    workers: Workers = None,
    docs: Docs = None,
    title: Title = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="One epoch a run, no sweep: shows that everything works, not how well."),
    ] = False,
    json: AsJson = False,
) -> None:
    """Train every network with the same features, splits, seeds and learning-rate sweep; score and time them.

    Example: surgicalmamba study peers --config configs/study-tools.yaml --data prepared --out study/peers
    """
    refuse_both(folds, splits, train_folds)

    from surgicalmamba.report.sections import circumstances
    from surgicalmamba_lab.studies.ablation import AblationPlan
    from surgicalmamba_lab.studies.peers import RATES, run_peers, summary, write_peers

    none = learning_rates == "none" or (quick and learning_rates is None)
    rates = () if none else tuple(listed(learning_rates, float, "--learning-rates") or RATES)
    decided = {"optim.lr": "--learning-rates ('none' takes the recipe's)"} if rates else {}
    recipe, dataset = recipe_on(config, data, overrides, quick, decided)
    plan = AblationPlan(
        recipe, tuple(listed(peers, str, "--peers")), seeds, splits, folds, rates, 1, train_folds
    )
    result = run_peers(plan, dataset, out, runner(out, workers), published_sizes)
    print_results(write_peers(result, out, circumstances(), docs, title), summary(result), json)


@study.command()
def peers_overview(
    studies: Annotated[
        list[str],
        typer.Argument(
            help="Finished folders of `study peers`, or NAME=FOLDER; a later one replaces its networks."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the figure (PNG and SVG).")] = None,
    docs: Docs = None,
    title: Title = None,
    json: AsJson = False,
) -> None:
    """Put finished comparisons side by side: score on each dataset, mean rank, cost of a live frame.

    Example: surgicalmamba study peers-overview study/tools synthetic=study/synthetic --out study/overview
    """
    from surgicalmamba.report.sections import circumstances
    from surgicalmamba.report.tables import align
    from surgicalmamba_lab.studies.peers_overview import note, read_overview, table, write_overview

    overview = read_overview(studies)
    write_overview(overview, out, circumstances(), docs, title or "Peers at a glance")
    text = "\n".join([*align(table(overview)), note(overview)])
    typer.echo(json_module.dumps(asdict(overview), indent=1) if json else text)


@study.command()
def equations(
    docs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the page here, its pictures into images/ beside it."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Check the appendix's identities with the package's own functions, and build the page that shows them.

    Example: surgicalmamba study equations
    """
    from surgicalmamba_lab.studies.equations import sections, write_page

    parts = sections()
    if docs is not None:
        write_page(docs, parts)
    if json:
        document = {part.title: part.as_dict() for part in parts}
        typer.echo(json_module.dumps({"study": "equations", "sections": document}, indent=1))
    else:
        for part in parts:
            typer.echo("\n  ".join([part.title, *(f"{check.claim}: {check.text}" for check in part.checks)]))
    if not all(check.holds for part in parts for check in part.checks):
        raise typer.Exit(1)


# What the commands share.


def refuse_both(folds: int | None, splits: str | None, train_folds: int | None) -> None:
    """Options that exclude or need each other."""
    if train_folds is not None and folds is None:
        raise typer.BadParameter("--train-folds goes with --folds.")
    if folds is not None and splits is not None:
        raise typer.BadParameter("--folds cuts its own splits; leave --splits out.")


def recipe_on(
    config: Path, data: Path, overrides: Sequence[str] | None, quick: bool, decided: Mapping[str, str]
) -> "tuple[TrainConfig, PreparedDataset]":
    """The recipe of a study with its overrides, and the dataset. An override that would not be used is
    refused: settings that options of the study decide (`decided`, setting to option), and those that
    dataset or network fix."""
    from surgicalmamba.config import load_config
    from surgicalmamba.data.store import PreparedDataset
    from surgicalmamba.train.config import TrainConfig
    from surgicalmamba.train.run import refuse_unused

    asked = list(overrides or [])
    decided = {"seed": "--seeds", "data.path": "--data", "data.split": "--splits", "run": "--out", **decided}
    refuse_decided(asked, {**decided, **({"epochs": "--quick"} if quick else {})}, TrainConfig)
    recipe = load_config(TrainConfig, config, [*asked, *(["epochs=1"] if quick else [])])
    dataset = PreparedDataset.open(data)
    refuse_unused(asked, recipe, dataset)
    return recipe, dataset


def refuse_decided(overrides: Sequence[str], decided: Mapping[str, str], section: "type[Section]") -> None:
    """An override of a setting that an option decides is misuse: only one of the two could be honoured."""
    from surgicalmamba.train.run import given_names, is_below

    for name in given_names(overrides, section):
        for setting, option in decided.items():
            if is_below(name, setting):
                raise typer.BadParameter(
                    f"{name} would not be used: {option} decides it. Leave the override out."
                )


def listed(text: str | None, kind: Callable[[str], T], option: str) -> list[T]:
    """The values of a comma-separated option, without repeats."""
    try:
        values = [kind(part.strip()) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter(f"{option} {text!r} is no comma-separated list of such values.") from None
    return list(dict.fromkeys(values))


@contextmanager
def bar_over(total: int, label: str) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while the block runs; call the function it yields with the number that is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(label, total=total)
        yield lambda done: progress.update(bar, completed=done)


def runner(out: Path, workers: int | None) -> "RunJobs":
    """A function that runs all jobs that are not done, by default one per core, with a progress bar."""
    from surgicalmamba_lab.studies.runs import run_jobs

    def run(jobs: "list[Job]", label: str) -> None:
        with bar_over(len(jobs), label) as progress:
            progress(sum(job.is_done(out) for job in jobs))
            run_jobs(jobs, out, workers or os.cpu_count() or 1, progress)

    return run


def print_results(file: Path, summary: str, json: bool) -> None:
    """results.json itself, or a summary and where it is."""
    typer.echo(file.read_text(encoding="utf-8") if json else f"{summary}\nall results: {file}")
