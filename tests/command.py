"""The command line inside the test's own process: everything but the start of an interpreter, which costs
seconds."""

import sys

import pytest

from surgicalmamba.cli.main import main


def call(monkeypatch, capsys, *arguments):
    """Run `surgicalmamba ARGUMENTS`; returns the exit code, what was printed, and the complaint in one line
    without its frame."""
    monkeypatch.setattr(sys, "argv", ["surgicalmamba", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    code = ended.value.code or 0
    return code, printed.out, " ".join(printed.err.replace("│", " ").split())
