"""The `surgicalmamba` command. Verbs are registered here; each imports its heavy modules when it runs.

Other packages add verbs with an entry point of the group `surgicalmamba.commands` that names a function or a
Typer app, as `lab/pyproject.toml` does for `study` and `bench`."""

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer
from typer import Option

from surgicalmamba.cli.check import check
from surgicalmamba.cli.demo import demo
from surgicalmamba.cli.doctor import doctor
from surgicalmamba.cli.evaluate import evaluate
from surgicalmamba.cli.export import export
from surgicalmamba.cli.inspect import inspect
from surgicalmamba.cli.predict import predict
from surgicalmamba.cli.prepare import prepare
from surgicalmamba.cli.regime import regime
from surgicalmamba.cli.serve import serve
from surgicalmamba.cli.stream import stream
from surgicalmamba.cli.train import train
from surgicalmamba.errors import SurgicalMambaError
from surgicalmamba.version import __version__

app = typer.Typer(
    name="surgicalmamba",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Online surgical phase recognition. Research software, not a medical device.",
)


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"surgicalmamba {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, Option("--debug", help="Show the full traceback of an error.")] = False,
    version: Annotated[
        bool,
        Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Options before the verb."""


app.command()(demo)
app.add_typer(prepare, name="prepare")
app.command()(check)
app.command()(train)
app.command()(predict)
app.command()(evaluate)
app.command()(serve)
app.command()(stream)
app.command()(export)
app.command()(regime)
app.command()(inspect)
app.command()(doctor)


def add_plugins() -> None:
    """Register the verbs of other installed packages. A verb that cannot be loaded is reported on stderr and
    skipped."""
    for plugin in entry_points(group="surgicalmamba.commands"):
        try:
            command = plugin.load()
        except Exception as error:  # an error in another package must not disable the other verbs
            command_text = f"the command {plugin.name!r} of {plugin.value}"
            typer.echo(f"surgicalmamba: {command_text} cannot be loaded: {error}", err=True)
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=plugin.name)
        else:
            app.command(plugin.name)(command)


add_plugins()


def main() -> None:
    """Run the command line. An expected error: one line on stderr and exit code 1. Misuse: exit code 2."""
    try:
        app()
    except SurgicalMambaError as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"surgicalmamba: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)
