"""Commands of the documents, parsed as the command line parses them, without running them."""

import re
import shlex
from pathlib import Path

import click
from typer.main import get_command

from docs.blocks import ROOT
from surgicalmamba.cli.main import app
from surgicalmamba.config import load_config


def words_of(line: str) -> list[str]:
    """The words of a command line without its comment."""
    return shlex.split(line, comments=True)


def find_command(words: list[str]) -> tuple[click.Context, click.Command, list[str]]:
    """The (sub)command that `words`, behind `surgicalmamba`, name, and the arguments that are left for it."""
    command: click.Command = get_command(app)
    context = click.Context(command, info_name="surgicalmamba")
    rest = [word for i, word in enumerate(words) if not (i == 0 and word == "--debug")]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        below = command.get_command(context, rest[0])
        assert below is not None, f"there is no command {' '.join(words)!r}"
        context = click.Context(below, parent=context, info_name=rest.pop(0))
        command = below
    return context, command, rest


def check_command(line: str) -> None:
    """A whole command: its verb, options and values are accepted, nothing that must be given is missing, settings exist."""
    words = words_of(line)
    if words[:1] == ["torchrun"]:
        words = ["surgicalmamba", *words[words.index("surgicalmamba") + 1 :]]
    if words[0] == "pip":
        check_install(words)
    elif words[0] == "make":
        check_targets(words[1:])
    elif words[0] == "surgicalmamba":
        context, command, rest = find_command(words[1:])
        assert context.info_name is not None
        parsed = command.make_context(context.info_name, rest, parent=context.parent)
        if context.info_name == "train" and parsed.params["config"] is not None:
            _check_settings(parsed.params["config"], parsed.params["overrides"] or [])


def _check_settings(config: Path, overrides: list[str]) -> None:
    from surgicalmamba.train.config import TrainConfig

    load_config(TrainConfig, ROOT / config, list(overrides))


def check_mention(line: str) -> None:
    """A command named in running text, perhaps without its arguments: the verb and the options exist."""
    words = words_of(line.replace("...", ""))
    _, command, rest = find_command(words[1:])
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)} | {"--help", "--version"}
    unknown = {word.partition("=")[0] for word in rest if word.startswith("--")} - known
    assert not unknown, f"{line!r}: no such option: {', '.join(sorted(unknown))}"


def check_install(words: list[str]) -> None:
    """`pip install` of this package names extras that exist, and files that are there."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = set(re.findall(r"^(\w+) = \[", text.split("[project.optional-dependencies]")[1].split("[project.scripts]")[0], re.MULTILINE))
    for word in words[2:]:
        asked = re.fullmatch(r"(?:surgicalmamba|\.)\[(.+)\]", word)
        if asked:
            assert set(asked[1].split(",")) <= extras, f"no such extra in pyproject.toml: {word}"
    for option, value in zip(words, words[1:], strict=False):
        if option in ("-c", "-r"):
            assert (ROOT / value).is_file(), f"pip is given {value}, which is not in the repository"


def check_targets(targets: list[str]) -> None:
    """`make` is asked for targets of the Makefile."""
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(targets) <= known, f"the Makefile has no target {', '.join(sorted(set(targets) - known))}"
