"""`surgicalmamba serve`: recognizers for many rooms over the network, and the page that shows them."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer


def serve(
    overrides: Annotated[list[str] | None, typer.Argument(help="key.sub=value, such as limits.sessions=16.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; others than loopback need tokens.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    model: Annotated[str | None, typer.Option(help="Checkpoint folder or Hub id; the demo model if absent.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the record.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Offer a synthetic procedure on the page.")] = False,
    new_token: Annotated[str | None, typer.Option(help="Print a new token of this role and its line for the settings, and end.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print where it listens as a JSON object.")] = False,
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
    given = {"host": host, "port": port, "model": model, "data": data, "demo": demo or None}
    twice = [text for text in overrides or [] if given.get(text.partition("=")[0]) is not None]
    if twice:
        raise typer.BadParameter(f"{twice[0]} would compete with --{twice[0].partition('=')[0]}; give one of them.")
    values |= {key: value for key, value in given.items() if value is not None}
    settings = ServeConfig(**with_environment(override(values, overrides or [])))
    set_up_logging()
    try:
        from surgicalmamba.server.app import serve as run
    except ImportError as error:
        raise ConfigError(f"the server needs the extra packages ({error.name} is missing): pip install 'surgicalmamba[serve]'.") from None

    def tell(url: str, model_name: str, is_trained: bool | None) -> None:
        if json:
            about = {"url": url, "data": str(settings.data), "model": model_name, "demo": settings.demo}
            typer.echo(json_module.dumps(about))
            return
        typer.echo(f"{url}   model: {model_name}   record in {settings.data}   Ctrl-C ends")
        if is_trained is False:
            typer.echo("The demo model is not trained: phases move, but mean nothing. Give a trained one with --model.")
        if settings.demo:
            typer.echo("Open the address in a browser and press: Start the demo")
        typer.echo("Research software, not a medical device.")

    run(settings, tell)


def _print_token(role: str) -> None:
    from surgicalmamba.server.security import ROLES, hash_token
    from surgicalmamba.server.security import new_token as make

    if role not in ROLES:
        raise typer.BadParameter(f"roles are {', '.join(ROLES)}.", param_hint="--new-token")
    token = make()
    typer.echo(f"token (give it to its user; it is not stored): {token}")
    typer.echo(f"line for `tokens:` in the settings: - {{name: NAME, role: {role}, sha256: {hash_token(token)}}}")
