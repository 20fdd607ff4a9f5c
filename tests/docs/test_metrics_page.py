"""The page on metrics explains every protocol, and the options it names exist. (test_snippets.py runs its
examples.)"""

import re
from pathlib import Path

import pytest

from surgicalmamba.eval.protocols import PROTOCOLS

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_explains_every_protocol():
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == set(PROTOCOLS)


@pytest.mark.parametrize(
    "option", sorted(set(re.findall(r"--[a-z][\w-]+", PAGE.read_text(encoding="utf-8"))))
)
def test_every_option_on_the_page_exists(option):
    from typer.main import get_command

    from surgicalmamba.cli.main import app

    commands = get_command(app).commands
    known = {
        name
        for command in (commands["evaluate"], commands["bench"].commands["evaluate"])
        for p in command.params
        for name in p.opts
    }
    assert option in known
