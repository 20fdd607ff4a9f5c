"""`surgicalmamba serve`: recognizers for many rooms over the network, and the page that shows them."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option


def serve(
    overrides: Annotated[
        list[str] | None, Argument(help="key.sub=value, such as limits.sessions=16.")
    ] = None,
    config: Annotated[Path | None, Option(help="A YAML file of settings.")] = None,
    host: Annotated[
        str | None, Option(help="Address to listen on; addresses other than loopback need tokens.")
    ] = None,
    port: Annotated[int | None, Option(help="Port to listen on; 0 takes a free one.")] = None,
    model: Annotated[str | None, Option(help="Checkpoint folder or Hub id. Default: the demo model.")] = None,
    data: Annotated[Path | None, Option(help="Folder of the record.")] = None,
    demo: Annotated[bool, Option("--demo", help="Offer a synthetic procedure on the page.")] = False,
    new_token: Annotated[
        str | None, Option(help="Print a new token of this role with its line for the settings, and exit.")
    ] = None,
    json: Annotated[bool, Option("--json", help="Print the address as a JSON object.")] = False,
) -> None:
    """Run the live server until Ctrl-C. A crash loses nothing that was acknowledged.

    Example: surgicalmamba serve --demo
    """
    if new_token is not None:
        _print_token(new_token)
        return
    from surgicalmamba.config import load_mapping, override
    from surgicalmamba.errors import ConfigError
    from surgicalmamba.server.config import ServeConfig
    from surgicalmamba.server.metrics import set_up_logging
    from surgicalmamba.server.security import with_environment

    values = {} if config is None else load_mapping(config)
    options = {"host": host, "port": port, "model": model, "data": data, "demo": demo or None}
    twice = [text for text in overrides or [] if options.get(text.partition("=")[0]) is not None]
    if twice:
        option = f"--{twice[0].partition('=')[0]}"
        raise typer.BadParameter(f"{twice[0]} and {option} set the same value; give one of them.")
    values |= {key: value for key, value in options.items() if value is not None}
    settings = ServeConfig(**with_environment(override(values, overrides or [])))
    set_up_logging()
    try:
        from surgicalmamba.server.app import serve as run
    except ImportError as error:
        install = "pip install 'surgicalmamba[serve]'"
        raise ConfigError(f"the server needs extra packages ({error.name} is missing): {install}.") from None

    def print_address(url: str, model_name: str, is_trained: bool | None) -> None:
        if json:
            about = {"url": url, "data": str(settings.data), "model": model_name, "demo": settings.demo}
            typer.echo(json_module.dumps(about))
            return
        typer.echo(f"{url}   model: {model_name}   record in {settings.data}   Ctrl-C to stop")
        if is_trained is False:
            typer.echo("The model is not trained: its phases mean nothing. Give a trained one with --model.")
        if settings.demo:
            typer.echo("Open the address in a browser and press: Start the demo")
        typer.echo("Research software, not a medical device.")

    run(settings, print_address)


def _print_token(role: str) -> None:
    from surgicalmamba.server.security import ROLES, hash_token
    from surgicalmamba.server.security import new_token as make

    if role not in ROLES:
        raise typer.BadParameter(f"roles are {', '.join(ROLES)}.", param_hint="--new-token")
    token = make()
    typer.echo(f"token (give it to its user; it is not stored): {token}")
    entry = f"{{name: NAME, role: {role}, sha256: {hash_token(token)}}}"
    typer.echo(f"line for `tokens:` in the settings: - {entry}")
