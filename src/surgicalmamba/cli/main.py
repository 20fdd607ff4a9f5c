"""The `surgicalmamba` command. Verbs are registered here; their heavy imports happen when they run.

Other packages add verbs by an entry point of the group `surgicalmamba.commands` that names a function or a Typer app,
as `lab/pyproject.toml` does for `study` and `bench`."""

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

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


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"surgicalmamba {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)] = False,
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
    """Register the verbs of other installed packages. One that cannot be loaded is named on stderr and left out."""
    for plugin in entry_points(group="surgicalmamba.commands"):
        try:
            command = plugin.load()
        except Exception as error:  # another package's code: a fault in it must not disable the other verbs
            typer.echo(f"surgicalmamba: the command {plugin.name!r} of {plugin.value} cannot be loaded: {error}", err=True)
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=plugin.name)
        else:
            app.command(plugin.name)(command)


add_plugins()


def main() -> None:
    """Run the command line. An expected error is one line on stderr and exit code 1; misuse is exit code 2."""
    try:
        app()
    except SurgicalMambaError as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"surgicalmamba: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)
