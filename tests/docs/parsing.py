"""Commands of the documents, parsed as the command line parses them, without running them."""

import itertools
import re
import shlex

from typer.main import get_command

from docs.blocks import ROOT
from surgicalmamba.cli.main import app
from surgicalmamba.config import load_config


def words_of(line):
    """The words of a command line without its comment."""
    return shlex.split(line, comments=True)


def find_command(words):
    """The command that `words`, behind `surgicalmamba`, name, and the arguments that are left for it."""
    command = get_command(app)
    rest = words[1:] if words[:1] == ["--debug"] else list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"there is no command surgicalmamba {' '.join(words)}"
        command = command.commands[rest.pop(0)]
    return command, rest


def check_command(line):
    """A whole command: its verb, options and values are accepted, nothing that must be given is missing,
    settings exist."""
    for is_pipe, part in itertools.groupby(words_of(line), lambda word: word == "|"):
        if not is_pipe:
            _check_words(list(part), line)


def _check_words(words, line):
    if words[:1] == ["torchrun"]:
        words = ["surgicalmamba", *words[words.index("surgicalmamba") + 1 :]]
    if words[0] == "pip":
        check_install(words)
    elif words[0] == "make":
        check_targets(words[1:])
    elif words[0] == "surgicalmamba":
        command, rest = find_command(words[1:])
        assert not hasattr(command, "commands"), f"{line!r} is not a whole command"
        given = command.make_context(words[1], rest).params
        if words[1] == "train" and given["config"] is not None:
            _check_settings(given["config"], given["overrides"] or [])


def _check_settings(config, overrides):
    from surgicalmamba.train.config import TrainConfig

    load_config(TrainConfig, ROOT / config, list(overrides))


def check_mention(line):
    """A command named in running text, perhaps without its arguments: the verb and the options exist."""
    words = words_of(line.replace("...", ""))
    command, rest = find_command(words[1:])
    if hasattr(
        command, "commands"
    ):  # a group with its subcommand left open, such as `surgicalmamba study ...`
        return
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help", "--version"}
    unknown = {word.partition("=")[0] for word in rest if word.startswith("--")} - known
    assert not unknown, f"{line!r}: no such option: {', '.join(sorted(unknown))}"


def check_install(words):
    """`pip install` of this package names extras that exist, and files that are there."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = set(
        re.findall(
            r"^(\w+) = \[",
            text.split("[project.optional-dependencies]")[1].split("[project.scripts]")[0],
            re.MULTILINE,
        )
    )
    for word in words[2:]:
        asked = re.fullmatch(r"(?:surgicalmamba|\.)\[(.+)\]", word)
        if asked:
            assert set(asked[1].split(",")) <= extras, f"no such extra in pyproject.toml: {word}"
    for option, value in itertools.pairwise(words):
        if option in ("-c", "-r"):
            assert (ROOT / value).is_file(), f"pip is given {value}, which is not in the repository"


def check_targets(targets):
    """`make` is asked for targets of the Makefile."""
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(targets) <= known, f"the Makefile has no target {', '.join(sorted(set(targets) - known))}"
